"""Metrics: what is written at which step, and that every sink is closed."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest

from megatron_zero.observability.event_files import ResumePoint
from megatron_zero.observability.jsonl import JsonlLog
from megatron_zero.observability.logging import make_logger
from megatron_zero.observability.metrics import StepRecord
from megatron_zero.observability.sinks import Metrics
from megatron_zero.observability.tensorboard_writer import TensorBoardWriter

STEP = StepRecord(
    iteration=1,
    consumed_samples=8,
    consumed_tokens=256,
    lm_loss=4.0,
    grad_norm=1.5,
    learning_rate=0.5,
    loss_scale=1.0,
    skipped=False,
    elapsed_ms=500.0,
    tokens_per_second_per_gpu=256.0,
    tflops_per_gpu=2.0,
    mfu=None,
    device_bytes=1,
    host_rss_bytes=2,
    pinned_bytes=3,
    tier_bytes={"device": 4, "host": 5, "nvme": 6},
    ratio_asked=None,
    ratio_realised=None,
    total_iterations=5,
    global_batch_size=8,
    seq_length=32,
    world_size=2,
)


def lines(*records: StepRecord, log_interval: int = 2, steps_per_print: int | None = None) -> list[str]:
    stream = io.StringIO()
    logger = make_logger(rank=1, is_logging_rank=True, stream=stream)
    metrics = Metrics(
        logger, log_interval=log_interval, steps_per_print=steps_per_print, betas=[(0.9, 0.95)] * 2, num_skipped=3
    )
    with metrics:
        for record in records:
            metrics.step(record)
    return stream.getvalue().splitlines()


def steps(count: int, **changes: object) -> list[StepRecord]:
    return [dataclasses.replace(STEP, iteration=i, **changes) for i in range(1, count + 1)]  # type: ignore[arg-type]


def test_iteration_lines_come_every_log_interval() -> None:
    printed = lines(*steps(5))
    assert [line.split("|")[0] for line in printed] == [
        " iteration        2/       5 ",
        " iteration        4/       5 ",
    ]


def test_timer_line_follows_the_iteration_line() -> None:
    printed = lines(*steps(2, timers_ms={"forward": 3.0}))
    assert printed[1] == "time (ms) | forward: 3.00"


def test_engine_line_counts_skips_since_the_run_began() -> None:
    printed = lines(*steps(2, skipped=True), log_interval=100, steps_per_print=2)
    assert len(printed) == 1
    assert printed[0].endswith("] [Rank 1] step=2, skipped=5, lr=[0.5, 0.5], mom=[(0.9, 0.95), (0.9, 0.95)]")


def test_steps_and_validation_reach_every_sink(tmp_path: Path) -> None:
    stream = io.StringIO()
    with Metrics(
        make_logger(rank=0, is_logging_rank=True, stream=stream),
        log_interval=1,
        jsonl=JsonlLog(tmp_path / "log.jsonl", 0),
        tensorboard=TensorBoardWriter(tmp_path / "board", queue_size=10, resume=ResumePoint(0, 0, 0)),
    ) as metrics:
        metrics.step(STEP)
        metrics.validation(STEP, 2.0)
        metrics.validation(STEP, 2.0, where="the end of training for test data", split="test")
    assert json.loads((tmp_path / "log.jsonl").read_text()) == STEP.as_json()
    text = stream.getvalue()
    assert " validation loss at iteration 1 | lm loss value: 2.000000E+00 | " in text
    assert " validation loss at the end of training for test data | " in text
    (events,) = (tmp_path / "board").iterdir()
    assert b"lm-loss-validation/lm loss test vs tokens" in events.read_bytes()


def test_ranks_that_do_not_log_print_and_write_nothing(tmp_path: Path) -> None:
    stream = io.StringIO()
    with Metrics(make_logger(rank=1, is_logging_rank=False, stream=stream), log_interval=1, steps_per_print=1) as metrics:
        metrics.step(STEP)
        metrics.validation(STEP, 2.0)
    assert stream.getvalue() == ""


def test_full_disk_under_the_metrics_file_stops_the_step(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    logger = make_logger(rank=0, is_logging_rank=True, stream=io.StringIO())
    metrics = Metrics(logger, log_interval=1, jsonl=JsonlLog(tmp_path / "log.jsonl", 0))
    with metrics, pytest.raises(OSError, match="No space left on device"):
        metrics.step(STEP)
