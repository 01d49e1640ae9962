"""Long work in turns: the order, errors on every rank, and work that outlasts the collective timeout (H55)."""

import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from helpers.spawn import DistributedPool

from megatron_zero.config.fields import ConfigError
from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.distributed.context import ParallelAxis, ParallelContext
from megatron_zero.distributed.turns import run_in_turns

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pool():
    with DistributedPool(4) as pool:
        yield pool


def take_turns(ctx, folder, turns):
    """Each rank notes the ranks whose work was done when its own began."""
    rank = ctx.world.rank

    def work():
        seen = sorted(int(path.name) for path in Path(folder).iterdir())
        (Path(folder) / str(rank)).touch()
        return seen

    return run_in_turns(work, turn=turns[rank], num_turns=3, axis=ctx.world, device=CPU, what="working")


def test_a_turn_begins_when_the_one_before_has_ended(pool, tmp_path):
    turns = (1, 0, 1, 2)
    for rank, seen in enumerate(pool.run(take_turns, str(tmp_path), turns)):
        earlier = {other for other in range(4) if turns[other] < turns[rank]}
        later = {other for other in range(4) if turns[other] > turns[rank]}
        assert earlier <= set(seen)
        assert not later & set(seen)


def fail_in_turn(ctx, folder, failing):
    def work():
        (Path(folder) / str(ctx.world.rank)).touch()
        if ctx.world.rank == failing:
            raise ConfigError("the disk of --data-path is full")

    try:
        run_in_turns(work, turn=min(ctx.world.rank, 1), num_turns=2, axis=ctx.world, device=CPU, what="reading the data")
    except ConfigError as error:
        return str(error)
    return None


@pytest.mark.parametrize("failing,worked", [(0, 1), (2, 4)])
def test_an_error_ends_every_rank_and_the_turns_after_it(pool, tmp_path, failing, worked):
    messages = pool.run(fail_in_turn, str(tmp_path), failing)
    expected = f"reading the data failed on rank {failing}: the disk of --data-path is full"
    assert messages == [expected] * 4
    assert len(list(tmp_path.iterdir())) == worked


def leave(ctx):
    def work():
        raise SystemExit(3)

    with pytest.raises(RuntimeError, match=r"failed on rank 0.*SystemExit: 3"):
        run_in_turns(work, turn=min(ctx.world.rank, 1), num_turns=2, axis=ctx.world, device=CPU, what="x")


def test_an_exit_inside_the_work_is_an_error_too(pool):
    pool.run(leave)


def outlast(ctx, timeout_seconds):
    impatient = ParallelContext.create(
        ParallelConfig(), rank=ctx.world.rank, world_size=4, device=CPU, timeout=timedelta(seconds=timeout_seconds)
    )
    return run_in_turns(
        lambda: threading.Event().wait(3.0 * timeout_seconds if ctx.world.rank == 0 else 0.0),
        turn=min(ctx.world.rank, 1),
        num_turns=2,
        axis=impatient.world,
        device=CPU,
        what="x",
    )


def test_work_may_take_longer_than_the_collective_timeout(pool):
    """H55: the timeout bounds the wait for a dead rank, not for a busy one."""
    assert pool.run(outlast, 2.0) == [False] * 4


def test_one_process_just_works():
    axis = ParallelAxis.single("world")
    assert run_in_turns(lambda: 7, turn=1, num_turns=3, axis=axis, device=CPU, what="x") == 7
    with pytest.raises(ValueError, match="turn 3 is not 0 to 2"):
        run_in_turns(lambda: 7, turn=3, num_turns=3, axis=axis, device=CPU, what="x")
