"""--split and the per-split paths: which blend, and which part of its documents, is train, valid and test."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from ..config.data import DataConfig
from ..config.data_paths import Blend, check_data_paths, parse_blend, words_of_splits
from ..config.fields import ConfigError
from ..config.values import split_shares

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
    per_split = words_of_splits(config)
    if any(per_split.values()):
        return tuple(
            SplitData(name, flag, parse_blend(words, flag=flag) if words else None, None)
            for name, (flag, words) in zip(SPLIT_NAMES, per_split.items(), strict=True)
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
    """split_shares() of --split. Errors: ConfigError."""
    try:
        return split_shares(text)
    except ValueError as error:
        raise ConfigError(f"--split {text!r} {error}") from error


def split_ranges(split: tuple[float, float, float], num_documents: int) -> tuple[tuple[int, int], ...]:
    """(first, past-last) document of train, valid and test, as core rounds them: the cumulative ends, half to even.

    A split without weight is empty (first == past-last), and so may be one with a small weight.
    """
    # numpy's sum, as core: Python's own has been compensated since 3.12, and would cut elsewhere.
    weights = np.array(split, dtype=np.float64)
    with np.errstate(over="ignore"):
        overflows = np.isinf(np.sum(weights))
    if overflows:
        weights = weights / np.max(weights)
    total = float(np.sum(weights))
    ends = [0.0]
    for weight in weights.tolist():
        ends.append(ends[-1] + weight / total)
    bounds = [round(end * float(num_documents)) for end in ends]
    return tuple(pairwise(bounds))
