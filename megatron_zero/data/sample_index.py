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

from ..ops.dataset_index import build_sample_index, shuffle_

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


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """The three indices, see the note above.

    document_index: [num_epochs * documents] int32 (int64 where ids do not fit).
    sample_index:   [num_samples + 1, 2] int32 (int64 beyond 2^31 positions); the last row is where the next would begin.
    shuffle_index:  [num_samples] uint32 (int64 beyond).
    """

    document_index: NDArray[Any]
    sample_index: NDArray[Any]
    shuffle_index: NDArray[Any]

    @staticmethod
    def of(sizes: NDArray[np.int32], documents: range, plan: EpochPlan, *, seq_length: int, seed: int) -> SampleOrder:
        """sizes: [sequences] int32, of the whole set.   documents: ids of the split's sequences."""
        random = np.random.RandomState(seed)
        document_index = build_document_index(documents, plan, random)
        sample_index = build_sample_index(sizes, document_index, seq_length=seq_length, num_rows=plan.num_samples + 1)
        return SampleOrder(document_index, sample_index, build_shuffle_index(plan, random))


def build_document_index(documents: range, plan: EpochPlan, random: np.random.RandomState) -> NDArray[Any]:
    """[num_epochs * documents]: shuffled sequence ids; the last epoch apart if the plan says so."""
    dtype = np.int32 if documents.stop <= np.iinfo(np.int32).max else np.int64
    index = np.empty((plan.num_epochs, len(documents)), dtype=dtype)
    index[:] = np.arange(documents.start, documents.stop, dtype=dtype)
    together = plan.num_epochs - 1 if plan.separate_last else plan.num_epochs
    for part in (index[:together], index[together:]):
        shuffle_(part.reshape(-1), random)  # a view: rows are contiguous; an empty part draws nothing
    return index.reshape(-1)


def build_shuffle_index(plan: EpochPlan, random: np.random.RandomState) -> NDArray[Any]:
    """[num_samples]: a permutation; the samples of a separate last epoch stay last."""
    dtype = np.uint32 if plan.num_samples < np.iinfo(np.uint32).max - 1 else np.int64
    index = np.arange(plan.num_samples, dtype=dtype)
    cut = plan.samples_before_last if plan.separate_last else plan.num_samples
    for part in (index[:cut], index[cut:]):
        shuffle_(part, random)
    return index
