"""Collectives and the ends of a process group over NCCL. Ranks that fail need two GPUs; the calls themselves need one."""

import datetime
import time

import pytest
import torch
import torch.distributed as dist
from helpers.ranks import COLLECTIVE_TIMEOUT_S, run_ranks

from megatron_zero.config.fields import ConfigError
from megatron_zero.distributed import launch
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
from megatron_zero.distributed.context import ParallelAxis

pytestmark = pytest.mark.gpu

ALL_CALLS = """
def body(ctx):
    total = torch.full((3,), float(ctx.dp.rank + 1), device=ctx.device)
    all_reduce_(total, axis=ctx.dp)
    print(total.tolist(), all_gather_object(ctx.dp.rank, axis=ctx.dp))
    try:
        raise_together(OSError("disk") if ctx.dp.rank == 1 else None, axis=ctx.dp, what="reading")
    except OSError as error:
        print(error, flush=True)
"""

FAIL_ON_RANK_1 = """
def body(ctx):
    if ctx.dp.rank == 1:
        raise KeyError("this rank alone")
    all_reduce_(torch.ones(3, device=ctx.device), axis=ctx.dp)
    torch.cuda.synchronize()
"""


@pytest.fixture
def axis(cuda, tmp_path):
    """An axis of one rank that has a group all the same, so that every call reaches NCCL."""
    dist.init_process_group(
        "nccl",
        init_method=f"file://{tmp_path}/meeting",
        rank=0,
        world_size=1,
        device_id=cuda,
        timeout=datetime.timedelta(seconds=COLLECTIVE_TIMEOUT_S),
    )
    yield ParallelAxis("dp", 1, 0, dist.group.WORLD, (0,))
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("async_op", [False, True])
def test_every_collective_runs_without_a_warning(axis, cuda, dtype, async_op):
    values = torch.arange(5, device=cuda).to(dtype)
    tensor, gathered, part = values.clone(), torch.zeros_like(values), torch.zeros_like(values)
    for name in ("sum", "max", "min"):
        all_reduce_(tensor, axis=axis, op=name, async_op=async_op).wait()
    broadcast_(tensor, axis=axis, async_op=async_op).wait()
    all_gather_into(gathered, tensor, axis=axis, async_op=async_op).wait()
    all_gather_into(gathered, gathered, axis=axis, async_op=async_op).wait()
    reduce_scatter_into(part, gathered, axis=axis, async_op=async_op).wait()
    assert torch.equal(tensor, values)
    assert torch.equal(part, values)


def test_objects_and_errors_travel(axis):
    barrier(axis=axis)
    assert all_gather_object({"rank": 0}, axis=axis) == [{"rank": 0}]
    assert broadcast_object("told", axis=axis) == "told"
    raise_together(None, axis=axis, what="reading")
    with pytest.raises(ConfigError, match="reading failed on rank 0: mine"):
        raise_together(ConfigError("mine"), axis=axis, what="reading")


def test_abandoning_with_work_in_flight_is_quick(axis, cuda):
    big = torch.ones(1 << 28, device=cuda)
    for _ in range(50):
        all_reduce_(big, axis=axis, async_op=True)
    started = time.monotonic()
    launch._abandon("nccl")
    assert time.monotonic() - started < 10.0
    assert not dist.is_initialized()


@pytest.fixture
def two_gpus(cuda):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")


def test_two_ranks_meet_and_part(two_gpus):
    expected = ["[3.0, 3.0, 3.0] [0, 1]", "reading failed on rank 1: disk", "gone"]
    for code, out, err in run_ranks(2, ALL_CALLS, backend="nccl"):
        assert (code, out.splitlines()) == (0, expected), err


def test_a_rank_that_fails_does_not_wait_for_the_others(two_gpus):
    """The other rank's kernel waits for it: NCCL ends that at the latest at the time-out."""
    results = run_ranks(2, FAIL_ON_RANK_1, backend="nccl")
    assert all(code != 0 for code, _, _ in results)
    assert "KeyError: 'this rank alone'" in results[1][2]
