"""Inputs cut into pieces of whole lines that can be worked on in parallel.

A plain file is not read here: its pieces are byte ranges, and whoever works on one reads it. What cannot be read from the
middle (compressed files, pipes) is read here, in the one process that makes the pieces, which then carry their text.
A piece does not know the number of its first line; whoever sees all pieces in order adds the lines up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Final

from .decompress import codec_for, cut_blocks, unpacked
from .text_input import MAGIC_BYTES, TextSource, compression_of

MAX_PIECE_BYTES: Final = 1 << 20
MIN_PIECE_BYTES: Final = 1 << 16
READ_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class FileSlice:
    """The lines of a plain file that begin in bytes [start, stop). The last one may end behind stop."""

    source: TextSource
    start: int
    stop: int

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def input_bytes(self) -> int:
        return self.stop - self.start

    def read(self) -> bytes:
        """Errors: OSError with the path, also if the file is not what it was when the run began."""
        assert self.source.path is not None
        assert self.source.identity is not None
        size = self.source.identity.num_bytes
        with _opened(self.source) as file:
            self.source.check_unchanged(file.fileno())
            begin = max(self.start - 1, 0)  # one byte before: is it a newline, a line begins at start
            text = self._range(file, begin, self.stop)
            if self.start > 0:
                text = text[text.find(b"\n") + 1 :] if b"\n" in text else b""
            parts, position = [text], self.stop
            while parts[0] and not parts[-1].endswith(b"\n") and position < size:
                more = self._range(file, position, min(position + READ_BYTES, size))
                position += len(more)
                parts.append(more[: more.find(b"\n") + 1] if b"\n" in more else more)
            self.source.check_unchanged(file.fileno())
        return b"".join(parts)

    def _range(self, file: BinaryIO, start: int, stop: int) -> bytes:
        parts, position = list[bytes](), start
        while position < stop:
            try:
                data = os.pread(file.fileno(), stop - position, position)
            except OSError as error:
                raise OSError(error.errno, f"cannot read {self.name} (byte {position}): {error.strerror}") from error
            if not data:
                self.source.check_unchanged(file.fileno())
                raise OSError(f"{self.name}: ends at byte {position}, before its size of {stop} or more")
            parts.append(data)
            position += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines as text. input_bytes: how much of the (compressed) input was read for them."""

    name: str
    text: bytes
    input_bytes: int

    def read(self) -> bytes:
        return self.text


TextPiece = FileSlice | TextBlock


def piece_bytes_for(sources: Sequence[TextSource], *, workers: int) -> int:
    """Pieces small enough that every worker has several, and large enough that their cost does not show."""
    total = sum(source.identity.num_bytes for source in sources if source.identity is not None)
    return max(MIN_PIECE_BYTES, min(MAX_PIECE_BYTES, total // (8 * workers)))


def text_pieces(sources: Sequence[TextSource], *, piece_bytes: int = MAX_PIECE_BYTES) -> Iterator[TextPiece]:
    """All lines of the inputs, in order. Lines end with \\n only, and are never cut, however long.

    Errors: ConfigError, OSError (decompress.py and above).
    """
    for source in sources:
        if source.identity is None or source.compression or not source.is_lasting:
            yield from _read_here(source, piece_bytes)
        else:
            size = source.identity.num_bytes
            for start in range(0, size, piece_bytes):
                yield FileSlice(source, start, min(start + piece_bytes, size))


def _read_here(source: TextSource, piece_bytes: int) -> Iterator[TextBlock]:
    with _opened(source) as file:
        source.check_unchanged(file.fileno())
        raw = _RawBlocks(source, file)
        first = next(raw, b"")
        while 0 < len(first) < MAGIC_BYTES and (more := next(raw, b"")):
            first += more  # a pipe may give its first bytes singly
        compression = source.compression or compression_of(first, name=source.name)
        blocks = _chained(first, raw)
        if compression:
            blocks = unpacked(blocks, codec_for(compression, name=source.name), name=source.name)
        counted = 0
        for text in whole_lines(blocks, piece_bytes):
            yield TextBlock(source.name, text, raw.num_bytes - counted)
            counted = raw.num_bytes
        if source.identity is not None:
            source.check_unchanged(file.fileno())
            if raw.num_bytes != source.identity.num_bytes:
                raise OSError(f"{source.name}: {raw.num_bytes} bytes read of {source.identity.num_bytes}")


def whole_lines(blocks: Iterator[bytes], piece_bytes: int) -> Iterator[bytes]:
    """The same bytes in pieces of about piece_bytes that end with a newline; the last one may lack it."""
    parts, size, has_line_end = list[bytes](), 0, False
    for block in cut_blocks(blocks, piece_bytes):
        parts.append(block)
        size += len(block)
        has_line_end = has_line_end or b"\n" in block
        if size >= piece_bytes and has_line_end:
            text = b"".join(parts)
            cut = text.rfind(b"\n") + 1
            yield text[:cut]
            parts, size, has_line_end = [text[cut:]], len(text) - cut, False
    if size > 0:
        yield b"".join(parts)


@dataclass(slots=True)
class _RawBlocks:
    """The bytes of a file as they come; counts them."""

    source: TextSource
    file: BinaryIO
    num_bytes: int = field(default=0)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            data = os.read(self.file.fileno(), READ_BYTES)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot read {self.source.name} (byte {self.num_bytes}): {error.strerror}"
            ) from error
        if not data:
            raise StopIteration
        self.num_bytes += len(data)
        return data


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _opened(source: TextSource) -> BinaryIO:
    if source.path is None:
        return open(0, "rb", buffering=0, closefd=False)
    return open(source.path, "rb", buffering=0)
