"""Reader and writer of token sequences in a PREFIX.bin / PREFIX.idx pair (layout: index_format.py).

Knows nothing of samples or tokenizers. "Sequence" is what has a length in .idx: one per document that is not empty, as
preprocess_data writes them.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from errno import EINVAL, EMFILE, ENFILE
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
    TokenDtype,
    bin_path,
    check_documents,
    check_sequences,
    dtype_code,
    idx_path,
    parse_header,
    token_dtype,
    write_index,
)
from .prefix_lock import PrefixLock
from .publish_pair import missing_index, publish_pair
from .staged_file import Leftovers, StagedFile, clear_abandoned, signals_held


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
        if fault := missing_index(self.bin_path, self.idx_path):
            raise ConfigError(fault)
        index, data = _map_bytes(self.idx_path), _map_bytes(self.bin_path)
        header = parse_header(index[: HEADER.size].tobytes(), path=self.idx_path, file_bytes=len(index))
        self.dtype = header.dtype
        self.sizes: NDArray[np.int32] = _view(index, "<i4", header.sizes_offset, header.num_sequences)
        self._pointers: NDArray[np.int64] = _view(index, "<i8", header.pointers_offset, header.num_sequences)
        self.document_index: NDArray[np.int64] = _view(index, "<i8", header.documents_offset, header.num_document_entries)
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

    def sequence_at_byte(self, position: int) -> int:
        """The sequence that holds the element at a byte of .bin: for error messages."""
        return int(np.searchsorted(self._pointers, position, side="right")) - 1

    def blocks(self, block_bytes: int) -> Iterator[NDArray[Any]]:
        """All elements in order, read from .bin (not through the mapping) in blocks of so many bytes.

        Errors: OSError with path and byte if .bin no longer holds what it did when it was opened.
        """
        position, total = 0, self._elements.nbytes
        with open(self.bin_path, "rb") as file:
            while position < total:
                data = file.read(min(block_bytes, total - position))
                if len(data) < min(block_bytes, total - position):
                    raise OSError(f"{self.bin_path}: ends at byte {position + len(data)}; it had {total} when opened")
                position += len(data)
                yield np.frombuffer(data, dtype=self.dtype)

    def fingerprint(self) -> str:
        """Hex digest of what decides the order of samples: all of .idx, and the size of .bin. Reads all of .idx."""
        digest = hashlib.sha256(str(self._elements.nbytes).encode())
        for start in range(0, len(self._index), 8 * CHUNK):
            digest.update(self._index[start : start + 8 * CHUNK].data)
        return digest.hexdigest()


def open_prefix(prefix: str, *, flag: str) -> IndexedDataset:
    """The pair of a prefix that a user typed behind a flag. Errors: ConfigError, also for a file that is not there or
    cannot be read."""
    try:
        return IndexedDataset(prefix)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{flag} {prefix}: there is no file {error.filename}; the prefix is what both names have before .bin and .idx, "
            f"e.g. my-gpt2_text_document{_prefix_hint(prefix)}"
        ) from error
    except OSError as error:
        way_out = "; each pair takes two: ulimit -n allows more" if error.errno in (EMFILE, ENFILE) else ""
        raise ConfigError(
            f"{flag} {prefix}: {error.filename or 'its files'} cannot be read: {error.strerror}{way_out}"
        ) from error


def _prefix_hint(prefix: str) -> str:
    if prefix.endswith((".bin", ".idx")):
        return "; did you type PREFIX.bin or .idx?"
    if bin_path(prefix).is_file():
        return f"; {prefix}.bin alone is no pair (a run that was killed, or a copy half done?): make the pair again"
    return "; did you type a folder?" if prefix.endswith("/") or Path(prefix).is_dir() else ""


@dataclass(frozen=True, slots=True)
class ElementRule:
    """Which values a writer takes: those of a vocabulary, or all of an element type."""

    dtype: TokenDtype
    lowest: int
    highest: int
    reason: str

    @classmethod
    def of(cls, *, vocab_size: int | None, dtype: TokenDtype | None) -> ElementRule:
        if vocab_size is not None:
            reason = f"the vocabulary that the file is written for has ids 0 to {vocab_size - 1}"
            return cls(token_dtype(vocab_size), 0, vocab_size - 1, reason)
        assert dtype is not None, "either vocab_size or dtype"
        dtype_code(dtype)  # raises for a type that the format cannot name
        if dtype.kind == "f":
            return cls(dtype, 0, 0, "")
        limits = np.iinfo(dtype)
        reason = f"elements of type {dtype.name} are {limits.min} to {limits.max}"
        return cls(dtype, int(limits.min), int(limits.max), reason)

    def first_fault(self, elements: NDArray[Any]) -> int | None:
        """Position of the first element that may not be written (not for floating-point types)."""
        if len(elements) == 0 or (int(elements.min()) >= self.lowest and int(elements.max()) <= self.highest):
            return None
        return int(np.argmax((elements < self.lowest) | (elements > self.highest)))


class IndexedDatasetWriter:
    """Writes a PREFIX.bin/.idx pair document by document, in a with block.

    vocab_size: all token ids lie below it; it chooses the element type (index_format.token_dtype). Or else
    dtype: the element type itself, where no vocabulary is known.
    Elements go to disk as they come; 4 bytes a sequence and 8 a document stay in memory. A clean exit publishes the
    pair: a good-looking .idx never stands beside an incomplete or older .bin, and files of the same name are replaced
    only when both new ones are complete and on the device. An error removes what was written and nothing else.
    is_published: both files have their names.
    `notes`: lines for the user, on temporary files of killed writers that were found (removed where they are surely
    nobody's), on a pair that one of them left half replaced (which this one makes good), and on a file system without
    locks.
    Errors: ConfigError for an element that may not be written, or a prefix that another run is writing; OSError with
    the path, and with the state of the files where publishing them failed half-way.
    """

    def __init__(self, prefix: str | Path, *, vocab_size: int | None = None, dtype: TokenDtype | None = None) -> None:
        self._rule = ElementRule.of(vocab_size=vocab_size, dtype=dtype)
        self.dtype = self._rule.dtype
        self.num_elements = 0
        self._sizes = array("i")
        self._document_index = array("q", [0])
        self._sealed = False
        self.is_published = False
        with ExitStack() as opened:
            lock = opened.enter_context(closing(PrefixLock(prefix)))
            found = [clear_abandoned(path) for path in (bin_path(prefix), idx_path(prefix))]
            leftovers = Leftovers(found[0].removed + found[1].removed, found[0].kept + found[1].kept)
            fault = missing_index(bin_path(prefix), idx_path(prefix))
            interrupted = f"{fault}. This run makes it again" if fault else ""
            self.notes = tuple(line for line in (lock.warning(), interrupted, *leftovers.lines()) if line)
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
        for elements in [self._checked(np.asarray(sequence), None) for sequence in sequences]:
            if len(elements) > 0:
                self._bin.write(elements.tobytes())
                self._sizes.append(len(elements))
                self.num_elements += len(elements)
        self._document_index.append(len(self._sizes))

    def add_documents(self, elements: NDArray[Any], lengths: NDArray[np.int64]) -> None:
        """Append documents of one sequence each: lengths[i] of the elements, end to end, belong to document i.

        The same bytes as add_document() for each of them (length 0: a document without a sequence), in one write.
        """
        if int(lengths.sum()) != len(elements) or (len(lengths) > 0 and int(lengths.min()) < 0):
            raise ValueError(f"lengths add up to {int(lengths.sum())}, and {len(elements)} elements are given")
        if len(lengths) > 0 and int(lengths.max()) > MAX_SEQUENCE_LENGTH:
            self._refuse_length(self.num_documents + int(lengths.argmax()), int(lengths.max()))
        checked = self._checked(elements, lengths)
        self._bin.write(checked.tobytes())
        self.num_elements += len(checked)
        entries = len(self._sizes) + np.cumsum(lengths > 0)
        self._sizes.frombytes(lengths[lengths > 0].astype(np.intc).tobytes())
        self._document_index.frombytes(entries.astype(np.int64).tobytes())

    def add_dataset(self, dataset: IndexedDataset) -> None:
        """Append all documents of a pair, empty ones included; its elements become this file's type without loss.

        Errors: ConfigError for an element that does not fit; OSError if its .bin does not hold what it did when opened.
        """
        size_in_file = CHUNK * dataset.dtype.itemsize
        start = 0
        for block in dataset.blocks(size_in_file):
            position = self._fault(block)
            if position is not None:
                raise ConfigError(
                    f"{dataset.bin_path}: {block[position]} at byte {start + position * dataset.dtype.itemsize}; "
                    f"{self._rule.reason}"
                )
            self._bin.write(block.astype(self.dtype, copy=False).tobytes())
            self.num_elements += len(block)
            start += block.nbytes
        first_sequence = len(self._sizes)
        for begin in range(0, len(dataset.sizes), CHUNK):
            self._sizes.frombytes(dataset.sizes[begin : begin + CHUNK].astype(np.intc).tobytes())
        for begin in range(1, len(dataset.document_index), CHUNK):
            entries = dataset.document_index[begin : begin + CHUNK] + first_sequence
            self._document_index.frombytes(entries.astype(np.int64).tobytes())

    def seal(self) -> None:
        """Both files are complete and on the device when this returns, under their temporary names still.

        Leaving the with block does it too; a caller with several pairs seals all of them before it publishes the first.
        """
        write_index(
            self._idx.write,
            self.dtype,
            np.frombuffer(self._sizes, dtype=np.intc),
            np.frombuffer(self._document_index, dtype=np.int64),
        )
        self._bin.seal()
        self._idx.seal()
        self._sealed = True

    def __enter__(self) -> IndexedDatasetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._staged:
            if kind is None:
                if not self._sealed:
                    self.seal()
                with signals_held():
                    publish_pair(self._bin, self._idx)
                    self.is_published = True

    def _checked(self, elements: NDArray[Any], lengths: NDArray[np.int64] | None) -> NDArray[Any]:
        """The elements in the file's type; every value is representable there. lengths: None for one document."""
        if elements.ndim != 1:
            raise ConfigError(
                f"{self._where(self.num_documents)}: a sequence of shape {list(elements.shape)}; it must have one dimension"
            )
        if lengths is None and len(elements) > MAX_SEQUENCE_LENGTH:
            self._refuse_length(self.num_documents, len(elements))
        if len(elements) == 0:
            return elements.astype(self.dtype)
        position = self._fault(elements)
        if position is not None:
            ends = np.cumsum(lengths) if lengths is not None else np.array([len(elements)])
            document = self.num_documents + int(np.searchsorted(ends, position, side="right"))
            raise ConfigError(f"{self._where(document)}: token id {elements[position]}; {self._rule.reason}")
        return elements.astype(self.dtype, copy=False)

    def _fault(self, elements: NDArray[Any]) -> int | None:
        """Position of an element that may not be written. Errors: ConfigError where no element of its type may."""
        if self.dtype.kind == "f" and np.can_cast(elements.dtype, self.dtype, "safe"):
            return None
        if self.dtype.kind == "f" or elements.dtype.kind not in "iu":
            raise ConfigError(
                f"{self._where(self.num_documents)}: elements of type {elements.dtype}; "
                + ("token ids are whole numbers" if self.dtype.kind != "f" else f"{self.dtype.name} would lose digits")
            )
        return self._rule.first_fault(elements)

    def _where(self, document: int) -> str:
        return f"{self._bin.path}: document {document}"

    def _refuse_length(self, document: int, length: int) -> None:
        raise ConfigError(f"{self._where(document)}: {length} elements in a sequence; lengths are int32")


def _map_bytes(path: Path) -> NDArray[np.uint8]:
    """The whole file as a read-only array over a mapping (an empty file cannot be mapped)."""
    # Before open(): that of a pipe waits for a writer.
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(EINVAL, "not a regular file (a pipe or a device), and a pair is mapped", str(path))
    with open(path, "rb") as file:
        if file.seek(0, 2) == 0:
            return np.empty(0, dtype=np.uint8)
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)


def _view(data: NDArray[np.uint8], dtype: str, offset: int, count: int) -> NDArray[Any]:
    # Nothing in .idx is aligned; numpy marks such an array and reads it through aligned copies.
    return np.frombuffer(data, dtype=dtype, count=count, offset=offset)
