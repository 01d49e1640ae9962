"""GPT-2's byte-level BPE against a slow reference and the goldens of six tokenizers."""

import hashlib
import json
from itertools import pairwise

import numpy as np
import pytest
from helpers.bpe_files import VOCABULARY, write_bpe_files

from megatron_zero.config.fields import ConfigError
from megatron_zero.data.gpt2_bpe import GPT2BPETokenizer, byte_alphabet, merge_pieces


@pytest.fixture
def tiny(tmp_path):
    return GPT2BPETokenizer(*write_bpe_files(tmp_path))


@pytest.fixture(scope="module")
def gpt2_of():
    """shared folder, special tokens or not -> the real tokenizer, read once."""
    made = {}

    def get(shared_dir, *, special_tokens=True):
        if special_tokens not in made:
            files = shared_dir / "data/gpt2-vocab.json", shared_dir / "data/gpt2-merges.txt"
            made[special_tokens] = GPT2BPETokenizer(*files, special_tokens=special_tokens)
        return made[special_tokens]

    return get


def loop_merge(pieces, ranks):
    """The algorithm as GPT-2 has it: find the lowest-ranked pair, merge all its occurrences, start again."""
    while True:
        pairs = [pair for pair in pairwise(pieces) if pair in ranks]
        if not pairs:
            return pieces
        best = min(pairs, key=ranks.__getitem__)
        merged, i = [], 0
        while i < len(pieces):
            if tuple(pieces[i : i + 2]) == best:
                merged.append(pieces[i] + pieces[i + 1])
                i += 2
            else:
                merged.append(pieces[i])
                i += 1
        pieces = merged


@pytest.mark.parametrize("seed", range(40))
def test_merging_equals_the_plain_loop(seed):
    """Ranks are in no sensible order here, so merges make pairs of lower rank, and occurrences overlap."""
    random = np.random.RandomState(seed)
    pieces = list("abc") + [a + b for a in "abc" for b in "abc"] + ["abab", "aab", "bca"]
    pairs = [(left, right) for left in pieces for right in pieces]
    order = random.permutation(len(pairs))[: random.randint(1, 60)]
    ranks = {pairs[index]: rank for rank, index in enumerate(order)}
    for length in range(12):
        word = [str(letter) for letter in random.choice(list("abc"), size=length)]
        assert merge_pieces(list(word), ranks) == loop_merge(word, ranks)


def test_word_of_200000_characters_ends(tiny):
    ids = tiny.encode("ab" * 100_000)
    assert ids == [VOCABULARY.index("abab")] * 50_000


def test_alphabet_stands_for_every_byte_once():
    assert len(set(byte_alphabet())) == 256
    assert byte_alphabet()[ord("a")] == "a"
    assert byte_alphabet()[ord(" ")] == "\u0120"
    assert byte_alphabet()[ord("\n")] == "\u010a"


def test_merges_apply_in_order_within_words(tiny):
    pieces = [VOCABULARY[token] for token in tiny.encode("the the abc")]
    assert pieces == ["the", "\u0120the", "\u0120", "ab", "c"]


@pytest.mark.parametrize(
    "text", ["", " ", "a\r\n\tb  c", "\0\x0c", "caf\u00e9 \u65e5\u672c \U0001f600", "\u00a0\u2003", "<|endoftext|>"]
)
def test_any_text_comes_back(tiny, text):
    assert tiny.decode(tiny.encode(text)) == text


def test_special_token_is_one_id_or_plain_pieces(tiny, tmp_path):
    plain = GPT2BPETokenizer(*write_bpe_files(tmp_path), special_tokens=False)
    text = "a<|endoftext|><|endoftext|>b"
    assert tiny.encode(text) == [VOCABULARY.index("a"), tiny.eod, tiny.eod, VOCABULARY.index("b")]
    assert tiny.eod not in plain.encode(text)
    assert plain.decode(plain.encode(text)) == tiny.decode(tiny.encode(text)) == text


def test_lone_surrogate_is_an_error(tiny):
    with pytest.raises(UnicodeEncodeError):
        tiny.encode("a\ud83d")


def test_cut_character_decodes_to_a_replacement(tiny):
    assert tiny.decode(tiny.encode("\u00e9")[:1]) == "\ufffd"


