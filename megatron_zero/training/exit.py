"""When a run ends: a pure decision from numbers that every rank holds alike."""

from __future__ import annotations

from dataclasses import dataclass

from .state import TrainState


@dataclass(frozen=True, slots=True)
class RunEnd:
    """Ends of a run; None = no such end. All in the run's own counts, which a resume continues."""

    train_iterations: int
    train_tokens: int | None
    exit_interval: int | None

    def completion(self, state: TrainState) -> str | None:
        """Why nothing is left to train, also for a run that was resumed at its end; None if something is."""
        if self.train_tokens is not None and state.consumed_tokens >= self.train_tokens:
            return f"--train-tokens {self.train_tokens} are consumed"
        if state.iteration >= self.train_iterations:
            return f"all {self.train_iterations} iterations are done"
        return None

    def after_step(self, state: TrainState, *, wants_exit: bool) -> str | None:
        """Why the run ends after this step, or None to go on. wants_exit: the ranks' agreed vote (wall clock)."""
        if (completion := self.completion(state)) is not None:
            return completion
        if wants_exit:
            return "--exit-duration-in-mins is over"
        if self.exit_interval is not None and state.iteration % self.exit_interval == 0:
            return f"--exit-interval {self.exit_interval}"
        return None
