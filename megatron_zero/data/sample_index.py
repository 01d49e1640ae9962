"""Pure: the order in which a split's tokens become samples, number for number that of Megatron-core's GPTDataset.

[Note: the three indices]
document index: the sequence ids of the split, once per epoch, shuffled: the token stream to be cut.
sample index:   row i is (position in the document index, offset in that sequence) of the first token of sample i. Its
                last token, which is only a label, is the first of sample i + 1.
shuffle index:  the order in which samples are handed out.
Document and shuffle index are shuffled over all epochs at once, unless the last epoch is to give less than 80% of its
samples: then it is shuffled apart, behind the others. Random numbers are numpy's legacy RandomState(seed), drawn for
the document index first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

SEPARATE_LAST_EPOCH_BELOW: Final = 0.80


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """How often a split's tokens are walked through, and whether the last walk is shuffled apart.

    num_samples: all samples that these epochs give.
    samples_before_last: those that end before the last epoch begins (0 for a single epoch).
    """

    num_epochs: int
    num_samples: int
    samples_before_last: int
    separate_last: bool


def plan_epochs(*, tokens_per_epoch: int, num_samples: int | None, seq_length: int) -> EpochPlan:
    """The fewest epochs that give num_samples; None: one epoch. tokens_per_epoch must be positive."""
    wanted_tokens = 0 if num_samples is None else num_samples * seq_length + 1
    num_epochs = max(1, -(-wanted_tokens // tokens_per_epoch))
    available = (num_epochs * tokens_per_epoch - 1) // seq_length
    if num_epochs == 1 or num_samples is None:
        return EpochPlan(num_epochs, available, 0, separate_last=False)
    before_last = ((num_epochs - 1) * tokens_per_epoch - 1) // seq_length
    threshold = int(SEPARATE_LAST_EPOCH_BELOW * ((tokens_per_epoch - 1) // seq_length))
    return EpochPlan(num_epochs, available, before_last, separate_last=num_samples - before_last < threshold)


def build_document_index(documents: NDArray[Any], plan: EpochPlan, random: np.random.RandomState) -> NDArray[np.int32]:
    """[num_epochs * documents] int32: shuffled sequence ids; the last epoch apart if the plan says so."""
    parts = [plan.num_epochs - 1, 1] if plan.separate_last else [plan.num_epochs]
    shuffled = [np.tile(documents.astype(np.int32), epochs) for epochs in parts]
    for part in shuffled:
        random.shuffle(part)
    return np.concatenate(shuffled)


def build_sample_index(
    sizes: NDArray[np.int32], document_index: NDArray[np.int32], plan: EpochPlan, *, seq_length: int
) -> NDArray[Any]:
    """[num_samples + 1, 2]: where each sample begins and, behind the last one, where the next would.

    int32 as long as every value fits, else int64, as in core. Takes 8 bytes per entry of the document index meanwhile.
    """
    ends = np.cumsum(sizes[document_index], dtype=np.int64)
    first_tokens = np.arange(plan.num_samples + 1, dtype=np.int64) * seq_length
    positions = np.searchsorted(ends, first_tokens, side="right")
    offsets = first_tokens - (ends[positions] - sizes[document_index[positions]])
    largest = max(len(document_index), int(sizes.max()))
    dtype = np.int32 if largest <= np.iinfo(np.int32).max else np.int64
    return np.stack([positions, offsets], axis=1).astype(dtype)


def build_shuffle_index(plan: EpochPlan, random: np.random.RandomState) -> NDArray[Any]:
    """[num_samples] uint32 (int64 beyond): a permutation; the samples of a separate last epoch stay last."""
    dtype = np.uint32 if plan.num_samples < np.iinfo(np.uint32).max - 1 else np.int64
    cut = plan.samples_before_last if plan.separate_last else plan.num_samples
    shuffled = [np.arange(0, cut, dtype=dtype), np.arange(cut, plan.num_samples, dtype=dtype)]
    for part in shuffled:
        random.shuffle(part)  # an empty part draws nothing
    return np.concatenate(shuffled)
