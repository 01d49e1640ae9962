"""tiktoken behind GPT2BPETokenizer: equal ids on everything, and the Python implementation where that is not certain."""

import json
import sys
from itertools import pairwise
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.bpe_files import write_bpe_files
from helpers.hugging_face import classed_otherwise
from helpers.random_text import random_text

from megatron_zero.data import gpt2_fast
from megatron_zero.data.gpt2_bpe import END_OF_TEXT, GPT2BPETokenizer, byte_alphabet
from megatron_zero.data.gpt2_fast import live_merges

tiktoken = pytest.importorskip("tiktoken", reason="without it only the Python implementation is there")

ALPHABET = byte_alphabet()
HOSTILE = {
    "a pair twice, the last counts": [("a", "b"), ("b", "c"), ("a", "b")],
    "one piece by two merges": [("a", "b"), ("b", "c"), ("ab", "c"), ("a", "bc")],
    "a part that comes later": [("ab", "c"), ("a", "b")],
    "a part that never comes": [("a", "b"), ("x", "yz")],
    "a piece that other merges prevent": [("a", "b"), ("b", "c"), ("a", "bc")],
    "a piece that its own pair prevents": [("a", "a"), ("a", "aa")],
    "a piece that a deeper merge prevents": [("b", "c"), ("a", "b"), ("c", "d"), ("ab", "cd")],
}
LONG = {
    "one letter": "a" * 1_000_000,
    "spaces": " " * 1_000_000,
    "spaces before a letter": " " * 1_000_000 + "x",
    "tabs and newlines before a letter": "\t\n" * 500_000 + "x",
    "many runs of spaces": (" " * 70_000 + "x") * 15,
    "digits": "7" * 1_000_000,
    "emoji": "\U0001f600" * 250_000,
    "newlines": "\n" * 1_000_000,
    "letters of two planes": "a\U00010400" * 200_000,
    "signs": "?!" * 500_000,
}
FINE = {
    "no merges": [],
    "runs of one letter": [("a", "a"), ("aa", "a"), ("aa", "aa"), ("aaaa", "aaaa"), ("b", "aa")],
    "a word by its own merge": [("a", "b"), ("c", "d"), ("ab", "cd"), ("\u0120", "abcd")],
}


def write_files(folder, merges, *, more=(), order=None):
    """Files with these merges; `more` pieces that no merge makes; ids permuted by `order`, a Random."""
    whole = [left + right for left, right in merges] + [piece for pair in merges for piece in pair]
    pieces = list(dict.fromkeys([*ALPHABET, *whole, *more, END_OF_TEXT]))
    if order is not None:
        order.shuffle(pieces)
    (folder / "vocab.json").write_text(json.dumps({piece: token for token, piece in enumerate(pieces)}))
    lines = ["#version: 0.2", *(f"{a} {b}" for a, b in merges)]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    return folder / "vocab.json", folder / "merges.txt"


def loop_pieces(word, merges, happened=None):
    """The merges as GPT-2 has them: all occurrences of the earliest pair, again and again; a repeated pair counts last.
    Appends them to `happened`."""
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    pieces = list(word)
    while present := [pair for pair in pairwise(pieces) if pair in ranks]:
        best, merged = min(present, key=ranks.__getitem__), []
        if happened is not None:
            happened.append(best)
        while pieces:
            taken = 2 if tuple(pieces[:2]) == best else 1
            merged.append("".join(pieces[:taken]))
            del pieces[:taken]
        pieces = merged
    return pieces


def assert_equal_on(fast, python, texts):
    for text in texts:
        expected = python.encode(text)
        assert fast.encode(text) == expected
        assert fast.encode_array(text).tolist() == python.encode_array(text).tolist() == expected
        assert fast.decode(expected) == text


@pytest.fixture(scope="module")
def gpt2(shared_dir):
    files = shared_dir / "data/gpt2-vocab.json", shared_dir / "data/gpt2-merges.txt"
    return GPT2BPETokenizer(*files), GPT2BPETokenizer(*files, fast=False)


