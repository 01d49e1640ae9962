"""Execute one action list; holds live losses, does no arithmetic of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from torch import Tensor

from .schedule import Action, ActionKind

Batch = TypeVar("Batch")


class ScheduleRunner(Generic[Batch]):
    """forward: micro-batch -> scalar loss.   backward: takes that loss; both are given by training/build.py."""

    def __init__(self, *, forward: Callable[[Batch], Tensor], backward: Callable[[Tensor], None]) -> None:
        self._forward = forward
        self._backward = backward

    def run(self, actions: Sequence[Action], micro_batches: Sequence[Batch]) -> list[Tensor]:
        """Losses (detached scalars on the device) in micro-batch order. A graph is freed with its backward."""
        live: dict[int, Tensor] = {}
        losses: dict[int, Tensor] = {}
        for action in actions:
            if action.kind is ActionKind.FORWARD:
                live[action.micro_batch] = self._forward(micro_batches[action.micro_batch])
                losses[action.micro_batch] = live[action.micro_batch].detach()
            else:
                self._backward(live.pop(action.micro_batch))
        return [losses[index] for index in sorted(losses)]
