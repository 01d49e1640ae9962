"""SIGTERM, Ctrl-C and SIGHUP end a tool through its with blocks, which remove what was begun."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def exit_on_signals() -> None:
    """From here on each of them raises SystemExit(128 + its number), once. What is ignored (nohup) stays ignored."""
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    for other in STOPPING:  # a second Ctrl-C does not end the cleaning up
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)
