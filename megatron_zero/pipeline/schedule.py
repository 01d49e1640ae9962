"""Pure: what one rank does in a step, as a frozen list of actions."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ActionKind(enum.Enum):
    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Action:
    kind: ActionKind
    micro_batch: int


def one_f_one_b(num_microbatches: int, *, num_stages: int) -> tuple[Action, ...]:
    """1F1B (Narayanan et al. 2021, arXiv:2104.04473) for a single stage: each forward is followed by its backward.

    Raises ValueError for num_microbatches < 1, and for num_stages != 1: more stages need the sends and receives that
    are not built yet.
    """
    if num_microbatches < 1:
        raise ValueError(f"{num_microbatches} micro-batches: a step needs at least one")
    if num_stages != 1:
        raise ValueError(f"{num_stages} pipeline stages: only one is built")
    return tuple(
        Action(kind, index)
        for index in range(num_microbatches)
        for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)
    )
