"""One knob's value, parsed from command-line words or checked as it came from JSON. Failures are ValueError(rule)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any

from .fields import Knob

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
INT64_MAX = 2**63 - 1


def int_from_number(value: float) -> int:
    """A whole number as int (5e8 -> 500000000); ValueError when it has a fraction or leaves 64 bits."""
    if isinstance(value, float) and not value.is_integer():
        raise ValueError("must be a whole number")
    if abs(value) > INT64_MAX:
        raise ValueError("does not fit in 64 bits")
    return int(value)


def float_from_text(text: str) -> float:
    if not NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise ValueError("must be a number")
    return float(text)


def int_from_text(text: str) -> int:
    if re.fullmatch(r"[+-]?\d{1,19}", text):
        return int_from_number(int(text))
    if not NUMBER.fullmatch(text) or not math.isfinite(float(text)):
        raise ValueError("must be a whole number")
    return int_from_number(float(text))


def split_from_text(text: str) -> str:
    """The text itself, once it is known to be one to three shares."""
    split_shares(text)
    return text


def split_shares(text: str) -> tuple[float, float, float]:
    """Weights of train, valid and test as typed, e.g. "969, 30, 1"; missing ones are 0. They need not sum to 1.

    Between them a comma, a slash or blanks, as in Megatron. Raises ValueError(rule).
    """
    words = [word for word in re.split(r"[,/\s]+", text.strip()) if word]
    try:
        shares = [float_from_text(word) for word in words]
    except ValueError:
        raise ValueError("must be up to three numbers with commas between: train,valid,test") from None
    if not 1 <= len(shares) <= 3:
        raise ValueError(f"must be one to three numbers, not {len(shares)}: train,valid,test, like 969,30,1")
    if not all(0.0 <= share < math.inf for share in shares) or max(shares) <= 0.0:
        raise ValueError("must be up to three finite shares, none negative, not all zero: train,valid,test")
    train, valid, test = shares + [0.0] * (3 - len(shares))
    return train, valid, test


def from_words(knob: Knob, words: Sequence[str]) -> Any:
    """The value of a flag from the words after it; lists become tuples. Raises ValueError(rule)."""
    if knob.kind == "bool":
        return knob.switch
    parsers: dict[str, Callable[[str], Any]] = {
        "int": int_from_text,
        "float": float_from_text,
        "str": str,
        "word": str.lower,
        "split": split_from_text,
    }
    if knob.kind in ("ints", "floats", "strs"):
        return tuple(parsers[knob.kind[:-1]](word) for word in words)
    return parsers[knob.kind](words[0])


def from_json(knob: Knob, value: Any) -> Any:
    """A JSON scalar as the knob's type. Strict: text is no number, true is not 1; 5e8 is an int. ValueError(rule)."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if knob.kind == "int" and is_number:
        return int_from_number(value)
    if knob.kind == "float" and is_number:
        if not math.isfinite(value):
            raise ValueError("must be a finite number")
        return float(value)
    if knob.kind == "bool" and isinstance(value, bool):
        return value
    if knob.kind == "str" and isinstance(value, str):
        return value
    raise ValueError(json_type_rule(knob.kind, value))


def json_type_rule(kind: str, value: Any) -> str:
    """What should have been written where a value of the wrong type stands."""
    wanted = {
        "int": "must be a whole number without quotes",
        "float": "must be a number without quotes",
        "bool": "must be true or false without quotes",
        "str": "must be text in double quotes",
    }[kind]
    if kind == "bool" and isinstance(value, str) and value.lower() in ("true", "false"):
        return f"{wanted}: write {value.lower()}"
    return wanted


def check_choice(knob: Knob, value: Any) -> None:
    """Raise ValueError(rule) when the knob has choices and the value is none of them."""
    if knob.choices is not None and value not in knob.choices:
        raise ValueError("must be one of " + ", ".join(show(choice) for choice in knob.choices))


def show(value: Any) -> str:
    """A value as the user would write it in JSON or on the command line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, (tuple, list)):
        return " ".join(show(item) for item in value)
    return str(value)


def same_text(written: str, known: str) -> bool:
    """Whether two spellings of a value agree: as numbers if both are, else without case ("LayerNorm", "1.0")."""
    if NUMBER.fullmatch(written) and NUMBER.fullmatch(known):
        return float(written) == float(known)
    return written.lower() == known.lower()


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The known name that is closest in spelling, or None when nothing is close."""
    matches = get_close_matches(name, names, n=1, cutoff=0.6)
    return matches[0] if matches else None
