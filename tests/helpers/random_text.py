"""Random text of every kind that a tokenizer treats apart; no lone surrogates."""

from __future__ import annotations

from random import Random

PARTS = (
    *("'s", "'S", "'re", "'RE", "'t", "'ll", "'ve", "'m", "'d", "''", "'", "don't", "\u2019s"),
    *("<|endoftext|>", "<|endoftext|", "|>", "<|", "<|unused|>"),
    *(" ", "  ", "   ", "\n", "\r\n", "\t", "\v", "\f", "\x1c", "\x1f", "\x85", "\u00a0", "\u1680", "\u2003", "\u2028"),
    *("\u200b", "\u202f", "\u205f", "\u3000", "\ufeff", "\u180e", "\u2060", "\u200d", "\u200e"),
    *("e\u0301", "\u0301", "\u0915\u094d\u0937", "\u0e01\u0e33", "\ufe0f", "\u20e3"),
    *("0", "12", "\u0664", "\u096a", "\u00bd", "\u2167", "\u3007", "\u4e00", "\U0001d7d8", "\U00010107", "\U0001fbf0"),
    *("the", " the", "Hello", "stra\u00dfe", "\u65e5\u672c", "\ud55c\uae00", "\u0627\u0644", "\U00010400", "\U0001f600"),
    *("\0", "\x01", "\x7f", "\ufffe", "\uffff", "\ufffd", "\U0010ffff", "\ue000", "\U000e0001"),
    *("\ua7ce", "\U00016ea0", "\U00011de0", "\u1c89"),  # letters and a number that Unicode 16 lacks; one that it has
)
PLANES = ((0, 0x7F), (0x80, 0x24F), (0x250, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x1FFFF), (0x20000, 0x10FFFF))


def random_text(random: Random, *, length: int) -> str:
    """`length` parts: some of those above, some single characters of any plane, some runs of one."""
    text = []
    for _ in range(length):
        kind = random.random()
        if kind < 0.6:
            text.append(random.choice(PARTS))
        else:
            text.append(chr(random.randint(*random.choice(PLANES))) * (random.choice((1, 1, 2, 7)) if kind > 0.9 else 1))
    return "".join(text)
