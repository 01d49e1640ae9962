"""Samples of splits and blends are those of Megatron-core's own builder, in its order (test-only package megatron-core)."""

import json

import numpy as np
import pytest
from helpers.megatron_core import run_megatron_core

from megatron_zero.config.data import DataConfig
from megatron_zero.data.datasets import SplitRequest, build_datasets
from megatron_zero.data.indexed_dataset import IndexedDatasetWriter

CASES = {
    "plain": {"words": ["a"], "split": "8,1,1", "sizes": [100, 9, 3], "seq_length": 8, "seed": 5},
    "many_epochs": {"words": ["c"], "split": "1,0,0", "sizes": [900, 0, 0], "seq_length": 16, "seed": 6},
    "two": {"words": ["0.3", "a", "0.7", "b"], "split": "8,1,1", "sizes": [1000, 9, 3], "seq_length": 8, "seed": 5},
    "three": {
        "words": ["5", "a", "3", "b", "0.25", "c"],
        "split": "1,0,0",
        "sizes": [777, 0, 0],
        "seq_length": 5,
        "seed": 7,
    },
    "one_weighted": {"words": ["1", "a"], "split": "9,1,0", "sizes": [300, 20, 0], "seq_length": 8, "seed": 1},
    "no_weights": {"words": ["a", "b", "c"], "split": "1,0,0", "sizes": [200, 0, 0], "seq_length": 8, "seed": 1},
    "per_split_one_weighted": {"per_split": [["7", "a"], ["b"], None], "sizes": [900, 9, 0], "seq_length": 8, "seed": 3},
    # The last set's share needs one sample more than the surplus covers, and its last epoch would not be shuffled apart.
    "beyond_the_surplus": {
        "words": ["0.004", "a", "0.0004", "b", "14.2", "c", "0.23", "a", "0.92", "b", "0.43", "a", "0.0016", "b"],
        "split": "1,0,0",
        "sizes": [379, 0, 0],
        "seq_length": 8,
        "seed": 11,
    },
    "per_split": {
        "per_split": [["1", "a", "2", "b"], ["c"], None],
        "sizes": [150, 11, 0],
        "seq_length": 8,
        "seed": 9,
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    random = np.random.RandomState(0)
    for name, documents in (("a", 40), ("b", 90), ("c", 17)):
        with IndexedDatasetWriter(folder / name, vocab_size=50_000) as writer:
            for _ in range(documents):
                writer.add_document([random.randint(0, 49_999, size=random.randint(1, 60))])
    return folder


@pytest.fixture(scope="module")
def theirs(folder):
    (folder / "cases.json").write_text(json.dumps(CASES))
    run_megatron_core("megatron_core_datasets.py", "cases.json", "theirs.npz", folder=folder)
    return np.load(folder / "theirs.npz")


@pytest.mark.parametrize("name", list(CASES))
def test_samples_equal_those_of_megatron_core(folder, theirs, name, monkeypatch):
    monkeypatch.chdir(folder)
    case = CASES[name]
    per_split = [tuple(words or ()) for words in case.get("per_split", [(), (), ()])]
    config = DataConfig(
        data_path=tuple(case.get("words", ())),
        train_data_path=per_split[0],
        valid_data_path=per_split[1],
        test_data_path=per_split[2],
        split=case.get("split", "1"),
        data_cache_path=f"cache_{name}",
    )
    requests = tuple(SplitRequest(size) for size in case["sizes"])
    datasets = build_datasets(
        config, requests, seq_length=case["seq_length"], seed=case["seed"], vocab_size=50_000, eod=49_999
    )
    compared = 0
    for split, dataset in zip(("train", "valid", "test"), datasets.all(), strict=True):
        if dataset is None:
            continue
        wanted = theirs[f"{name}_{split}"]
        assert len(dataset) == len(wanted)
        np.testing.assert_array_equal(np.stack([dataset[i] for i in range(len(dataset))]), wanted)
        compared += 1
    assert compared == sum(size > 0 for size in case["sizes"])
