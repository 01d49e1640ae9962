"""--split and the per-split paths: which blend, and which part of its documents, is train, valid and test."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from ..config.data import DataConfig
from ..config.data_paths import Blend, check_data_paths, parse_blend
from ..config.fields import ConfigError

SPLIT_NAMES: Final = ("train", "valid", "test")


@dataclass(frozen=True, slots=True)
class SplitData:
    """blend: what a split is cut from; None: it has no data.   mock: made-up documents instead.

    flag: what names the data, for messages.   share: which part of --split it is; None: all documents.
    """

    name: str
    flag: str
    blend: Blend | None
    share: int | None
    mock: bool = False


def split_data(config: DataConfig) -> tuple[SplitData, ...]:
    """Where train, valid and test come from. Errors: ConfigError for flags that contradict each other, or none."""
    check_data_paths(config)
    per_split = (config.train_data_path, config.valid_data_path, config.test_data_path)
    if any(per_split):
        return tuple(
            SplitData(name, flag, parse_blend(words, flag=flag) if words else None, None)
            for name, flag, words in zip(
                SPLIT_NAMES, ("--train-data-path", "--valid-data-path", "--test-data-path"), per_split, strict=True
            )
        )
    if config.mock_data:
        return tuple(SplitData(name, "--mock-data", None, part, mock=True) for part, name in enumerate(SPLIT_NAMES))
    flag = "--data-path"
    words = config.data_path
    if config.data_args_path is not None:
        flag = f"--data-args-path {config.data_args_path}:"
        words = _words_of_file(Path(config.data_args_path))
    blend = parse_blend(words, flag=flag)
    return tuple(SplitData(name, flag, blend, part) for part, name in enumerate(SPLIT_NAMES))


def _words_of_file(path: Path) -> tuple[str, ...]:
    """The words of --data-path in a file, separated by white space."""
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--data-args-path {path} cannot be read: {error}") from error
    if not words:
        raise ConfigError(f"--data-args-path {path} is empty; it holds what --data-path would: WEIGHT PREFIX ...")
    return tuple(words)


def parse_split(text: str) -> tuple[float, float, float]:
    """Weights of train, valid and test as typed, e.g. '969, 30, 1'; missing ones are 0. They need not sum to 1."""
    words = [word for word in re.split(r"[,/\s]+", text.strip()) if word]
    try:
        weights = [float(word) for word in words]
    except ValueError as error:
        raise ConfigError(f"--split {text!r}: {error}; write train,valid,test like 969,30,1") from error
    if not 1 <= len(weights) <= len(SPLIT_NAMES):
        raise ConfigError(f"--split {text!r} has {len(weights)} numbers; write train,valid,test like 969,30,1")
    if not all(0.0 <= weight < float("inf") for weight in weights) or sum(weights) <= 0.0:
        raise ConfigError(f"--split {text!r}: weights must be finite, not negative and not all 0")
    train, valid, test = weights + [0.0] * (len(SPLIT_NAMES) - len(weights))
    return train, valid, test


def split_ranges(split: tuple[float, float, float], num_documents: int) -> tuple[tuple[int, int], ...]:
    """(first, past-last) document of train, valid and test, as core rounds them: the cumulative ends, half to even.

    A split without weight is empty (first == past-last), and so may be one with a small weight.
    """
    total = sum(split)
    ends = [0.0]
    for weight in split:
        ends.append(ends[-1] + weight / total)
    bounds = [round(end * float(num_documents)) for end in ends]
    return tuple(pairwise(bounds))
