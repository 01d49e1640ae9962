"""JSON whose text comes from elsewhere: what is JSON and what is beyond the reader are told apart."""

from __future__ import annotations

import json
from typing import Any, Final

MANY_DIGITS: Final = 4000  # int() refuses 4300 by default: such a number is read as floating point


def read_json(text: str) -> Any:
    """The value of a text. Errors: ValueError with the reason, for what is not JSON or nested too deeply."""
    try:
        return _parsed(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {_where(error)}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply: lists and objects are followed for about a thousand levels") from error


def _where(error: json.JSONDecodeError) -> str:
    """The library's words and the place. A text of one line is a line of a file, whose number the caller names."""
    line = f"line {error.lineno}, " if "\n" in error.doc else ""
    return f"{error.msg.removesuffix(' at')} at {line}column {error.colno}"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return json.loads(text, parse_int=_number)  # slower, so only where a number needs it


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) < MANY_DIGITS else float(digits)
