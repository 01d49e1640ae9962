"""A resumed run is the uninterrupted run: bit-equal weights, moments, learning rates, data and dropout."""

import json

import pytest
import torch
from helpers.tiny_run import run_tiny, tiny_arguments, write_json

from megatron_zero.checkpoint.lock import FolderLock
from megatron_zero.config.fields import ConfigError
from megatron_zero.distributed.context import ParallelContext

TOKENS_PER_STEP = 8 * 32
COSINE = {
    "lr-decay-style": "cosine",
    "min-lr": 1e-4,
    "lr-decay-tokens": 20 * TOKENS_PER_STEP,
    "train-iters": 20,
    "attention-dropout": 0.1,
    "hidden-dropout": 0.1,
}


def runs_on_rank(ctx, argument_lists):
    return [run_tiny(ctx, argv) for argv in argument_lists]


def assert_continues(parts, straight):
    """The parts, end to end, are the straight run."""
    for field in ("losses", "norms", "rates"):
        joined = [value for part in parts for value in getattr(part, field)]
        assert joined == getattr(straight, field), field
    for name, weight in straight.weights.items():
        torch.testing.assert_close(parts[-1].weights[name], weight, rtol=0, atol=0, msg=name)
    for (key, start, ours), (other_key, other_start, theirs) in zip(parts[-1].state, straight.state, strict=True):
        assert (key, start) == (other_key, other_start)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=key)


@pytest.mark.parametrize("stage, ratio, bf16", [(0, None, False), (1, 0.5, True), (2, None, False), (3, 0.3, True)])
def test_two_stops_make_one_run(pool, corpus, tmp_path, stage, ratio, bf16):
    """H21: rates to the last bit over 5 -> 10 -> 20 steps, at every stage, with and without offload."""
    config = write_json(tmp_path / "ds.json", stage=stage, ratio=ratio, bf16={"enabled": bf16})
    folder = tmp_path / "checkpoint"
    straight = tiny_arguments(corpus, config, **COSINE, bf16=bf16)
    parts = [
        tiny_arguments(
            corpus,
            config,
            **COSINE,
            bf16=bf16,
            save=folder,
            load=folder,
            **{"save-interval": 1000, "exit-interval": stop},
        )
        for stop in (5, 10, None)
    ]
    for results in pool.run(runs_on_rank, [straight, *parts], timeout_s=300):
        assert [len(part.losses) for part in results[1:]] == [5, 5, 10]
        assert_continues(results[1:], results[0])
    assert (folder / "latest_checkpointed_iteration.txt").read_text().strip() == "20"


def test_rates_are_the_cosine(corpus):
    result = run_tiny(ParallelContext.single_process(), tiny_arguments(corpus, None, **COSINE))
    expected = [1e-4 + 0.5 * 9e-4 * (1 + torch.cos(torch.tensor(torch.pi * i / 20)).item()) for i in range(20)]
    assert result.rates == pytest.approx(expected, rel=1e-6)


def test_other_cuts_resume_alike(corpus, tmp_path):
    """A checkpoint knows nothing of ratio and sub_group_size: resumed under another split, the run goes on bit-equal."""
    single = ParallelContext.single_process()
    straight = run_tiny(single, tiny_arguments(corpus, None, **COSINE))
    folder = tmp_path / "checkpoint"
    parts = []
    for stage, ratio, size, stop in [(1, 0.3, 10**9, 7), (3, 1.0, 777, 14), (2, 0.0, 10**9, None)]:
        config = write_json(
            tmp_path / f"{stage}.json", stage=stage, ratio=ratio, zero_optimization={"sub_group_size": size}
        )
        argv = tiny_arguments(
            corpus, config, **COSINE, save=folder, load=folder, **{"save-interval": 1000, "exit-interval": stop}
        )
        parts.append(run_tiny(single, argv))
    for field in ("losses", "norms", "rates"):
        assert [value for part in parts for value in getattr(part, field)] == getattr(straight, field)
    for name, weight in straight.weights.items():
        torch.testing.assert_close(parts[-1].weights[name], weight, rtol=0, atol=0, msg=name)


