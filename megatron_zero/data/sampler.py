"""Which samples a data-parallel rank reads: a pure function of how many samples the run has consumed.

There is no other state, so a run resumes under any data-parallel size, and a global batch is the same set of samples
for all of them.
"""

from __future__ import annotations


def micro_batch_indices(
    *, consumed_samples: int, num_microbatches: int, micro_batch_size: int, dp_rank: int, dp_size: int
) -> list[range]:
    """Sample ids of each of this rank's next micro-batches: micro-batch j of rank r takes `micro_batch_size` ids from
    consumed_samples + (j * dp_size + r) * micro_batch_size on. Ids may lie past the end of a data set."""
    round_size = dp_size * micro_batch_size
    first = consumed_samples + dp_rank * micro_batch_size
    starts = range(first, first + num_microbatches * round_size, round_size)
    return [range(start, start + micro_batch_size) for start in starts]
