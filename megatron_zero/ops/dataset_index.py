"""Loops over the indices of a data set: C++ (csrc/dataset), and beside each its slow reference in numpy.

Every pair gives equal integers, and those of Megatron-core's builders and of numpy's own shuffle.
"""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .native import load_extension

MAX_BUILDERS: Final = 8  # threads; more are bound by the memory
DOCUMENTS_PER_BUILDER: Final = 2**20  # a few ms; less is not worth a thread
MAX_SHUFFLED: Final = 2**32  # items; beyond, numpy draws places from 64-bit words


def build_sample_index(
    sizes: NDArray[np.int32],
    document_index: NDArray[Any],
    *,
    seq_length: int,
    num_rows: int,
    num_threads: int | None = None,
) -> NDArray[Any]:
    """[num_rows, 2]: position in document_index, and offset in that sequence, of token row * seq_length of the stream.

    sizes: [sequences] int32, at any alignment.   document_index: [documents] int32 or int64, ids of sequences.
    int32 as long as every value fits, else int64, as in core. Takes no memory besides.
    num_threads: None: what this process's processors and the number of documents are good for. The result is the same.
    Errors: ValueError where the stream ends before the last row, or an id names no sequence.
    """
    out = np.empty((num_rows, 2), dtype=sample_index_dtype(sizes, document_index))
    load_extension("_C_dataset").build_sample_index(
        lengths=_as_bytes(sizes, "sizes", ("i4",)),
        documents=_as_bytes(document_index, "document_index", ("i4", "i8")),
        id_bytes=document_index.itemsize,
        seq_length=seq_length,
        out=_as_bytes(out.reshape(-1), "out", ("i4", "i8")),
        out_bytes=out.itemsize,
        num_threads=builder_threads(len(document_index)) if num_threads is None else num_threads,
    )
    return out


def builder_threads(num_documents: int) -> int:
    """Threads to build a sample index with, on the processors that this process may use."""
    return max(1, min(MAX_BUILDERS, len(os.sched_getaffinity(0)), num_documents // DOCUMENTS_PER_BUILDER))


def build_sample_index_reference(
    sizes: NDArray[np.int32], document_index: NDArray[Any], *, seq_length: int, num_rows: int
) -> NDArray[Any]:
    """What build_sample_index gives, by a search in the running sum of lengths (8 bytes a document meanwhile)."""
    ends = np.cumsum(sizes[document_index], dtype=np.int64)
    tokens = np.arange(num_rows, dtype=np.int64) * seq_length
    if num_rows > 0 and (len(ends) == 0 or int(tokens[-1]) >= int(ends[-1])):
        raise ValueError(f"the documents do not hold the first tokens of {num_rows} rows")
    positions = np.searchsorted(ends, tokens, side="right")
    offsets = tokens - (ends[positions] - sizes[document_index[positions]])
    return np.stack([positions, offsets], axis=1).astype(sample_index_dtype(sizes, document_index))


def sample_index_dtype(sizes: NDArray[np.int32], document_index: NDArray[Any]) -> np.dtype[Any]:
    """int32 while positions fit (an offset lies in a sequence, whose length is int32), else int64."""
    return np.dtype(np.int32 if len(document_index) <= np.iinfo(np.int32).max else np.int64)


def shuffle_(items: NDArray[Any], random: np.random.RandomState) -> None:
    """random.shuffle(items) of numpy, several times as fast: the same order, and the same state afterwards.

    items: [n] of 4 or 8 bytes, contiguous; shuffled in place, and `random` advanced.
    """
    if len(items) > MAX_SHUFFLED:
        random.shuffle(items)
        return
    state: dict[str, Any] = random.get_state(legacy=False)
    inner = state["state"]
    key = np.array(inner["key"], dtype=np.uint32)
    inner["pos"] = load_extension("_C_dataset").shuffle(
        items=_as_bytes(items, "items", ("i4", "u4", "i8", "u8")),
        item_bytes=items.itemsize,
        key=key.view(np.uint8),
        position=int(inner["pos"]),
    )
    inner["key"] = key
    random.set_state(state)


def shuffle_reference_(items: NDArray[Any], random: np.random.RandomState) -> None:
    """numpy's own."""
    random.shuffle(items)


def build_blend_index(
    weights: NDArray[np.float64], *, size: int, limits: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """(data set, sample of it) of each of `size` entries; each goes to the set whose share lags most, the first on ties.

    weights: [sets], adding up to 1.   limits: [sets], samples that a set has; None: no limit.
    Errors: ValueError where the limits add up to less than size.
    """
    most = np.full(len(weights), np.iinfo(np.int64).max) if limits is None else limits
    dataset, sample = np.empty(size, dtype=np.int16), np.empty(size, dtype=np.int64)
    load_extension("_C_dataset").build_blend_index(
        weights=_as_bytes(weights, "weights", ("f8",)),
        limits=_as_bytes(most, "limits", ("i8",)),
        dataset=dataset.view(np.uint8),
        sample=sample.view(np.uint8),
    )
    return dataset, sample


def build_blend_index_reference(
    weights: NDArray[np.float64], *, size: int, limits: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """What build_blend_index gives, an entry at a time."""
    given = np.zeros(len(weights), dtype=np.int64)
    dataset, sample = np.empty(size, dtype=np.int16), np.empty(size, dtype=np.int64)
    for entry in range(size):
        lag = weights * max(float(entry), 1.0) - given
        if limits is not None:
            lag[given >= limits] = -np.inf
        chosen = int(np.argmax(lag))
        if lag[chosen] == -np.inf:
            raise ValueError(f"the data sets hold {entry} samples together, not {size}")
        dataset[entry], sample[entry] = chosen, given[chosen]
        given[chosen] += 1
    return dataset, sample


def _as_bytes(array: NDArray[Any], name: str, allowed: tuple[str, ...]) -> NDArray[np.uint8]:
    """The array's memory as flat uint8, shared. The C++ side cannot see an element type, so it is checked here."""
    if array.dtype not in [np.dtype(text) for text in allowed]:
        raise TypeError(f"{name} is {array.dtype}; allowed: {', '.join(np.dtype(text).name for text in allowed)}")
    if array.ndim != 1 or not array.flags.c_contiguous:
        raise ValueError(f"{name} has shape {list(array.shape)}; one dimension, contiguous, is wanted")
    return array.view(np.uint8)
