"""Reader and writer of token sequences in a PREFIX.bin / PREFIX.idx pair (layout: index_format.py).

Knows nothing of samples or tokenizers. "Sequence" is what has a length in .idx: one per document that is not empty, as
preprocess_data writes them.
"""

from __future__ import annotations

import hashlib
import mmap
from array import array
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..config.fields import ConfigError
from .index_format import (
    CHUNK,
    HEADER,
    MAX_SEQUENCE_LENGTH,
    IndexHeader,
    bin_path,
    check_documents,
    check_sequences,
    idx_path,
    parse_header,
    token_dtype,
)
from .staged_file import StagedFile, fsync_folder


class IndexedDataset:
    """Read-only view of one PREFIX.bin/.idx pair; both files are mapped, not read into memory.

    sizes:          [sequences] int32, elements of each sequence; a view of the mapping, unaligned.
    document_index: [documents + 1] int64, first sequence of each document; likewise.
    dtype:          element type: from the file's header, whatever the tokenizer of the day.
    Opening checks the whole of .idx against .bin (one pass, about a second for 10^8 sequences), so that a bad file ends
    a run before its first step. Errors: ConfigError naming file, position and rule; OSError with the path.
    The mappings end when the last array that was handed out is gone.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.prefix = str(prefix)
        self.idx_path, self.bin_path = idx_path(prefix), bin_path(prefix)
        index, data = _map_bytes(self.idx_path), _map_bytes(self.bin_path)
        header = parse_header(index[: HEADER.size].tobytes(), path=self.idx_path, file_bytes=len(index))
        self.dtype = header.dtype
        self.sizes: NDArray[np.int32] = _view(index, "<i4", header.sizes_offset, header.num_sequences)
        self._pointers: NDArray[np.int64] = _view(index, "<i8", header.pointers_offset, header.num_sequences)
        self.document_index: NDArray[np.int64] = _view(
            index, "<i8", header.documents_offset, header.num_document_entries
        )
        check_sequences(header, self.sizes, self._pointers, path=self.idx_path, bin_bytes=len(data))
        check_documents(header, self.document_index, path=self.idx_path)
        self._index, self._elements = index, data.view(self.dtype)

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.sizes)

    @property
    def num_documents(self) -> int:
        """Number of documents, empty ones included."""
        return len(self.document_index) - 1

    def get(self, sequence: int, offset: int = 0, length: int | None = None) -> NDArray[Any]:
        """Elements [offset, offset + length) of a sequence, to its end without length: read-only, not copied.

        Errors: IndexError when any of them lies outside.
        """
        if not 0 <= sequence < len(self.sizes):
            raise IndexError(f"{self.idx_path}: sequence {sequence} of {len(self.sizes)}")
        size = int(self.sizes[sequence])
        stop = size if length is None else offset + length
        if not 0 <= offset <= stop <= size:
            raise IndexError(f"{self.idx_path}: elements [{offset}, {stop}) of sequence {sequence}, which has {size}")
        start = int(self._pointers[sequence]) // self.dtype.itemsize
        return self._elements[start + offset : start + stop]

    def byte_position(self, sequence: int, offset: int) -> int:
        """Byte of .bin at which an element starts: for error messages."""
        return int(self._pointers[sequence]) + offset * self.dtype.itemsize

    def fingerprint(self) -> str:
        """Hex digest of what decides the order of samples: all of .idx, and the size of .bin. Reads all of .idx."""
        digest = hashlib.sha256(str(self._elements.nbytes).encode())
        for start in range(0, len(self._index), 8 * CHUNK):
            digest.update(self._index[start : start + 8 * CHUNK].data)
        return digest.hexdigest()


class IndexedDatasetWriter:
    """Writes a PREFIX.bin/.idx pair document by document, in a with block.

    vocab_size: all token ids lie below it; it chooses the element type (index_format.token_dtype).
    Elements go to disk as they come; 4 bytes a sequence and 8 a document stay in memory. A clean exit publishes the
    pair: a good-looking .idx never stands beside an incomplete or older .bin, and files of the same name are replaced
    only when both new ones are complete and on the device. An error removes what was written and nothing else.
    Errors: ConfigError for an id outside of the vocabulary; OSError with the path.
    """

    def __init__(self, prefix: str | Path, *, vocab_size: int) -> None:
        self.dtype = token_dtype(vocab_size)
        self.num_elements = 0
        self._vocab_size = vocab_size
        self._sizes = array("i")
        self._document_index = array("q", [0])
        with ExitStack() as opened:
            self._bin = opened.enter_context(StagedFile(bin_path(prefix)))
            self._idx = opened.enter_context(StagedFile(idx_path(prefix)))
            self._staged = opened.pop_all()

    @property
    def num_documents(self) -> int:
        return len(self._document_index) - 1

    @property
    def num_sequences(self) -> int:
        return len(self._sizes)

    def add_document(self, sequences: Sequence[ArrayLike]) -> None:
        """Append one document. Its empty sequences are left out; a document of none still counts."""
        for elements in [self._checked(sequence) for sequence in sequences]:
            if len(elements) > 0:
                self._bin.write(elements.tobytes())
                self._sizes.append(len(elements))
                self.num_elements += len(elements)
        self._document_index.append(len(self._sizes))

    def __enter__(self) -> IndexedDatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._staged:
            if kind is None:
                self._publish()

    def _publish(self) -> None:
        self._write_index()
        self._bin.seal()
        self._idx.seal()
        # Until the second rename there is no .idx: a kill here leaves a pair that cannot be opened, never a wrong one.
        self._idx.path.unlink(missing_ok=True)
        fsync_folder(self._idx.path.parent)
        self._bin.publish()
        self._idx.publish()

    def _write_index(self) -> None:
        self._idx.write(IndexHeader(self.dtype, len(self._sizes), len(self._document_index)).pack())
        sizes = np.frombuffer(self._sizes, dtype=np.intc)
        self._idx.write(sizes.astype("<i4", copy=False).tobytes())
        next_byte = 0
        for start in range(0, len(sizes), CHUNK):
            size_bytes = sizes[start : start + CHUNK].astype(np.int64) * self.dtype.itemsize
            ends = next_byte + np.cumsum(size_bytes)
            self._idx.write((ends - size_bytes).astype("<i8", copy=False).tobytes())
            next_byte = int(ends[-1])
        documents = np.frombuffer(self._document_index, dtype=np.int64)
        self._idx.write(documents.astype("<i8", copy=False).tobytes())

    def _checked(self, sequence: ArrayLike) -> NDArray[Any]:
        """The sequence in the file's element type; every value is representable there."""
        elements = np.asarray(sequence)
        where = f"{self._bin.path}: document {self.num_documents}"
        if elements.ndim != 1:
            raise ConfigError(f"{where}: a sequence of shape {list(elements.shape)}; it must have one dimension")
        if len(elements) > MAX_SEQUENCE_LENGTH:
            raise ConfigError(f"{where}: {len(elements)} elements in a sequence; lengths are int32")
        if len(elements) == 0:
            return elements.astype(self.dtype)
        if elements.dtype.kind not in "iu":
            raise ConfigError(f"{where}: elements of type {elements.dtype}; token ids are whole numbers")
        for token in (int(elements.min()), int(elements.max())):
            if not 0 <= token < self._vocab_size:
                raise ConfigError(
                    f"{where}: token id {token}; the vocabulary that the file is written for has ids 0 to "
                    f"{self._vocab_size - 1}"
                )
        return elements.astype(self.dtype, copy=False)


def _map_bytes(path: Path) -> NDArray[np.uint8]:
    """The whole file as a read-only array over a mapping (an empty file cannot be mapped)."""
    with open(path, "rb") as file:
        if file.seek(0, 2) == 0:
            return np.empty(0, dtype=np.uint8)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)


def _view(data: NDArray[np.uint8], dtype: str, offset: int, count: int) -> NDArray[Any]:
    # Nothing in .idx is aligned; numpy marks such an array and reads it through aligned copies.
    return np.frombuffer(data, dtype=dtype, count=count, offset=offset)
