"""A Hugging Face folder, against GPT2BPETokenizer on the same vocabulary. No connection is ever tried."""

import json
import shutil
import socket
import sys

import pytest
from helpers.bpe_files import VOCABULARY, write_bpe_files
from helpers.tools import load_tool

from megatron_zero.config.data import TokenizerConfig
from megatron_zero.config.fields import ConfigError
from megatron_zero.data.gpt2_bpe import END_OF_TEXT, GPT2BPETokenizer
from megatron_zero.data.hf_tokenizer import HFTokenizer
from megatron_zero.data.indexed_dataset import IndexedDataset
from megatron_zero.data.tokenizer import build_tokenizer

preprocess_data = load_tool("preprocess_data")

REMOTE_CODE = "from transformers import GPT2Tokenizer\n\n\nclass OwnTokenizer(GPT2Tokenizer):\n    pass\n"


@pytest.fixture(autouse=True)
def tried(monkeypatch, tmp_path):
    """The connections that were tried, which fail; caches go to the test's folder."""
    pytest.importorskip("transformers", reason="HFTokenizer is an optional part")
    found = []

    def refuse(*args, **kwargs):
        found.append(args)
        raise OSError("this test has no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield found
    assert found == []


@pytest.fixture
def tiny(tmp_path):
    """A folder in the old layout: vocab.json, merges.txt and the settings."""
    write_bpe_files(tmp_path)
    write_settings(tmp_path)
    return tmp_path


def write_settings(folder, **settings):
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer", **settings}))


def test_ids_equal_those_of_our_own(tiny):
    ours, theirs = GPT2BPETokenizer(tiny / "vocab.json", tiny / "merges.txt"), HFTokenizer(tiny)
    assert (theirs.vocab_size, theirs.eod) == (ours.vocab_size, ours.eod)
    for text in ("", "the the abc", " caf\u00e9 \n", f"a{END_OF_TEXT}b", "a , b 's"):
        ids = ours.encode(text)
        assert theirs.encode(text) == theirs.encode_array(text).tolist() == ids
        assert theirs.decode(ids) == text


def test_goldens_are_exact(shared_dir, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((shared_dir / f"data/gpt2-{name}").read_bytes())
    write_settings(tmp_path)
    special, plain = HFTokenizer(tmp_path), HFTokenizer(tmp_path, special_tokens=False)
    assert (special.vocab_size, special.eod) == (50257, 50256)
    for case in json.loads((shared_dir / "data/goldens/tokenizer/gpt2_tricky.json").read_text()):
        assert special.encode(case["text"]) == case["ids_special"]
        assert plain.encode(case["text"]) == case["ids"]
        assert special.decode(case["ids_special"]) == case["text"]


def test_special_tokens_may_be_plain_text(tiny):
    text = f"a{END_OF_TEXT}b"
    ours = GPT2BPETokenizer(tiny / "vocab.json", tiny / "merges.txt", special_tokens=False)
    assert HFTokenizer(tiny, special_tokens=False).encode(text) == ours.encode(text)
    assert HFTokenizer(tiny).encode(text)[1] == HFTokenizer(tiny).eod


def test_added_tokens_are_counted(tiny):
    write_settings(
        tiny,
        added_tokens_decoder={
            str(len(VOCABULARY) + place): {"content": content, "special": True, "normalized": False, "lstrip": False}
            | {"rstrip": False, "single_word": False}
            for place, content in enumerate(["<one>", "<two>"])
        },
    )
    tokenizer = HFTokenizer(tiny)
    assert tokenizer.vocab_size == len(VOCABULARY) + 2
    assert tokenizer.encode("<two>") == [len(VOCABULARY) + 1]


def test_no_token_is_put_around_a_text(tiny):
    """A bos that the tokenizer would add is left out, as in Megatron-core; a saved maximum cuts nothing."""
    from tokenizers import Tokenizer, processors

    whole = Tokenizer.from_str(HFTokenizer(tiny)._tokenizer.backend_tokenizer.to_str())
    whole.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, len(VOCABULARY) - 1)]
    )
    whole.enable_truncation(3)
    whole.save(str(tiny / "tokenizer.json"))
    write_settings(tiny, tokenizer_class="PreTrainedTokenizerFast", eos_token=END_OF_TEXT, model_max_length=3)
    tokenizer = HFTokenizer(tiny)
    assert tokenizer._tokenizer("a").input_ids[0] == tokenizer.eod
    assert tokenizer.encode("the abc the") == GPT2BPETokenizer(tiny / "vocab.json", tiny / "merges.txt").encode(
        "the abc the"
    )


