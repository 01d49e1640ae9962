"""Pairs of Megatron-core's own reader and writer, and ours: each reads what the other wrote."""

import warnings
from itertools import pairwise

import numpy as np
import pytest

from megatron_zero.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter

DTYPES = ("<u1", "<i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2")
DOCUMENTS = ([[5, 6, 7]], [], [[1], [2, 3]], [[9] * 70], [])


@pytest.fixture(scope="module")
def core():
    """Its indexed_dataset module; importing it takes seconds and warns of packages that it would like."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(
            "megatron.core.datasets.indexed_dataset", reason="needs the package megatron-core as the peer"
        )


def write_theirs(core, prefix, dtype, documents=DOCUMENTS):
    torch = pytest.importorskip("torch")
    builder = core.IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.dtype(dtype).type)
    for document in documents:
        for sequence in document:
            builder.add_item(torch.from_numpy(np.array(sequence, dtype=np.float64)))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")


def write_ours(prefix, dtype, documents=DOCUMENTS):
    with IndexedDatasetWriter(prefix, dtype=np.dtype(dtype)) as writer:
        for document in documents:
            writer.add_document([np.array(sequence, dtype=dtype) for sequence in document])


def by_document(sequences, entries):
    return [[sequences[i] for i in range(first, last)] for first, last in pairwise(entries)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_core_reads_what_is_written_here(core, tmp_path, dtype):
    write_ours(tmp_path / "a", dtype)
    theirs = core.IndexedDataset(str(tmp_path / "a"))
    assert theirs[0].dtype == np.dtype(dtype)
    sequences = [theirs[i].tolist() for i in range(len(theirs))]
    assert by_document(sequences, theirs.document_indices.tolist()) == list(DOCUMENTS)
    assert theirs.get(3, offset=2, length=5).tolist() == [9] * 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_core_writes_is_read_here(core, tmp_path, dtype):
    write_theirs(core, tmp_path / "a", dtype)
    ours = IndexedDataset(tmp_path / "a")
    assert ours.dtype == np.dtype(dtype)
    sequences = [ours.get(i).tolist() for i in range(len(ours))]
    assert by_document(sequences, ours.document_index.tolist()) == list(DOCUMENTS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("documents", [DOCUMENTS, ([[1]],), ([], [[2]])])
def test_both_write_the_same_bytes(core, tmp_path, dtype, documents):
    write_ours(tmp_path / "ours", dtype, documents)
    write_theirs(core, tmp_path / "theirs", dtype, documents)
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()


def test_random_documents_of_both_are_equal_element_by_element(core, tmp_path):
    rng = np.random.default_rng(11)
    documents = [[rng.integers(0, 65536, size).tolist()] if size else [] for size in rng.integers(0, 50, 300)]
    write_ours(tmp_path / "a", "<u2", documents)
    theirs, ours = core.IndexedDataset(str(tmp_path / "a")), IndexedDataset(tmp_path / "a")
    assert len(theirs) == len(ours)
    for sequence in range(len(ours)):
        np.testing.assert_array_equal(theirs[sequence], ours.get(sequence))
    np.testing.assert_array_equal(theirs.document_indices, ours.document_index)
    np.testing.assert_array_equal(theirs.sequence_lengths, ours.sizes)
