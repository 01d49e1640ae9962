"""Where words are cut: frozen Unicode classes, and two patterns that must agree with each other and with a peer's."""

import unicodedata
from random import Random
from types import SimpleNamespace

import pytest
from helpers.hugging_face import classed_otherwise
from helpers.random_text import random_text

from megatron_zero.data.gpt2_words import cut_long_space, parse_ranges, word_pattern
from megatron_zero.data.unicode_classes import LETTERS, NUMBERS, WHITE_SPACE


def members(text):
    return {chr(code) for first, last in parse_ranges(text) for code in range(first, last + 1)}


@pytest.mark.parametrize("text", [LETTERS, NUMBERS, WHITE_SPACE])
def test_ranges_rise_and_do_not_touch(text):
    ends = [end for pair in parse_ranges(text) for end in pair]
    assert ends == sorted(ends)
    assert all(stop + 1 < start for stop, start in zip(ends[1:-1:2], ends[2::2], strict=True))


@pytest.mark.parametrize("text,kind,number", [(LETTERS, "L", 141_028), (NUMBERS, "N", 1_911)])
def test_classes_are_those_of_unicode(text, kind, number):
    """Python's own tables are of another version: compared where both have the character assigned."""
    classed = members(text)
    assert len(classed) == number
    is_newer = tuple(map(int, unicodedata.unidata_version.split("."))) > (16, 0, 0)
    for code in range(0x110000):
        category = unicodedata.category(chr(code))
        if category == "Cn" or (is_newer and chr(code) not in classed):
            continue
        assert (chr(code) in classed) == category.startswith(kind), hex(code)


@pytest.mark.parametrize(
    "text,words",
    [
        ("", []),
        ("a  b", ["a", " ", " b"]),
        ("a \n", ["a", " \n"]),
        ("a\n\nb", ["a", "\n", "\n", "b"]),
        ("it's IT'S", ["it", "'s", " IT", "'", "S"]),
        (" 12ab?! ", [" 12", "ab", "?!", " "]),
        ("\x1c\x85", ["\x1c", "\x85"]),  # U+001C is white space to Python, not to Unicode
        ("a\U00010400b1\U0001d7d8", ["a\U00010400b", "1\U0001d7d8"]),
        ("a\ua7ceb", ["a", "\ua7ce", "b"]),  # a letter from Unicode 17 on
        ("\U0001f600\u2013\U0001f600 x", ["\U0001f600\u2013\U0001f600", " x"]),
    ],
)
def test_words_of_small_texts(text, words):
    assert word_pattern().findall(text) == words


@pytest.mark.parametrize("seed", range(10))
def test_words_cover_the_text(seed):
    text = random_text(Random(seed), length=2000)
    assert "".join(word_pattern().findall(text)) == text


@pytest.fixture(scope="module")
def peer():
    tokenizers = pytest.importorskip("tokenizers", reason="the peer of this test")
    return SimpleNamespace(
        cut=tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str,
        classed_otherwise=dict.fromkeys(classed_otherwise(tokenizers)),
        version=tokenizers.__version__,
    )


@pytest.mark.parametrize("seed", range(10))
def test_words_equal_those_of_hugging_face(peer, seed):
    random = Random(seed)
    for _ in range(50):
        text = random_text(random, length=100).translate(peer.classed_otherwise)
        assert word_pattern().findall(text) == [text[slice(*span)] for _, span in peer.cut(text)]


def test_every_character_is_classed_as_by_hugging_face(peer):
    if not peer.version.startswith("0.23."):
        pytest.skip(f"tokenizers {peer.version} may have another version of Unicode than 0.23")
    assert peer.classed_otherwise == {}


@pytest.mark.parametrize("seed", range(20))
def test_cutting_long_space_keeps_the_words(seed):
    random = Random(seed)
    alphabet = [" ", "\n", "\u3000", "a", "'s", "1", "?", " " * 5]
    text = "".join(random.choice(alphabet) for _ in range(200))
    for limit in (2, 3, 7):
        parts = cut_long_space(text, limit=limit)
        assert "".join(parts) == text
        assert [word for part in parts for word in word_pattern().findall(part)] == word_pattern().findall(text)
