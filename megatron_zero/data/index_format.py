"""The layout of a PREFIX.bin / PREFIX.idx pair, the format of Megatron's preprocess_data, and what a sound pair obeys.

.bin: the elements of all sequences, one after the other. .idx, little-endian and unpadded:

    offset      bytes  meaning
    0           9      b"MMIDIDX" and two zero bytes
    9           8      uint64 version, 1
    17          1      element type code (DTYPE_CODES)
    18          8      uint64 S, number of sequences
    26          8      uint64 D, entries of the document array = documents + 1
    34          4 S    int32 length of each sequence, in elements
    34 +  4 S   8 S    int64 byte offset of each sequence in .bin
    34 + 12 S   8 D    int64 document array: entry j is the first sequence of document j; starts with 0, ends with S

An empty document has no sequence and repeats an entry of the document array. Every check raises ConfigError naming the
file, the position and the rule.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..config.fields import ConfigError

MAGIC: Final = b"MMIDIDX\x00\x00"
VERSION: Final = 1
HEADER: Final = struct.Struct("<9sQBQQ")
DTYPE_CODES: Final = MappingProxyType(
    {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"},
)
UINT16_VOCABULARY_LIMIT: Final = 65500  # the peers' rule: below it uint16, from it on int32
MAX_VOCABULARY: Final = 2**31
MAX_SEQUENCE_LENGTH: Final = 2**31 - 1  # lengths are int32
CHUNK: Final = 1 << 20  # entries handled at a time, so that checking and writing need no second copy of the index

TokenDtype = np.dtype[Any]


class ShortLengthsError(ConfigError):
    """All is well but for one element a sequence that the lengths leave out (length_repair.py)."""


def token_dtype(vocab_size: int) -> TokenDtype:
    """Element type of a new file: uint16 below 65,500 tokens, else int32, as both Megatron preprocessors choose.

    Errors: ConfigError for a size that int32 cannot number.
    """
    if not 1 <= vocab_size <= MAX_VOCABULARY:
        raise ConfigError(f"a vocabulary of {vocab_size}; token ids are int32, so it has 1 to {MAX_VOCABULARY}")
    return np.dtype("<u2" if vocab_size < UINT16_VOCABULARY_LIMIT else "<i4")


def bin_path(prefix: str | Path) -> Path:
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    return Path(f"{prefix}.idx")


def dtype_code(dtype: TokenDtype) -> int:
    """Code of an element type in the header. Errors: ConfigError for a type that has none."""
    for code, text in DTYPE_CODES.items():
        if dtype == np.dtype(text):
            return code
    raise ConfigError(f"the index format has no code for elements of type {dtype}")


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The 34 fixed bytes of an .idx file, and what follows from them."""

    dtype: TokenDtype
    num_sequences: int
    num_document_entries: int

    @property
    def sizes_offset(self) -> int:
        return HEADER.size

    @property
    def pointers_offset(self) -> int:
        return self.sizes_offset + 4 * self.num_sequences

    @property
    def documents_offset(self) -> int:
        return self.pointers_offset + 8 * self.num_sequences

    @property
    def file_bytes(self) -> int:
        return self.documents_offset + 8 * self.num_document_entries

    def pack(self) -> bytes:
        return HEADER.pack(MAGIC, VERSION, dtype_code(self.dtype), self.num_sequences, self.num_document_entries)


def parse_header(data: bytes, *, path: Path, file_bytes: int) -> IndexHeader:
    """The header in the first bytes of the .idx file at `path`, checked against the file's size."""
    if len(data) < HEADER.size:
        raise ConfigError(f"{path}: {file_bytes} bytes, shorter than the {HEADER.size} bytes of an index header")
    magic, version, code, num_sequences, num_document_entries = HEADER.unpack(data[: HEADER.size])
    if magic != MAGIC:
        raise ConfigError(
            f"{path}: starts with {magic!r}, not {MAGIC!r}: not an index of tools/preprocess_data.py "
            "(files of the retired lazy and cached implementations must be made again)"
        )
    if version != VERSION:
        raise ConfigError(f"{path}: version {version} at byte 9; only version {VERSION} is known")
    if code not in DTYPE_CODES:
        raise ConfigError(f"{path}: element type code {code} at byte 17; known are {sorted(DTYPE_CODES)}")
    header = IndexHeader(np.dtype(DTYPE_CODES[code]), num_sequences, num_document_entries)
    if num_sequences > 0 and file_bytes == header.file_bytes + num_sequences:
        raise ConfigError(f"{path}: holds a mode byte for each sequence (a multimodal set); only text sets are read")
    if file_bytes != header.file_bytes:
        raise ConfigError(
            f"{path}: {file_bytes} bytes, but {num_sequences} sequences (byte 18) and {num_document_entries} document "
            f"entries (byte 26) need {header.file_bytes}: the file is truncated or corrupt; make it again"
        )
    return header


