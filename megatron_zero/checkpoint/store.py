"""Files that are written once, forwards, and read back verified: a crc32 for every chunk of every file.

The checksum is per chunk, not per file, so that a load that needs a tenth of a file reads and verifies a tenth of it
(and its edges). Every write result is read; a file counts as written only after fsync. Nothing here knows tensors.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from .errors import CheckpointError

CHUNK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What the manifest says of one file. crc32[i] covers bytes [i * chunk_bytes, (i + 1) * chunk_bytes) of it."""

    name: str
    num_bytes: int
    chunk_bytes: int
    crc32: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "bytes": self.num_bytes,
            "chunk_bytes": self.chunk_bytes,
            "crc32": [f"{crc:08x}" for crc in self.crc32],
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> FileEntry:
        """Raises KeyError, TypeError or ValueError for anything that as_json() would not have made."""
        num_bytes, chunk_bytes = int(value["bytes"]), int(value["chunk_bytes"])
        crc32 = tuple(int(crc, 16) for crc in value["crc32"])
        if num_bytes < 0 or chunk_bytes <= 0 or chunk_bytes % 8 or len(crc32) != -(-num_bytes // chunk_bytes):
            raise ValueError(f"{len(crc32)} checksums do not fit {num_bytes} bytes in chunks of {chunk_bytes}")
        return FileEntry(str(value["name"]), num_bytes, chunk_bytes, crc32)


def write_all(fd: int, data: memoryview, *, path: Path) -> None:
    """Write all of data at the file's position, going on after short writes; OSError with path and byte counts."""
    done = 0
    while done < len(data):
        try:
            written = os.write(fd, data[done:])
        except OSError as error:
            raise OSError(
                error.errno, f"{error.strerror} (wrote {done} of {len(data)} bytes of a block)", str(path)
            ) from error
        if written <= 0:
            raise OSError(f"{path}: write returned {written} with {len(data) - done} bytes left")
        done += written


def fsync_folder(path: Path) -> None:
    """Make the names in a folder durable: a rename is not, until this returns."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class ChunkedWriter:
    """A new file, written forwards, with its chunk checksums. A context manager; leaving it only closes the file.

    Raises FileExistsError if the file is there already.
    """

    def __init__(self, path: Path, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path = path
        self.chunk_bytes = chunk_bytes
        self.position = 0
        self._crcs: list[int] = []
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)

    def __enter__(self) -> ChunkedWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._fd)

    def write(self, data: memoryview | bytes) -> None:
        """Append data: bytes, or a contiguous view of bytes, which is not copied."""
        view = memoryview(data)
        while len(view):
            within = self.position % self.chunk_bytes
            part = view[: self.chunk_bytes - within]
            write_all(self._fd, part, path=self.path)
            if within:
                self._crcs[-1] = zlib.crc32(part, self._crcs[-1])
            else:
                self._crcs.append(zlib.crc32(part))
            self.position += len(part)
            view = view[len(part) :]

    def pad_to(self, offset: int) -> None:
        """Append zero bytes up to offset."""
        self.write(bytes(offset - self.position))

    def finish(self) -> FileEntry:
        """fsync; what to put into the manifest. Some filesystems report a full disk only here."""
        os.fsync(self._fd)
        return FileEntry(self.path.name, self.position, self.chunk_bytes, tuple(self._crcs))


def write_file(path: Path, content: bytes) -> FileEntry:
    """A new file with this content, fsynced."""
    with ChunkedWriter(path) as writer:
        writer.write(content)
        return writer.finish()


class VerifiedReader:
    """Chunks of one file, each compared with its checksum before it is handed out. A context manager.

    Raises CheckpointError (path, expected, found) if the file is missing, has another size, or a chunk differs.
    """

    def __init__(self, folder: Path, entry: FileEntry) -> None:
        self.path = folder / entry.name
        self.entry = entry
        check_size(folder, entry)
        self._fd = os.open(self.path, os.O_RDONLY)
        self._buffer = bytearray(min(entry.chunk_bytes, entry.num_bytes))
        self._held: int | None = None

    def __enter__(self) -> VerifiedReader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self._fd)

    def chunk(self, index: int) -> memoryview:
        """Chunk `index`, verified. The view is good until the next call with another index."""
        start = index * self.entry.chunk_bytes
        view = memoryview(self._buffer)[: self.entry.num_bytes - start]
        if self._held != index:
            self._held = None
            self._read(start, view)
            self._verify(index, start, view)
            self._held = index
        return view

    def read_all(self) -> bytes:
        return b"".join(bytes(self.chunk(index)) for index in range(len(self.entry.crc32)))

    def _read(self, start: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            got = os.preadv(self._fd, [view[done:]], start + done)
            if got == 0:
                raise CheckpointError(
                    f"{self.path}: ended at byte {start + done}, expected {self.entry.num_bytes} bytes: truncated"
                )
            done += got

    def _verify(self, index: int, start: int, view: memoryview) -> None:
        found, expected = zlib.crc32(view), self.entry.crc32[index]
        if found != expected:
            raise CheckpointError(
                f"{self.path}: bytes [{start}, {start + len(view)}) have crc32 {found:08x}, expected {expected:08x} "
                "(manifest.json): damaged after it was saved; use another checkpoint or a copy of this file"
            )


def check_size(folder: Path, entry: FileEntry) -> None:
    """Raises CheckpointError if the file is missing or has not the size that the manifest says."""
    path = folder / entry.name
    try:
        size = path.stat().st_size
    except FileNotFoundError:
        raise CheckpointError(f"{path}: missing; expected a file of {entry.num_bytes} bytes (manifest.json)") from None
    if size != entry.num_bytes:
        raise CheckpointError(f"{path}: has {size} bytes, expected {entry.num_bytes} (manifest.json)")


def read_file(folder: Path, entry: FileEntry) -> bytes:
    """The whole content, verified; for small files."""
    with VerifiedReader(folder, entry) as reader:
        return reader.read_all()
