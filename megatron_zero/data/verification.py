"""Whether a .bin/.idx pair is what it was: .idx against .bin, every id against the vocabulary, checksums.

PREFIX.sha256 has the format of `sha256sum`, with bare names: `sha256sum -c` in the pair's folder checks it too.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ..config.fields import ConfigError
from .index_format import CHUNK
from .indexed_dataset import IndexedDataset, open_prefix
from .staged_file import StagedFile

LISTED_FAULTS: Final = 10
CHECKSUM_LINE: Final = re.compile(r"\\?([0-9a-f]{64}) [ *](.+)")


@dataclass(frozen=True, slots=True)
class Verification:
    """checksums: hex SHA-256 by path.   faults: the first ones, in words; num_faults counts all."""

    checksums: Mapping[Path, str]
    num_faults: int
    faults: tuple[str, ...]


def verify(prefix: str, *, vocab_size: int | None) -> Verification:
    """Reads both files whole. vocab_size: all ids lie below it (None: ids are only not negative).

    A pair that cannot even be opened raises what open_prefix raises. Errors: ConfigError, OSError.
    """
    dataset = open_prefix(prefix, flag="prefix")
    if dataset.dtype.kind == "f":
        raise ConfigError(f"{dataset.idx_path}: elements of type {dataset.dtype.name} are no token ids")
    digest, start, num_faults = hashlib.sha256(), 0, 0
    faults = list[str]()
    highest = vocab_size - 1 if vocab_size is not None else int(np.iinfo(dataset.dtype).max)
    for block in dataset.blocks(CHUNK * dataset.dtype.itemsize):
        digest.update(block.data)
        if int(block.min()) < 0 or int(block.max()) > highest:
            wrong = np.flatnonzero((block < 0) | (block > highest))
            num_faults += len(wrong)
            for position in wrong[: LISTED_FAULTS - len(faults)].tolist():
                byte = start + position * dataset.dtype.itemsize
                faults.append(_id_fault(dataset, byte, int(block[position]), vocab_size))
        start += block.nbytes
    checksums = {dataset.bin_path: digest.hexdigest(), dataset.idx_path: sha256_of(dataset.idx_path)}
    recorded = checksums_path(prefix)
    if recorded.exists():
        if not recorded.is_file():  # reading a pipe would wait for a writer
            raise ConfigError(f"{recorded}: not a regular file; it holds checksums as --write-checksums makes them")
        differing = differing_checksums(recorded, checksums)
        num_faults += len(differing)
        faults += differing
    return Verification(checksums, num_faults, tuple(faults))


def checksums_path(prefix: str) -> Path:
    return Path(f"{prefix}.sha256")


def write_checksums(prefix: str, checksums: Mapping[Path, str]) -> Path:
    """Errors: OSError."""
    with StagedFile(checksums_path(prefix)) as file:
        file.write(
            "".join(_checksum_line(path.name, digest) for path, digest in checksums.items()).encode(
                "utf-8", "surrogateescape"
            )
        )
        file.seal()
        file.publish()
        return file.path


def differing_checksums(recorded: Path, checksums: Mapping[Path, str]) -> list[str]:
    """Faults in words. Errors: OSError."""
    text = recorded.read_bytes().decode("utf-8", "surrogateescape")
    found = {match[2]: match[1] for line in text.split("\n") if (match := CHECKSUM_LINE.fullmatch(line)) is not None}
    faults = list[str]()
    for path, digest in checksums.items():
        expected = found.get(_escaped(path.name))
        if expected is None:
            faults.append(f"{recorded}: no line for {path.name}; written for other files?")
        elif expected != digest:
            faults.append(f"{path}: SHA-256 is {digest}, and {recorded} has {expected}: the file has changed since")
    return faults


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(8 * CHUNK):
            digest.update(block)
    return digest.hexdigest()


def _id_fault(dataset: IndexedDataset, byte: int, token: int, vocab_size: int | None) -> str:
    rule = "ids are not negative" if vocab_size is None else f"the vocabulary has ids 0 to {vocab_size - 1}"
    sequence = dataset.sequence_at_byte(byte)
    return f"{dataset.bin_path}: token id {token} at byte {byte} (sequence {sequence}); {rule}"


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def _checksum_line(name: str, digest: str) -> str:
    """As sha256sum writes it: a name with a backslash or newline is escaped, and the line begins with a backslash."""
    escaped = _escaped(name)
    return f"{'' if escaped == name else chr(92)}{digest}  {escaped}\n"