@pytest.fixture(scope="module")
def hugging_face(shared_dir):
    tokenizers = pytest.importorskip("tokenizers", reason="the peer of this test")
    ids = json.loads((shared_dir / "data/gpt2-vocab.json").read_text(encoding="utf-8"))
    lines = (shared_dir / "data/gpt2-merges.txt").read_text(encoding="utf-8").split("\n")[1:]
    peer = tokenizers.Tokenizer(tokenizers.models.BPE(ids, [tuple(line.split(" ")) for line in lines if line]))
    peer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.add_special_tokens([END_OF_TEXT])
    return SimpleNamespace(encode=peer.encode, classed_otherwise=dict.fromkeys(classed_otherwise(tokenizers)))


def test_implementation_is_told(tmp_path):
    fast = GPT2BPETokenizer(*write_bpe_files(tmp_path))
    asked = GPT2BPETokenizer(*write_bpe_files(tmp_path), fast=False)
    assert (fast.implementation, fast.why_python) == ("tiktoken", "")
    assert (asked.implementation, asked.why_python) == ("python", "it was asked for")


def test_gpt2s_own_vocabulary_is_fast(gpt2):
    assert [tokenizer.implementation for tokenizer in gpt2] == ["tiktoken", "python"]


@pytest.mark.parametrize("seed", range(20))
def test_ids_equal_those_of_python_and_hugging_face(gpt2, hugging_face, seed):
    random = Random(seed)
    texts = [random_text(random, length=random.randint(0, 60)) for _ in range(100)]
    assert_equal_on(*gpt2, texts)
    for text in (text.translate(hugging_face.classed_otherwise) for text in texts):
        assert gpt2[0].encode(text) == hugging_face.encode(text).ids


def test_every_character_is_encoded_as_by_hugging_face(gpt2, hugging_face):
    """Less planes 4 to 13, of which nothing is assigned."""
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000 and not 0x40000 <= code < 0xE0000]
    for start in range(0, len(codes), 4096):
        block = codes[start : start + 4096]
        text = "".join(f"{chr(code)} a{chr(code)}1" for code in block).translate(hugging_face.classed_otherwise)
        assert gpt2[0].encode(text) == hugging_face.encode(text).ids


@pytest.mark.parametrize("special_tokens", [True, False])
def test_goldens_are_exact_for_both(shared_dir, special_tokens):
    files = shared_dir / "data/gpt2-vocab.json", shared_dir / "data/gpt2-merges.txt"
    cases = json.loads((shared_dir / "data/goldens/tokenizer/gpt2_tricky.json").read_text())
    for fast in (True, False):
        tokenizer = GPT2BPETokenizer(*files, special_tokens=special_tokens, fast=fast)
        for case in cases:
            expected = case["ids_special" if special_tokens else "ids"]
            assert tokenizer.encode(case["text"]) == expected
            assert tokenizer.encode_array(case["text"]).tolist() == expected


