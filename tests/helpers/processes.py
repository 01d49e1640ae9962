"""Waiting for processes that are no children of the test's own."""

from __future__ import annotations

import os
import select


def process_ended(pid: int, *, seconds: float) -> bool:
    """Whether a process is gone, or a zombie, within some time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with open(descriptor, "rb"):
        return bool(select.select([descriptor], [], [], seconds)[0])


def cpu_environment() -> dict[str, str]:
    """This process's environment with one thread and no GPU: runs of several processes need one GPU each otherwise."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
