"""What --data-path and its relatives say: prefixes of .bin/.idx pairs, with weights or without."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .data import DataConfig
from .fields import ConfigError

MAX_BLENDED_SETS: Final = 2**15 - 1  # the blending index numbers them in int16, as Megatron-core's


@dataclass(frozen=True, slots=True)
class Blend:
    """prefixes: of .bin/.idx pairs.   weights: one each, positive, of any sum; None: as many samples as each has."""

    prefixes: tuple[str, ...]
    weights: tuple[float, ...] | None


def parse_blend(words: Sequence[str], *, flag: str) -> Blend:
    """ "PREFIX", "PREFIX PREFIX ...", or "WEIGHT PREFIX WEIGHT PREFIX ...". Errors: ConfigError naming flag and word.

    Weights are meant as soon as a word in a weight's place reads as a number.
    """
    shown = f"{flag} {' '.join(words)}"
    if not words or not all(word.strip() for word in words):
        raise ConfigError(f"{shown}: name at least one prefix of a .bin/.idx pair, and none that is empty")
    numbers = [_number(word) for word in words[::2]]
    if all(number is None for number in numbers):
        return _checked(Blend(tuple(words), None), flag)
    if len(words) % 2:
        raise ConfigError(
            f"{shown}: {len(words)} words; weights and prefixes come in pairs, WEIGHT PREFIX WEIGHT PREFIX (a prefix that "
            "reads as a number is written ./2024)"
        )
    for word, number in zip(words[::2], numbers, strict=True):
        if number is None or not 0.0 < number < math.inf:
            raise ConfigError(
                f"{shown}: {word!r} stands where a weight is expected; weights are finite numbers above 0 (to leave a set "
                "out, leave out its prefix)"
            )
    return _checked(Blend(tuple(words[1::2]), tuple(number for number in numbers if number is not None)), flag)


def named_prefixes(words: Sequence[str]) -> tuple[str, ...]:
    """The words that stand for prefixes, also where parse_blend would refuse them."""
    weighted = any(_number(word) is not None for word in words[::2])
    return tuple(words[1::2] if weighted else words)


def words_of_splits(config: DataConfig) -> dict[str, tuple[str, ...]]:
    """Flag -> words, of the flags that name the data of train, valid and test each by itself."""
    return {
        "--train-data-path": config.train_data_path,
        "--valid-data-path": config.valid_data_path,
        "--test-data-path": config.test_data_path,
    }


def check_data_paths(config: DataConfig) -> None:
    """ConfigError unless exactly one way to name the data is taken, and what it says can be read."""
    per_split = words_of_splits(config)
    ways = {
        "--data-path": bool(config.data_path),
        "--data-args-path": config.data_args_path is not None,
        "/".join(flag for flag, words in per_split.items() if words): any(per_split.values()),
        "--mock-data": config.mock_data,
    }
    given = [flag for flag, is_given in ways.items() if is_given]
    if not given:
        raise ConfigError(
            "--data-path is required: the prefix of a .bin/.idx pair of tools/preprocess_data.py, or several with weights"
        )
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are given; each names all the data, so give one of them")
    if any(per_split.values()) and not config.train_data_path:
        raise ConfigError(f"{given[0]} without --train-data-path: there is nothing to train on")
    for flag, words in {"--data-path": config.data_path, **per_split}.items():
        if words:
            parse_blend(words, flag=flag)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _checked(blend: Blend, flag: str) -> Blend:
    if len(blend.prefixes) > MAX_BLENDED_SETS:
        raise ConfigError(
            f"{flag}: {len(blend.prefixes)} data sets; a blend has at most {MAX_BLENDED_SETS}: merge some with "
            "tools/merge_datasets.py"
        )
    return blend
