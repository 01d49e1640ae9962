"""The command lines of tools/: their parser, and parsers of values (what argparse calls as `type`), with the rule in the
message."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

from ..config.values import INT64_MAX, float_from_text, int_from_text


class ToolParser(argparse.ArgumentParser):
    """A tool's parser. Flags are never abbreviated, --help says which ones are required, and a wrong command line ends
    with status 2 and two lines on stderr: what is required, and what is wrong."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **more})

    def add_argument(self, *names: Any, **more: Any) -> argparse.Action:
        if more.get("required") and "help" in more:
            more["help"] += " (required)"
        return super().add_argument(*names, **more)

    def error(self, message: str) -> NoReturn:
        required = [action for action in self._actions if action.required]
        # What has no flag comes first: behind a flag of several values it would be one of them.
        needed = "".join(f" {_as_typed(action)}" for action in sorted(required, key=lambda a: len(a.option_strings)))
        self.exit(2, f"usage: {self.prog}{needed} ...; --help lists all flags\n{self.prog}: error: {_plain(message)}\n")


def _as_typed(action: argparse.Action) -> str:
    """A required argument as it stands on a command line."""
    if isinstance(action, argparse._SubParsersAction):
        return "{" + ",".join(action.choices) + "}"
    is_word = isinstance(action.metavar, str) and not action.metavar.startswith("{")  # braces: a list of choices
    metavar = str(action.metavar) if is_word else action.dest.upper()
    return f"{action.option_strings[0]} {metavar}" if action.option_strings else metavar


def _plain(message: str) -> str:
    """argparse's words, which begin with "argument --flag: ..." where a value is wrong."""
    return message.removeprefix("argument ")


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