@pytest.mark.parametrize(
    "vocabulary,message",
    [
        ("{", "not JSON"),
        ('{"a": 0, "b', "is not JSON: .* .a truncated copy"),
        ("[" * 100_000, "is nested too deeply: .*about a thousand levels"),
        ("", "not JSON"),
        ("\ufeff{}", "begins with a byte order mark"),
        ('{"a": 0, "b": ' + "9" * 5000 + "}", "'b' of its 2 pieces has inf"),
        ('{"a": 0, "b": ' + "9" * 3000 + "}", r"'b' of its 2 pieces has 9+\.\.\.$"),
        ('{"a": 0, "b": NaN}', "'b' of its 2 pieces has nan"),
        ('{"a": 0, "b": null}', "'b' of its 2 pieces has None"),
        ('{"a": 0, "\\ud83d": 1}', r"'\\ud83d' \(id 1\) holds a lone surrogate"),
        ("[]", "must map each piece .* it holds no JSON object"),
        ('{"a": 0, "b": 2}', "must map each piece .* 'b' of its 2 pieces has 2"),
        ('{"a": 0, "b": -1}', "must map each piece .* 'b' of its 2 pieces has -1"),
        ('{"a": 0, "b": true}', "must map each piece .* 'b' of its 2 pieces has True"),
        ('{"a": 0, "b": 1.0}', "must map each piece .* has 1.0"),
        ('{"a": 0, "b": "1"}', "must map each piece .* has '1'"),
        ('{"a": 0, "b": 0}', "must map each piece .* 'a' and 'b' of its 2 pieces have 0"),
        ('{"a": 0}', r"lacks the piece '<\|endoftext\|>'"),
    ],
)
def test_bad_vocabulary_is_named(tmp_path, vocabulary, message):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    vocab_file.write_text(vocabulary)
    with pytest.raises(ConfigError, match=f"--vocab-file .*{message}"):
        GPT2BPETokenizer(vocab_file, merge_file)


@pytest.mark.parametrize("line", ["x y", "single", "a ", " b", "t h e", "tab\tab", "{"])
def test_bad_merge_is_named_with_its_line(tmp_path, line):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    merge_file.write_text(f"#version: 0.2\nt h\n{line}\n")
    with pytest.raises(ConfigError, match=r"--merge-file .*, line 3.* must belong together"):
        GPT2BPETokenizer(vocab_file, merge_file)


@pytest.mark.parametrize("content", ["", "\n", " \r\n\n"])
def test_empty_merges_are_named(tmp_path, content):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    merge_file.write_text(content)
    with pytest.raises(ConfigError, match=r"--merge-file .* is empty: .* has the line '#version: 0\.2' alone"):
        GPT2BPETokenizer(vocab_file, merge_file)
    merge_file.write_text("#version: 0.2\n")
    assert GPT2BPETokenizer(vocab_file, merge_file).encode("th") == [VOCABULARY.index("t"), VOCABULARY.index("h")]


def test_merges_with_a_byte_order_mark_are_named(tmp_path):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    merge_file.write_bytes(b"\xef\xbb\xbf" + merge_file.read_bytes())
    with pytest.raises(ConfigError, match=r"--merge-file .* begins with a byte order mark \(bytes 0 to 2\)"):
        GPT2BPETokenizer(vocab_file, merge_file)


def test_merge_of_pieces_outside_the_alphabet_never_happens(tmp_path):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    pieces = [*VOCABULARY, "\u65e5", "\u672c", "\u65e5\u672c", "a\u65e5"]
    vocab_file.write_text(json.dumps({piece: token for token, piece in enumerate(pieces)}))
    merge_file.write_text(merge_file.read_text(encoding="utf-8") + "\u65e5 \u672c\na \u65e5\n", encoding="utf-8")
    for fast in (True, False):
        tokenizer = GPT2BPETokenizer(vocab_file, merge_file, fast=fast)
        ids = tokenizer.encode("a\u65e5\u672c the")
        assert max(ids) < len(VOCABULARY)
        assert tokenizer.decode(ids) == "a\u65e5\u672c the"
        assert tokenizer.decode([len(pieces) - 1, len(pieces) - 2]) == "a\u65e5\u65e5\u672c"


def test_key_that_comes_twice_counts_as_in_json(tmp_path):
    """The last one, as json.load gives it to GPT-2's own code."""
    vocab_file, merge_file = write_bpe_files(tmp_path)
    text = vocab_file.read_text(encoding="utf-8")
    vocab_file.write_text('{"a": 5, ' + text[1:], encoding="utf-8")
    assert GPT2BPETokenizer(vocab_file, merge_file).encode("a") == [VOCABULARY.index("a")]


