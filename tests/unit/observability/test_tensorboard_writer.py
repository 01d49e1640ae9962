"""Event files as TensorBoard's own reader sees them."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from megatron_zero.config.fields import ConfigError
from megatron_zero.observability.event_files import ResumePoint
from megatron_zero.observability.metrics import StepRecord
from megatron_zero.observability.tensorboard_writer import TensorBoardWriter

FRESH = ResumePoint(0, 0, 0)
SAMPLES, TOKENS = 8, 256  # of one step


def step(iteration: int, *, lm_loss: float = 4.0, grad_norm: float | None = 1.5, ratio: float | None = 0.3) -> StepRecord:
    return StepRecord(
        iteration=iteration,
        consumed_samples=iteration * SAMPLES,
        consumed_tokens=iteration * TOKENS,
        lm_loss=lm_loss,
        grad_norm=grad_norm,
        learning_rate=1e-3,
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
        ratio_asked=ratio,
        ratio_realised=ratio,
        total_iterations=100,
        global_batch_size=SAMPLES,
        seq_length=32,
        world_size=2,
        timers_ms={"forward": 10.0},
    )


def writer(
    log_dir: Path, resume: ResumePoint = FRESH, say: Callable[[str], None] = print, **flags: Any
) -> TensorBoardWriter:
    return TensorBoardWriter(log_dir, queue_size=1, resume=resume, say=say, **flags)


def write_steps(log_dir: Path, steps: range, resume: ResumePoint = FRESH, **losses: float) -> list[str]:
    said: list[str] = []
    with writer(log_dir, resume, said.append) as events:
        for iteration in steps:
            events.step(step(iteration, **losses))
    return said


def scalars(log_dir: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag -> [(step, value)], in TensorBoard's own reading."""
    events = EventAccumulator(str(log_dir), size_guidance={"scalars": 0}).Reload()
    return {tag: [(each.step, each.value) for each in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_megatron_tags_have_all_three_axes(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 3))
    seen = scalars(tmp_path)
    for tag in (
        "lm-loss-training/lm loss",
        "learning-rate/learning-rate",
        "loss-scale/loss-scale",
        "grad-norm/grad-norm",
    ):
        assert [at for at, _ in seen[tag]] == [1, 2]
        assert [at for at, _ in seen[f"{tag} vs samples"]] == [8, 16]
        assert [at for at, _ in seen[f"{tag} vs tokens"]] == [256, 512]
    assert seen["steps-vs-samples/y=steps,x=samples"] == [(8, 1), (16, 2)]
    assert seen["steps-vs-samples/y=samples,x=steps"] == [(1, 8), (2, 16)]
    assert seen["steps-vs-tokens/y=steps,x=tokens"] == [(256, 1), (512, 2)]
    assert seen["steps-vs-tokens/y=tokens,x=steps"] == [(1, 256), (2, 512)]


def test_offload_and_throughput_tags(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 2))
    seen = {tag: points[0][1] for tag, points in scalars(tmp_path).items()}
    assert seen["offload/ratio_requested"] == pytest.approx(0.3)
    assert {name: seen[f"offload/{name}_bytes"] for name in ("gpu", "cpu", "nvme", "pinned", "rss")} == {
        "gpu": 4,
        "cpu": 5,
        "nvme": 6,
        "pinned": 3,
        "rss": 2,
    }
    assert seen["throughput/samples_per_sec"] == 16
    assert seen["throughput/tokens_per_sec"] == 512
    assert seen["throughput/tokens_per_gpu_per_sec"] == 256
    assert seen["throughput/tflops"] == 2
    assert "throughput/mfu" not in seen


def test_flags_add_their_tags(tmp_path: Path) -> None:
    write_steps(tmp_path / "off", range(1, 2))
    with writer(tmp_path / "on", log_timers=True, log_batch_size=True, log_validation_ppl=True) as events:
        events.step(step(1))
        events.validation(step(1), 2.0)
        events.validation(step(1), 3.0, split="test")
    off, on = scalars(tmp_path / "off"), scalars(tmp_path / "on")
    added = {tag.removesuffix(" vs samples").removesuffix(" vs tokens") for tag in on.keys() - off.keys()}
    assert added == {
        "batch-size/batch-size",
        "iteration-time/iteration-time",
        "forward-time",
        "lm-loss-validation/lm loss validation",
        "lm-loss-validation/lm loss validation ppl",
        "lm-loss-validation/lm loss test",
        "lm-loss-validation/lm loss test ppl",
    }
    assert on["lm-loss-validation/lm loss validation ppl vs samples"] == [(8, pytest.approx(math.exp(2.0)))]
    assert on["iteration-time/iteration-time"] == [(1, 0.5)]
    assert on["forward-time"] == [(1, 10.0)]


