"""The command-line flags of the tools that choose a tokenizer: training's, from the same table (config/data.py)."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..config.data import TokenizerConfig, given_to_tokenizer, unused_by_tokenizer
from ..config.fields import Knob, knobs
from ..config.values import check_choice
from .text_input import lasting_path
from .tool_flags import ToolParser, whole_number

DESCRIPTORS = ("/dev/", "/proc/")  # names of open files of one process


def add_tokenizer_flags(
    parser: ToolParser, *, required: bool, refused: Mapping[str, str], vocab_size_help: str | None = None
) -> None:
    """required: whether --tokenizer-type is.   refused: types that training refuses, too, and its sentence on each.

    vocab_size_help: what --vocab-size means to a tool that uses it without a tokenizer, too.
    """
    for name, knob in knobs(TokenizerConfig).items():
        assert knob.flag is not None
        if name == "tokenizer_type":
            assert knob.choices is not None
            parser.add_argument(
                knob.flag,
                required=required,
                action=_TokenizerType,
                knob=knob,
                refused=refused,
                metavar="{" + ",".join(knob.choices) + "}",
                help=knob.help,
            )
        elif knob.kind == "bool":
            parser.add_argument(knob.flag, action="store_true", help=knob.help)
        elif knob.kind == "int":
            assert name == "vocab_size", "the only number of a tokenizer"
            parser.add_argument(knob.flag, type=whole_number(1), metavar="N", help=vocab_size_help or knob.help)
        else:
            parser.add_argument(knob.flag, help=knob.help)


def tokenizer_config(options: argparse.Namespace) -> TokenizerConfig:
    """What the flags say. A file that is open as /dev/fd/3 goes by its own name, under which workers find it, too."""
    given = {name: getattr(options, name) for name in knobs(TokenizerConfig)}
    for name, value in given.items():
        if isinstance(value, str) and value.startswith(DESCRIPTORS) and Path(value).is_file():
            given[name] = lasting_path(value) or value
    return TokenizerConfig(**given)


def unused_tokenizer_flags(options: argparse.Namespace, *, used_anyway: str = "") -> list[str]:
    """A line for each flag that has no effect, for stderr. used_anyway: a field that the tool itself reads."""
    config = tokenizer_config(options)
    if options.tokenizer_type is None:
        unused = {
            name: f"{given}: has no effect without --tokenizer-type" for name, given in given_to_tokenizer(config).items()
        }
    else:
        unused = unused_by_tokenizer(config)
    return [f"warning: {sentence}" for name, sentence in unused.items() if name != used_anyway]


class _TokenizerType(argparse.Action):
    """A type of the table; others end the command with training's words for them."""

    def __init__(self, *names: Any, knob: Knob, refused: Mapping[str, str], **more: Any) -> None:
        super().__init__(*names, **more)
        self._knob, self._refused = knob, refused

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        if values in self._refused:
            parser.error(f"{option_string} {values}: {self._refused[values]}")
        try:
            check_choice(self._knob, values)
        except ValueError as error:
            parser.error(f"{option_string} {values}: {error}")
        setattr(namespace, self.dest, values)
