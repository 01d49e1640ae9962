"""Processes with torchrun's variables that meet through launch.process_group, as a run does."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing

COLLECTIVE_TIMEOUT_S = 60

PROGRAM = """
from datetime import timedelta
import torch
from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.distributed.collectives import all_gather_object, all_reduce_, barrier, raise_together
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.distributed.launch import choose_device, end_group_threads, process_group, read_launch_environment

def run(body):
    env = read_launch_environment()
    device, backend = choose_device(env, "{backend}")
    timeout = timedelta(seconds={timeout})
    with process_group(env, backend=backend, device=device, timeout=timeout):
        ranks = dict(rank=env.rank, world_size=env.world_size)
        body(ParallelContext.create(ParallelConfig(), **ranks, device=device, timeout=timeout))

{body}

try:
    run(body)
finally:
    print("initialised" if torch.distributed.is_initialized() else "gone", flush=True)
    end_group_threads()
"""


def run_ranks(world_size: int, body: str, *, backend: str) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each rank; none outlives this, and warnings are errors in them.

    body: source that defines body(ctx: ParallelContext).   stdout ends with "gone" where the process group is.
    The port is found free and may be taken before it is used: the run fails then, loudly.
    """
    with closing(socket.socket()) as finder:
        finder.bind(("127.0.0.1", 0))
        port = finder.getsockname()[1]
    program = PROGRAM.format(timeout=COLLECTIVE_TIMEOUT_S, body=body, backend=backend)
    shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", program],
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world_size)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        outputs = [process.communicate(timeout=COLLECTIVE_TIMEOUT_S + 30) for process in processes]
        return [(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.wait()