def test_corpus_is_equal_for_both(shared_dir, gpt2):
    lines = (shared_dir / "data/text/corpus_small.jsonl").read_text(encoding="utf-8").split("\n")
    assert_equal_on(*gpt2, [json.loads(line)["text"] for line in lines if line])


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_megabyte_of_one_kind_ends(gpt2, text):
    """tiktoken by itself panics on spaces before a letter. Its own pieces are checked against Python on a tenth."""
    fast, python = gpt2
    ids = fast.encode_array(text)
    assert fast.decode(ids.tolist()) == text
    assert fast.encode(text) == ids.tolist()
    tenth = text[-len(text) // 10 :]
    assert fast.encode(tenth) == python.encode(tenth)


@pytest.mark.parametrize("text", ["a\ud83d", "\udc00", "x" * 70_000 + "\ud83d", "<|endoftext|>\ud83d\ude00"])
def test_lone_surrogates_are_an_error(tmp_path, text):
    for fast in (True, False):
        tokenizer = GPT2BPETokenizer(*write_bpe_files(tmp_path), fast=fast)
        for encode in (tokenizer.encode, tokenizer.encode_array):
            with pytest.raises(UnicodeEncodeError):
                encode(text)


def test_arrays_of_little_text(tmp_path):
    tokenizer = GPT2BPETokenizer(*write_bpe_files(tmp_path))
    for text in ("", "a", END_OF_TEXT, f"a{END_OF_TEXT}", END_OF_TEXT * 2):
        ids = tokenizer.encode_array(text)
        assert ids.ndim == 1
        assert np.issubdtype(ids.dtype, np.integer)
        assert ids.tolist() == tokenizer.encode(text)


@pytest.mark.parametrize("name,merges", HOSTILE.items(), ids=HOSTILE)
def test_hostile_merges_are_exact(tmp_path, name, merges):
    """Only a merge before its part's own needs Python; merges that never happen are left out."""
    tokenizer = GPT2BPETokenizer(*write_files(tmp_path, merges))
    assert tokenizer.implementation == ("python" if name == "a part that comes later" else "tiktoken")
    assert ("the merge 'ab c' stands before" in tokenizer.why_python) == (tokenizer.implementation == "python")
    random = Random(0)
    for _ in range(300):
        word = "".join(random.choice("abcd") for _ in range(random.randint(1, 12)))
        pieces = [tokenizer.decode([token]) for token in tokenizer.encode(word)]
        assert pieces == loop_pieces(word, merges)


@pytest.mark.parametrize("merges", FINE.values(), ids=FINE)
def test_orderly_merges_are_fast_and_exact(tmp_path, merges):
    tokenizer = GPT2BPETokenizer(*write_files(tmp_path, merges))
    assert tokenizer.implementation == "tiktoken"
    random = Random(1)
    for _ in range(300):
        word = "".join(random.choice("abcd") for _ in range(random.randint(1, 12)))
        assert [tokenizer.decode([token]) for token in tokenizer.encode(word)] == loop_pieces(word, merges)


@pytest.mark.parametrize("seed", range(120))
def test_random_vocabularies_are_exact(tmp_path, seed):
    """Parts are any two pieces so far, ids in any order, some pieces by no merge: fast or not, as the loop has it."""
    random = Random(seed)
    merges = random_merges(random, number=random.randint(1, 12))
    if seed % 4 == 0:
        random.shuffle(merges)
    more = ["abc", "dd", "\u0120abab"] if seed % 2 else []
    tokenizer = GPT2BPETokenizer(*write_files(tmp_path, merges, more=more, order=random if seed % 3 else None))
    python = GPT2BPETokenizer(tmp_path / "vocab.json", tmp_path / "merges.txt", fast=False)
    assert tokenizer.implementation == "tiktoken" or "stands before the one" in tokenizer.why_python
    words = ["".join(random.choice("abc") for _ in range(random.randint(1, 14))) for _ in range(150)]
    for word in words:
        assert [python.decode([token]) for token in python.encode(word)] == loop_pieces(word, merges)
    long = "".join(random.choice("abc") for _ in range(2000))  # tiktoken has another algorithm for long words
    assert_equal_on(tokenizer, python, [*words, " ".join(words), long, long[::-1] + "a" * 1000])


def random_merges(random, *, number):
    pieces, merges = ["a", "b", "c"], []
    while len(merges) < number:
        pair = random.choice(pieces), random.choice(pieces)
        if pair not in merges:
            merges.append(pair)
            pieces.append("".join(pair))
    return merges


@pytest.mark.parametrize("seed", range(30))
def test_live_merges_are_those_that_happen(seed):
    """Against the loop: a merge is live if its result, encoded by itself, is one piece by that pair; the others never
    happen in any word, and merging by joined pieces of the live ones does what the loop does."""
    random = Random(seed)
    for _ in range(20):
        merges = random_merges(random, number=random.randint(1, 10))
        live = live_merges(merges, ALPHABET)
        if isinstance(live, str):  # the piece of a part came about by a later merge
            assert len({left + right for left, right in merges}) < len(merges)
            continue
        assert live == [pair for pair in merges if loop_happened("".join(pair), merges)[-1:] == [pair]]
        for _ in range(50):
            word = "".join(random.choice("abc") for _ in range(random.randint(1, 14)))
            assert set(loop_happened(word, merges)) <= set(live)
            assert joined_pieces(word, live) == loop_pieces(word, merges)


def loop_happened(word, merges):
    """The pairs that the loop merges, in order."""
    happened = []
    loop_pieces(word, merges, happened)
    return happened


def joined_pieces(word, merges):
    """As tiktoken merges: the neighbours whose joined piece ranks lowest; a whole word in its table at once."""
    ranks = {"".join(pair): rank for rank, pair in enumerate(merges)}
    if word in ranks:
        return [word]
    pieces = list(word)
    while joined := [(ranks[a + b], place) for place, (a, b) in enumerate(pairwise(pieces)) if a + b in ranks]:
        _, place = min(joined)
        pieces[place : place + 2] = ["".join(pieces[place : place + 2])]
    return pieces


def test_ids_need_not_follow_the_merges(tmp_path):
    merges = FINE["runs of one letter"]
    files = write_files(tmp_path, merges, order=Random(3))
    fast, python = GPT2BPETokenizer(*files), GPT2BPETokenizer(*files, fast=False)
    assert fast.implementation == "tiktoken"
    assert_equal_on(fast, python, ["a" * length + end for length in range(30) for end in ("", " ba", END_OF_TEXT)])


def test_a_vocabulary_word_that_no_merge_makes_is_never_given(tmp_path):
    tokenizer = GPT2BPETokenizer(*write_files(tmp_path, [("a", "b")], more=["abc"]))
    assert tokenizer.implementation == "tiktoken"
    assert [tokenizer.decode([token]) for token in tokenizer.encode("abc")] == ["ab", "c"]


@pytest.mark.parametrize("size", [300, 1000, 5000])
def test_trained_vocabularies_are_fast_and_equal_hugging_face(shared_dir, tmp_path, size):
    tokenizers = pytest.importorskip("tokenizers", reason="the trainer and the peer of this test")
    lines = (shared_dir / "data/text/corpus_small.jsonl").read_text(encoding="utf-8").split("\n")
    texts = [json.loads(line)["text"] for line in lines if line]
    peer = tokenizers.Tokenizer(tokenizers.models.BPE())
    peer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END_OF_TEXT], initial_alphabet=alphabet, show_progress=False
    )
    peer.train_from_iterator(texts, trainer)
    peer.model.save(str(tmp_path))
    tokenizer = GPT2BPETokenizer(tmp_path / "vocab.json", tmp_path / "merges.txt")
    assert tokenizer.implementation == "tiktoken"
    for text in texts:
        assert tokenizer.encode(text) == peer.encode(text).ids


