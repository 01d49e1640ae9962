"""tiktoken behind GPT2BPETokenizer gives the ids of merging pair by pair, or is not used and says why."""

import json
import unicodedata

import numpy as np
import pytest
import regex
from helpers.bpe_files import write_bpe_files

from megatron_zero.data import gpt2_fast
from megatron_zero.data.gpt2_bpe import END_OF_TEXT, GPT2BPETokenizer, byte_alphabet

tiktoken = pytest.importorskip("tiktoken", reason="tiktoken is not installed: GPT2BPETokenizer encodes in Python")

SPACES = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2009\u2028\u2029\u202f\u205f\u3000"
ODD = ["'s", "'S", "'ll", "'re", "' s", "''", "<|endoftext|>", "<|endoftext|", "\x00", "\x1c", "\x1f", "\u200b", "\ufeff"]


def single_characters(pattern):
    """All characters that tiktoken's engine, and regex's, match with the pattern."""
    characters = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    encoding = tiktoken.Encoding(
        "bytes", pat_str=pattern, mergeable_ranks={bytes([byte]): byte for byte in range(256)}, special_tokens={}
    )
    engine = set(bytes(encoding.encode_ordinary(characters)).decode())
    return engine, set(regex.findall(pattern, characters))


@pytest.fixture(scope="module")
def disputed():
    """Characters that a newer Unicode made letters or digits in one of the two engines only."""
    found = set()
    for pattern in (r"\p{L}", r"\p{N}", r"\s"):
        engine, reference = single_characters(pattern)
        found |= engine ^ reference
    return found


def test_engines_differ_in_newly_assigned_characters_only(disputed):
    assert {unicodedata.category(character) for character in disputed} <= {"Cn"}


def random_text(random, disputed, length):
    """Letters, digits, signs and spaces of every plane, in runs, with contractions and special tokens."""
    pieces = []
    while len(pieces) < length:
        kind = random.randint(8)
        run = random.randint(1, 6)
        if kind == 0:
            pieces.append(random.choice(ODD))
        elif kind == 1:
            pieces += list(random.choice(list(SPACES), size=run))
        elif kind <= 4:
            pieces += [chr(code) for code in random.randint(32, 127, size=run)]
        elif kind == 5:
            pieces += [chr(code) for code in random.randint(0x80, 0x3000, size=run)]
        else:
            codes = random.randint(0, 0x110000, size=run)
            pieces += [chr(code) for code in codes if not 0xD800 <= code < 0xE000]
    return "".join(str(piece) for piece in pieces if piece not in disputed)


@pytest.fixture(scope="module")
def gpt2(shared_dir):
    files = shared_dir / "data/gpt2-vocab.json", shared_dir / "data/gpt2-merges.txt"
    return {special: GPT2BPETokenizer(*files, special_tokens=special) for special in (True, False)}


def check(tokenizer, text):
    wanted = tokenizer.encode_reference(text)
    assert tokenizer.encode(text) == wanted
    array = tokenizer.encode_array(text)
    assert array.dtype == np.uint32
    assert array.tolist() == wanted


def test_gpt2s_own_files_are_fast(gpt2):
    assert [tokenizer.implementation for tokenizer in gpt2.values()] == ["tiktoken", "tiktoken"]


@pytest.mark.parametrize("seed", range(20))
def test_random_text_has_the_ids_of_the_reference(gpt2, disputed, seed):
    random = np.random.RandomState(seed)
    for length in (0, 1, 2, 3, 10, 100, 1000):
        text = random_text(random, disputed, length)
        for tokenizer in gpt2.values():
            check(tokenizer, text)
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_hugging_face_gives_the_same_ids(gpt2, shared_dir, disputed):
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers, a peer, is not installed")
    theirs = tokenizers.Tokenizer(
        tokenizers.models.BPE.from_file(str(shared_dir / "data/gpt2-vocab.json"), str(shared_dir / "data/gpt2-merges.txt"))
    )
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.add_special_tokens([END_OF_TEXT])
    random = np.random.RandomState(99)
    for _ in range(300):
        text = random_text(random, set(), 60)  # with newly assigned characters: the two engines agree on them
        assert gpt2[True].encode(text) == theirs.encode(text).ids


def test_documents_have_the_ids_of_the_reference(gpt2, shared_dir):
    for name in ("corpus_small.jsonl", "edge_cases.jsonl"):
        for line in (shared_dir / "data/text" / name).read_text(encoding="utf-8").rstrip("\n").split("\n"):
            for tokenizer in gpt2.values():
                check(tokenizer, json.loads(line)["text"])


