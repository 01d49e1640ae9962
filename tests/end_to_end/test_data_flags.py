"""Blends, per-split paths, cached indices and mock data through the whole program, on one and two processes."""

import json

import pytest
import torch
from helpers.tiny_run import VOCABULARY, run_tiny, tiny_arguments

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
