"""Long work in turns: the order, errors on every rank, and work that outlasts the collective timeout (H55)."""

import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from helpers.processes import cpu_environment
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


# ---- a rank that dies


RANK_OF_TWO = """
import os, sys, threading
from datetime import timedelta
from pathlib import Path
import numpy as np, torch, torch.distributed as dist
from helpers.processes import process_ended
from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.distributed.turns import run_in_turns
from megatron_zero.ops.dataset_index import shuffle_

rank, turn, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
begun, pid = folder / "begun", folder / "pid"
cpu, patience = torch.device("cpu"), timedelta(seconds=60)

def die():
    while turn == 0 and not begun.exists():
        threading.Event().wait(0.01)
    os._exit(9)

def outlive():
    begun.touch()
    alive = True
    while alive:
        alive = not process_ended(int(pid.read_text()), seconds=0)
        shuffle_(np.arange(1 << 24, dtype=np.uint32), np.random.RandomState(1))
    print("worked to its end", flush=True)

if rank == 1:
    pid.write_text(str(os.getpid()))
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=patience)
world = ParallelContext.create(ParallelConfig(), rank=rank, world_size=2, device=cpu, timeout=patience).world
work = die if rank == 1 else outlive
run_in_turns(work, turn=0 if rank == 1 else turn, num_turns=2, axis=world, device=cpu, what="reading the data")
"""


@pytest.mark.parametrize("turn", [0, 1])
def test_rank_that_dies_in_a_turn_ends_the_other_with_its_name(tmp_path, turn):
    """turn: of the rank that stays. In 0 its own work is in native code meanwhile, and comes back before Python ends:
    else the process aborts."""
    environment = cpu_environment() | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    stays, dies = (
        subprocess.Popen(
            [sys.executable, "-c", RANK_OF_TWO, str(rank), str(turn), tmp_path],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    )
    with stays, dies:
        try:
            out, err = stays.communicate(timeout=50)  # the collective timeout is longer: nobody waited for it
        finally:
            stays.kill()
            dies.kill()
    assert dies.returncode == 9
    assert stays.returncode == 1, err
    assert "reading the data, turn 0 of 2: all_reduce over axis world did not complete: rank 1 ended" in err
    assert out == ("worked to its end\n" if turn == 0 else "")


def test_one_process_just_works():
    axis = ParallelAxis.single("world")
    assert run_in_turns(lambda: 7, turn=1, num_turns=3, axis=axis, device=CPU, what="x") == 7
    with pytest.raises(ValueError, match="turn 3 is not 0 to 2"):
        run_in_turns(lambda: 7, turn=3, num_turns=3, axis=axis, device=CPU, what="x")
