"""The norm counts each element once, in one order, in fp64."""

import math

import pytest
import torch

from megatron_zero.optim.grad_norm import BLOCK_NUMEL, clip_coefficient, counted_parts, norm_of, sum_of_squares
from megatron_zero.zero.sharding import NORM_BLOCK_NUMEL


def test_blocks_are_those_of_the_layout():
    assert BLOCK_NUMEL == NORM_BLOCK_NUMEL


@pytest.mark.parametrize("blocks", [1, 2, 1024, 1025, 5000])
def test_sum_equals_an_exact_sum(blocks):
    shard = torch.randn(blocks * BLOCK_NUMEL, generator=torch.Generator().manual_seed(blocks))
    exact = math.fsum((shard.double() ** 2).tolist())
    assert float(sum_of_squares([shard])) == pytest.approx(exact, rel=1e-14)


def test_the_result_does_not_depend_on_the_number_of_threads():
    shards = [torch.randn(3000 * BLOCK_NUMEL, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    before = torch.get_num_threads()
    sums = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        sums.append(float(sum_of_squares(shards)))
    torch.set_num_threads(before)
    assert sums[0] == sums[1] == sums[2]


def test_large_values_do_not_overflow_and_bad_ones_show():
    big = torch.full((BLOCK_NUMEL,), 3e38)
    assert math.isfinite(norm_of(float(sum_of_squares([big]))))
    for bad in (float("nan"), float("inf")):
        shard = torch.zeros(BLOCK_NUMEL)
        shard[17] = bad
        assert not math.isfinite(norm_of(float(sum_of_squares([torch.zeros(BLOCK_NUMEL), shard]))))


def test_partial_blocks_raise():
    with pytest.raises(ValueError, match="1000 elements is not whole blocks"):
        sum_of_squares([torch.zeros(1000)])


@pytest.mark.parametrize("start, stop", [(0, 0), (0, 1), (1, 3), (2, 3), (0, 3), (3, 3)])
def test_replicated_blocks_count_on_one_rank_only(start, stop):
    """Two ranks that hold the same shard of three blocks: together they count the range once and the rest twice."""
    shard = torch.ones(3 * BLOCK_NUMEL)
    ranges = [(start * BLOCK_NUMEL, stop * BLOCK_NUMEL)]
    sums = [float(sum_of_squares(counted_parts([shard], ranges, counts_replicated=first))) for first in (True, False)]
    assert sums == [3 * BLOCK_NUMEL, (3 - (stop - start)) * BLOCK_NUMEL]


def test_clip_coefficient():
    assert clip_coefficient(10.0, max_norm=0.0) == 1.0
    assert clip_coefficient(0.5, max_norm=1.0) == 1.0
    assert clip_coefficient(4.0, max_norm=1.0) == 1.0 / (4.0 + 1e-6)
    assert clip_coefficient(0.0, max_norm=1.0) == 1.0
