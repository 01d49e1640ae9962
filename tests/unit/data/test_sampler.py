"""Every global batch is the same samples under any data-parallel size, and nothing is lost between two of them."""

import pytest

from megatron_zero.data.sampler import micro_batch_indices

GLOBAL_BATCH = 24


def global_batch(consumed_samples, *, dp_size, micro_batch_size):
    num_microbatches = GLOBAL_BATCH // (dp_size * micro_batch_size)
    return [
        index
        for rank in range(dp_size)
        for ids in micro_batch_indices(
            consumed_samples=consumed_samples,
            num_microbatches=num_microbatches,
            micro_batch_size=micro_batch_size,
            dp_rank=rank,
            dp_size=dp_size,
        )
        for index in ids
    ]


@pytest.mark.parametrize("dp_size,micro_batch_size", [(1, 1), (1, 24), (2, 3), (4, 2), (8, 1), (8, 3)])
def test_global_batch_holds_the_next_samples_once(dp_size, micro_batch_size):
    for consumed in (0, 24, 1000):
        batch = global_batch(consumed, dp_size=dp_size, micro_batch_size=micro_batch_size)
        assert sorted(batch) == list(range(consumed, consumed + GLOBAL_BATCH))


def test_no_sample_is_lost_when_the_data_parallel_size_changes():
    """H56: 5 steps at data-parallel size 4, then 5 at 2, 1 or 8, give the samples of 10 at 4, step by step."""
    unchanged = [set(global_batch(step * GLOBAL_BATCH, dp_size=4, micro_batch_size=1)) for step in range(10)]
    for later in (2, 1, 8):
        sizes = [4] * 5 + [later] * 5
        changed = [
            set(global_batch(step * GLOBAL_BATCH, dp_size=size, micro_batch_size=1)) for step, size in enumerate(sizes)
        ]
        assert changed == unchanged


def test_micro_batches_of_a_rank_are_in_order_and_of_their_size():
    batches = micro_batch_indices(consumed_samples=100, num_microbatches=3, micro_batch_size=2, dp_rank=1, dp_size=4)
    assert batches == [range(102, 104), range(110, 112), range(118, 120)]


def test_no_micro_batch_is_asked_for():
    assert micro_batch_indices(consumed_samples=4, num_microbatches=0, micro_batch_size=2, dp_rank=0, dp_size=1) == []
