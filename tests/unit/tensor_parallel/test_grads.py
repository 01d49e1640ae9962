"""One all-reduce sums every unit's replicated range, in unit order; nothing else is touched, and often nothing travels."""

import pytest
import torch

from megatron_zero.distributed.context import ParallelAxis
from megatron_zero.tensor_parallel import grads
from megatron_zero.tensor_parallel.grads import sum_replicated_
from megatron_zero.tensor_parallel.group import TensorParallel

AXIS = ParallelAxis("tp", 2, 0, None, (0, 1))
DIVIDED = TensorParallel(AXIS, sequence_parallel=True)
RANGES = [(0, 0), (2, 5), (6, 6), (0, 6), (5, 6)]


def numbered_shards():
    """Five shards of six: 0 to 29."""
    return list(torch.arange(30.0).split(6))


@pytest.fixture
def sums(monkeypatch):
    """What was all-reduced, as if the other rank held 100 everywhere."""
    calls = []

    def all_reduce_(tensor, *, axis):
        assert axis is AXIS
        calls.append(tensor.tolist())
        tensor.add_(100.0)

    monkeypatch.setattr(grads, "all_reduce_", all_reduce_)
    return calls


def test_all_ranges_travel_together_in_unit_order(sums):
    shards = numbered_shards()
    sum_replicated_(shards, RANGES, tp=DIVIDED)
    assert sums == [[8.0, 9.0, 10.0, *(float(i) for i in range(18, 24)), 29.0]]
    for shard, before, (start, stop) in zip(shards, numbered_shards(), RANGES, strict=True):
        before[start:stop] += 100.0
        torch.testing.assert_close(shard, before, rtol=0, atol=0)


@pytest.mark.parametrize("tp", [TensorParallel.single(), TensorParallel(AXIS)], ids=["one rank", "no sequence parallel"])
def test_whole_gradients_do_not_travel(sums, tp):
    shards = numbered_shards()
    sum_replicated_(shards, RANGES, tp=tp)
    assert sums == []
    torch.testing.assert_close(shards, numbered_shards(), rtol=0, atol=0)


def test_shards_without_replicated_elements_do_not_travel(sums):
    """Equal on every rank of the axis, so all of them skip it."""
    sum_replicated_(numbered_shards(), [(3, 3)] * 5, tp=DIVIDED)
    assert sums == []


def test_one_range_a_shard():
    with pytest.raises(ValueError, match="shorter"):
        sum_replicated_(numbered_shards(), RANGES[:-1], tp=DIVIDED)
