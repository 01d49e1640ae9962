"""When a run ends: a pure decision from numbers that every rank holds alike."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_zero.config.derive import BatchSchedule

from .state import TrainState


@dataclass(frozen=True, slots=True)
class RunEnd:
    """Ends of a run as given; None = not given. All in the run's own counts, which a resume continues.

    Each limit is judged by its own count, never by another that was derived from it: a resume may bring another batch.
    """

    train_iterations: int | None
    train_samples: int | None
    train_tokens: int | None
    exit_interval: int | None
    batch_schedule: BatchSchedule

    def completion(self, state: TrainState) -> str | None:
        """Why nothing is left to train, also for a run that was resumed at its end; None if something is."""
        if self.train_tokens is not None and state.consumed_tokens >= self.train_tokens:
            return f"--train-tokens {self.train_tokens} are consumed"
        if self.train_iterations is not None and state.iteration >= self.train_iterations:
            return f"all {self.train_iterations} iterations are done"
        if self.train_samples is not None:
            batch = self.batch_schedule.global_batch_size(state.consumed_samples)
            if state.consumed_samples + batch > self.train_samples:
                return f"--train-samples {self.train_samples}: after {state.consumed_samples} no batch of {batch} is left"
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