def test_files_that_are_not_text_are_named(tmp_path):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    binary, absent = tmp_path / "binary", tmp_path / "absent"
    binary.write_bytes(b"\xff\xfe")
    for flag, bad, message in (("--vocab-file", binary, "not UTF-8"), ("--merge-file", binary, "not UTF-8")):
        files = (bad, merge_file) if flag == "--vocab-file" else (vocab_file, bad)
        with pytest.raises(ConfigError, match=f"{flag} .*binary is {message}"):
            GPT2BPETokenizer(*files)
    with pytest.raises(ConfigError, match=r"--merge-file .*absent cannot be read: .*No such file"):
        GPT2BPETokenizer(vocab_file, absent)
    with pytest.raises(ConfigError, match=r"--vocab-file .* cannot be read: .*Is a directory"):
        GPT2BPETokenizer(tmp_path, merge_file)


def test_line_ends_of_another_system_change_nothing(tmp_path, tiny):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    merge_file.write_bytes(merge_file.read_bytes().replace(b"\n", b"\r\n") + b"\r\n")
    assert GPT2BPETokenizer(vocab_file, merge_file).encode("the the abc") == tiny.encode("the the abc")


@pytest.mark.parametrize("token", [-1, len(VOCABULARY)])
def test_number_that_is_no_id_is_named(tiny, token):
    with pytest.raises(IndexError, match=f"token id {token} is not 0 to {len(VOCABULARY) - 1}"):
        tiny.decode([0, token])


def test_piece_outside_the_alphabet_decodes_to_itself(tmp_path):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    pieces = [*VOCABULARY, "<a b>", "\u65e5"]
    vocab_file.write_text(json.dumps({piece: token for token, piece in enumerate(pieces)}))
    tokenizer = GPT2BPETokenizer(vocab_file, merge_file)
    assert tokenizer.decode([len(pieces) - 2, len(pieces) - 1]) == "<a b>\u65e5"


def test_tricky_strings_equal_the_goldens(shared_dir, gpt2_of):
    for case in json.loads((shared_dir / "data/goldens/tokenizer/gpt2_tricky.json").read_text()):
        assert gpt2_of(shared_dir).encode(case["text"]) == case["ids_special"]
        assert gpt2_of(shared_dir, special_tokens=False).encode(case["text"]) == case["ids"]
        assert gpt2_of(shared_dir).decode(case["ids"]) == case["text"]
        assert gpt2_of(shared_dir).decode(case["ids_special"]) == case["text"]


def test_documents_equal_the_goldens(shared_dir, gpt2_of):
    goldens = np.load(shared_dir / "data/goldens/tokenizer/gpt2_documents.npz")
    ids, offsets = goldens["ids"], goldens["offsets"]
    lines = (shared_dir / "data/text/corpus_small.jsonl").read_text(encoding="utf-8").split("\n")
    for document in range(len(offsets) - 1):
        expected = ids[offsets[document] : offsets[document + 1]].tolist()
        assert gpt2_of(shared_dir).encode(json.loads(lines[document])["text"]) == expected


def test_edge_cases_equal_the_goldens(shared_dir, gpt2_of):
    lines = (shared_dir / "data/text/edge_cases.jsonl").read_text(encoding="utf-8").split("\n")
    for case in json.loads((shared_dir / "data/goldens/tokenizer/gpt2_edge_cases.json").read_text()):
        text = next(json.loads(line) for line in lines if json.loads(line)["case"] == case["case"])["text"]
        ids = gpt2_of(shared_dir).encode(text)
        if "ids_special" in case:
            assert ids == case["ids_special"]
            assert gpt2_of(shared_dir, special_tokens=False).encode(text) == case["ids"]
        else:
            assert len(ids) == case["n_ids"]
            assert hashlib.sha256(np.array(ids, "<i4").tobytes()).hexdigest() == case["sha256_int32le"]
        assert gpt2_of(shared_dir).decode(ids) == text


@pytest.mark.parametrize("kept", [1, 20_000])
def test_truncated_merges_are_named(shared_dir, tmp_path, kept):
    lines = (shared_dir / "data/gpt2-merges.txt").read_text(encoding="utf-8").split("\n")
    (tmp_path / "merges.txt").write_text("\n".join(lines[: kept + 1]), encoding="utf-8")
    with pytest.raises(ConfigError, match=rf"--merge-file .* makes {257 + kept} of the 50257 pieces"):
        GPT2BPETokenizer(shared_dir / "data/gpt2-vocab.json", tmp_path / "merges.txt")
