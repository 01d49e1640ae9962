"""The .idx that Megatron-DeepSpeed's preprocess_data --append-eod should have written.

It writes the end-of-document id into .bin and leaves it out of the lengths, so each is one too small, and every later
offset with it. Lengths are made one longer only where the files prove that this is what happened: .bin is larger by one
element a sequence, and each sequence then ends with the end-of-document id.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..config.fields import ConfigError
from .index_format import (
    CHUNK,
    HEADER,
    MAX_SEQUENCE_LENGTH,
    IndexHeader,
    ShortLengthsError,
    bin_path,
    check_documents,
    idx_path,
    parse_header,
    write_index,
)
from .indexed_dataset import open_prefix
from .publish_pair import PREVIOUS
from .staged_file import StagedFile


@dataclass(frozen=True, slots=True)
class LengthRepair:
    """lengths: [sequences] int64, end-of-document ids included.   documents: [documents + 1] int64, as they were.

    old: the bytes of .idx that the plan was made from.
    """

    old: bytes
    header: IndexHeader
    lengths: NDArray[np.int64]
    documents: NDArray[np.int64]


def plan_repair(prefix: str, *, eod: int) -> LengthRepair | None:
    """None for a sound pair. Changes nothing.

    Errors: ConfigError for every other fault of the pair, and naming the first sequence that does not end with eod;
    OSError.
    """
    try:
        open_prefix(prefix, flag="prefix")
    except ShortLengthsError:
        pass  # and nothing else: offsets and lengths agree, and the size of .bin is right
    else:
        return None
    path = idx_path(prefix)
    old = path.read_bytes()
    header = parse_header(old[: HEADER.size], path=path, file_bytes=len(old))
    if header.dtype.kind == "f":
        raise ConfigError(f"{path}: elements of type {header.dtype.name} are no token ids, so none ends a document")
    lengths = np.frombuffer(old, "<i4", header.num_sequences, header.sizes_offset).astype(np.int64) + 1
    documents = np.frombuffer(old, "<i8", header.num_document_entries, header.documents_offset)
    check_documents(header, documents, path=path)
    if int(lengths.max()) > MAX_SEQUENCE_LENGTH:
        longest = int(lengths.argmax())
        raise ConfigError(f"{path}: sequence {longest} would have {int(lengths[longest])} elements; lengths are int32")
    _check_ends(bin_path(prefix), header, lengths, eod=eod)
    return LengthRepair(old, header, lengths, documents)


def write_repaired(repair: LengthRepair, prefix: str) -> Path:
    """Replace .idx, whole or not at all; returns the path under which the old one is kept. For a holder of PrefixLock.

    Errors: ConfigError where another index is kept there already, or .idx is no longer what the plan was made from;
    OSError.
    """
    path = idx_path(prefix)
    kept = path.with_name(path.name + PREVIOUS)
    if path.read_bytes() != repair.old:
        raise ConfigError(f"{path}: another process wrote it meanwhile; nothing was changed")
    if kept.exists() and kept.read_bytes() != repair.old:
        raise ConfigError(f"{kept}: is there already, and is another index than {path.name}; move it away first")
    with StagedFile(kept) as copy, StagedFile(path) as index:
        copy.write(repair.old)
        copy.seal()
        write_index(index.write, repair.header.dtype, repair.lengths, repair.documents)
        index.seal()
        copy.publish()
        index.publish()
    return kept


def _check_ends(path: Path, header: IndexHeader, lengths: NDArray[np.int64], *, eod: int) -> None:
    """Errors: ConfigError naming the first sequence that does not end with eod."""
    elements = np.memmap(path, dtype=header.dtype, mode="r")
    lasts = np.cumsum(lengths) - 1
    for start in range(0, len(lasts), CHUNK):
        found = np.asarray(elements[lasts[start : start + CHUNK]])
        wrong = np.flatnonzero(found != eod)
        if len(wrong) > 0:
            sequence, token = start + int(wrong[0]), int(found[wrong[0]])
            raise ConfigError(
                f"{path}: sequence {sequence} would end with id {token} at byte "
                f"{int(lasts[sequence]) * header.dtype.itemsize}, and the end of a document is {eod}: not proved that only "
                "these ids are left out of the lengths, so nothing was changed; another tokenizer's id? Else make the pair "
                "again"
            )
