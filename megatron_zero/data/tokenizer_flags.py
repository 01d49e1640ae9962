"""The command-line flags of the tools that choose a tokenizer: training's, from the same table (config/data.py)."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..config.data import TokenizerConfig
from ..config.fields import knobs
from .text_input import lasting_path
from .tool_flags import whole_number

DESCRIPTORS = ("/dev/", "/proc/")  # names of open files of one process


def add_tokenizer_flags(parser: argparse.ArgumentParser, *, required: bool, vocab_size: int | None) -> None:
    """required: whether --tokenizer-type is.   vocab_size: default of --vocab-size."""
    for name, knob in knobs(TokenizerConfig).items():
        assert knob.flag is not None
        if knob.kind == "bool":
            parser.add_argument(knob.flag, action="store_true", help=knob.help)
        elif knob.kind == "int":
            assert name == "vocab_size", "the only number of a tokenizer"
            parser.add_argument(knob.flag, type=whole_number(1), default=vocab_size, help=knob.help)
        else:
            needed = required and name == "tokenizer_type"
            parser.add_argument(knob.flag, required=needed, choices=knob.choices, help=knob.help)


def tokenizer_config(options: argparse.Namespace) -> TokenizerConfig:
    """What the flags say. A file that is open as /dev/fd/3 goes by its own name, under which workers find it, too."""
    given = {name: getattr(options, name) for name in knobs(TokenizerConfig)}
    for name, value in given.items():
        if isinstance(value, str) and value.startswith(DESCRIPTORS) and Path(value).is_file():
            given[name] = lasting_path(value) or value
    return TokenizerConfig(**given)
