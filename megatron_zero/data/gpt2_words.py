"""Where GPT-2 cuts text into words, as two equal patterns: one for Python's re, one for tiktoken's engine in Rust.

A word is a contraction; or letters, numbers or other signs, each with one space before them; or white space, but for
its last character where more text follows. What a letter is comes from unicode_classes.py, for both engines.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import Final

from .unicode_classes import LETTERS, NUMBERS, WHITE_SPACE

Ranges = tuple[tuple[int, int], ...]

CONTRACTION: Final = "'(?:[sdmt]|ll|ve|re)"
FIRST_ASTRAL: Final = 0x10000  # re looks up a set of code points below it in a table, and tries ranges above one by one
LONG_SPACE: Final = 1 << 16


def parse_ranges(text: str) -> Ranges:
    """First and last of each range: "41-5A AA" -> ((0x41, 0x5A), (0xAA, 0xAA))."""
    ends = [word.split("-") for word in text.split()]
    return tuple((int(end[0], 16), int(end[-1], 16)) for end in ends)


@lru_cache(maxsize=1)
def word_pattern() -> re.Pattern[str]:
    letters, numbers, space = parse_ranges(LETTERS), parse_ranges(NUMBERS), parse_ranges(WHITE_SPACE)
    blank = _re_set(space)
    return re.compile(
        f"{CONTRACTION}| ?{_run(letters)}| ?{_run(numbers)}| ?{_run(letters + numbers + space, outside=True)}"
        f"|[{blank}]+(?![^{blank}])|[{blank}]+"
    )


def rust_word_pattern() -> str:
    """The same for the crates regex and fancy_regex. Nothing but white space before a word is ever given back, so the
    other runs keep what they took (++)."""
    letters, numbers, space = (_rust_set(parse_ranges(text)) for text in (LETTERS, NUMBERS, WHITE_SPACE))
    return (
        f"{CONTRACTION}| ?[{letters}]++| ?[{numbers}]++| ?[^{space}{letters}{numbers}]++"
        f"|[{space}]++$|[{space}]+(?![^{space}])|[{space}]"
    )


def cut_long_space(text: str, *, limit: int = LONG_SPACE) -> list[str]:
    """Parts of the text, cut between words, so that white space with more text behind it is below `limit` long.

    fancy_regex gives back characters from a stack, which overflows near a million of them; the end of a text needs
    none. White space of `limit` characters or more is a word up to its last one, so the cut stands there.
    """
    if len(text) <= limit:
        return [text]
    # Whole runs, and then their lengths: a pattern that asks for `limit` tries again at every place of a shorter run.
    runs = (match.span() for match in _space_runs().finditer(text))
    ends = [stop for start, stop in runs if stop - start >= limit]
    cuts = [end - 1 for end in ends if end < len(text)]
    return [text[start:stop] for start, stop in pairwise([0, *cuts, len(text)])]


@lru_cache(maxsize=1)
def _space_runs() -> re.Pattern[str]:
    return re.compile(f"[{_re_set(parse_ranges(WHITE_SPACE))}]+")


def _run(ranges: Ranges, *, outside: bool = False) -> str:
    """One or more characters in the ranges, or outside them. Two sets, since re is several times as fast that way: the
    long list of astral ranges is tried for astral characters only."""
    low = _re_set(tuple(pair for pair in ranges if pair[1] < FIRST_ASTRAL))
    high = _re_set(tuple(pair for pair in ranges if pair[0] >= FIRST_ASTRAL))
    astral = r"\U00010000-\U0010FFFF"
    if outside:
        return rf"(?:[^{low}{astral}]+|(?=[{astral}])[^\0-\uFFFF{high}]+)+"
    return f"(?:[{low}]+|(?=[{astral}])[{high}]+)+"


def _re_set(ranges: Ranges) -> str:
    return "".join(rf"\U{first:08X}-\U{last:08X}" for first, last in ranges)


def _rust_set(ranges: Ranges) -> str:
    return "".join(rf"\x{{{first:X}}}-\x{{{last:X}}}" for first, last in ranges)
