"""What the package tokenizers, a peer, makes of single characters."""

from __future__ import annotations

from typing import Any

from megatron_zero.data.gpt2_words import parse_ranges
from megatron_zero.data.unicode_classes import LETTERS, NUMBERS, WHITE_SPACE


def classed_otherwise(tokenizers: Any) -> set[int]:
    """Code points that the installed version takes for a letter, number or white space where we do not, or the other
    way round: those that another version of Unicode assigns. Comparisons leave them out."""
    text = "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    wrong: set[int] = set()
    for ours, pattern in ((LETTERS, r"\p{L}"), (NUMBERS, r"\p{N}"), (WHITE_SPACE, r"\s")):
        cutter = tokenizers.pre_tokenizers.Split(tokenizers.Regex(f"{pattern}+"), behavior="removed")
        others = {ord(character) for word, _ in cutter.pre_tokenize_str(text) for character in word}
        ranges = parse_ranges(ours)
        members = {code for first, last in ranges for code in range(first, last + 1)}
        wrong |= (set(map(ord, text)) - others) ^ members
    return wrong
