"""What a run leaves and prints: lines people parse, TensorBoard, JSONL, checkpoints; and the ends of a run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.processes import cpu_environment
from helpers.tiny_run import run_tiny, tiny_arguments, write_json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from megatron_zero.distributed.context import ParallelContext

ROOT = Path(__file__).parents[2]
FIELDS = {
    "iteration",
    "consumed_samples",
    "consumed_tokens",
    "lm_loss",
    "grad_norm",
    "learning_rate",
    "loss_scale",
    "skipped",
    "elapsed_ms",
    "tokens_per_second_per_gpu",
    "tflops_per_gpu",
    "mfu",
    "device_bytes",
    "host_rss_bytes",
    "pinned_bytes",
    "tier_bytes",
    "ratio_asked",
    "ratio_realised",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, corpus):
    """(folder, printed text) of two processes that trained six steps through `mz launch`."""
    folder = tmp_path_factory.mktemp("run")
    config = write_json(folder / "ds.json", stage=3, ratio=0.5, steps_per_print=2, wall_clock_breakdown=True)
    arguments = tiny_arguments(
        corpus,
        config,
        save=folder / "checkpoint",
        **{
            "save-interval": 4,
            "eval-iters": 2,
            "eval-interval": 3,
            "log-jsonl": folder / "log.jsonl",
            "tensorboard-dir": folder / "events",
            "tensorboard-queue-size": 1,
            "log-batch-size-to-tensorboard": True,
            "log-validation-ppl-to-tensorboard": True,
            "log-timers-to-tensorboard": True,
            "timing-log-level": 1,
        },
    )
    done = subprocess.run(
        [sys.executable, "-m", "megatron_zero.launcher", "--num_gpus", "2", str(ROOT / "pretrain_gpt.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        env=cpu_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return folder, done.stdout


def records_of(folder):
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def test_each_step_is_one_json_object(finished):
    records = records_of(finished[0])
    assert [record["iteration"] for record in records] == [1, 2, 3, 4, 5, 6]
    for record in records:
        assert record.keys() >= FIELDS
        assert record["tier_bytes"].keys() == {"device", "host", "nvme"}
        assert record["consumed_samples"] == 8 * record["iteration"]
        assert record["consumed_tokens"] == 8 * 32 * record["iteration"]
        assert record["ratio_asked"] == 0.5
        assert abs(record["ratio_realised"] - 0.5) < 0.001
        assert record["device_bytes"] > 0
        assert record["host_rss_bytes"] > 10**7
        assert record["loss_scale"] == 1.0
        assert record["skipped"] is False
        assert record["mfu"] is None, "a CPU has no rated peak"


def test_iteration_lines_keep_their_fields_in_order(finished):
    folder, text = finished
    lines = [line for line in text.splitlines() if line.startswith(" iteration ")]
    names = [field.partition(":")[0].strip() for field in lines[0].split("|")[1:-1]]
    assert names == [
        "consumed samples",
        "consumed tokens",
        "elapsed time per iteration (ms)",
        "learning rate",
        "global batch size",
        "lm loss",
        "loss scale",
        "grad norm",
        "actual seqlen",
        "number of skipped iterations",
        "number of nan iterations",
        "samples per second",
        "tokens per gpu per second (tgs)",
        "TFLOPs",
    ]
    for line, record in zip(lines, records_of(folder), strict=True):
        assert re.match(rf" iteration +{record['iteration']}/ +6 \|", line)
        assert f"lm loss: {record['lm_loss']:.6E}" in line
        assert f"grad norm: {record['grad_norm']:.3f}" in line
        assert f"learning rate: {record['learning_rate']:.3E}" in line


def test_tensorboard_has_the_same_numbers(finished):
    """H17: the norm before clipping is one number, on the console, in TensorBoard and in the file."""
    folder, _ = finished
    events = EventAccumulator(str(folder / "events"))
    events.Reload()
    for tag, field in [
        ("lm-loss-training/lm loss", "lm_loss"),
        ("grad-norm/grad-norm", "grad_norm"),
        ("learning-rate/learning-rate", "learning_rate"),
        ("offload/ratio_achieved", "ratio_realised"),
    ]:
        scalars = [(scalar.step, scalar.value) for scalar in events.Scalars(tag)]
        expected = [(record["iteration"], pytest.approx(record[field], rel=1e-6)) for record in records_of(folder)]
        assert scalars == expected, tag
    tags = events.Tags()["scalars"]
    for tag in ("batch-size/batch-size", "lm-loss-validation/lm loss validation", "optimizer-time"):
        assert tag in tags
    assert "lm-loss-validation/lm loss validation ppl" in tags
    assert [scalar.step for scalar in events.Scalars("lm-loss-validation/lm loss validation")] == [3, 6]


def test_validation_is_printed_as_a_box(finished):
    boxes = re.findall(
        r"^-+\n validation loss at iteration (\d+) \| lm loss value: (\S+) \| lm loss PPL: (\S+) \| \n-+$",
        finished[1],
        re.MULTILINE,
    )
    assert [box[0] for box in boxes] == ["3", "6"]
    for _, loss, perplexity in boxes:
        assert float(perplexity) == pytest.approx(2.718281828459045 ** float(loss), rel=1e-5)


def test_the_engines_and_the_checkpoints_lines(finished):
    folder, text = finished
    assert "] [Rank 1] step=2, skipped=0, lr=[0.001, 0.001], mom=[(0.9, 0.999), (0.9, 0.999)]" in text
    assert f"saving checkpoint at iteration       4 to {folder / 'checkpoint'}" in text
    assert "  successfully saved checkpoint at iteration       6" in text
    assert re.search(r"^time \(ms\) \| .*forward: ", text, re.MULTILINE)
    assert "optimizer state initialized: ratio asked 0.5" in text
    assert (folder / "checkpoint" / "latest_checkpointed_iteration.txt").read_text().strip() == "6"
    assert sorted(path.name for path in (folder / "checkpoint").iterdir() if path.is_dir()) == [
        "global_step4",
        "global_step6",
    ]


def test_evaluation_changes_nothing(corpus):
    single = ParallelContext.single_process()
    dropout = {"attention-dropout": 0.1, "hidden-dropout": 0.1}
    plain = run_tiny(single, tiny_arguments(corpus, None, **dropout))
    evaluated = run_tiny(single, tiny_arguments(corpus, None, **dropout, **{"eval-iters": 2, "eval-interval": 1}))
    assert evaluated.losses == plain.losses


def test_the_batch_ramps_up(corpus, tmp_path):
    """H39: sizes by step 4, 4, 4, 8, 8, 12, 16, 16; a JSON train_batch_size of 16 does not clash."""
    log = tmp_path / "log.jsonl"
    config = write_json(tmp_path / "ds.json", stage=1, train_batch_size=16)
    flags = {"rampup-batch-size": [4, 4, 32], "global-batch-size": 16, "train-iters": None, "train-samples": 72}
    run_tiny(ParallelContext.single_process(), tiny_arguments(corpus, config, **flags, **{"log-jsonl": log}))
    consumed = [json.loads(line)["consumed_samples"] for line in log.read_text().splitlines()]
    assert consumed == [4, 8, 12, 20, 28, 40, 56, 72]


def test_tokens_end_the_run(corpus):
    flags = {"train-iters": None, "train-samples": 400, "train-tokens": 3 * 8 * 32 - 1}
    result = run_tiny(ParallelContext.single_process(), tiny_arguments(corpus, None, **flags))
    assert len(result.losses) == 3


def test_the_clock_ends_the_run_with_a_checkpoint(corpus, tmp_path):
    flags = {"exit-duration-in-mins": 1e-6, "save": tmp_path / "checkpoint", "save-interval": 1000}
    result = run_tiny(ParallelContext.single_process(), tiny_arguments(corpus, None, **flags))
    assert len(result.losses) == 1
    assert (tmp_path / "checkpoint" / "latest_checkpointed_iteration.txt").read_text().strip() == "1"


@pytest.mark.parametrize("num_workers", [1, 3])
def test_reading_ahead_changes_nothing(corpus, num_workers):
    single = ParallelContext.single_process()
    plain = run_tiny(single, tiny_arguments(corpus, None))
    assert run_tiny(single, tiny_arguments(corpus, None, **{"num-workers": num_workers})).losses == plain.losses