@pytest.mark.parametrize("unit", ["a", "!", "ab ", "'s"])
def test_million_characters_in_a_row(gpt2, unit):
    check(gpt2[True], unit * (1_000_000 // len(unit)))


@pytest.mark.parametrize("unit,length", [(" ", 499_999), (" \n", 500_000), (" ", 1_200_000), ("\u3000", 500_000)])
def test_white_space_in_a_row_never_overflows_the_engine(gpt2, unit, length):
    check(gpt2[True], "a" + (unit * length)[:length] + "b")


def test_lone_surrogate_is_an_error_in_every_form(gpt2):
    for encode in (gpt2[True].encode, gpt2[True].encode_array, gpt2[True].encode_reference):
        with pytest.raises(UnicodeEncodeError):
            encode("a\ud83d")


# ---- other vocabularies


def write(folder, merges, *, extra=(), order=None):
    """vocab.json with the bytes, the results of merges (or `order`), extra pieces; and merges.txt."""
    results = list(dict.fromkeys(left + right for left, right in merges)) if order is None else order
    pieces = list(dict.fromkeys([*byte_alphabet(), *results, *extra, END_OF_TEXT]))
    (folder / "vocab.json").write_text(json.dumps({piece: token for token, piece in enumerate(pieces)}))
    (folder / "merges.txt").write_text("".join(f"{left} {right}\n" for left, right in merges))
    return folder / "vocab.json", folder / "merges.txt"


def test_tiny_vocabulary_is_fast(tmp_path):
    tokenizer = GPT2BPETokenizer(*write_bpe_files(tmp_path))
    assert tokenizer.implementation == "tiktoken"
    check(tokenizer, "the the abab abc\n  bc <|endoftext|> ab")


@pytest.mark.parametrize(
    "merges,extra,order,reason",
    [
        ([("a", "b"), ("b", "c"), ("a", "bc"), ("ab", "c")], (), None, "two merges give the token 'abc'"),
        ([("a", "b"), ("b", "c"), ("a", "bc")], (), None, "the token 'abc' is not what its bytes merge to"),
        ([("a", "b"), ("c", "d")], (), ["cd", "ab"], "do not rise"),
        ([("ab", "c")], ("ab",), None, "the token 'abc' is not what its bytes merge to"),
    ],
)
def test_vocabulary_that_tiktoken_would_read_otherwise_is_encoded_in_python(tmp_path, merges, extra, order, reason):
    tokenizer = GPT2BPETokenizer(*write(tmp_path, merges, extra=extra, order=order))
    assert tokenizer.implementation.startswith("Python")
    assert reason in tokenizer.implementation
    check(tokenizer, "abc abcd bc cd ab")


def test_token_that_no_merge_makes_is_never_given(tmp_path):
    """tiktoken takes a whole word that is a token; merging pair by pair cannot reach it."""
    tokenizer = GPT2BPETokenizer(*write(tmp_path, [("a", "b")], extra=("xyz",)))
    assert tokenizer.implementation == "tiktoken"
    check(tokenizer, "xyz ab xyzab")


@pytest.mark.parametrize("seed", range(60))
def test_random_merges_have_the_ids_of_the_reference(tmp_path, seed):
    """Pieces grow from pieces, as in training; some files are fast, some are not, all are right."""
    random = np.random.RandomState(seed)
    pieces, merges = list("abc"), []
    for _ in range(random.randint(1, 12)):
        left, right = (str(piece) for piece in random.choice(pieces, size=2))
        if (left, right) not in merges and left + right not in pieces:
            merges.append((left, right))
            pieces.append(left + right)
    tokenizer = GPT2BPETokenizer(*write(tmp_path, merges))
    for length in (1, 2, 3, 5, 8, 13, 40):
        for _ in range(10):
            check(tokenizer, "".join(random.choice(list("abc "), size=length)))


def test_some_random_merges_are_fast_and_some_are_not(tmp_path):
    """So that the test above tests both."""
    kinds = set()
    for seed in range(60):
        random = np.random.RandomState(seed)
        pieces, merges = list("abc"), []
        for _ in range(random.randint(1, 12)):
            left, right = (str(piece) for piece in random.choice(pieces, size=2))
            if (left, right) not in merges and left + right not in pieces:
                merges.append((left, right))
                pieces.append(left + right)
        kinds.add(GPT2BPETokenizer(*write(tmp_path, merges)).implementation == "tiktoken")
    assert kinds == {True, False}


def test_slow_form_can_be_asked_for(tmp_path):
    tokenizer = GPT2BPETokenizer(*write_bpe_files(tmp_path), fast=False)
    assert tokenizer.implementation == "Python, as asked for"
    check(tokenizer, "the abab")


def test_missing_package_is_told_and_python_used(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tiktoken", None)
    tokenizer = GPT2BPETokenizer(*write_bpe_files(tmp_path))
    assert "because the package tiktoken cannot be imported" in tokenizer.implementation
    check(tokenizer, "the abab")


class PanicException(BaseException):
    pass


def test_failure_inside_the_engine_falls_back(tmp_path, monkeypatch):
    def panic(*args, **kwargs):
        raise PanicException("called `Result::unwrap()` on an `Err` value")

    tokenizer = GPT2BPETokenizer(*write_bpe_files(tmp_path))
    assert tokenizer.implementation == "tiktoken"
    monkeypatch.setattr(tiktoken.Encoding, "encode", panic)
    monkeypatch.setattr(tiktoken.Encoding, "encode_to_numpy", panic)
    assert tokenizer.encode("the") == tokenizer.encode_array("the").tolist() == tokenizer.encode_reference("the")
    assert PanicException.__name__ == gpt2_fast.PANIC


def test_interrupt_is_no_failure_of_the_engine(tmp_path, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    tokenizer = GPT2BPETokenizer(*write_bpe_files(tmp_path))
    assert tokenizer.implementation == "tiktoken"
    monkeypatch.setattr(tiktoken.Encoding, "encode", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tokenizer.encode("the")
