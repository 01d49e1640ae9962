"""Made-up documents for --mock-data: no files, the same on every machine, the documents of Megatron-core's mock set."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

NUM_DOCUMENTS: Final = 100_000
LONGEST: Final = 4096  # a document has fewer tokens than this
LENGTH_SEED: Final = 0


class MockTokens:
    """100,000 documents of 1 to 4095 tokens: 1, 2, 3, ... modulo vocab_size, and eod at the end.

    Stands where an IndexedDataset does: sizes [documents] int32, get(), and what messages name.
    """

    def __init__(self, *, vocab_size: int, eod: int) -> None:
        self.prefix = self.bin_path = "mock data"
        self.dtype = np.dtype(np.int64)
        lengths = np.random.default_rng(LENGTH_SEED).integers(1, LONGEST, size=NUM_DOCUMENTS, dtype=np.int32)
        self.sizes: NDArray[np.int32] = lengths
        self._vocab_size, self._eod = vocab_size, eod

    def __len__(self) -> int:
        return NUM_DOCUMENTS

    def get(self, sequence: int, offset: int = 0, length: int | None = None) -> NDArray[Any]:
        """Elements [offset, offset + length) of a document, to its end without length. Errors: IndexError."""
        size = int(self.sizes[sequence])
        stop = size if length is None else offset + length
        if not 0 <= offset <= stop <= size:
            raise IndexError(f"mock data: elements [{offset}, {stop}) of document {sequence}, which has {size}")
        tokens = np.arange(offset + 1, stop + 1, dtype=np.int64) % self._vocab_size
        if stop == size and stop > offset:
            tokens[-1] = self._eod
        return tokens

    def byte_position(self, sequence: int, offset: int) -> int:
        """As if the documents lay in a file of int64."""
        return (int(self.sizes[:sequence].sum(dtype=np.int64)) + offset) * self.dtype.itemsize

    def fingerprint(self) -> str:
        return f"mock data, {NUM_DOCUMENTS} documents, vocabulary {self._vocab_size}, end of document {self._eod}"
