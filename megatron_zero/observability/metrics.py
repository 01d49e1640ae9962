"""One optimizer step as a value (StepRecord), and the steps between two log lines as one (IterationSummary)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

NO_TIMERS: Final[Mapping[str, float]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one optimizer step reports; plain numbers, made after the step's one host sync.

    lm_loss: mean over the global batch's tokens; may be NaN or infinite.
    grad_norm: before clipping; None = not computed.   loss_scale: 1 where there is none.
    skipped: no update was made (non-finite gradients).   elapsed_ms: wall time of the step.
    tokens_per_second_per_gpu, tflops_per_gpu (model FLOPs), mfu (0 to 1; None where the device's peak is unknown).
    device_bytes: live tensors on this rank's device.   host_rss_bytes, pinned_bytes: of this rank's process.
    tier_bytes: optimizer state of this rank by "device", "host", "nvme".
    ratio_asked, ratio_realised: share of this rank's optimizer elements off the device; None without offload.
    timers_ms: span name -> ms within this step.
    """

    iteration: int
    consumed_samples: int
    consumed_tokens: int
    lm_loss: float
    grad_norm: float | None
    learning_rate: float
    loss_scale: float
    skipped: bool
    elapsed_ms: float
    tokens_per_second_per_gpu: float
    tflops_per_gpu: float
    mfu: float | None
    device_bytes: int
    host_rss_bytes: int
    pinned_bytes: int
    tier_bytes: Mapping[str, int]
    ratio_asked: float | None
    ratio_realised: float | None
    # What the log line and TensorBoard need besides; not in the JSONL file.
    total_iterations: int
    global_batch_size: int
    seq_length: int
    world_size: int
    timers_ms: Mapping[str, float] = field(default_factory=lambda: NO_TIMERS)
    host_pss_bytes: int | None = None

    @property
    def lm_loss_is_finite(self) -> bool:
        return math.isfinite(self.lm_loss)

    def as_json(self) -> dict[str, Any]:
        """The object of one JSONL line. JSON has no NaN: a loss or norm that is not finite is null, and its flag false.

        "lm_loss_is_finite" and "grad_norm_is_finite" are always there; a norm that was not computed is null with null.
        """
        norm_is_finite = None if self.grad_norm is None else math.isfinite(self.grad_norm)
        return {
            "iteration": self.iteration,
            "consumed_samples": self.consumed_samples,
            "consumed_tokens": self.consumed_tokens,
            "lm_loss": self.lm_loss if self.lm_loss_is_finite else None,
            "lm_loss_is_finite": self.lm_loss_is_finite,
            "grad_norm": self.grad_norm if norm_is_finite else None,
            "grad_norm_is_finite": norm_is_finite,
            "learning_rate": self.learning_rate,
            "loss_scale": self.loss_scale,
            "skipped": self.skipped,
            "elapsed_ms": self.elapsed_ms,
            "tokens_per_second_per_gpu": self.tokens_per_second_per_gpu,
            "tflops_per_gpu": self.tflops_per_gpu,
            "mfu": self.mfu,
            "device_bytes": self.device_bytes,
            "host_rss_bytes": self.host_rss_bytes,
            "pinned_bytes": self.pinned_bytes,
            "tier_bytes": dict(self.tier_bytes),
            "ratio_asked": self.ratio_asked,
            "ratio_realised": self.ratio_realised,
        }


@dataclass(frozen=True, slots=True)
class IterationSummary:
    """What one iteration line says: the last step, and means or counts over the steps since the line before.

    lm_loss: mean over steps that updated; over all steps where none did, so that it never vanishes from the log.
    num_nan: steps whose loss was not finite.   tflops_per_gpu, mfu: weighted by time.   timers_ms: mean per step.
    """

    last: StepRecord
    num_steps: int
    num_skipped: int
    num_nan: int
    lm_loss: float
    elapsed_ms: float
    samples_per_second: float
    tokens_per_second_per_gpu: float
    tflops_per_gpu: float
    mfu: float | None
    timers_ms: Mapping[str, float]


class IterationWindow:
    """Collects the steps between two log lines."""

    def __init__(self) -> None:
        self._records: list[StepRecord] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: StepRecord) -> None:
        self._records.append(record)

    def close(self) -> IterationSummary:
        """The summary of the steps since the last call; the window is empty afterwards. Raises ValueError if it was."""
        if not self._records:
            raise ValueError("no step since the last iteration line: nothing to summarise")
        records, self._records = self._records, []
        total_ms = sum(record.elapsed_ms for record in records)
        losses = [record.lm_loss for record in records if not record.skipped] or [record.lm_loss for record in records]
        samples = sum(record.global_batch_size for record in records)
        tokens = sum(record.global_batch_size * record.seq_length for record in records)
        known_mfu = [record.mfu * record.elapsed_ms for record in records if record.mfu is not None]
        return IterationSummary(
            last=records[-1],
            num_steps=len(records),
            num_skipped=sum(record.skipped for record in records),
            num_nan=sum(not record.lm_loss_is_finite for record in records),
            lm_loss=sum(losses) / len(losses),
            elapsed_ms=total_ms / len(records),
            samples_per_second=1000 * samples / total_ms,
            tokens_per_second_per_gpu=1000 * tokens / total_ms / records[-1].world_size,
            tflops_per_gpu=sum(record.tflops_per_gpu * record.elapsed_ms for record in records) / total_ms,
            mfu=sum(known_mfu) / total_ms if len(known_mfu) == len(records) else None,
            timers_ms=_mean_timers(records),
        )


def _mean_timers(records: list[StepRecord]) -> Mapping[str, float]:
    totals: dict[str, float] = {}
    for record in records:
        for name, ms in record.timers_ms.items():
            totals[name] = totals.get(name, 0.0) + ms
    return {name: ms / len(records) for name, ms in totals.items()}


def perplexity(lm_loss: float) -> float:
    """exp(lm_loss), infinite where that is more than a double holds. Not capped (Megatron's line stops at exp(20))."""
    try:
        return math.exp(lm_loss)
    except OverflowError:
        return math.inf
