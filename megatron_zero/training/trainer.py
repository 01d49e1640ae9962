"""The loop: train, log, evaluate, save, stop. It alone decides when."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from megatron_zero.checkpoint.lock import FolderLock
from megatron_zero.data.loader import BatchLoader
from megatron_zero.distributed.collectives import barrier
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.model.gpt import GPTStage

from .checkpointing import CheckpointParts, save_training
from .evaluate import evaluate
from .exit import RunEnd
from .reporting import Reporter
from .state import EvaluationRead, StepReport, TrainState
from .train_step import StepParts, train_step


class TrainingFailed(RuntimeError):
    """The run cannot go on (too many skipped steps in a row); raised on every rank at the same step."""


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """loader: None = nothing to evaluate on.   num_microbatches: of one global batch, per rank."""

    loader: BatchLoader | None
    eval_iters: int
    num_microbatches: int


@dataclass(frozen=True, slots=True)
class Intervals:
    """In iterations; None = never."""

    evaluate: int | None
    save: int | None


@dataclass(frozen=True, slots=True)
class TrainerParts:
    context: ParallelContext
    stage: GPTStage
    step: StepParts
    checkpoint: CheckpointParts
    validation: EvalPlan
    test: EvalPlan
    end: RunEnd
    intervals: Intervals
    save_root: Path | None
    lock: FolderLock | None  # of save_root, on the rank that holds it
    max_consecutive_skips: int
    reporter: Reporter


class Trainer:
    """parts: everything a run uses; state: where it is, mutated by run()."""

    def __init__(self, parts: TrainerParts, state: TrainState) -> None:
        self.parts = parts
        self.state = state
        self._saved_iteration = state.iteration

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End reading threads, logs and page-locked memory, also after an error. May be called twice."""
        for loader in (self.parts.step.loader, self.parts.validation.loader, self.parts.test.loader):
            if loader is not None:
                loader.close()
        self.parts.reporter.close()
        self.parts.step.optimizer.close()
        self.parts.step.engine.close()
        if self.parts.lock is not None:
            self.parts.lock.close()

    def run(self) -> str:
        """Train until an end is reached, then save and evaluate once more; the reason of the end.

        Raises TrainingFailed on every rank after max_consecutive_skips skipped steps in a row.
        """
        parts, state = self.parts, self.state
        parts.stage.train()
        reason = parts.end.completion(state)
        reported = time.perf_counter()
        while reason is None:
            report = train_step(parts.step, state)
            now = time.perf_counter()
            parts.reporter.step(report, state, elapsed_ms=(now - reported) * 1000.0)
            reported = now
            self._check_skips(report)
            reason = parts.end.after_step(state, wants_exit=report.wants_exit)
            if _due(state.iteration, parts.intervals.evaluate) and reason is None:
                self._evaluate(parts.validation, "validation")
                reported = time.perf_counter()
            if _due(state.iteration, parts.intervals.save) and reason is None:
                self.save()
                reported = time.perf_counter()
        parts.reporter.ended(reason)
        # The save comes first: whatever happens in the evaluations, nothing that was trained is lost.
        if self._saved_iteration != state.iteration:
            self.save()
        self._evaluate(parts.validation, "validation")
        self._evaluate(parts.test, "test")
        if state.consecutive_skips > 0:
            raise TrainingFailed(
                f"the run ends at iteration {state.iteration} while gradients are not finite: the last "
                f"{state.consecutive_skips} steps changed nothing, and nothing was saved since"
            )
        return reason

    def save(self) -> None:
        """Write a checkpoint of now, if this run saves at all. Every rank calls it.

        Not while steps are being skipped: a state that gives no finite gradients must not become the latest one.
        """
        if self.parts.save_root is None:
            return
        if self.state.consecutive_skips > 0:
            self.parts.reporter.not_saving(self.state)
            return
        self.parts.reporter.saving(self.state.iteration, self.parts.save_root)
        done = save_training(self.parts.save_root, self.parts.checkpoint, self.state)
        self._saved_iteration = self.state.iteration
        self.parts.reporter.saved(self.state.iteration, self.parts.save_root, done)
        barrier(axis=self.parts.context.world)

    def _evaluate(self, plan: EvalPlan, split: str) -> None:
        if plan.loader is None or plan.eval_iters == 0:
            return
        state = self.state
        started = time.perf_counter()
        samples = plan.eval_iters * plan.num_microbatches * plan.loader.round_size
        read = EvaluationRead(
            first=self._evaluations_before() * samples if split == "validation" else 0,
            samples=samples,
            held=plan.loader.num_samples,
        )
        loss = evaluate(
            self.parts.stage,
            self.parts.step.runner.forward,
            plan.loader,
            context=self.parts.context,
            consumed_samples=read.first,
            eval_iters=plan.eval_iters,
            num_microbatches=plan.num_microbatches,
        )
        self.parts.reporter.evaluation(loss, state, split=split, read=read, seconds=time.perf_counter() - started)

    def _evaluations_before(self) -> int:
        """Evaluations that an uninterrupted run has made before this one: a function of the iteration alone, so a resumed
        run, or one that is started again at its end, reads the same validation samples."""
        interval = self.parts.intervals.evaluate
        return (self.state.iteration - 1) // interval if interval is not None and self.state.iteration > 0 else 0

    def _check_skips(self, report: StepReport) -> None:
        limit = self.parts.max_consecutive_skips
        if self.state.consecutive_skips >= limit:
            raise TrainingFailed(
                f"iteration {self.state.iteration}: {limit} steps in a row were skipped because gradients were not "
                f"finite (loss {report.loss}, grad norm {report.grad_norm}); weights are those of the last good step. "
                "Look at the data and the learning rate, or raise --max-consecutive-skips"
            )


def _due(iteration: int, interval: int | None) -> bool:
    return interval is not None and iteration % interval == 0