def test_tokenizer_without_an_end_is_refused(tiny):
    HFTokenizer(tiny)._tokenizer.backend_tokenizer.save(str(tiny / "tokenizer.json"))
    write_settings(tiny, tokenizer_class="PreTrainedTokenizerFast")
    with pytest.raises(ConfigError, match=r"--tokenizer-model .* has no eos_token, .* tokenizer_config\.json"):
        HFTokenizer(tiny)


def test_lone_surrogate_is_an_error(tiny):
    with pytest.raises(UnicodeEncodeError):
        HFTokenizer(tiny).encode("a\ud83d")


@pytest.mark.parametrize(
    "files,message",
    [
        (
            {},
            r"it holds no vocabulary, none of tokenizer\.json .*; save the tokenizer there again, with its save_pretrained",
        ),
        ({"tokenizer.json": "{"}, r"its tokenizer\.json is not JSON: .*; save the tokenizer there again"),
        ({"tokenizer.json": "[" * 100_000}, r"its tokenizer\.json is nested too deeply"),
        (
            {"tokenizer.json": "{}"},
            "transformers cannot load it; save the tokenizer there again.*The words of tr",
        ),
        ({"tokenizer_config.json": "[]"}, r"its tokenizer_config\.json holds no JSON object; save"),
        ({"tokenizer_config.json": "5"}, r"its tokenizer_config\.json holds no JSON object"),
        ({"tokenizer_config.json": b"\xff"}, r"its tokenizer_config\.json is not UTF-8"),
        ({"config.json": "[]"}, r"its config\.json holds no JSON object"),
        ({"tokenizer.json": '{"model": {}}'}, "transformers cannot load it"),
        (
            {"tokenizer_config.json": '{"tokenizer_class": "GPT2Tokenizer"}'},
            "(transformers finds no|it holds no) vocabulary",
        ),
    ],
)
@pytest.mark.parametrize("trust_remote_code", [False, True])
def test_folder_without_a_tokenizer_is_named(tmp_path, files, message, trust_remote_code):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=f"--tokenizer-model {tmp_path}: {message}"):
        HFTokenizer(tmp_path, trust_remote_code=trust_remote_code)


def test_folder_of_sentencepiece_models_gets_the_rule_and_the_way_out_before_the_library_s_words(tmp_path, shared_dir):
    for name in ("b.model", "a.model"):
        shutil.copy(shared_dir / "data/sentencepiece/bpe_2k_bytefallback.model", tmp_path / name)
    with pytest.raises(ConfigError) as found:
        HFTokenizer(tmp_path)
    ours, _, theirs = str(found.value).partition(". The words of transformers: ")
    assert ours == (
        f"--tokenizer-model {tmp_path}: transformers cannot load it; HFTokenizer reads what save_pretrained writes, and "
        f"this folder holds SentencePiece models: name the file, --tokenizer-model {tmp_path}/a.model, "
        "with --tokenizer-type GPTSentencePieceTokenizer, SentencePieceTokenizer or Llama2Tokenizer"
    )
    assert theirs


