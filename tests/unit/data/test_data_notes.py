"""What is odd about a run's data is told in a line, and only then."""

import shutil

import pytest

from megatron_zero.config.data import DataConfig
from megatron_zero.data.data_notes import document_flags
from megatron_zero.data.datasets import SplitRequest, build_datasets
from megatron_zero.data.indexed_dataset import IndexedDatasetWriter

EOD = 50


def write(prefix, documents):
    with IndexedDatasetWriter(prefix, vocab_size=51) as writer:
        for document in documents:
            writer.add_document([document])
    return str(prefix)


def notes(num_samples=(8, 2, 0), **config):
    requests = tuple(SplitRequest(samples) for samples in num_samples)
    arguments = {"split": "8,2,0"} | config if "train_data_path" not in config else config
    return build_datasets(DataConfig(**arguments), requests, seq_length=4, seed=1, vocab_size=51, eod=EOD).notes


FLAGS = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")


@pytest.mark.parametrize("flag", FLAGS)
def test_data_without_ends_of_documents_is_told_once_with_the_flag(tmp_path, flag):
    prefix = write(tmp_path / "a", [[1, 2, 3, 4, 5]] * 120)
    (note,) = notes(data_path=(prefix,), **{flag: True})
    assert note.startswith(f"--{flag.replace('_', '-')}: none of the first 100 documents in {prefix} begins or ends with")
    assert f"id {EOD}: made without --append-eod" in note
    assert notes(data_path=(prefix,)) == ()


@pytest.mark.parametrize("document", [[1, 2, EOD], [EOD, 1, 2], [EOD]])
@pytest.mark.parametrize("place", [0, 7, 99])
def test_one_end_among_the_first_documents_is_enough(tmp_path, document, place):
    documents = [[1, 2, 3, 4, 5]] * 120
    documents[place] = document
    prefix = write(tmp_path / "a", documents)
    assert notes(data_path=(prefix,), reset_attention_mask=True) == ()


def test_made_up_documents_have_ends():
    assert notes(mock_data=True, reset_attention_mask=True) == ()


def test_flags_are_named_as_given():
    assert document_flags(DataConfig(**dict.fromkeys(FLAGS, True))) == (
        "--reset-position-ids",
        "--reset-attention-mask",
        "--eod-mask-loss",
    )


@pytest.mark.parametrize("weights", [True, False])
def test_prefix_that_comes_twice_is_told_once(tmp_path, weights):
    prefix = write(tmp_path / "a", [[1, 2, 3, 4, 5]] * 20)
    words = ("1", prefix, "2", prefix) if weights else (prefix, prefix)
    assert notes(data_path=words) == (
        f"--data-path names {prefix} twice: each of its documents is in the blend more than once",
    )


def test_copy_under_another_name_is_told_and_other_data_of_equal_lengths_is_not(tmp_path):
    one = write(tmp_path / "a", [[1, 2, 3, 4, 5]] * 20)
    other = write(tmp_path / "c", [[1, 2, 3, 4, 6]] * 20)
    for suffix in (".bin", ".idx"):
        shutil.copy(f"{one}{suffix}", tmp_path / f"b{suffix}")
    copy = str(tmp_path / "b")
    assert notes(data_path=(one, other)) == ()
    assert notes(train_data_path=(one, other, copy), valid_data_path=(one,)) == (
        f"--train-data-path names {one} and {copy}, equal data: each of its documents is in the blend more than once",
    )
