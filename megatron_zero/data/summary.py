"""What a .bin/.idx pair holds, in numbers and samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.fields import ConfigError
from .index_format import CHUNK
from .indexed_dataset import IndexedDataset
from .tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LengthBucket:
    """How many documents have lowest to highest tokens."""

    lowest: int
    highest: int
    documents: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Lengths are of documents, in tokens, empty ones included; all 0 where there is no document.

    smallest_id, largest_id: of the finite elements; None where there is none, or .bin was not read.
    not_finite: NaN and infinities among the elements, which only floating-point types have; None: .bin was not read.
    """

    prefix: str
    dtype: str
    documents: int
    empty_documents: int
    sequences: int
    tokens: int
    bin_bytes: int
    idx_bytes: int
    min_length: int
    median_length: float
    mean_length: float
    max_length: int
    lengths: tuple[LengthBucket, ...]
    smallest_id: int | float | None = None
    largest_id: int | float | None = None
    not_finite: int | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a document. ids: None stands for an element that is not finite, which JSON cannot write.

    text: None without a tokenizer.
    """

    document: int
    length: int
    ids: tuple[int | float | None, ...]
    text: str | None


def summarize(dataset: IndexedDataset, *, scan: bool) -> Summary:
    """scan: read all of .bin for the smallest and largest id. Errors: OSError."""
    lengths = document_lengths(dataset)
    smallest, largest, not_finite = id_range(dataset) if scan else (None, None, None)
    return Summary(
        prefix=dataset.prefix,
        dtype=dataset.dtype.name,
        documents=dataset.num_documents,
        empty_documents=int((lengths == 0).sum()),
        sequences=len(dataset),
        tokens=int(lengths.sum()),
        bin_bytes=dataset.bin_path.stat().st_size,
        idx_bytes=dataset.idx_path.stat().st_size,
        min_length=int(lengths.min(initial=np.iinfo(np.int64).max)) if len(lengths) else 0,
        median_length=float(np.median(lengths)) if len(lengths) else 0.0,
        mean_length=float(lengths.mean()) if len(lengths) else 0.0,
        max_length=int(lengths.max(initial=0)),
        lengths=length_buckets(lengths),
        smallest_id=smallest,
        largest_id=largest,
        not_finite=not_finite,
    )


def document_lengths(dataset: IndexedDataset) -> NDArray[np.int64]:
    """[documents] int64: tokens of each document, over all of its sequences."""
    ends = np.concatenate([[0], np.cumsum(dataset.sizes, dtype=np.int64)])
    lengths: NDArray[np.int64] = np.diff(ends[dataset.document_index])
    return lengths


def length_buckets(lengths: NDArray[np.int64]) -> tuple[LengthBucket, ...]:
    """Powers of two: 0, 1, 2 to 3, 4 to 7, ...; from the first to the last one that holds a document."""
    bounds = np.concatenate([[0], 2 ** np.arange(63, dtype=np.int64)])
    counts = np.bincount(np.searchsorted(bounds, lengths, side="right") - 1, minlength=len(bounds))
    filled = np.flatnonzero(counts)
    if len(filled) == 0:
        return ()
    return tuple(
        LengthBucket(int(bounds[i]), max(int(bounds[i]) * 2 - 1, 0), int(counts[i]))
        for i in range(int(filled[0]), int(filled[-1]) + 1)
    )


def id_range(dataset: IndexedDataset) -> tuple[int | float | None, int | float | None, int]:
    """Smallest and largest finite element of all of .bin (None where there is none), and how many are not finite."""
    ranges, not_finite = list[tuple[int | float, int | float]](), 0
    for block in dataset.blocks(CHUNK * dataset.dtype.itemsize):
        finite = block[np.isfinite(block)] if dataset.dtype.kind == "f" else block
        not_finite += len(block) - len(finite)
        if len(finite) > 0:
            ranges.append((finite.min().item(), finite.max().item()))
    return min((low for low, _ in ranges), default=None), max((high for _, high in ranges), default=None), not_finite


def sample_documents(
    dataset: IndexedDataset, *, count: int, max_ids: int, tokenizer: Tokenizer | None
) -> tuple[Sample, ...]:
    """The first max_ids ids of documents spread evenly from the first to the last.

    Errors: ConfigError for an id that the tokenizer does not have, and for elements that are no ids.
    """
    if tokenizer is not None and dataset.dtype.kind == "f":
        raise ConfigError(
            f"{dataset.idx_path}: elements of type {dataset.dtype.name} are no token ids, so no tokenizer makes text of "
            "them; leave out --tokenizer-type to see the numbers"
        )
    num = dataset.num_documents
    chosen = sorted({round(position) for position in np.linspace(0, num - 1, min(count, num))}) if num > 0 else []
    return tuple(_sample(dataset, document, max_ids, tokenizer) for document in chosen)


def _sample(dataset: IndexedDataset, document: int, max_ids: int, tokenizer: Tokenizer | None) -> Sample:
    first, last = (int(entry) for entry in dataset.document_index[document : document + 2])
    length = int(dataset.sizes[first:last].sum(dtype=np.int64))
    elements: list[Any] = []
    for sequence in range(first, last):
        missing = min(max_ids, length) - len(elements)
        if missing == 0:
            break
        elements += dataset.get(sequence, 0, min(missing, int(dataset.sizes[sequence]))).tolist()
    text = None if tokenizer is None else _decoded(dataset, document, elements, tokenizer)
    return Sample(document, length, tuple(element if math.isfinite(element) else None for element in elements), text)


def _decoded(dataset: IndexedDataset, document: int, ids: Sequence[int], tokenizer: Tokenizer) -> str:
    for token in ids:
        if not 0 <= token < tokenizer.vocab_size:
            raise ConfigError(
                f"{dataset.bin_path}: document {document} holds token id {token}, and the tokenizer has ids 0 to "
                f"{tokenizer.vocab_size - 1}: not the tokenizer of these files?"
            )
    return tokenizer.decode(ids)
