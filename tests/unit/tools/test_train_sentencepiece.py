"""tools/train_sentencepiece.py: a model from which every text comes back exactly, and the whole way to .bin/.idx."""

import json
import sysconfig
from pathlib import Path

import pytest
from helpers.tools import load_tool

from megatron_zero.data.indexed_dataset import IndexedDataset
from megatron_zero.data.sentencepiece_tokenizers import GPTSentencePieceTokenizer
from megatron_zero.data.text_input import find_sources

collect = load_tool("collect_python_sources")
preprocess_data = load_tool("preprocess_data")
train = load_tool("train_sentencepiece")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folder with sources.jsonl (some of the standard library) and tokenizer.model, 1000 pieces."""
    folder = tmp_path_factory.mktemp("made")
    collect.collect(Path(sysconfig.get_path("stdlib")), folder / "sources.jsonl", max_bytes=1_500_000)
    arguments = ["--input", str(folder / "sources.jsonl"), "--output", str(folder / "tokenizer.model")]
    assert train.main([*arguments, "--vocab-size", "1000"]) == 0
    return folder


@pytest.fixture(scope="module")
def tokenizer(made):
    return GPTSentencePieceTokenizer(made / "tokenizer.model")


@pytest.fixture(scope="module")
def texts(made):
    return [json.loads(line)["text"] for line in (made / "sources.jsonl").read_bytes().decode().split("\n")[:-1]]


def test_source_files_come_back_exactly(tokenizer, texts):
    assert len(texts) > 20
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "   leading and trailing   ",
        "\n\n\n",
        " \n \n",
        "crlf\r\nlone cr\rend",
        "\ttab\x0bvertical\x0cform feed",
        "nul \0 and bell \a and escape \x1b[0m",
        "caf\u00e9 \u65e5\u672c\u8a9e \U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7",
        "e\u0301 is not \u00e9, \ufb01 is not fi, \uff21 is not A",
        "\ufeffbyte order mark, \u2028 line separator, \u00a0 no-break, \u3000 wide",
        "<s> </s> <unk> <0x41> <0x0A> \u2047 \u2585",
    ],
)
def test_difficult_text_comes_back_exactly(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_character_but_one_comes_back(tokenizer):
    """U+2581 is how SentencePiece writes a space: it is the one character that comes back as another."""
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000 and code != 0x2581]
    for start in range(0, len(characters), 8192):
        text = "".join(characters[start : start + 8192])
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode("a\u2581b")) == "a b"


def test_end_of_document_newline_and_indentation_have_pieces(tokenizer):
    assert 0 <= tokenizer.eod < tokenizer.vocab_size == 1000
    assert tokenizer.encode("</s>") != [tokenizer.eod]  # text cannot end a document
    assert len(tokenizer.encode("\n")) == 1
    assert len(tokenizer.encode("        ")) == 1


def test_whole_way_from_files_to_tokens_loses_nothing(made, tokenizer, texts):
    arguments = [
        *("--input", str(made / "sources.jsonl"), "--output-prefix", str(made / "out"), "--workers", "2"),
        *("--tokenizer-type", "GPTSentencePieceTokenizer", "--tokenizer-model", str(made / "tokenizer.model")),
    ]
    assert preprocess_data.main([*arguments, "--append-eod"]) == 0
    dataset = IndexedDataset(made / "out_text_document")
    assert len(dataset) == len(texts)
    for sequence, text in enumerate(texts):
        *ids, last = dataset.get(sequence).tolist()
        assert last == tokenizer.eod
        assert tokenizer.decode(ids) == text


def test_two_trainings_give_one_model(made, tmp_path):
    arguments = ["--input", str(made / "sources.jsonl"), "--vocab-size", "500", "--max-characters", "100000"]
    for name in "ab":
        assert train.main([*arguments, "--output", str(tmp_path / name)]) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_text_is_capped_and_documents_with_the_space_mark_left_out(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("ab\ncd", "a\u2581", "\nxyz", "beyond")))
    corpus = train.Corpus(find_sources([str(path)]), "text", max_characters=9)
    assert [line for line in corpus.lines() if line] == ["ab", "cd", "xyz"]
    assert (corpus.documents, corpus.characters, corpus.left_out) == (2, 9, 1)


def test_long_lines_are_cut_and_not_dropped(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps({"text": "x" * 600_000}))
    lines = list(train.Corpus(find_sources([str(path)]), "text", max_characters=10**9).lines())
    assert "".join(lines) == "x" * 600_000
    assert max(map(len, lines)) * 4 <= train.MAX_LINE_BYTES


@pytest.mark.parametrize(
    "content,more,message",
    [
        ('{"text": "a"}', ["--vocab-size", "4096"], "SentencePiece cannot make 4096 pieces of 1 documents"),
        ("bad", [], "in.jsonl, line 1: not JSON: Expecting value at column 1\n"),
        ('{"text": "a"}\n{"text": 5}', [], "in.jsonl, line 2: key 'text' holds a number, not a text\n"),
        ("", [], "cannot make 4096 pieces of 0 documents"),
    ],
)
def test_training_that_cannot_work_is_explained_and_writes_nothing(tmp_path, capsys, content, more, message):
    path = tmp_path / "in.jsonl"
    path.write_text(content)
    assert train.main(["--input", str(path), "--output", str(tmp_path / "out.model"), *more]) == 1
    assert message in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["in.jsonl"]


def test_signal_while_the_library_reads_ends_with_its_own_status(tmp_path, monkeypatch):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a"}\n')

    def stop(line, keys):
        raise SystemExit(143)

    monkeypatch.setattr(train, "texts_of_line", stop)
    with pytest.raises(SystemExit) as ended:
        train.main(["--input", str(path), "--output", str(tmp_path / "out.model")])
    assert ended.value.code == 143
    assert [entry.name for entry in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    "flag,value,rule",
    [
        ("--vocab-size", "100", "from 260 to 2147483647"),
        ("--vocab-size", "99999999999", "from 260 to 2147483647"),
        ("--vocab-size", "9" * 5000, "from 260 to 2147483647"),
        ("--threads", "0", "from 1 to 1024"),
        ("--threads", "2.5", "from 1 to 1024"),
        ("--max-characters", "-1", "of at least 1"),
    ],
)
def test_number_beyond_its_limits_is_refused_with_its_flag(tmp_path, capsys, flag, value, rule):
    with pytest.raises(SystemExit):
        train.main(["--input", "in", "--output", str(tmp_path / "out"), flag, value])
    shown = value if len(value) < 40 else "9" * 37 + "..."
    assert f"error: {flag}: '{shown}' is not a whole number {rule}\n" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", ".", "folder", "folder/"])
def test_folder_as_the_output_is_named(tmp_path, capsys, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    assert train.main(["--input", "in.jsonl", "--output", name]) == 1
    assert "a folder of that name is in the way" in capsys.readouterr().err


def test_model_never_replaces_its_own_text(tmp_path, capsys):
    path = tmp_path / "in.jsonl"
    path.write_text('{"text": "a b"}\n')
    assert train.main(["--input", str(path), "--output", str(path), "--vocab-size", "300"]) == 1
    assert "would replace" in capsys.readouterr().err
    assert path.read_text() == '{"text": "a b"}\n'
