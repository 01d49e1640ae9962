"""Parsers of values on the command lines of tools/: what argparse calls as `type`, with the rule in its message."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ..config.values import INT64_MAX, float_from_text, int_from_text


def whole_number(lowest: int, highest: int = INT64_MAX) -> Callable[[str], int]:
    """Parses lowest .. highest, written as training's flags take them (1000, 1e3). argparse names the flag."""
    limit = f"of at least {lowest}" if highest == INT64_MAX else f"from {lowest} to {highest}"

    def parse(text: str) -> int:
        try:
            value = int_from_text(text)
        except ValueError:
            value = lowest - 1
        if not lowest <= value <= highest:
            raise argparse.ArgumentTypeError(f"{_shown(text)} is not a whole number {limit}")
        return value

    return parse


def number_from_zero(text: str) -> float:
    """A finite number that is not negative."""
    try:
        value = float_from_text(text)
    except ValueError:
        value = -1.0
    if value < 0.0:
        raise argparse.ArgumentTypeError(f"{_shown(text)} is not a finite number of at least 0")
    return value


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
