"""Collectives over gloo, elementwise, in every dtype that the engine sends; errors reach every rank."""

from datetime import timedelta

import pytest
import torch
from helpers.spawn import DistributedPool

from megatron_zero.config.fields import ConfigError
from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.distributed.collectives import (
    all_gather_into,
    all_gather_object,
    all_reduce_,
    barrier,
    broadcast_,
    broadcast_object,
    raise_together,
    reduce_scatter_into,
)
from megatron_zero.distributed.context import ParallelAxis, ParallelContext


@pytest.fixture(scope="module")
def pool():
    with DistributedPool(3) as pool:
        yield pool


@pytest.fixture(scope="module")
def pool_of_four():
    with DistributedPool(4) as pool:
        yield pool


def exchange(ctx, dtype, async_op):
    axis, rank = ctx.dp, ctx.dp.rank
    total = torch.arange(4).to(dtype) + rank
    all_reduce_(total, axis=axis, async_op=async_op).wait()
    largest = torch.tensor([rank, -rank]).to(dtype)
    all_reduce_(largest, axis=axis, op="max")
    whole = torch.zeros(3 * axis.size, dtype=dtype)
    all_gather_into(whole, torch.full((3,), rank + 1).to(dtype), axis=axis, async_op=async_op).wait()
    in_place = torch.full((2 * axis.size,), -1).to(dtype)
    in_place[2 * rank : 2 * rank + 2] = rank
    all_gather_into(in_place, in_place[2 * rank : 2 * rank + 2], axis=axis)
    part = torch.zeros(2, dtype=dtype)
    reduce_scatter_into(part, torch.arange(2 * axis.size).to(dtype), axis=axis, async_op=async_op).wait()
    told = torch.full((2,), rank).to(dtype)
    broadcast_(told, axis=axis, source=2)
    return total, largest, whole, in_place, part, told


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize("async_op", [False, True])
def test_results_are_exact(pool, dtype, async_op):
    for rank, results in enumerate(pool.run(exchange, dtype, async_op)):
        total, largest, whole, in_place, part, told = (result.double() for result in results)
        assert total.tolist() == [3.0, 6.0, 9.0, 12.0]
        assert largest.tolist() == [2.0, 0.0]
        assert whole.tolist() == [1.0] * 3 + [2.0] * 3 + [3.0] * 3
        assert in_place.tolist() == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
        assert part.tolist() == [3.0 * (2 * rank), 3.0 * (2 * rank + 1)]
        assert told.tolist() == [2.0, 2.0]


def objects(ctx):
    barrier(axis=ctx.world)
    return all_gather_object(ctx.dp.rank * 10, axis=ctx.dp), broadcast_object(f"from {ctx.dp.rank}", axis=ctx.dp, source=1)


def test_objects(pool):
    assert pool.run(objects) == [([0, 10, 20], "from 1")] * 3


def fail_on(ctx, failing, kind):
    error = kind(f"bad file on {ctx.world.rank}") if ctx.world.rank in failing else None
    try:
        raise_together(error, axis=ctx.world, what="reading")
    except (ConfigError, OSError, RuntimeError) as raised:
        return type(raised).__name__, str(raised)
    return None


def test_an_error_of_one_rank_is_raised_on_all(pool):
    for name, message in pool.run(fail_on, (1,), ConfigError):
        assert name == "ConfigError"
        assert message == "reading failed on rank 1: bad file on 1"
    for name, message in pool.run(fail_on, (1, 2), ZeroDivisionError):
        assert name == "RuntimeError"
        assert "rank 1 (and on 1 more of 3 ranks): ZeroDivisionError: bad file on 1" in message
    assert pool.run(fail_on, (), OSError) == [None] * 3


def ranks_met_on_each_axis(ctx):
    axes = (ctx.world, ctx.tp, ctx.dp, ctx.pp, ctx.model, ctx.embedding)
    return {axis.name: (tuple(all_gather_object(ctx.world.rank, axis=axis)), axis.global_ranks) for axis in axes}


@pytest.mark.parametrize("tp, pp", [(2, 1), (1, 2), (2, 2), (1, 4)])
def test_the_group_of_every_axis_holds_its_ranks_in_order(pool_of_four, tp, pp):
    mesh = ParallelConfig(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp)
    for met in pool_of_four.run(ranks_met_on_each_axis, parallel=mesh):
        for name, (gathered, expected) in met.items():
            assert gathered == expected, name


def refused_mesh(ctx, tp):
    mesh = ParallelConfig(tensor_model_parallel_size=tp)
    try:
        ParallelContext.create(
            mesh, rank=ctx.world.rank, world_size=ctx.world.size, device=ctx.device, timeout=timedelta(seconds=5)
        )
    except ConfigError as error:
        return str(error)
    return None


def test_a_mesh_that_does_not_divide_is_refused_on_every_rank(pool):
    for message in pool.run(refused_mesh, 2):
        assert message.startswith("3 processes do not divide into groups of --tensor-model-parallel-size 2")


def test_a_size_1_axis_moves_nothing():
    axis = ParallelAxis.single("dp")
    tensor, out = torch.arange(3.0), torch.zeros(3)
    all_reduce_(tensor, axis=axis)
    broadcast_(tensor, axis=axis)
    all_gather_into(out, tensor, axis=axis)
    assert torch.equal(out, tensor)
    reduce_scatter_into(out, tensor * 2, axis=axis)
    assert torch.equal(out, tensor * 2)
    all_gather_into(out, out, axis=axis)
    assert (all_gather_object(5, axis=axis), broadcast_object(6, axis=axis)) == ([5], 6)
    with pytest.raises(ConfigError, match="mine"):
        raise_together(ConfigError("mine"), axis=axis, what="reading")


def test_wrong_arguments_are_named_before_anything_travels():
    axis = ParallelAxis.single("dp")
    with pytest.raises(ValueError, match="all_gather over axis dp: 4 elements are not axis size 1 x shard of 3"):
        all_gather_into(torch.zeros(4), torch.zeros(3), axis=axis)
    with pytest.raises(ValueError, match="not contiguous"):
        all_reduce_(torch.zeros(4, 4).t()[1:], axis=axis)
    with pytest.raises(ValueError, match=r"float64 on cpu and torch\.float32"):
        reduce_scatter_into(torch.zeros(2), torch.zeros(2, dtype=torch.float64), axis=axis)
    with pytest.raises(ValueError, match="unknown op 'mean'"):
        all_reduce_(torch.zeros(1), axis=axis, op="mean")
    with pytest.raises(ValueError, match=r"source 1 is not a rank of the axis \[0, 1\)"):
        broadcast_(torch.zeros(1), axis=axis, source=1)
