"""process_group as a run uses it: processes with a launcher's variables meet, part, and never wait for one that failed."""

import os
import socket
import subprocess
import sys
import time
from contextlib import closing

COLLECTIVE_TIMEOUT_S = 60

PROGRAM = """
import sys
from datetime import timedelta
import torch
from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.distributed.collectives import all_gather_object, barrier
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.distributed.launch import choose_device, end_group_threads, process_group, read_launch_environment

def run(body):
    env = read_launch_environment()
    device, backend = choose_device(env, "gloo")
    timeout = timedelta(seconds={timeout})
    with process_group(env, backend=backend, device=device, timeout=timeout):
        ranks = dict(rank=env.rank, world_size=env.world_size)
        body(ParallelContext.create(ParallelConfig(), **ranks, device=device, timeout=timeout))

def meet(ctx):
    print(all_gather_object(ctx.dp.rank, axis=ctx.dp), flush=True)

def fail_on_rank_1(ctx):
    if ctx.dp.rank == 1:
        raise KeyError("this rank alone")
    barrier(axis=ctx.dp)

try:
    run({body})
finally:
    print("initialised" if torch.distributed.is_initialized() else "gone", flush=True)
    end_group_threads()
"""


def start_ranks(world_size, body):
    """One process per rank, with torchrun's variables. A port found free may be taken by then: the run fails, loudly."""
    with closing(socket.socket()) as finder:
        finder.bind(("127.0.0.1", 0))
        port = finder.getsockname()[1]
    program = PROGRAM.format(timeout=COLLECTIVE_TIMEOUT_S, body=body)
    shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]


def finish(processes):
    """(exit code, stdout, stderr) of each; none outlives this."""
    try:
        outputs = [process.communicate(timeout=COLLECTIVE_TIMEOUT_S + 30) for process in processes]
        return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_ranks_meet_and_part():
    for code, out, err in finish(start_ranks(2, "meet")):
        assert (code, out.splitlines()) == (0, ["[0, 1]", "gone"]), err


def test_a_rank_that_fails_ends_the_others_long_before_the_time_out():
    started = time.monotonic()
    results = finish(start_ranks(2, "fail_on_rank_1"))
    assert time.monotonic() - started < COLLECTIVE_TIMEOUT_S / 2
    for code, out, err in results:
        assert (code, out) == (1, "gone\n"), err
    assert "KeyError: 'this rank alone'" in results[1][2]
    assert "KeyError" not in results[0][2]
