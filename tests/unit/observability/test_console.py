"""The lines people's parsers read, character by character."""

from __future__ import annotations

import math
import re

import pytest

from megatron_zero.observability.console import (
    format_engine_line,
    format_iteration_line,
    format_timer_spans,
    format_timers,
    format_validation,
)
from megatron_zero.observability.metrics import IterationSummary, IterationWindow, StepRecord


def summary(
    *, lm_loss: float = 36.96275, grad_norm: float | None = 1.23456, mfu: float | None = None, tflops: float = 26.358
) -> IterationSummary:
    window = IterationWindow()
    window.add(
        StepRecord(
            iteration=5,
            consumed_samples=40,
            consumed_tokens=1280,
            lm_loss=lm_loss,
            grad_norm=grad_norm,
            learning_rate=1.494e-4,
            loss_scale=1.0,
            skipped=False,
            elapsed_ms=2000.0,
            tokens_per_second_per_gpu=64.0,
            tflops_per_gpu=tflops,
            mfu=mfu,
            device_bytes=0,
            host_rss_bytes=0,
            pinned_bytes=0,
            tier_bytes={"device": 0, "host": 0, "nvme": 0},
            ratio_asked=None,
            ratio_realised=None,
            total_iterations=100,
            global_batch_size=8,
            seq_length=32,
            world_size=2,
        )
    )
    return window.close()


def fields(line: str) -> dict[str, str]:
    """As a log parser reads it: `name: value` between bars."""
    return dict(re.findall(r"\| ([^|:]+): +([^|]+?) (?=\|)", line))


def test_iteration_line_is_megatrons_in_full() -> None:
    assert format_iteration_line(summary(mfu=0.4123)) == (
        " iteration        5/     100 | consumed samples:           40 | consumed tokens:         1280"
        " | elapsed time per iteration (ms): 2000.0 | learning rate: 1.494E-04 | global batch size:     8"
        " | lm loss: 3.696275E+01 | loss scale: 1.0 | grad norm: 1.235 | actual seqlen:    32"
        " | number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: 4.000"
        " | tokens per gpu per second (tgs): 64.000 | TFLOPs: 26.36 | MFU: 41.23% |"
    )


def test_field_that_is_not_known_is_left_out() -> None:
    line = format_iteration_line(summary(grad_norm=None, mfu=None))
    assert "grad norm" not in line
    assert "MFU" not in line
    assert line.endswith(" | TFLOPs: 26.36 |")


@pytest.mark.parametrize("loss, text", [(0.0, "0.000000E+00"), (-1.5, "-1.500000E+00"), (math.nan, "NAN")])
def test_loss_that_is_not_positive_stays_in_the_line(loss: float, text: str) -> None:
    """H54: a NaN loss does not vanish from the log, and is counted."""
    line = format_iteration_line(summary(lm_loss=loss))
    assert fields(line)["lm loss"] == text
    assert fields(line)["number of nan iterations"] == str(int(math.isnan(loss)))


def test_tflops_of_a_tiny_model_keep_digits() -> None:
    """H49: 2,554,331,136 FLOPs in 2 s on one GPU."""
    assert fields(format_iteration_line(summary(tflops=2_554_331_136 / 2 / 1e12)))["TFLOPs"] == "0.00128"


def test_validation_box_has_dashes_of_its_width() -> None:
    first, line, last = format_validation("iteration 100", math.log(50.0)).split("\n")
    assert line == " validation loss at iteration 100 | lm loss value: 3.912023E+00 | lm loss PPL: 5.000000E+01 | "
    assert first == last == "-" * (len(line) + 1)


def test_engine_line() -> None:
    line = format_engine_line(step=5, skipped=0, learning_rates=[1.5e-4] * 2, betas=[(0.9, 0.999)] * 2)
    assert line == "step=5, skipped=0, lr=[0.00015, 0.00015], mom=[(0.9, 0.999), (0.9, 0.999)]"


def test_timer_lines() -> None:
    timers = {"forward": 31638.826, "backward-allreduce": 0.0}
    assert format_timers(timers) == "time (ms) | forward: 31638.83 | backward-allreduce: 0.00"
    assert format_timers(timers, rank=0) == "rank=0 time (ms) | forward: 31638.83 | backward-allreduce: 0.00"


def test_timer_block_spans_the_ranks() -> None:
    block = format_timer_spans([{"forward": 3.0, "send": 1.0}, {"forward": 2.0}])
    assert block.split("\n") == [
        "(min, max) time across ranks (ms):",
        "    forward ........................................: (2.00, 3.00)",
        "    send ...........................................: (1.00, 1.00)",
    ]
