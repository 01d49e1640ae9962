"""Several data sets mixed by weight: how many samples each gives, and in which order.

Follows Megatron-core: a weight is a share of the samples (not of the tokens or documents); sample i goes to the set
whose share lags most.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ..config.fields import ConfigError
from ..ops.dataset_index import build_blend_index
from .gpt_dataset import GPTDataset, check_indices_fit
from .index_cache import IndexCache

SURPLUS: Final = 0.005  # of what a set is expected to give, so that rounding never runs it dry
ENTRY_BYTES: Final = 10  # of a blend's order: a set and a sample of it
COUNT_ENTRIES: Final = 1 << 22  # at a time: numpy counts in int64 copies


def normalize(weights: Sequence[float]) -> NDArray[np.float64]:
    """The weights over their sum. Weights so large that it overflows are taken over the largest first."""
    array = np.array(weights, dtype=np.float64)
    with np.errstate(over="ignore"):
        total = np.sum(array)
    if np.isinf(total):
        array = array / np.max(array)
        total = np.sum(array)
    return array / total


def sample_targets(shares: NDArray[np.float64], num_samples: int) -> tuple[int, ...]:
    """Samples that each set is expected to give of num_samples: rounded up, so they may add up to a few more."""
    return tuple(math.ceil(num_samples * share) for share in shares.tolist())


def with_surplus(target: int) -> int:
    """Samples to lay out in a set that is expected to give `target`."""
    return math.ceil(target * (1 + SURPLUS))


class SampleSource(Protocol):
    """What training reads: GPTDataset or BlendedDataset."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> NDArray[np.int64]: ...


@dataclass(frozen=True, slots=True)
class BlendOrder:
    """dataset_index: [n] int16, the set of each entry.   dataset_sample_index: [n] int64, which of its samples.

    samples_of_sets: [sets] int64, entries of each. Counted when the order is made, so that no rank reads all of it again.
    """

    dataset_index: NDArray[np.int16]
    dataset_sample_index: NDArray[np.int64]
    samples_of_sets: NDArray[np.int64]


class BlendedDataset:
    """Entry i is sample `sample_index[i]` of parts[dataset_index[i]].

    shares: of each part, adding up to 1.   dataset_index: [n] int16.   sample_index: [n] int64.
    samples_of_parts: how many samples of each part are read in one walk through this data set.
    """

    def __init__(self, parts: Sequence[GPTDataset], shares: NDArray[np.float64], order: BlendOrder, *, name: str) -> None:
        self.name, self.parts, self.shares = name, tuple(parts), shares
        self.dataset_index, self.sample_index = order.dataset_index, order.dataset_sample_index
        self.samples_of_parts: tuple[int, ...] = tuple(order.samples_of_sets.tolist())

    def __len__(self) -> int:
        return len(self.dataset_index)

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """[seq_length + 1] int64, as GPTDataset gives. Errors: IndexError; ConfigError for a foreign token id."""
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} sample {index} of {len(self)}")
        return self.parts[int(self.dataset_index[index])][int(self.sample_index[index])]

    @property
    def fingerprint(self) -> str:
        """Of the data of all parts and their shares."""
        parts = [part.fingerprint for part in self.parts]
        return hashlib.sha256(json.dumps([parts, self.shares.tolist()]).encode()).hexdigest()


MakePart = Callable[[int, "int | None"], GPTDataset]


def blend(
    make_part: MakePart,
    *,
    weights: Sequence[float] | None,
    one_epoch: Sequence[int],
    num_samples: int,
    name: str,
    cache: IndexCache,
) -> BlendedDataset:
    """num_samples entries, or a few more, over parts that are laid out as far as they are needed.

    make_part(i, n): part i with n samples; None: one epoch.   one_epoch: samples of one epoch of each part.
    Without weights each part gives its one epoch, in proportion; if that is not enough, the same proportions go on.
    """
    if weights is None and num_samples <= sum(one_epoch):
        shares = normalize(one_epoch)
        order = _order(shares, num_samples, one_epoch, cache, name=name)
        parts = [make_part(i, None) for i in range(len(one_epoch))]
        return BlendedDataset(parts, shares, order, name=name)
    if weights is None and sum(one_epoch) == 0:
        raise ConfigError(
            f"{name}: none of the {len(one_epoch)} data sets holds --seq-length + 1 tokens, which one sample takes, so they"
            " have no proportions: give weights, shorter samples or more documents"
        )
    shares = normalize(one_epoch if weights is None else weights)
    targets = sample_targets(shares, num_samples)
    # Twice normalised, as in core: the second division may change a last bit, and with it the order.
    order = _order(normalize(shares.tolist()), sum(targets), None, cache, name=name)
    drawn = order.samples_of_sets.tolist()
    parts = [make_part(i, with_surplus(target)) for i, target in enumerate(targets)]
    # Of many sets and few samples one may have to give more than the surplus covers; core fails there.
    parts = [part if len(part) >= drawn[i] else make_part(i, drawn[i]) for i, part in enumerate(parts)]
    return BlendedDataset(parts, shares, order, name=name)


def _order(
    shares: NDArray[np.float64], size: int, limits: Sequence[int] | None, cache: IndexCache, *, name: str
) -> BlendOrder:
    recipe = {
        "kind": "blend",
        "version": 2,
        "shares": shares.tolist(),
        "size": size,
        "limits": None if limits is None else list(limits),
    }

    def build() -> dict[str, NDArray[Any]]:
        check_indices_fit(size * ENTRY_BYTES, f"{name}: the order of {size} samples of a blend")
        most = None if limits is None else np.array(limits, dtype=np.int64)
        dataset_index, sample_index = build_blend_index(shares, size=size, limits=most)
        return {
            "dataset_index": dataset_index,
            "dataset_sample_index": sample_index,
            "samples_of_sets": samples_of_sets(dataset_index, len(shares)),
        }

    return BlendOrder(**cache.get("blend", recipe, build))


def samples_of_sets(dataset_index: NDArray[np.int16], num_sets: int) -> NDArray[np.int64]:
    """[num_sets] int64: entries of each set."""
    counts = np.zeros(num_sets, dtype=np.int64)
    for start in range(0, len(dataset_index), COUNT_ENTRIES):
        counts += np.bincount(dataset_index[start : start + COUNT_ENTRIES], minlength=num_sets)
    return counts
