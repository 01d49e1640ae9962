"""One step as a value, and the steps between two log lines as one."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest

from megatron_zero.observability.metrics import IterationWindow, StepRecord, perplexity

STEP = StepRecord(
    iteration=5,
    consumed_samples=40,
    consumed_tokens=1280,
    lm_loss=4.0,
    grad_norm=1.5,
    learning_rate=1e-3,
    loss_scale=1.0,
    skipped=False,
    elapsed_ms=500.0,
    tokens_per_second_per_gpu=256.0,
    tflops_per_gpu=2.0,
    mfu=0.25,
    device_bytes=1,
    host_rss_bytes=2,
    pinned_bytes=3,
    tier_bytes={"device": 4, "host": 5, "nvme": 6},
    ratio_asked=0.3,
    ratio_realised=0.299,
    total_iterations=100,
    global_batch_size=8,
    seq_length=32,
    world_size=2,
    timers_ms={"forward": 10.0},
)

ISSUE_FIELDS = (
    *(
        "iteration",
        "consumed_samples",
        "consumed_tokens",
        "lm_loss",
        "grad_norm",
        "learning_rate",
        "loss_scale",
        "skipped",
    ),
    *("elapsed_ms", "tokens_per_second_per_gpu", "tflops_per_gpu", "mfu", "device_bytes", "host_rss_bytes"),
    *("pinned_bytes", "tier_bytes", "ratio_asked", "ratio_realised"),
)


def step(**changes: Any) -> StepRecord:
    return dataclasses.replace(STEP, **changes)


def window(*records: StepRecord) -> IterationWindow:
    made = IterationWindow()
    for record in records:
        made.add(record)
    return made


def test_json_has_the_promised_fields_and_the_flags() -> None:
    value = STEP.as_json()
    assert sorted(value) == sorted([*ISSUE_FIELDS, "lm_loss_is_finite", "grad_norm_is_finite"])
    for name in ISSUE_FIELDS:
        assert value[name] == getattr(STEP, name)
    assert value["lm_loss_is_finite"] is True
    assert value["grad_norm_is_finite"] is True


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_null_and_flagged(bad: float) -> None:
    """H54: a NaN loss leaves a valid line that says so."""
    value = json.loads(json.dumps(step(lm_loss=bad, grad_norm=bad).as_json(), allow_nan=False))
    assert value["lm_loss"] is None
    assert value["lm_loss_is_finite"] is False
    assert value["grad_norm"] is None
    assert value["grad_norm_is_finite"] is False


def test_norm_that_was_not_computed_is_null_without_a_verdict() -> None:
    value = step(grad_norm=None).as_json()
    assert value["grad_norm"] is None
    assert value["grad_norm_is_finite"] is None


def test_mean_loss_leaves_skipped_steps_out() -> None:
    records = [step(lm_loss=2.0), step(lm_loss=math.nan, skipped=True), step(lm_loss=4.0)]
    summary = window(*records).close()
    assert summary.lm_loss == 3.0
    assert (summary.num_steps, summary.num_skipped, summary.num_nan) == (3, 1, 1)


def test_loss_is_shown_when_every_step_was_skipped() -> None:
    """H54: the first line shows the NaN and counts it; an fp16 overflow shows its finite loss."""
    nan = window(step(lm_loss=math.nan, skipped=True)).close()
    assert math.isnan(nan.lm_loss)
    assert nan.num_nan == 1
    overflow = window(step(lm_loss=3.0, grad_norm=math.inf, skipped=True)).close()
    assert overflow.lm_loss == 3.0
    assert (overflow.num_nan, overflow.num_skipped) == (0, 1)


def test_rates_are_weighted_by_time() -> None:
    fast = step(elapsed_ms=100.0, tflops_per_gpu=10.0, mfu=0.5, timers_ms={"forward": 1.0})
    slow = step(elapsed_ms=300.0, tflops_per_gpu=2.0, mfu=0.1, global_batch_size=16, timers_ms={"forward": 4.0, "x": 2.0})
    summary = window(fast, slow).close()
    assert summary.elapsed_ms == 200.0
    assert summary.samples_per_second == pytest.approx(24 / 0.4)
    assert summary.tokens_per_second_per_gpu == pytest.approx(24 * 32 / 0.4 / 2)
    assert summary.tflops_per_gpu == pytest.approx(4.0)
    assert summary.mfu == pytest.approx(0.2)
    assert summary.timers_ms == {"forward": 2.5, "x": 1.0}
    assert summary.last is slow


def test_mfu_is_unknown_where_the_peak_is() -> None:
    assert window(step(mfu=None), step(mfu=None)).close().mfu is None


def test_window_is_empty_after_closing() -> None:
    made = window(STEP)
    made.close()
    assert len(made) == 0
    with pytest.raises(ValueError, match="no step since the last iteration line"):
        made.close()


def test_perplexity_is_not_capped() -> None:
    assert perplexity(21.0) == math.exp(21.0)
    assert perplexity(1000.0) == math.inf
    assert math.isnan(perplexity(math.nan))
