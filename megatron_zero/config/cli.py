"""argparse, generated from the knobs and the tables of refused.py; returns only what the user typed.

Words are parsed here rather than by argparse's types, so a wrong value, an unknown flag or a refused one becomes a
message of ours, all of them at once.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import Any, NoReturn

from .fields import ConfigError, Knob
from .given import Given, Reading
from .refused import REFUSED_VALUES, ForeignFlag, foreign_flags
from .tree import RunConfig, walk_knobs
from .values import check_choice, from_words, nearest

USAGE = "pretrain_gpt.py [flags]; the JSON of --deepspeed_config holds what no flag names"


def flag_knobs() -> dict[str, tuple[str, Knob]]:
    """Spelling -> (field path, Knob), aliases included."""
    return {
        spelling: (path, knob)
        for path, knob in walk_knobs()
        if knob.flag is not None
        for spelling in (knob.flag, *knob.aliases)
    }


def known_flags() -> tuple[str, ...]:
    """Every spelling the parser declares: knobs, and the peers' flags of refused.py."""
    return (*flag_knobs(), *foreign_flags())


def read_command_line(argv: Sequence[str]) -> Reading:
    """What the user typed, by dotted field path. `--help` prints and exits 0; nothing else exits or raises."""
    foreign = foreign_flags()
    try:
        namespace, rest = build_parser(foreign).parse_known_args(list(argv))
    except ConfigError as error:
        return Reading({}, problems=(str(error),))
    typed: dict[str, tuple[str, list[str]]] = vars(namespace)
    given: dict[str, Given] = {}
    ignored: dict[str, list[str]] = {}  # sentence -> the flags it is true of, so that each is said once
    problems = _explain_rest(rest)
    knobs = dict(walk_knobs())
    for destination, (spelling, words) in typed.items():
        if destination in knobs:
            try:
                given[destination] = Given(_parse(destination, knobs[destination], words), spelling)
            except ValueError as error:
                problems.append(" ".join([spelling, *words]) + f": {error}")
        elif foreign[destination].is_refused(words):
            problems.append(" ".join([spelling, *words]) + f": {foreign[destination].says}")
        else:
            ignored.setdefault(_no_effect(foreign[destination]), []).append(" ".join([spelling, *words]))
    notes = tuple(f"{', '.join(flags)}: {says}" for says, flags in ignored.items())
    return Reading(given, notes, tuple(problems))


def build_parser(foreign: dict[str, ForeignFlag]) -> argparse.ArgumentParser:
    """Every flag, grouped by section; destinations are field paths, foreign flags keep their own name."""
    parser = _Parser(
        usage=USAGE,
        description="Train a GPT model. Flags have Megatron's names; refused ones are answered by name.",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=44, width=120),
    )
    for section in dataclasses.fields(RunConfig):
        group = parser.add_argument_group(section.name)
        for path, knob in walk_knobs(getattr(RunConfig(), section.name), section.name + "."):
            if knob.flag is not None:
                _declare(group, path, knob)
    for flag in foreign.values():
        parser.add_argument(flag.name, dest=flag.name, nargs=flag.nargs, action=_Record, help=argparse.SUPPRESS)
    return parser


class _Parser(argparse.ArgumentParser):
    """Raises ConfigError where argparse would print its own text and exit."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))


class _Record(argparse.Action):
    """Stores (spelling as typed, words); a repeated flag replaces what came before."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        words = list(values) if isinstance(values, (list, tuple)) else [] if values is None else [values]
        setattr(namespace, self.dest, (option_string, words))


def _declare(group: argparse._ArgumentGroup, path: str, knob: Knob) -> None:
    assert knob.flag is not None
    counts: dict[str, int | str] = {"bool": 0, "ints": "+", "floats": "+", "strs": "+"}
    nargs = counts.get(knob.kind, 1)
    metavar = {"int": "N", "ints": "N", "float": "X", "split": "A,B,C"}.get(knob.kind, knob.flag.lstrip("-").upper())
    if knob.choices is not None:
        metavar = "{" + ",".join(str(choice) for choice in knob.choices) + "}"
    group.add_argument(
        knob.flag,
        *knob.aliases,
        dest=path,
        nargs=nargs,
        metavar=metavar,
        action=_Record,
        help=knob.help.replace("%", "%%"),
    )


def _parse(path: str, knob: Knob, words: list[str]) -> Any:
    for word in words:
        if word in REFUSED_VALUES.get(path, {}):
            raise ValueError(REFUSED_VALUES[path][word])
    value = from_words(knob, words)
    check_choice(knob, value)
    return value


def _no_effect(flag: ForeignFlag) -> str:
    return "no effect, as is done anyway" if flag.refused else flag.says


def _explain_rest(rest: Sequence[str]) -> list[str]:
    """Messages for the words no declared flag took. Words after an unknown flag are taken for its values."""
    problems: list[str] = []
    after_unknown = False
    for word in rest:
        if word.startswith("-"):
            after_unknown = True
            name = word.split("=")[0]
            near = nearest(name, known_flags())
            problems.append(f"{name}: unknown flag" + (f"; nearest: {near}" if near else ""))
        elif not after_unknown:
            problems.append(f"{word}: no flag takes this word")
    return problems