def write_index(
    write: Callable[[bytes], None], dtype: TokenDtype, sizes: NDArray[Any], document_entries: NDArray[Any]
) -> None:
    """The bytes of an .idx file to write(), piece by piece; the sequences lie end to end in .bin."""
    write(IndexHeader(dtype, len(sizes), len(document_entries)).pack())
    for start in range(0, len(sizes), CHUNK):
        write(sizes[start : start + CHUNK].astype("<i4").tobytes())
    next_byte = 0
    for start in range(0, len(sizes), CHUNK):
        size_bytes = sizes[start : start + CHUNK].astype(np.int64) * dtype.itemsize
        ends = next_byte + np.cumsum(size_bytes)
        write((ends - size_bytes).astype("<i8").tobytes())
        next_byte = int(ends[-1])
    for start in range(0, len(document_entries), CHUNK):
        write(document_entries[start : start + CHUNK].astype("<i8").tobytes())


def check_sequences(
    header: IndexHeader, sizes: NDArray[np.int32], pointers: NDArray[np.int64], *, path: Path, bin_bytes: int
) -> None:
    """Lengths are not negative, sequences lie end to end, and together they fill the `bin_bytes` of .bin."""
    next_byte = 0
    for start in range(0, header.num_sequences, CHUNK):
        part = sizes[start : start + CHUNK].astype(np.int64)
        if int(part.min()) < 0:
            bad = start + int(np.argmax(part < 0))
            raise ConfigError(
                f"{path}: sequence {bad} has length {int(sizes[bad])} at byte {header.sizes_offset + 4 * bad}; "
                "lengths are not negative: the file is corrupt; make it again"
            )
        ends = next_byte + np.cumsum(part * header.dtype.itemsize)
        expected = ends - part * header.dtype.itemsize
        found = pointers[start : start + CHUNK]
        if not np.array_equal(found, expected):
            first = int(np.argmax(found != expected))
            raise ConfigError(
                f"{path}: sequence {start + first} starts at byte {int(found[first])} of .bin according to byte "
                f"{header.pointers_offset + 8 * (start + first)}, but the lengths before it add up to "
                f"{int(expected[first])}: the file is corrupt; make it again"
            )
        next_byte = int(ends[-1])
    if next_byte != bin_bytes:
        raise _size_mismatch(header, path=path, wanted=next_byte, found=bin_bytes)


def check_documents(header: IndexHeader, entries: NDArray[np.int64], *, path: Path) -> None:
    """The document array starts with 0, never falls, and ends with the number of sequences."""
    where = f"{path}: document array (from byte {header.documents_offset})"
    if len(entries) == 0 or int(entries[0]) != 0:
        raise ConfigError(f"{where} must start with 0, found {int(entries[0]) if len(entries) else 'no entry'}")
    if int(entries[-1]) != header.num_sequences:
        raise ConfigError(f"{where} must end with {header.num_sequences}, the number of sequences; found {entries[-1]}")
    for start in range(0, len(entries) - 1, CHUNK):
        part = entries[start : start + CHUNK + 1]
        falls = part[1:] < part[:-1]
        if falls.any():
            bad = start + 1 + int(np.argmax(falls))
            raise ConfigError(
                f"{where} falls from {entries[bad - 1]} to {entries[bad]} at entry {bad} (byte "
                f"{header.documents_offset + 8 * bad}): the file is corrupt; make it again"
            )


def _size_mismatch(header: IndexHeader, *, path: Path, wanted: int, found: int) -> ConfigError:
    message = (
        f"{path.with_suffix('.bin')}: {found} bytes, but the {header.num_sequences} sequences of {path} "
        f"take {wanted} ({header.dtype.name})"
    )
    if found < wanted:
        return ConfigError(f"{message}: truncated, or the files are not a pair; make them again")
    if found - wanted == header.num_sequences * header.dtype.itemsize:
        return ShortLengthsError(
            f"{message}, one element a sequence less: written by Megatron-DeepSpeed's preprocess_data with "
            "--append-eod, which leaves the end-of-document id out of the lengths; tools/repair_dataset.py "
            f"{str(path).removesuffix('.idx')} puts them right, or make the pair again"
        )
    return ConfigError(f"{message}: the files are not a pair; make them again")
