"""Run one child until it ends, passing signals to it.

The child gets a session of its own: a terminal's Ctrl-C then reaches it once, through here, and not twice.
A second signal of the user ends everything at once.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# A shell and its process group are often signalled together, so one Ctrl-C can arrive twice within moments.
REPEAT_WINDOW_S: Final = 1.0
PR_SET_PDEATHSIG: Final = 1  # linux/prctl.h


class Supervisor:
    """Owns the child from start to end.

    The first signal is forwarded; the same wish again within REPEAT_WINDOW_S is ignored; a later one kills the child
    and all that descend from it. Use it once, from the main thread (signal handlers need that).
    """

    def __init__(self, *, repeat_window_s: float = REPEAT_WINDOW_S) -> None:
        self._repeat_window_s = repeat_window_s
        self._child: subprocess.Popen[bytes] | None = None
        self._first_signal: int | None = None
        self._first_time = 0.0
        self._passed_on = False

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Exit code of `command`; 128 + n when signal n ended it, or when it failed after n was forwarded.

        environment: all variables of the child. Raises OSError if the program cannot be started.
        """
        previous = {number: signal.signal(number, self._on_signal) for number in FORWARDED}
        try:
            self._child = subprocess.Popen(
                command, env=dict(environment), start_new_session=True, preexec_fn=_end_with_parent
            )
            self._pass_on()  # a signal may have come before there was a child to pass it to
            code = self._child.wait()
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        if code != 0 and self._first_signal is not None:
            return 128 + self._first_signal
        return code if code >= 0 else 128 - code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        name = signal.Signals(number).name
        if self._first_signal is None:
            self._first_signal, self._first_time = number, now
            _say(f"{name}: passed on; waiting for the ranks to end (send it again to kill them)")
            self._pass_on()
        elif now - self._first_time >= self._repeat_window_s and self._child is not None:
            _say(f"{name} again: killing every process of this launch")
            for pid in [*descendants(self._child.pid), self._child.pid]:
                _kill(pid)

    def _pass_on(self) -> None:
        if self._child is not None and self._first_signal is not None and not self._passed_on:
            self._passed_on = True
            self._child.send_signal(self._first_signal)


def descendants(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """Pids of the processes below `pid` (children before grandchildren), from /proc; empty where there is none."""
    children: dict[int, list[int]] = {}
    for entry in proc.glob("[0-9]*"):
        try:
            # "pid (name) state ppid ...": the name may hold spaces and brackets, so count from its last ")".
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue  # it ended while we looked
        children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    frontier = [pid]
    while frontier:
        frontier = [child for parent in frontier for child in children.get(parent, ())]
        found += frontier
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _say(message: str) -> None:
    # os.write, not print: a handler may run while the main thread holds the stream's lock.
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"mz launch: {message}\n".encode())


def _end_with_parent() -> None:
    """In the child, before the program starts: have the kernel send SIGTERM when this launcher dies, also by kill -9.

    Without it torchrun and its ranks would train on, unwatched. Only Linux can do it; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
