"""Long host work that some ranks do before others, without a collective that waits for its end.

A rank at work runs it in a thread and goes on taking part in a short collective, several times a second; so do the
ranks that wait. So the collective timeout bounds how long a *dead* rank is waited for, and never how long work may
take, and an error is known everywhere when the turn ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import torch

from .collectives import PeerLost, all_reduce_, raise_together
from .context import ParallelAxis

Result = TypeVar("Result")

TICK_SECONDS: Final = 0.2


def run_in_turns(
    work: Callable[[], Result], *, turn: int, num_turns: int, axis: ParallelAxis, device: torch.device, what: str
) -> Result:
    """work() on every rank: on those of turn 0 first, then on those of turn 1, and so on to num_turns - 1.

    Every rank of the axis calls it, with its own turn. work must not use the process group, nor the current device: it
    runs in a thread, which is waited for also if another rank dies. what: for messages, as in raise_together, which ends
    a turn in which a rank failed.
    Errors: those of work, as raise_together gives them; PeerLost where another rank has gone.
    """
    if not 0 <= turn < num_turns:
        raise ValueError(f"turn {turn} is not 0 to {num_turns - 1}")
    if axis.group is None:
        return work()
    worker = _Worker(work)
    try:
        for current in range(num_turns):
            if current == turn:
                worker.thread.start()
            try:
                while _any_at_work(worker if current == turn else None, axis, device):
                    pass
            except PeerLost as error:
                raise PeerLost(f"{what}, turn {current} of {num_turns}: {error}") from error
            raise_together(worker.error, axis=axis, what=what)
    finally:
        # Native code that comes back to an interpreter which has ended aborts the process: wait for it to come back.
        if worker.thread.is_alive():
            worker.thread.join()
    return worker.result()


def _any_at_work(worker: _Worker[Result] | None, axis: ParallelAxis, device: torch.device) -> bool:
    """Whether any rank still works; a rank that does gives itself a tick before it answers, which paces the others."""
    if worker is not None:
        worker.thread.join(TICK_SECONDS)
    busy = worker is not None and worker.thread.is_alive()
    flag = torch.tensor([int(busy)], dtype=torch.int32, device=device)
    all_reduce_(flag, axis=axis, op="max")
    return bool(flag.item())


class _Worker(Generic[Result]):
    """One call in a thread."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._results: list[Result] = []
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, name="turn")

    def _run(self) -> None:
        try:
            self._results.append(self._work())
        except Exception as error:  # raised again, on every rank, by raise_together
            self.error = error
        except BaseException as error:  # SystemExit and the like would end this thread only, and silently
            self.error = RuntimeError(f"{type(error).__name__}: {error}")

    def result(self) -> Result:
        return self._results[0]
