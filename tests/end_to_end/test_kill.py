"""kill -9 in the middle of a run: everybody is gone soon, and the next run goes on from the last checkpoint."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.processes import cpu_environment, process_ended
from helpers.tiny_run import run_tiny, tiny_arguments, write_corpus, write_json

from megatron_zero.distributed.context import ParallelContext

ROOT = Path(__file__).parents[2]


def start(arguments, output):
    """`mz launch` of two processes, its output in a file."""
    return subprocess.Popen(
        [sys.executable, "-m", "megatron_zero.launcher", "--num_gpus", "2", str(ROOT / "pretrain_gpt.py"), *arguments],
        stdout=output,
        stderr=subprocess.STDOUT,
        env=cpu_environment(),
    )


def children(pid):
    """Every process below pid."""
    try:
        own = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
    return own + [each for child in own for each in children(child)]


def ranks_below(pid):
    """The training processes below the launcher."""
    return [
        child for child in children(pid) if b"pretrain_gpt.py" in (line := command_line(child)) and b"torch.dist" not in line
    ]


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


def wait_for_step(log, step, process, limit_s=60):
    """Return once the log tells of a step; fails if the run ends or the time is over first."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the run ended with code {process.returncode}"
        if log.exists() and len(log.read_bytes().splitlines()) >= step:
            return
        process_ended(process.pid, seconds=0.05)  # waits, and wakes when the process ends
    raise AssertionError(f"step {step} did not come in {limit_s} s")


def test_a_killed_run_resumes_from_its_last_checkpoint(tmp_path):
    """A crash costs the steps since the last save, and nothing else: losses go on as in a run without a crash."""
    corpus = write_corpus(tmp_path)
    config = write_json(tmp_path / "ds.json", stage=3, ratio=0.5)
    flags = {"train-iters": 4000, "lr": 1e-4}
    log, folder = tmp_path / "log.jsonl", tmp_path / "checkpoint"
    outputs = {"save": folder, "load": folder, "save-interval": 4, "log-jsonl": log}
    arguments = tiny_arguments(corpus, config, **flags, **outputs)
    with open(tmp_path / "first.txt", "wb") as output:
        process = start(arguments, output)
        try:
            wait_for_step(log, 9, process)
            ranks = ranks_below(process.pid)
            assert len(ranks) == 2, ranks
            os.kill(ranks[1], signal.SIGKILL)
            assert process.wait(timeout=60) != 0
        finally:
            process.kill()
    assert all(process_ended(rank, seconds=10) for rank in ranks), "a rank is still there"
    saved = int((folder / "latest_checkpointed_iteration.txt").read_text())
    assert saved >= 8 and saved % 4 == 0

    with open(tmp_path / "second.txt", "wb") as output:
        process = start([*arguments, "--exit-interval", str(saved + 6)], output)
        try:
            assert process.wait(timeout=120) == 0, (tmp_path / "second.txt").read_text()[-3000:]
        finally:
            process.kill()
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, saved + 7))
    last = {"exit-interval": saved + 6}
    alone = run_tiny(ParallelContext.single_process(), tiny_arguments(corpus, None, **flags, **last))
    for record, loss in zip(records, alone.losses, strict=True):
        assert abs(record["lm_loss"] - loss) <= 1e-4 * loss


def test_a_launcher_killed_by_force_takes_its_ranks_along(tmp_path):
    corpus = write_corpus(tmp_path)
    log = tmp_path / "log.jsonl"
    with open(tmp_path / "output.txt", "wb") as output:
        process = start(tiny_arguments(corpus, None, **{"train-iters": 4000, "log-jsonl": log}), output)
        try:
            wait_for_step(log, 2, process)
            below = children(process.pid)
            assert len(ranks_below(process.pid)) == 2
        finally:
            process.kill()
            process.wait(timeout=10)
    assert all(process_ended(each, seconds=40) for each in below)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_tensor_parallel_rank_that_dies_or_hangs_ends_the_run(tmp_path, how):
    """H55's kind: the other rank waits for it in the middle of a layer."""
    corpus = write_corpus(tmp_path)
    log, text = tmp_path / "log.jsonl", tmp_path / "output.txt"
    flags = {"tensor-model-parallel-size": 2, "sequence-parallel": True, "distributed-timeout-minutes": 0.2}
    with open(text, "wb") as output:
        process = start(tiny_arguments(corpus, None, **flags, **{"train-iters": 400000, "log-jsonl": log}), output)
        try:
            wait_for_step(log, 3, process)
            ranks = ranks_below(process.pid)
            assert len(ranks) == 2, ranks
            os.kill(ranks[1], how)
            assert process.wait(timeout=60) != 0
        finally:
            process.kill()
            for rank in ranks_below(process.pid):
                os.kill(rank, signal.SIGKILL)
    assert all(process_ended(rank, seconds=40) for rank in ranks), "a rank is still there"
    said = text.read_text(errors="replace")
    assert "SIGKILL" in said  # of the rank that died, or was ended at last
    if how == signal.SIGSTOP:  # a killed one is seen by the launcher first
        assert "error (rank 0 of 2): " in said
        assert "over axis tp did not complete: rank 1 ended, or did not answer within the time-out" in said
