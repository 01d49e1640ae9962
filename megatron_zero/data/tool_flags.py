"""Parsers of values on the command lines of tools/: what argparse calls as `type`, with the rule in its message."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import Final

NUMBER: Final = re.compile(r"[+-]?[0-9]+")
MOST_DIGITS: Final = 19  # of 64 bits; int() refuses thousands of digits with a message of its own
NO_LIMIT: Final = 2**63 - 1


def whole_number(lowest: int, highest: int = NO_LIMIT) -> Callable[[str], int]:
    """Parses lowest .. highest. argparse names the flag."""

    def parse(text: str) -> int:
        value = int(text) if NUMBER.fullmatch(text) and len(text) <= MOST_DIGITS + 1 else None
        if value is None or not lowest <= value <= highest:
            limit = f"of at least {lowest}" if highest == NO_LIMIT else f"from {lowest} to {highest}"
            raise argparse.ArgumentTypeError(f"{_shown(text)} is not a whole number {limit}")
        return value

    return parse


def output_prefix(text: str) -> str:
    """What .bin and .idx are appended to, so it ends in a name."""
    if text == "":
        raise argparse.ArgumentTypeError("'' is empty; give FOLDER/NAME (an unset variable?)")
    if text.endswith(("/", ".")):
        raise argparse.ArgumentTypeError(
            f"{text!r} ends in {text[-1]!r}, so the files would have no name before .bin and .idx, or an odd one; give "
            f"FOLDER/NAME, e.g. {text.rstrip('/.') or '.'}/my"
        )
    return text


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")
