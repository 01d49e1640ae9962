"""Whatever is wrong is said on every rank before the first step; nothing is left behind (F5 of the checks)."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.processes import cpu_environment
from helpers.tiny_run import VOCABULARY, run_tiny, tiny_arguments, write_corpus, write_json

from megatron_zero.checkpoint.manifest import MANIFEST
from megatron_zero.config.data import DataConfig
from megatron_zero.config.fields import ConfigError
from megatron_zero.config.load import load_run_config
from megatron_zero.config.tree import replace_path
from megatron_zero.data.datasets import SplitRequest, build_datasets
from megatron_zero.distributed.launch import LaunchEnvironment

ROOT = Path(__file__).parents[2]
TIME_LIMIT_S = 60


def message_on_rank(ctx, argv):
    """The error that a run raises on this rank."""
    try:
        run_tiny(ctx, argv)
    except (ConfigError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("the run did not fail")


def truncated(corpus, folder, *, suffix, keep):
    """A copy of the corpus whose .bin or .idx is cut short."""
    prefix = folder / "cut_text_document"
    for each in (".bin", ".idx"):
        content = Path(f"{corpus}{each}").read_bytes()
        Path(f"{prefix}{each}").write_bytes(content[: keep if each == suffix else None])
    return prefix


CASES = {
    "batch does not divide": ({"global-batch-size": 9}, ["9", "micro batch 2 x data-parallel size 2 = 4", "8 or 12"]),
    "no data file": ({"data-path": "nowhere/at_all"}, ["--data-path nowhere/at_all"]),
    "no tokenizer file": (
        {"tokenizer-type": "GPTSentencePieceTokenizer", "vocab-size": None, "tokenizer-model": "nowhere.model"},
        ["--tokenizer-model nowhere.model"],
    ),
    "data of another tokenizer": ({"vocab-size": 20}, ["token id", "ids 0 to 20"]),
    "a validation split without documents": ({"split": "100,0,0", "eval-iters": 1}, ["--split", "valid"]),
    "a sequence longer than its positions": ({"seq-length": 64}, ["--seq-length 64", "--max-position-embeddings 32"]),
    "heads that do not divide": ({"num-attention-heads": 5}, ["--num-attention-heads 5"]),
    "an empty path": ({"tensorboard-dir": ""}, ["--tensorboard-dir", "must not be empty"]),
    "an eps that fp32 has not": ({"adam-eps": 1e-50}, ["--adam-eps 1e-50", "the range of fp32"]),
    "a timeout of ages": ({"distributed-timeout-minutes": 1e300}, ["--distributed-timeout-minutes", "525600"]),
    "a flag nobody knows": ({"num-layer": 3}, ["--num-layer", "--num-layers"]),
    "a width that heads do not divide by": (
        {"tensor-model-parallel-size": 8},
        ["--tensor-model-parallel-size 8", "query heads (--num-attention-heads), 4", "nearest valid: 8"],
    ),
    "fp16, not built": ({"fp16": True}, ["fp16"]),
}


@pytest.mark.parametrize("overrides, words", CASES.values(), ids=CASES.keys())
def test_both_ranks_say_what_is_wrong(pool, corpus, tmp_path, overrides, words):
    outputs = {"save": tmp_path / "out", "save-interval": 2, "log-jsonl": tmp_path / "log.jsonl"}
    argv = tiny_arguments(corpus, None, **{**outputs, **overrides})
    for message in pool.run(message_on_rank, argv, timeout_s=TIME_LIMIT_S):
        assert message.startswith("ConfigError"), message
        for word in words:
            assert word in message, message
    assert list(tmp_path.iterdir()) == [], "something was left behind"


@pytest.mark.parametrize("flag", ["save", "tensorboard-dir", "log-jsonl"])
def test_an_output_below_a_file_is_refused(pool, corpus, tmp_path, flag):
    """Below a regular file nobody can write, not even root."""
    (tmp_path / "file").write_text("in the way")
    path = tmp_path / "file" / "output"
    argv = tiny_arguments(corpus, None, **{"save-interval": 2 if flag == "save" else None, flag: path})
    for message in pool.run(message_on_rank, argv, timeout_s=TIME_LIMIT_S):
        assert f"--{flag}" in message and str(path) in message
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize("suffix, keep", [(".idx", 5), (".idx", 100), (".idx", -8), (".bin", -2)])
def test_a_damaged_data_file_is_named(pool, corpus, tmp_path, suffix, keep):
    prefix = truncated(corpus, tmp_path, suffix=suffix, keep=keep)
    for message in pool.run(message_on_rank, tiny_arguments(prefix, None), timeout_s=TIME_LIMIT_S):
        assert f"{prefix}{suffix}" in message


def test_offload_at_stage_0_is_refused(pool, corpus, tmp_path):
    config = write_json(tmp_path / "ds.json", stage=0, ratio=0.5)
    for message in pool.run(message_on_rank, tiny_arguments(corpus, config), timeout_s=TIME_LIMIT_S):
        assert "offloaded to cpu" in message and "ZeRO stage 0" in message


def test_sizes_that_do_not_fit_the_world_are_told_before_ranks_meet(corpus, monkeypatch):
    """One rank of three, alone: it would wait for the two others."""
    program = load_program()
    monkeypatch.setattr(program, "process_group", lambda *args, **kwargs: pytest.fail("the ranks are to meet"))
    loaded = load_run_config(tiny_arguments(corpus, None))
    config = replace_path(loaded.config, "parallel.tensor_model_parallel_size", 2)
    env = LaunchEnvironment(1, 3, 1, 3, "127.0.0.1", 29500)
    with pytest.raises(ConfigError, match=r"= 2 does not divide the world size 3 .*; start 2 or 4 processes, or use sizes"):
        program.run(dataclasses.replace(loaded, config=config), env)


def load_program():
    """pretrain_gpt.py, which belongs to no package, as a module."""
    spec = importlib.util.spec_from_file_location("pretrain_gpt", ROOT / "pretrain_gpt.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launch(arguments, *, num_processes=2):
    """(exit code, everything printed, seconds) of `mz launch`."""
    command = [sys.executable, "-m", "megatron_zero.launcher", "--num_gpus", str(num_processes)]
    started = time.monotonic()
    done = subprocess.run(
        [*command, str(ROOT / "pretrain_gpt.py"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIME_LIMIT_S,
        env=cpu_environment(),
        check=False,
    )
    return done.returncode, done.stdout, time.monotonic() - started


def test_a_leftover_placeholder_ends_the_launch(corpus, tmp_path):
    config = tmp_path / "ds.json"
    config.write_text('{\n "train_batch_size": CONFIG_BATCH_SIZE,\n "zero_optimization": {"stage": 3}\n}')
    code, output, _ = launch(tiny_arguments(corpus, config))
    assert code != 0
    assert "error: " in output and "ds.json:2: train_batch_size" in output and "CONFIG_BATCH_SIZE" in output


def test_a_rank_that_cannot_read_ends_all(corpus, tmp_path):
    """The file is there for nobody: both processes end with an error, and the launcher with its code."""
    code, output, _ = launch(tiny_arguments(tmp_path / "gone", None, save=tmp_path / "out", **{"save-interval": 1}))
    assert code != 0
    for rank in range(2):
        assert f"error (rank {rank} of 2): reading the data failed on rank 0" in output
    assert f"--data-path {tmp_path / 'gone'}" in output
    assert list(tmp_path.iterdir()) == []


def spoil_a_sample_of_rank_1_in_step_3(prefix):
    """Write a foreign id into a document that only samples 18, 19, 22 and 23 hold. The .bin of the pair is changed."""
    train = build_datasets(
        DataConfig(data_path=(str(prefix),), split="90,10,0"),
        (SplitRequest(48), SplitRequest(0), SplitRequest(0)),
        seq_length=32,
        seed=1234,
        vocab_size=VOCABULARY + 1,
        eod=VOCABULARY,
    ).train

    def documents_of(position):
        first, last = train.order.sample_index[int(train.order.shuffle_index[position]) :][:2, 0]
        return set(train.order.document_index[first : last + 1].tolist())

    theirs = set().union(*(documents_of(position) for position in (18, 19, 22, 23)))
    others = set().union(*(documents_of(position) for position in {*range(24)} - {18, 19, 22, 23}))
    document = min(theirs - others)
    with open(f"{prefix}.bin", "r+b") as file:
        file.seek(train.documents.source.byte_position(document, 3))
        file.write((60_000).to_bytes(2, "little"))
    return train.documents.source.byte_position(document, 3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_rank_that_fails_to_read_in_the_middle_ends_all(tmp_path, num_workers):
    """H55: one rank raises in data loading; it is named with file and position, and nobody waits for the timeout."""
    prefix = write_corpus(tmp_path)
    position = spoil_a_sample_of_rank_1_in_step_3(prefix)
    code, output, seconds = launch(tiny_arguments(prefix, None, **{"num-workers": num_workers}))
    assert code != 0
    assert seconds < TIME_LIMIT_S
    assert "iteration        2/" in output
    assert "iteration        3/" not in output
    assert f"error (rank 1 of 2): {prefix}.bin: token id 60000 at byte {position} " in output


def test_many_faults_are_told_at_once(corpus, tmp_path):
    config = tmp_path / "ds.json"
    config.write_text(json.dumps({"zero_optimisation": {"stage": 3}, "gradient_cliping": 1.0}))
    code, output, _ = launch([*tiny_arguments(corpus, config), "--not-a-flag", "1"], num_processes=1)
    assert code != 0
    for word in ("zero_optimisation", "zero_optimization", "gradient_cliping", "gradient_clipping", "--not-a-flag"):
        assert word in output


def test_an_output_is_no_input_and_no_other_output(pool, corpus, tmp_path):
    index = Path(f"{corpus}.idx").read_bytes()
    output = tmp_path / "output"
    twice = {"save": output, "save-interval": 1, "log-jsonl": output}
    for overrides in ({"log-jsonl": f"{corpus}.idx"}, twice):
        for message in pool.run(message_on_rank, tiny_arguments(corpus, None, **overrides), timeout_s=TIME_LIMIT_S):
            assert "names, too: name another" in message
    assert Path(f"{corpus}.idx").read_bytes() == index
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_not_a_log_is_not_moved(pool, corpus, tmp_path):
    notes = tmp_path / "notes.txt"
    notes.write_text("mine\n")
    for message in pool.run(message_on_rank, tiny_arguments(corpus, None, **{"log-jsonl": notes}), timeout_s=TIME_LIMIT_S):
        assert "not a metrics file of this program" in message
    assert notes.read_text() == "mine\n"


def test_load_of_what_is_no_checkpoint_folder_is_refused(pool, corpus, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    one = tmp_path / "run" / "global_step4"
    one.mkdir(parents=True)
    (one / MANIFEST).write_text("{}")
    for path, words in ((file, "is not a folder"), (one, f"name the folder it lies in, {one.parent}")):
        for message in pool.run(message_on_rank, tiny_arguments(corpus, None, load=path), timeout_s=TIME_LIMIT_S):
            assert f"--load {path}" in message and words in message


def test_a_save_folder_that_cannot_be_made_is_met_before_the_first_step(pool, corpus, tmp_path):
    name = tmp_path / ("a" * 300)
    argv = tiny_arguments(corpus, None, save=name, **{"save-interval": 100, "log-jsonl": tmp_path / "log.jsonl"})
    for message in pool.run(message_on_rank, argv, timeout_s=TIME_LIMIT_S):
        assert f"--save {name} cannot be written" in message
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_do_not_meet_say_where(tmp_path, corpus):
    environment = {**cpu_environment(), "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    argv = tiny_arguments(corpus, None, **{"distributed-timeout-minutes": 0.05})
    done = subprocess.run(
        [sys.executable, str(ROOT / "pretrain_gpt.py"), *argv],
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
        env=environment,
        check=False,
    )
    assert done.returncode == 1
    assert "rank 1 of 2 did not meet the others at MASTER_ADDR 127.0.0.1, MASTER_PORT 1 within" in done.stderr


def message_with_own_data(ctx, argv_by_rank):
    return message_on_rank(ctx, argv_by_rank[ctx.world.rank])


def test_ranks_with_other_data_under_one_name_are_told(pool, corpus, tmp_path):
    """A node with a stale copy: nothing else would show it."""
    other = write_corpus(tmp_path, documents=190)
    lists = [tiny_arguments(each, None) for each in (corpus, other)]
    for message in pool.run(message_with_own_data, lists, timeout_s=TIME_LIMIT_S):
        assert "rank 1 reads other train data than rank 0" in message


def test_a_data_path_that_is_no_utf8_trains_and_is_printed_escaped(tmp_path):
    folder = tmp_path / os.fsdecode(b"bad\xff")
    folder.mkdir()
    arguments = tiny_arguments(write_corpus(folder), write_json(tmp_path / "ds.json", stage=1))
    code, printed, _ = launch([*arguments, "--tensorboard-dir", str(tmp_path / "events")], num_processes=1)
    assert code == 0, printed
    assert "bad\\udcff/c200_text_document" in printed
