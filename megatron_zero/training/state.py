"""TrainState: what a run has consumed; StepReport: what one step says. Everything that a resume must know by number."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class TrainState:
    """iteration: optimizer steps tried, skipped ones too.   consumed_*: over the whole run, skipped steps count."""

    iteration: int = 0
    consumed_samples: int = 0
    consumed_tokens: int = 0
    skipped_iterations: int = 0
    consecutive_skips: int = 0

    def advance(self, *, samples: int, tokens: int, skipped: bool) -> None:
        """Count one step."""
        self.iteration += 1
        self.consumed_samples += samples
        self.consumed_tokens += tokens
        self.skipped_iterations += skipped
        self.consecutive_skips = self.consecutive_skips + 1 if skipped else 0

    def as_dict(self) -> dict[str, int]:
        return dataclasses.asdict(self)

    def load(self, values: Mapping[str, Any]) -> None:
        """Set every field; raises KeyError for one that is missing."""
        for field in dataclasses.fields(self):
            setattr(self, field.name, int(values[field.name]))


@dataclass(frozen=True, slots=True)
class StepReport:
    """loss: mean over the global batch.   grad_norm: before clipping, global.   learning_rate: the one used in the step.

    skipped: gradients were not finite, and nothing was updated on any rank.
    wants_exit: some rank's wall clock passed the limit (agreed: the same on every rank).
    """

    loss: float
    grad_norm: float
    learning_rate: float
    global_batch_size: int
    num_microbatches: int
    skipped: bool
    wants_exit: bool


@dataclass(frozen=True, slots=True)
class EvaluationRead:
    """What an evaluation read: `samples` of a set that holds `held`, from position `first` of its endless walk on."""

    first: int
    samples: int
    held: int

    def __str__(self) -> str:
        again = (self.first + self.samples - 1) // self.held - self.first // self.held
        times = f", which began again {again} times" if again else ""
        return f"{self.samples} samples from {self.first % self.held} on of {self.held}{times}"