@pytest.fixture
def without_unknown(tmp_path):
    """A folder whose tokenizer refuses every word but "a" and "b", with a bare Exception."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<end>": 2}, unk_token="<none>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    write_settings(tmp_path, tokenizer_class="PreTrainedTokenizerFast", eos_token="<end>")
    return tmp_path


def test_text_that_the_library_refuses_is_a_value_error_with_its_words(without_unknown):
    tokenizer = HFTokenizer(without_unknown)
    assert tokenizer.encode("a b") == [0, 1]
    message = (
        "the Hugging Face tokenizer failed on a text of 3 characters that begins with 'a c': Exception: WordLevel error"
    )
    with pytest.raises(ValueError, match=message):
        tokenizer.encode("a c")


@pytest.mark.parametrize("raised,seen", [(TypeError, ValueError), (MemoryError, MemoryError), (SystemExit, SystemExit)])
def test_what_is_no_fault_of_the_text_is_not_caught(without_unknown, monkeypatch, raised, seen):
    tokenizer = HFTokenizer(without_unknown)

    def fail(*args, **kwargs):
        raise raised("words")

    monkeypatch.setattr(tokenizer._tokenizer, "encode", fail)
    with pytest.raises(seen):
        tokenizer.encode("a")


@pytest.mark.parametrize("workers", [1, 2])
def test_refused_text_is_a_bad_line(without_unknown, capsys, workers):
    path = without_unknown / "in.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("a", "c", "b a", "d")))
    argv = [
        *("--input", str(path), "--output-prefix", str(without_unknown / "out"), "--workers", str(workers)),
        *("--tokenizer-type", "HFTokenizer", "--tokenizer-model", str(without_unknown)),
    ]
    assert preprocess_data.main(argv) == 1
    error = capsys.readouterr().err
    for line in (2, 4):
        assert f"{path}, line {line}: the Hugging Face tokenizer failed on a text of 1 characters" in error
    assert "2 lines are no documents (in all)" in error
    assert preprocess_data.main([*argv, "--on-error", "skip"]) == 0
    assert "2 bad lines skipped" in capsys.readouterr().out
    dataset = IndexedDataset(without_unknown / "out_text_document")
    assert [dataset.get(sequence).tolist() for sequence in range(len(dataset))] == [[0], [1, 0]]


def test_end_of_sentence_beyond_the_ids_is_refused(tiny, monkeypatch):
    loaded = type(HFTokenizer(tiny)._tokenizer)  # GPT2TokenizerFast before transformers 5
    monkeypatch.setattr(loaded, "eos_token_id", 10**6, raising=False)
    with pytest.raises(ConfigError, match=r"its eos_token has the id 1000000, and ids are 0 to"):
        HFTokenizer(tiny)


def test_code_in_the_folder_runs_only_when_trusted(tiny, monkeypatch):
    (tiny / "own.py").write_text(REMOTE_CODE)
    write_settings(tiny, tokenizer_class="OwnTokenizer", auto_map={"AutoTokenizer": ["own.OwnTokenizer", None]})
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tiny / "cache"))
    monkeypatch.setattr("sys.path", list(sys.path))
    with pytest.raises(ConfigError, match="--trust-remote-code lets it run; read that code first"):
        HFTokenizer(tiny)
    config = TokenizerConfig("HFTokenizer", tokenizer_model=str(tiny), trust_remote_code=True)
    assert build_tokenizer(config).encode("the") == [VOCABULARY.index("the")]


@pytest.mark.parametrize("trust_remote_code", [False, True])
def test_code_of_another_repository_is_not_fetched(tiny, trust_remote_code):
    auto_map = {"AutoTokenizer": ["somebody/something--own.OwnTokenizer", None]}
    write_settings(tiny, tokenizer_class="OwnTokenizer", auto_map=auto_map)
    message = "names code of the repository somebody/something" if trust_remote_code else "cannot load it"
    with pytest.raises(ConfigError, match=f"--tokenizer-model .*{message}"):
        HFTokenizer(tiny, trust_remote_code=trust_remote_code)


def test_core_s_name_builds_the_same(tiny):
    config = TokenizerConfig("HuggingFaceTokenizer", tokenizer_model=str(tiny))
    tokenizer = build_tokenizer(config, special_tokens=False)
    assert isinstance(tokenizer, HFTokenizer)
    assert tokenizer.encode(END_OF_TEXT) != [tokenizer.eod]


def test_missing_package_is_named_with_the_way_out(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=r"needs the package transformers, .* pip install transformers, or use GPT2BPE"):
        HFTokenizer(tiny)
