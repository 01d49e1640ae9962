"""Samples over documents, splits, and the errors a user meets before the first step."""

import json

import numpy as np
import pytest

from megatron_zero.config.data import DataConfig
from megatron_zero.config.fields import ConfigError
from megatron_zero.data.gpt_dataset import (
    GPTDataset,
    build_train_valid_test,
    open_data_path,
    parse_split,
    split_ranges,
)
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
    return GPTDataset(IndexedDataset(write(prefix, documents)), range(len(documents)), **arguments)


# ---- splits


@pytest.mark.parametrize(
    "text,weights",
    [
        ("969, 30, 1", (969.0, 30.0, 1.0)),
        ("969,30,1", (969.0, 30.0, 1.0)),
        ("98/2/0", (98.0, 2.0, 0.0)),
        (" 0.9 0.1 ", (0.9, 0.1, 0.0)),
        ("1", (1.0, 0.0, 0.0)),
    ],
)
def test_split_text_is_read(text, weights):
    assert parse_split(text) == weights


@pytest.mark.parametrize("text", ["", "a,b,c", "1,2,3,4", "-1,1,1", "0,0,0", "inf,1,1", "nan,1,1"])
def test_bad_split_is_named(text):
    with pytest.raises(ConfigError, match="--split " + repr(text)):
        parse_split(text)


def test_ranges_equal_those_of_megatron_core(shared_dir):
    cases = json.loads((shared_dir / "data/goldens/dataset/split_ranges.json").read_text())
    for case in cases:
        ours = split_ranges(parse_split(case["split"]), case["n"])
        for (first, last), theirs in zip(ours, case["core"], strict=True):
            assert first == last if theirs is None else [first, last] == theirs, case


@pytest.mark.parametrize("num_documents", range(30))
def test_ranges_cover_every_document_once(num_documents):
    ranges = split_ranges((7.0, 2.0, 1.0), num_documents)
    assert [i for first, last in ranges for i in range(first, last)] == list(range(num_documents))


# ---- samples


def test_samples_are_cut_from_the_shuffled_documents_end_to_end(tmp_path):
    documents = [[100 * i + j for j in range(1 + 3 * (i % 4))] for i in range(20)]
    dataset = dataset_of(tmp_path / "a", documents)
    stream = [token for i in dataset.document_index.tolist() for token in documents[i]]
    for index, row in enumerate(dataset.shuffle_index.tolist()):
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
            IndexedDataset(prefix),
            range(first, last),
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
        GPTDataset(IndexedDataset(tmp_path / "a"), range(1), num_samples=1, seq_length=4, seed=1, name="train")


# ---- the data sets of a run


def build(prefix, *, split="8,1,1", num_samples=(10, 2, 2), vocab_size=50_000):
    config = DataConfig(data_path=(str(prefix),), split=split)
    return build_train_valid_test(config, seq_length=8, seed=SEED, num_samples=num_samples, vocab_size=vocab_size)


def test_splits_read_their_own_documents(tmp_path):
    documents = [[i] * 10 for i in range(20)]
    datasets = build(write(tmp_path / "a", documents), num_samples=(40, 5, 5))
    for dataset, owned in zip(datasets, (range(16), range(16, 18), range(18, 20)), strict=True):
        assert {token for i in range(len(dataset)) for token in dataset[i].tolist()} <= set(owned)


def test_split_of_which_nothing_is_asked_is_none(tmp_path):
    train, valid, test = build(write(tmp_path / "a", counted([50] * 10)), split="98,2,0", num_samples=(5, 0, 0))
    assert len(train) >= 5
    assert valid is None
    assert test is None


def test_empty_split_that_is_asked_for_is_named_with_numbers(tmp_path):
    prefix = write(tmp_path / "a", [*counted([50] * 10), [], []])
    with pytest.raises(ConfigError, match=r"'98,2,0' leaves valid none of the 10 documents .* but 7 valid samples"):
        build(prefix, split="98,2,0", num_samples=(5, 7, 0))


@pytest.mark.parametrize(
    "data_path,message",
    [
        ((), "--data-path is not given"),
        (("0.5", "a", "0.5", "b"), "blends are not built yet"),
        (("nowhere/a",), r"--data-path nowhere/a: there is no file nowhere/a\.idx"),
    ],
)
def test_bad_data_path_is_named(data_path, message):
    with pytest.raises(ConfigError, match=message):
        open_data_path(data_path)