def test_logs_go_on_without_double_steps(corpus, tmp_path):
    """A run that was stopped after its last checkpoint makes steps 5 and 6 again: the file tells each once."""
    single = ParallelContext.single_process()
    log, folder = tmp_path / "log.jsonl", tmp_path / "checkpoint"
    common = {"save": folder, "load": folder, "log-jsonl": log, "tensorboard-dir": tmp_path / "events"}
    run_tiny(single, tiny_arguments(corpus, None, **common, **{"save-interval": 4, "train-iters": 4}))
    lines = log.read_text().splitlines()
    with log.open("a") as file:  # what a killed run leaves: two more steps and half a line
        for iteration in (5, 6):
            file.write(json.dumps({**json.loads(lines[-1]), "iteration": iteration, "lm_loss": -1.0}) + "\n")
        file.write('{"iteration": 7, "lm_')
    run_tiny(single, tiny_arguments(corpus, None, **common, **{"save-interval": 4, "train-iters": 8}))
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert [record["iteration"] for record in records] == list(range(1, 9))
    assert all(record["lm_loss"] > 0 for record in records)
    assert [record["consumed_tokens"] for record in records] == [i * TOKENS_PER_STEP for i in range(1, 9)]


def test_another_model_or_schedule_is_refused_by_name(corpus, tmp_path):
    single = ParallelContext.single_process()
    folder = tmp_path / "checkpoint"
    common = {"save": folder, "load": folder, "save-interval": 100}
    run_tiny(single, tiny_arguments(corpus, None, **common, **{"train-iters": 2}))
    with pytest.raises(ConfigError, match=r"--num-layers 2 there and 3 here"):
        run_tiny(single, tiny_arguments(corpus, None, **common, **{"num-layers": 3}))
    with pytest.raises(ConfigError, match=r"max_lr 0.001 there and 0.0005 here.*--override-opt_param-scheduler"):
        run_tiny(single, tiny_arguments(corpus, None, **common, **{"lr": 5e-4, "train-iters": 3}))
    result = run_tiny(
        single,
        tiny_arguments(
            corpus, None, **common, **{"lr": 5e-4, "train-iters": 3, "override-opt_param-scheduler": True}
        ),
    )
    assert result.rates == [5e-4]


def test_another_number_of_ranks_goes_on_from_the_same_state(pool, corpus, tmp_path):
    """Two processes stop, one goes on: without dropout the losses are those of a run that never stopped (F4)."""
    folder = tmp_path / "checkpoint"
    flags = {**COSINE, "attention-dropout": 0.0, "hidden-dropout": 0.0, "train-iters": 10}
    config = write_json(tmp_path / "ds.json", stage=3, ratio=0.5)
    common = {**flags, "save": folder, "load": folder, "save-interval": 1000}
    single = ParallelContext.single_process()
    straight = run_tiny(single, tiny_arguments(corpus, config, **flags))
    (first, _) = pool.run(run_tiny, tiny_arguments(corpus, config, **common, **{"exit-interval": 5}), timeout_s=120)
    second = run_tiny(single, tiny_arguments(corpus, config, **common))
    assert first.losses + second.losses == pytest.approx(straight.losses, rel=1e-4)


def test_what_changed_since_the_checkpoint_is_told(corpus, tmp_path, capfd):
    single = ParallelContext.single_process()
    common = {"save": tmp_path / "checkpoint", "load": tmp_path / "checkpoint", "save-interval": 100}
    run_tiny(single, tiny_arguments(corpus, None, **common, **{"train-iters": 2}))
    capfd.readouterr()
    run_tiny(single, tiny_arguments(corpus, None, **common, **{"train-iters": 3, "seed": 7, "weight-decay": 0.0}))
    printed = capfd.readouterr().out
    for words in (
        "--seed was 1234 when the checkpoint was made and is 7 now",
        "--weight-decay was 0.1 when the checkpoint was made and is 0.0 now",
        "training samples laid out (--train-samples, --train-iters) was 16 when the checkpoint was made and is 24 now",
    ):
        assert words in printed
    assert "--clip-grad was" not in printed


