"""Blends, per-split paths, cached indices and mock data through the whole program, on one and two processes."""

import json

import pytest
import torch
from helpers.tiny_run import VOCABULARY, run_tiny, tiny_arguments, write_json

from megatron_zero.data.datasets import CACHE_FOLDER
from megatron_zero.data.indexed_dataset import IndexedDatasetWriter
from megatron_zero.distributed.context import ParallelContext


@pytest.fixture
def sets(tmp_path):
    """Two prefixes: words counted upwards, and downwards."""
    for name, step in (("up", 1), ("down", -1)):
        with IndexedDatasetWriter(tmp_path / name, vocab_size=VOCABULARY + 1) as writer:
            for i in range(100):
                writer.add_document([[(7 * i + step * j) % VOCABULARY for j in range(20)] + [VOCABULARY]])
    return tmp_path / "up", tmp_path / "down"


def ways_of(sets):
    up, down = sets
    return {
        "blend": {"data-path": [0.75, up, 0.25, down]},
        "no weights": {"data-path": [up, down, up]},
        "per split": {
            "data-path": None,
            "split": None,
            "train-data-path": [1, up, 1, down],
            "valid-data-path": [down],
            "eval-iters": 1,
            "eval-interval": 3,
        },
        "mock": {"data-path": None, "mock-data": True},
    }


@pytest.mark.parametrize("way", ["blend", "no weights", "per split", "mock"])
def test_two_processes_train_as_one(pool, sets, tmp_path, way):
    argv = tiny_arguments(None, None, **ways_of(sets)[way], **{"data-cache-path": tmp_path / "cache"})
    alone = run_tiny(ParallelContext.single_process(), argv)
    for result in pool.run(run_tiny, argv):
        torch.testing.assert_close(torch.tensor(result.losses), torch.tensor(alone.losses), rtol=1e-5, atol=0)
        torch.testing.assert_close(torch.tensor(result.norms), torch.tensor(alone.norms), rtol=1e-4, atol=0)
    if way != "mock":
        assert list((tmp_path / "cache").glob("*.json"))
        assert not (tmp_path / CACHE_FOLDER).exists()


def test_each_source_is_told_with_samples_and_epochs(sets, capsys):
    """H32: start-up prints counts and epochs per source."""
    up, down = sets
    run_tiny(ParallelContext.single_process(), tiny_arguments(None, None, **{"data-path": [3, up, 1, down]}))
    out = capsys.readouterr().out
    assert f"train: 36 samples from {up} (weight 0.75): 90 documents, 1890 tokens, 0.6095 epochs" in out
    assert f"train: 12 samples from {down} (weight 0.25): 90 documents, 1890 tokens, 0.2032 epochs" in out


def test_resume_with_other_weights_is_told(sets, tmp_path, capsys):
    up, down = sets
    kept = {"save": tmp_path / "out", "load": tmp_path / "out", "save-interval": 100}
    run_tiny(
        ParallelContext.single_process(),
        tiny_arguments(None, None, **{"data-path": [3, up, 1, down], "exit-interval": 2}, **kept),
    )
    run_tiny(
        ParallelContext.single_process(), tiny_arguments(None, None, **{"data-path": [1, up, 1, down]}, **kept)
    )
    assert "the training data (fingerprint)" in capsys.readouterr().out


def test_description_of_an_index_names_what_decides_it(sets, tmp_path):
    up, _ = sets
    run_tiny(
        ParallelContext.single_process(),
        tiny_arguments(up, None, **{"data-cache-path": tmp_path / "cache"}),
    )
    (path,) = (tmp_path / "cache").glob("*.json")
    recipe = json.loads(path.read_text())["recipe"]
    assert (recipe["seed"], recipe["seq_length"], recipe["sequences"]) == (1234, 32, [0, 90])


DOCUMENT_FLAGS = {"reset-position-ids": True, "reset-attention-mask": True, "eod-mask-loss": True}


@pytest.mark.parametrize("stage,recompute", [(0, False), (3, True)])
def test_document_flags_train_alike_on_two_processes(pool, corpus, tmp_path, stage, recompute):
    """H34, through the whole program; and they do change what is trained."""
    config = write_json(tmp_path / "ds.json", stage=stage)
    argv = tiny_arguments(corpus, config, **DOCUMENT_FLAGS, **{"checkpoint-activations": recompute})
    alone = run_tiny(ParallelContext.single_process(), argv)
    for result in pool.run(run_tiny, argv):
        torch.testing.assert_close(torch.tensor(result.losses), torch.tensor(alone.losses), rtol=1e-5, atol=0)
        torch.testing.assert_close(torch.tensor(result.norms), torch.tensor(alone.norms), rtol=1e-4, atol=0)
    for left_out in DOCUMENT_FLAGS:
        others = {flag: True for flag in DOCUMENT_FLAGS if flag != left_out}
        plain = run_tiny(ParallelContext.single_process(), tiny_arguments(corpus, None, **others))
        assert plain.losses[-1] != alone.losses[-1], left_out


def test_cyclic_run_resumes_where_it_stopped(corpus, tmp_path):
    """H57 through the whole program: three stops over two epochs of a small set, bit-equal to the straight run."""
    flags = {"dataloader-type": "cyclic", "train-iters": 12}
    straight = run_tiny(ParallelContext.single_process(), tiny_arguments(corpus, None, **flags))
    single = run_tiny(ParallelContext.single_process(), tiny_arguments(corpus, None, **{"train-iters": 12}))
    assert straight.losses != single.losses
    losses = []
    for stop in (5, 10, None):
        kept = {"save": tmp_path / "out", "load": tmp_path / "out", "save-interval": 100, "exit-interval": stop}
        losses += run_tiny(ParallelContext.single_process(), tiny_arguments(corpus, None, **flags, **kept)).losses
    assert losses == straight.losses


def test_small_validation_set_begins_again_on_every_rank(pool, corpus, tmp_path, capfd):
    """H51: fewer validation samples than an evaluation reads; all ranks end, and the count is told."""
    flags = {"split": "97,3,0", "eval-iters": 10, "eval-interval": 3, "micro-batch-size": 2, "data-path": corpus}
    argv = tiny_arguments(None, None, **flags)
    alone = run_tiny(ParallelContext.single_process(), argv)
    for result in pool.run(run_tiny, argv):
        torch.testing.assert_close(torch.tensor(result.losses), torch.tensor(alone.losses), rtol=1e-5, atol=0)
    assert "validation read 80 samples from 0 on of " in capfd.readouterr().out
