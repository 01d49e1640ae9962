"""Execute one action list; holds the live losses, knows neither the model nor ZeRO."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from torch import Tensor

from megatron_zero.observability.timers import Timers

from .schedule import Action, ActionKind

Batch = TypeVar("Batch")


class ScheduleRunner(Generic[Batch]):
    """forward: micro-batch -> scalar loss.   after_backward: called once each backward is over."""

    def __init__(
        self, *, forward: Callable[[Batch], Tensor], after_backward: Callable[[], None], timers: Timers
    ) -> None:
        self.forward = forward
        self._after_backward = after_backward
        self._timers = timers

    def run(self, actions: Sequence[Action], micro_batches: Sequence[Batch], *, loss_divisor: int) -> list[Tensor]:
        """Losses (detached scalars on the device, not divided) in micro-batch order.

        Each loss is divided by loss_divisor (micro-batches x data-parallel ranks) before its backward, so that sums of
        gradients are gradients of the global batch's mean. A graph is freed with its backward.
        """
        live: dict[int, Tensor] = {}
        losses: dict[int, Tensor] = {}
        for action in actions:
            index = action.micro_batch
            with self._timers.span(action.kind.value, level=2):
                if action.kind is ActionKind.FORWARD:
                    live[index] = self.forward(micro_batches[index])
                    losses[index] = live[index].detach()
                else:
                    (live.pop(index) / loss_divisor).backward()
                    self._after_backward()
        return [losses[index] for index in sorted(losses)]