def test_figures_that_are_not_known_are_left_out(tmp_path: Path) -> None:
    with writer(tmp_path) as events:
        events.step(step(1, grad_norm=None, ratio=None))
    seen = scalars(tmp_path)
    assert "grad-norm/grad-norm" not in seen
    assert "offload/ratio_requested" not in seen


def test_nan_loss_is_written(tmp_path: Path) -> None:
    """H54: the loss does not vanish."""
    write_steps(tmp_path, range(1, 2), lm_loss=math.nan)
    ((_, value),) = scalars(tmp_path)["lm-loss-training/lm loss"]
    assert math.isnan(value)


def test_resume_takes_back_later_steps_on_every_axis(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 8), lm_loss=1.0)
    said = write_steps(tmp_path, range(6, 9), ResumePoint(5, 5 * SAMPLES, 5 * TOKENS), lm_loss=2.0)
    seen = scalars(tmp_path)
    losses = [1.0] * 5 + [2.0] * 3
    for suffix, unit in (("", 1), (" vs samples", SAMPLES), (" vs tokens", TOKENS)):
        # Sorted: TensorBoard reads files by name, and two that were made in one second have no order.
        points = sorted(seen[f"lm-loss-training/lm loss{suffix}"])
        assert points == [(i * unit, loss) for i, loss in enumerate(losses, start=1)]
    assert sorted(at for at, _ in seen["steps-vs-samples/y=steps,x=samples"]) == [i * SAMPLES for i in range(1, 9)]
    assert sorted(at for at, _ in seen["steps-vs-tokens/y=tokens,x=steps"]) == list(range(1, 9))
    assert len(said) == 1
    assert "after iteration 5; they are still in superseded.1." in said[0]


def test_what_was_taken_back_is_still_there_under_another_name(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 4))
    (original,) = tmp_path.iterdir()
    content = original.read_bytes()
    write_steps(tmp_path, range(2, 3), ResumePoint(1, SAMPLES, TOKENS))
    (superseded,) = tmp_path.glob("superseded.1.*")
    assert superseded.read_bytes() == content
    assert "tfevents" not in superseded.name


def test_resume_at_the_end_leaves_the_files_alone(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 4))
    (original,) = tmp_path.iterdir()
    before = original.stat()
    assert write_steps(tmp_path, range(4, 6), ResumePoint(3, 3 * SAMPLES, 3 * TOKENS)) == []
    assert original.stat().st_ino == before.st_ino
    assert len(os.listdir(tmp_path)) == 2
    assert len(scalars(tmp_path)["lm-loss-training/lm loss"]) == 5


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_event_torn_by_a_kill_is_dropped_at_resume(tmp_path: Path, cut: int) -> None:
    write_steps(tmp_path, range(1, 4))
    (original,) = tmp_path.iterdir()
    os.truncate(original, original.stat().st_size - cut)
    said = write_steps(tmp_path, range(4, 5), ResumePoint(3, 3 * SAMPLES, 3 * TOKENS))
    assert len(said) == 1
    assert [at for at, _ in scalars(tmp_path)["lm-loss-training/lm loss"]] == [1, 2, 3, 4]


def test_zeros_that_a_power_loss_left_are_dropped_at_resume(tmp_path: Path) -> None:
    write_steps(tmp_path, range(1, 4))
    (original,) = tmp_path.iterdir()
    with open(original, "ab") as events:
        events.write(bytes(100))
    said = write_steps(tmp_path, range(4, 5), ResumePoint(3, 3 * SAMPLES, 3 * TOKENS))
    assert len(said) == 1
    assert [at for at, _ in scalars(tmp_path)["lm-loss-training/lm loss"]] == [1, 2, 3, 4]


def test_folder_below_a_file_is_refused_by_flag_and_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--tensorboard-dir .*file/board cannot be written"):
        writer(tmp_path / "file" / "board")


def test_full_disk_is_raised_by_a_later_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    threads = set(threading.enumerate())
    events = writer(tmp_path)

    def fails(self: RecordWriter, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecordWriter, "write", fails)
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)  # the thread also reports it on its own
    with pytest.raises(OSError, match="No space left on device"):
        for iteration in range(1, 50):
            events.step(step(iteration))
    for thread in set(threading.enumerate()) - threads:
        thread.join(timeout=10.0)


def test_a_path_that_is_no_utf8_is_spelled_escaped(tmp_path: Path) -> None:
    with writer(tmp_path) as events:
        events.text("config", os.fsdecode(b"bad\xff/\xc3\xa9"))
    (told,) = EventAccumulator(str(tmp_path)).Reload().Tensors("config/text_summary")
    assert told.tensor_proto.string_val[0].decode() == "bad\\udcff/\u00e9"
