"""Pairs of Megatron-core's own reader and writer, and ours: each reads what the other wrote, and the bytes are equal."""

import json
from itertools import pairwise

import numpy as np
import pytest
from helpers.megatron_core import run_megatron_core

from megatron_zero.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter

DTYPES = {"u1": "<u1", "i1": "<i1", "i2": "<i2", "i4": "<i4", "i8": "<i8", "f8": "<f8", "f4": "<f4", "u2": "<u2"}
SHAPES = {
    "mixed": [[[5, 6, 7]], [], [[1], [2, 3]], [[9] * 70], []],
    "one": [[[1]]],
    "empty_first": [[], [[2]]],
}


def random_documents():
    random = np.random.default_rng(11)
    return [[random.integers(0, 65536, size).tolist()] if size else [] for size in random.integers(0, 50, 300)]


CASES = {f"{shape}_{name}": (dtype, SHAPES[shape]) for shape in SHAPES for name, dtype in DTYPES.items()}
CASES["random"] = ("<u2", random_documents())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """ours_NAME and theirs_NAME of each case, and READ.npz: what core read from ours."""
    folder = tmp_path_factory.mktemp("pairs")
    (folder / "CASES.json").write_text(json.dumps(CASES))
    for name, (dtype, documents) in CASES.items():
        with IndexedDatasetWriter(folder / f"ours_{name}", dtype=np.dtype(dtype)) as writer:
            for document in documents:
                writer.add_document([np.array(sequence, dtype=dtype) for sequence in document])
    run_megatron_core("megatron_core_files.py", ".", folder=folder)
    return folder


def by_document(elements, lengths, entries):
    """Nested lists: documents of sequences."""
    sequences = [part.tolist() for part in np.split(elements, np.cumsum(lengths)[:-1])]
    return [sequences[first:last] for first, last in pairwise(entries.tolist())]


@pytest.mark.parametrize("name", list(CASES))
def test_core_reads_what_is_written_here(folder, name):
    read = np.load(folder / "READ.npz")
    dtype, documents = CASES[name]
    elements = read[f"{name}_elements"]
    assert elements.dtype == np.dtype(dtype)
    assert by_document(elements, read[f"{name}_lengths"], read[f"{name}_documents"]) == documents


@pytest.mark.parametrize("name", list(CASES))
def test_what_core_writes_is_read_here(folder, name):
    dtype, documents = CASES[name]
    theirs = IndexedDataset(folder / f"theirs_{name}")
    assert theirs.dtype == np.dtype(dtype)
    elements = np.concatenate([theirs.get(i) for i in range(len(theirs))])
    assert by_document(elements, theirs.sizes, theirs.document_index) == documents


@pytest.mark.parametrize("name", list(CASES))
def test_both_write_the_same_bytes(folder, name):
    for suffix in (".bin", ".idx"):
        assert (folder / f"ours_{name}{suffix}").read_bytes() == (folder / f"theirs_{name}{suffix}").read_bytes()
