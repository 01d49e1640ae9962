"""The numbers of a summary are those of the documents."""

import numpy as np
import pytest

from megatron_zero.config.fields import ConfigError
from megatron_zero.data import summary as summary_module
from megatron_zero.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter
from megatron_zero.data.summary import document_lengths, length_buckets, sample_documents, summarize
from megatron_zero.data.tokenizer import NullTokenizer

DOCUMENTS = ([[5, 6, 7]], [], [[1], [], [2, 3]], [[]], [[9] * 70])


def floats_of(folder, documents, dtype):
    with IndexedDatasetWriter(folder / "a", dtype=np.dtype(dtype)) as writer:
        for document in documents:
            writer.add_document([np.array(document, dtype=dtype)])
    return IndexedDataset(folder / "a")


def dataset_of(folder, documents=DOCUMENTS):
    with IndexedDatasetWriter(folder / "a", vocab_size=100) as writer:
        for document in documents:
            writer.add_document(document)
    return IndexedDataset(folder / "a")


def test_numbers_are_those_of_the_documents(tmp_path):
    summary = summarize(dataset_of(tmp_path), scan=True)
    assert (summary.documents, summary.empty_documents, summary.sequences, summary.tokens) == (5, 2, 4, 76)
    assert (summary.min_length, summary.median_length, summary.max_length) == (0, 3.0, 70)
    assert summary.mean_length == 76 / 5
    assert (summary.bin_bytes, summary.idx_bytes) == (152, 34 + 12 * 4 + 8 * 6)
    assert (summary.smallest_id, summary.largest_id) == (1, 9)
    assert [(b.lowest, b.highest, b.documents) for b in summary.lengths][:3] == [(0, 0, 2), (1, 1, 0), (2, 3, 2)]


@pytest.mark.parametrize("documents", [[], [[], []]])
def test_pair_without_tokens_has_a_summary(tmp_path, documents):
    summary = summarize(dataset_of(tmp_path, documents), scan=True)
    assert (summary.documents, summary.empty_documents, summary.tokens) == (len(documents), len(documents), 0)
    assert (summary.min_length, summary.max_length, summary.smallest_id) == (0, 0, None)


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
@pytest.mark.parametrize("chunk", [1, 2, 1 << 20])
def test_elements_that_are_not_finite_are_counted_and_no_limits(tmp_path, monkeypatch, dtype, chunk):
    values = [2.5, np.nan, -1.25, np.inf, -np.inf, 0.0]
    dataset = floats_of(tmp_path, [values, [], [np.nan]], dtype)
    monkeypatch.setattr(summary_module, "CHUNK", chunk)
    summary = summarize(dataset, scan=True)
    assert (summary.smallest_id, summary.largest_id, summary.not_finite) == (-1.25, 2.5, 4)
    samples = sample_documents(dataset, count=3, max_ids=5, tokenizer=None)
    assert [sample.ids for sample in samples] == [(2.5, None, -1.25, None, None), (), (None,)]
    with pytest.raises(ConfigError, match=r"a\.idx: elements of type float.. are no token ids.* leave out --tokenizer-type"):
        sample_documents(dataset, count=1, max_ids=5, tokenizer=NullTokenizer(10))


def test_nothing_finite_has_no_limits(tmp_path):
    summary = summarize(floats_of(tmp_path, [[np.nan, np.inf]], "<f4"), scan=True)
    assert (summary.smallest_id, summary.largest_id, summary.not_finite) == (None, None, 2)


def test_sample_reads_no_more_sequences_than_it_shows(tmp_path, monkeypatch):
    dataset = dataset_of(tmp_path, [[[token % 90] for token in range(20_000)]])
    read = []
    monkeypatch.setattr(
        IndexedDataset, "get", lambda self, *given, get=IndexedDataset.get: read.append(given) or get(self, *given)
    )
    (sample,) = sample_documents(dataset, count=1, max_ids=200, tokenizer=None)
    assert sample.ids == tuple(token % 90 for token in range(200))
    assert sample.length == 20_000
    assert len(read) == 200


def test_ids_are_unknown_without_a_scan(tmp_path):
    assert summarize(dataset_of(tmp_path), scan=False).largest_id is None


def test_document_of_several_sequences_has_their_length(tmp_path):
    assert document_lengths(dataset_of(tmp_path)).tolist() == [3, 0, 3, 0, 70]


def test_each_length_falls_into_the_bucket_that_holds_it():
    lengths = np.array([0, 1, 2, 3, 4, 7, 8, 2**31 - 1, 2**40])
    buckets = length_buckets(lengths)
    for bucket in buckets:
        assert bucket.documents == int(((lengths >= bucket.lowest) & (lengths <= bucket.highest)).sum())
    assert sum(bucket.documents for bucket in buckets) == len(lengths)
    assert length_buckets(np.empty(0, np.int64)) == ()


def test_samples_are_spread_over_the_documents_and_decoded(tmp_path):
    dataset = dataset_of(tmp_path)
    samples = sample_documents(dataset, count=3, max_ids=4, tokenizer=NullTokenizer(99))
    assert [(s.document, s.length, s.ids, s.text) for s in samples] == [
        (0, 3, (5, 6, 7), "5 6 7"),
        (2, 3, (1, 2, 3), "1 2 3"),
        (4, 70, (9, 9, 9, 9), "9 9 9 9"),
    ]
    assert len(sample_documents(dataset, count=99, max_ids=4, tokenizer=None)) == 5
    assert sample_documents(dataset_of(tmp_path, []), count=3, max_ids=4, tokenizer=None) == ()
    assert sample_documents(dataset, count=0, max_ids=4, tokenizer=None) == ()


def test_tokenizer_that_lacks_an_id_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"a\.bin: document 0 holds token id 6, and the tokenizer has ids 0 to 5"):
        sample_documents(dataset_of(tmp_path), count=1, max_ids=4, tokenizer=NullTokenizer(5))
