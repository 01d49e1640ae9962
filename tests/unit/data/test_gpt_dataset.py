"""Samples over documents, splits, and the errors a user meets before the first step."""

import json

import numpy as np
import pytest

from megatron_zero.config.fields import ConfigError
from megatron_zero.data.gpt_dataset import Documents, GPTDataset
from megatron_zero.data.index_format import HEADER
from megatron_zero.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter

SEED = 1234


def write(prefix, documents, vocab_size=50_000):
    with IndexedDatasetWriter(prefix, vocab_size=vocab_size) as writer:
        for document in documents:
            writer.add_document([document])
    return prefix


def counted(sizes):
    """Documents of these sizes that hold 0, 1, 2, ... modulo 50,000 throughout."""
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) % 50_000 for size, end in zip(sizes, ends, strict=True)]


def dataset_of(prefix, documents, **changes):
    arguments = {"num_samples": None, "seq_length": 8, "seed": SEED, "name": "train"} | changes
    return GPTDataset(documents_of(write(prefix, documents)), **arguments)


def documents_of(prefix, first=0, last=None):
    source = IndexedDataset(prefix)
    return Documents(source, range(first, len(source) if last is None else last), fingerprint=source.fingerprint())


# ---- samples


def test_samples_are_cut_from_the_shuffled_documents_end_to_end(tmp_path):
    documents = [[100 * i + j for j in range(1 + 3 * (i % 4))] for i in range(20)]
    dataset = dataset_of(tmp_path / "a", documents)
    stream = [token for i in dataset.order.document_index.tolist() for token in documents[i]]
    for index, row in enumerate(dataset.order.shuffle_index.tolist()):
        assert dataset[index].tolist() == stream[8 * row : 8 * row + 9]
        assert dataset[index].dtype == np.int64


def test_same_seed_same_samples_other_seed_others(tmp_path):
    documents = counted([50] * 20)
    first, again, other = (dataset_of(tmp_path / "a", documents, seed=seed) for seed in (1, 1, 2))
    assert all((first[i] == again[i]).all() for i in range(len(first)))
    assert any((first[i] != other[i]).any() for i in range(len(first)))


def test_tiny_corpus_gives_many_samples(tmp_path):
    """H31: 10 documents of 5 tokens, sequence 32, 100 samples. The stream runs on over the epochs (65 of them), so a
    sample is not bound to one epoch: floor((65 x 50 - 1) / 32) = 101 samples."""
    dataset = dataset_of(tmp_path / "a", counted([5] * 10), num_samples=100, seq_length=32)
    assert (dataset.plan.num_epochs, len(dataset)) == (65, 101)
    for index in range(100):
        sample = dataset[index]
        inputs, labels = sample[:-1], sample[1:]
        assert len(inputs) == 32
        np.testing.assert_array_equal(labels[:-1], inputs[1:])


def test_every_token_is_used_once_an_epoch(tmp_path):
    """H31: after epoch k each token was an input k times, but for the sample at the seam and the rest at the end."""
    documents = counted([20] * 200)
    tokens, seq_length = 4000, 32
    dataset = dataset_of(tmp_path / "a", documents, num_samples=int(2.5 * tokens / seq_length), seq_length=seq_length)
    assert dataset.plan.num_epochs == 3
    assert dataset.plan.separate_last
    for epochs in (2, 3):
        samples = dataset.plan.samples_before_last if epochs == 2 else len(dataset)
        uses = np.bincount(np.concatenate([dataset[i][:-1] for i in range(samples)]), minlength=tokens)
        assert uses.max() <= epochs
        assert (epochs - uses).sum() <= seq_length
    with pytest.raises(IndexError, match=f"train sample {len(dataset)} of {len(dataset)}"):
        dataset[len(dataset)]


@pytest.mark.parametrize("name", ["p02_corpus_969_30_1", "p04_multi_epoch_separate", "p07_docs_shorter_than_seq"])
def test_samples_equal_those_of_megatron_core(shared_dir, tmp_path, name):
    goldens = np.load(shared_dir / f"data/goldens/dataset/{name}.npz")
    params = json.loads(str(goldens["params"]))
    if params["sizes_spec"]["kind"] == "corpus_small":
        prefix = shared_dir / "data/goldens/indexed/corpus_small_gpt2_eod"
    else:
        prefix = write(tmp_path / "a", counted(goldens["sizes"].tolist()))
    ranges = goldens["split_document_ranges"].tolist()
    for split, (first, last), wanted in zip(("train", "valid", "test"), ranges, params["num_samples"], strict=True):
        if f"{split}_first_samples" not in goldens:
            continue
        dataset = GPTDataset(
            documents_of(prefix, first, last),
            num_samples=wanted,
            seq_length=params["seq_length"],
            seed=params["seed"],
            name=split,
        )
        theirs = goldens[f"{split}_first_samples"]
        for index in range(len(theirs)):
            np.testing.assert_array_equal(dataset[index], theirs[index])


def test_foreign_token_id_is_named_with_its_position(tmp_path):
    documents = [[1] * 10, [1, 2, 3, 777, 5, 6, 7, 8, 9, 10]]
    dataset = dataset_of(tmp_path / "a", documents, vocab_size=777)
    # id 777 is element 13 of .bin, 2 bytes each
    with pytest.raises(ConfigError, match=r"a\.bin: token id 777 at byte 26 \(sequence 1, token 3\), .* 0 to 776"):
        for index in range(len(dataset)):
            dataset[index]


def test_seed_that_numpy_cannot_take_is_named(tmp_path):
    for seed in (-1, 2**32):
        with pytest.raises(ConfigError, match=f"--seed {seed}"):
            dataset_of(tmp_path / "a", counted([50]), seed=seed)


def test_elements_that_are_no_whole_numbers_are_refused(tmp_path):
    (tmp_path / "a.bin").write_bytes(np.ones(20, "<f4").tobytes())
    tables = np.array([20], "<i4").tobytes() + np.array([0, 0, 1], "<i8").tobytes()
    (tmp_path / "a.idx").write_bytes(HEADER.pack(b"MMIDIDX\0\0", 1, 7, 1, 2) + tables)
    with pytest.raises(ConfigError, match="float32 are not token ids"):
        documents_of(tmp_path / "a")


def test_run_too_long_for_any_memory_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"train is asked for \d+ samples .* epochs: their indices would take \d+ bytes"):
        dataset_of(tmp_path / "a", counted([50]), num_samples=10**15)