def test_samples_end_a_run_that_resumes_with_another_batch(corpus, tmp_path):
    """80 samples: 5 steps of 8, then 2 of 16 (72 consumed) leave no whole batch."""
    single = ParallelContext.single_process()
    common = {"save": tmp_path / "checkpoint", "load": tmp_path / "checkpoint", "save-interval": 100}
    flags = {**common, "train-iters": None, "train-samples": 80}
    first = run_tiny(single, tiny_arguments(corpus, None, **flags, **{"exit-interval": 5}))
    second = run_tiny(single, tiny_arguments(corpus, None, **flags, **{"global-batch-size": 16}))
    assert (len(first.losses), len(second.losses)) == (5, 2)


def test_checkpoints_without_their_pointer_are_not_started_over(corpus, tmp_path):
    single = ParallelContext.single_process()
    folder = tmp_path / "checkpoint"
    argv = tiny_arguments(corpus, None, save=folder, load=folder, **{"save-interval": 100, "train-iters": 2})
    run_tiny(single, argv)
    (folder / "latest_checkpointed_iteration.txt").unlink()
    with pytest.raises(ConfigError, match=r"holds checkpoints \(iterations 2\) but no latest_checkpointed_iteration.txt"):
        run_tiny(single, argv)


def test_a_finished_run_evaluates_the_same_samples_again(corpus, tmp_path, capfd):
    single = ParallelContext.single_process()
    folder = tmp_path / "checkpoint"
    flags = {"save-interval": 100, "train-iters": 5, "eval-iters": 1, "eval-interval": 2}
    argv = tiny_arguments(corpus, None, save=folder, load=folder, **flags)
    run_tiny(single, argv)
    first = capfd.readouterr().out
    run_tiny(single, argv)
    again = capfd.readouterr().out
    value = "validation loss at iteration 5 | lm loss value: "
    assert first.partition(value)[2][:12] == again.partition(value)[2][:12] != ""


def test_one_run_at_a_time_saves_in_a_folder(corpus, tmp_path):
    folder = tmp_path / "checkpoint"
    argv = tiny_arguments(corpus, None, save=folder, **{"save-interval": 100, "train-iters": 1})
    held = FolderLock(folder)
    try:
        with pytest.raises(ConfigError, match="another run is saving there"):
            run_tiny(ParallelContext.single_process(), argv)
    finally:
        held.close()
    assert len(run_tiny(ParallelContext.single_process(), argv).losses) == 1


@pytest.mark.parametrize("processes_first", [1, 2])
def test_padding_of_the_vocabulary_may_change(pool, corpus, tmp_path, processes_first):
    """H33: 51 ids in 56 rows there, 64 or 51 here; real rows and their moments go on bit for bit."""
    config = write_json(tmp_path / "ds.json", stage=3, ratio=0.5)
    kept = {"save": tmp_path / "out", "load": tmp_path / "out", "save-interval": 100}
    first = tiny_arguments(corpus, config, **kept, **{"exit-interval": 3})
    if processes_first == 2:
        (saved, _) = pool.run(run_tiny, first)
    else:
        saved = run_tiny(ParallelContext.single_process(), first)
    assert not saved.weights["embedding.word.weight"][51:].any()
    for divisor, rows in ((32, 64), (17, 51), (8, 56)):
        argv = tiny_arguments(
            corpus, config, load=tmp_path / "out", **{"make-vocab-size-divisible-by": divisor, "train-iters": 3}
        )
        resumed = run_tiny(ParallelContext.single_process(), argv)
        assert resumed.losses == []  # it was at its end
        word = resumed.weights["embedding.word.weight"]
        assert word.shape == (rows, 64)
        assert not word[51:].any()
        for name, weight in resumed.weights.items():
            kept_rows = slice(0, 51) if name == "embedding.word.weight" else slice(None)
            torch.testing.assert_close(weight[kept_rows], saved.weights[name][kept_rows], rtol=0, atol=0, msg=name)


def test_another_vocabulary_is_refused_with_both_numbers(corpus, tmp_path):
    """H33: the real size, not the padded one, is compared."""
    kept = {"save": tmp_path / "out", "load": tmp_path / "out", "save-interval": 100}
    run_tiny(ParallelContext.single_process(), tiny_arguments(corpus, None, **kept, **{"exit-interval": 3}))
    with pytest.raises(ConfigError, match="vocabulary size 51 there and 52 here"):
        run_tiny(ParallelContext.single_process(), tiny_arguments(corpus, None, **kept, **{"vocab-size": 51}))
