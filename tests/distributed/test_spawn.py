"""The test helper itself: results in rank order, the first failing rank's traceback, no hang, nothing left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from helpers.spawn import DistributedPool, RankFailure, run_distributed

from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.distributed.collectives import barrier
from megatron_zero.distributed.context import ParallelContext


def process_and_value(ctx: ParallelContext, value: int) -> tuple[int, int, int]:
    return ctx.world.rank, value, os.getpid()


def mesh_positions(ctx: ParallelContext) -> tuple[int, int]:
    return ctx.dp.rank, ctx.tp.rank


def fail_on_second_rank(ctx: ParallelContext) -> None:
    if ctx.world.rank == 1:
        raise KeyError("the word in the message")
    barrier(axis=ctx.world)


def hang_on_second_rank(ctx: ParallelContext) -> None:
    if ctx.world.rank == 1:
        stuck_here()


def stuck_here() -> None:
    time.sleep(1000.0)


def die_on_second_rank(ctx: ParallelContext) -> None:
    if ctx.world.rank == 1:
        os._exit(7)
    barrier(axis=ctx.world)


@pytest.fixture(scope="module")
def pool() -> Iterator[DistributedPool]:
    with DistributedPool(2) as pool:
        yield pool


def is_running(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_results_come_in_rank_order_and_workers_are_reused(pool: DistributedPool) -> None:
    first, second = pool.run(process_and_value, 5), pool.run(process_and_value, 6)
    assert [(rank, value) for rank, value, _ in first] == [(0, 5), (1, 5)]
    assert [pid for _, _, pid in first] == [pid for _, _, pid in second]
    assert pool.run(mesh_positions) == [(0, 0), (1, 0)]
    assert pool.run(mesh_positions, parallel=ParallelConfig(tensor_model_parallel_size=2)) == [(0, 0), (0, 1)]


def test_failure_shows_the_failing_ranks_traceback_and_the_pool_recovers(pool: DistributedPool) -> None:
    pids = [pid for _, _, pid in pool.run(process_and_value, 0)]
    started = time.monotonic()
    with pytest.raises(RankFailure, match="rank 1 of 2 failed first") as caught:
        pool.run(fail_on_second_rank)
    assert time.monotonic() - started < 20.0  # not the time-out: rank 0 waits in a barrier for ever
    assert caught.value.rank == 1
    assert "KeyError: 'the word in the message'" in str(caught.value)
    assert "in fail_on_second_rank" in str(caught.value)
    assert not any(is_running(pid) for pid in pids)
    assert [value for _, value, _ in pool.run(process_and_value, 9)] == [9, 9]


def test_hung_rank_is_killed_and_its_stack_shown(pool: DistributedPool) -> None:
    pids = [pid for _, _, pid in pool.run(process_and_value, 0)]
    with pytest.raises(RankFailure, match=r"ranks \[1\] did not answer in 1 s") as caught:
        pool.run(hang_on_second_rank, timeout_s=1.0)
    assert "in stuck_here" in str(caught.value)
    assert not any(is_running(pid) for pid in pids)


def test_dead_rank_is_reported_with_its_exit_code() -> None:
    with pytest.raises(RankFailure, match="died with exit code 7") as caught:
        run_distributed(die_on_second_rank, 2)
    assert caught.value.rank == 1
