"""SIGTERM, Ctrl-C and SIGHUP end a tool through its with blocks, which remove what was begun."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Stopped(SystemExit):
    """A signal ends the command, with status 128 + its number. name: SIGTERM, ...   state: what became of the files that
    the command makes; "" where nobody said."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name
        self.state = ""


@contextmanager
def outcome_told(written: Callable[[], Sequence[str]]) -> Iterator[None]:
    """For the making of files: a signal that ends it says which ones have their names already, those of written()."""
    try:
        yield
    except Stopped as stop:
        names = written()
        untouched = "nothing written; earlier files are untouched"
        stop.state = f"after {', '.join(names)} had been written" if names else untouched
        raise


def exit_on_signals() -> None:
    """From here on each of them raises Stopped, once. What is ignored (nohup) stays ignored."""
    for number in STOPPING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _exit)


def _exit(number: int, frame: FrameType | None) -> None:
    for other in STOPPING:  # a second Ctrl-C does not end the cleaning up
        signal.signal(other, signal.SIG_IGN)
    raise Stopped(number)
