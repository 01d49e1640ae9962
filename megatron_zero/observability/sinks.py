"""Metrics: sends each step to the JSONL file, to TensorBoard and, every log interval, to the log."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from .console import format_engine_line, format_iteration_line, format_timers, format_validation
from .jsonl import JsonlLog
from .logging import RankLogger
from .metrics import IterationWindow, StepRecord
from .tensorboard_writer import TensorBoardWriter


class Metrics:
    """Where a run's numbers go. A context manager that closes the sinks; every rank has one.

    tensorboard, jsonl: None on ranks that do not log, and where not asked for.   log_interval: steps between iteration
    lines.   steps_per_print: steps between the engine's lines, None = none.   betas: one pair a parameter group.
    num_skipped: skipped steps before this run (from the checkpoint).
    """

    def __init__(
        self,
        logger: RankLogger,
        *,
        log_interval: int,
        tensorboard: TensorBoardWriter | None = None,
        jsonl: JsonlLog | None = None,
        steps_per_print: int | None = None,
        betas: Sequence[tuple[float, float]] = (),
        num_skipped: int = 0,
    ) -> None:
        self._logger = logger
        self._log_interval = log_interval
        self._tensorboard = tensorboard
        self._jsonl = jsonl
        self._steps_per_print = steps_per_print
        self._betas = tuple(betas)
        self._num_skipped = num_skipped
        self._window = IterationWindow()

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def step(self, record: StepRecord) -> None:
        """Record one step. Raises OSError if a file cannot be written."""
        self._num_skipped += record.skipped
        self._window.add(record)
        if self._jsonl is not None:
            self._jsonl.write(record.as_json())
        if self._tensorboard is not None:
            self._tensorboard.step(record)
        if self._steps_per_print is not None and record.iteration % self._steps_per_print == 0:
            self._print_engine_line(record)
        if record.iteration % self._log_interval == 0:
            self.print_window()

    def validation(self, record: StepRecord, lm_loss: float, *, where: str | None = None, split: str = "validation") -> None:
        """Print the box and write the scalars of an evaluation after `record`'s step. where: None = its iteration."""
        self._logger.plain(format_validation(where or f"iteration {record.iteration}", lm_loss))
        if self._tensorboard is not None:
            self._tensorboard.validation(record, lm_loss, split=split)
            self._tensorboard.flush()

    def print_window(self) -> None:
        """The iteration line of the steps since the last one, now; nothing if there were none."""
        if not len(self._window):
            return
        summary = self._window.close()
        self._logger.plain(format_iteration_line(summary))
        if summary.timers_ms:
            self._logger.plain(format_timers(summary.timers_ms))
        if self._tensorboard is not None:
            self._tensorboard.flush()

    def close(self) -> None:
        """Close the sinks, each whether or not the other could be closed."""
        try:
            if self._jsonl is not None:
                self._jsonl.close()
        finally:
            if self._tensorboard is not None:
                self._tensorboard.close()

    def _print_engine_line(self, record: StepRecord) -> None:
        line = format_engine_line(
            step=record.iteration,
            skipped=self._num_skipped,
            learning_rates=[record.learning_rate] * len(self._betas),
            betas=self._betas,
        )
        self._logger.info(line, tag_rank=True)
