"""Kills a process before each step of its work on files, one process per step: what is left shows what a kill can leave.

    folders = killed_at_every_step(CODE, tmp_path)

CODE is Python that defines prepare(folder) and act(folder), both of which are given an empty folder of their own. Steps are
opening, linking, renaming, removing, locking and fsyncing. Children are forks: thousands of kills cost no start of Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

DRIVER = """
import os, signal, sys
from pathlib import Path

EVENTS = {"open", "os.link", "os.rename", "os.remove", "fcntl.flock"}

def kill_before(step, report):
    left = step
    def count(event, arguments):
        nonlocal left
        if event in EVENTS:
            left -= 1
            if left == 0:
                os.write(report, f"{event} {arguments}".encode())
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(count)
    fsync = os.fsync
    def counted(descriptor):  # fsync has no audit event
        count("open", ("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)
    os.fsync = counted

work, root = {}, Path(sys.argv[2])
exec(sys.argv[1], work)
for step in range(1, 1000):
    folder = root / f"{step:03d}"
    folder.mkdir()
    work["prepare"](folder)
    with open(root / f"{step:03d}.step", "wb") as report:
        child = os.fork()
        if child == 0:
            kill_before(step, report.fileno())
            try:
                work["act"](folder)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != -signal.SIGKILL:
        sys.exit(code)
"""


@dataclass(frozen=True)
class Killed:
    """folder: as the killed process left it.   step: what it was about to do; "" for the one that came to its end."""

    folder: Path
    step: str


def killed_at_every_step(code: str, root: Path, *, timeout_s: float = 60.0) -> list[Killed]:
    """In the order of steps; the last one is the process that was not killed. root: an empty folder."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, code, root], env=environment, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    return [Killed(folder, folder.with_suffix(".step").read_text()) for folder in folders]