def test_without_tiktoken_python_does_it_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    tokenizer = GPT2BPETokenizer(*write_bpe_files(tmp_path))
    assert tokenizer.implementation == "python"
    assert "pip install tiktoken" in tokenizer.why_python
    assert tokenizer.decode(tokenizer.encode("the abc")) == "the abc"


class PanicException(BaseException):
    """What a panic of Rust code looks like from Python."""


@pytest.mark.parametrize(
    "raised,seen",
    [
        (PanicException, ValueError),
        (RuntimeError, ValueError),
        (MemoryError, MemoryError),
        (KeyboardInterrupt, KeyboardInterrupt),
    ],
)
def test_a_panic_is_explained_and_an_interrupt_is_not_caught(raised, seen):
    def fail(text):
        raise raised("out of stack")

    with pytest.raises(seen, match="out of stack") as info:
        gpt2_fast._parts_by(fail, "some text")
    if seen is ValueError:
        assert "9 characters that begins with 'some text'" in str(info.value)


def test_the_shape_of_tiktokens_panic_is_as_assumed():
    encoding = tiktoken.Encoding(
        "panics", pat_str=r"\s+(?!\S)", mergeable_ranks={bytes([byte]): byte for byte in range(256)}, special_tokens={}
    )
    with pytest.raises(ValueError, match="tiktoken failed on a text of 3000001 characters"):
        gpt2_fast._parts_by(lambda part: encoding.encode_ordinary(text), text := " " * 3_000_000 + "x")
