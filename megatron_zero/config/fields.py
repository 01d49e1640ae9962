"""Metadata on dataclass fields: one field = one knob = at most one flag and one JSON key.

A *knob* carries the flag's Megatron spelling, its aliases, the DeepSpeed JSON path, and the help text.
cli.py builds argparse from it, ds_json.py the table of known keys, precedence.py merges the two by field path.
This module knows nothing of any particular knob.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

KNOB = "knob"


@dataclass(frozen=True, slots=True)
class Knob:
    """How a user names one field.

    flag: canonical command-line spelling ("--hidden-size"), or None where only JSON names it.
    aliases: other spellings of the same flag.
    json: dotted DeepSpeed path ("zero_optimization.stage"; "a.b[0]" is the first element of the list a.b), or None.
    json_aliases: other dotted paths with the same meaning.
    kind: "int", "float", "str", "word" (text in any case, kept in lower case), "bool", "ints", "strs", "floats" or "split";
        the parser of the value.
    switch: for bool flags: the value that the bare flag sets (True for "--bf16", False for "--no-...").
    choices: allowed values, compared after parsing; None = any.
    auto: whether JSON "auto" (= not given) is allowed.
    """

    flag: str | None
    aliases: tuple[str, ...]
    json: str | None
    json_aliases: tuple[str, ...]
    kind: str
    switch: bool
    choices: tuple[Any, ...] | None
    auto: bool
    help: str


def knob(
    default: Any,
    *,
    flag: str | None = None,
    aliases: tuple[str, ...] = (),
    json: str | None = None,
    json_aliases: tuple[str, ...] = (),
    kind: str,
    switch: bool = True,
    choices: tuple[Any, ...] | None = None,
    auto: bool = True,
    help: str,  # the field's standard word in argparse
) -> Any:
    """A dataclass field that a user can set. Lists have a tuple default, so the tree stays frozen and hashable."""
    record = Knob(flag, aliases, json, json_aliases, kind, switch, choices, auto, help)
    return dataclasses.field(default=default, metadata={KNOB: record})


def knobs(section: Any) -> dict[str, Knob]:
    """field name -> Knob of a section dataclass (class or instance), in declaration order."""
    return {f.name: f.metadata[KNOB] for f in dataclasses.fields(section) if KNOB in f.metadata}


class ConfigError(ValueError):
    """A user's setting is wrong: the message names it, its value, its source, the rule and the way out."""


def collect(rules: list[Callable[[], None]]) -> list[str]:
    """Run every rule and return the messages of those that raised ConfigError, so a user sees all faults at once."""
    messages = []
    for rule in rules:
        try:
            rule()
        except ConfigError as error:
            messages.append(str(error))
    return messages


def raise_all(messages: Sequence[str]) -> None:
    """Raise one ConfigError that lists every message; nothing happens without one."""
    if len(messages) == 1:
        raise ConfigError(messages[0])
    if messages:
        raise ConfigError(f"{len(messages)} problems:\n" + "\n".join(f"  - {message}" for message in messages))
