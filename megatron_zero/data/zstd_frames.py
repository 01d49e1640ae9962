"""Zstandard data cut so that no piece grows beyond a bound when it is unpacked, and memory for its window is bounded.

A block of 4 bytes may stand for 128 KiB (one byte, repeated), so how many bytes are fed at a time bounds nothing; how many
blocks are does. Only frame and block headers are read here: RFC 8878, section 3. What is damaged goes on as it is, for the
decompressor to refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ..config.fields import ConfigError

FRAME_MAGIC: Final = b"\x28\xb5\x2f\xfd"
MAX_BLOCK_BYTES: Final = 1 << 17  # unpacked
BLOCKS_AT_ONCE: Final = 8
MAX_WINDOW_BYTES: Final = 1 << 27  # what the program zstd takes, too, unless it is told otherwise
SKIPPED_AT_ONCE: Final = 1 << 18
REPEATED_BYTE: Final = 1  # the block type with one byte of content, whatever its size


def is_skippable(magic: bytes) -> bool:
    """Whether a frame that begins so holds no data: 0x184D2A50 to 0x184D2A5F, little-endian."""
    return magic[1:4] == b"\x2a\x4d\x18" and magic[0] & 0xF0 == 0x50


def cut_frames(blocks: Iterator[bytes], *, name: str) -> Iterator[bytes]:
    """The same bytes in pieces of at most BLOCKS_AT_ONCE blocks, none of which goes beyond the end of a frame.

    Errors: ConfigError for a frame that needs a window above MAX_WINDOW_BYTES, with the way out.
    """
    data = _Bytes(blocks)
    while magic := data.take(4):
        if is_skippable(magic):
            size = data.take(4)
            yield magic + size
            yield from data.parts(int.from_bytes(size, "little"))
        elif magic == FRAME_MAGIC:
            yield from _frame(data, name)
        else:
            yield magic


def _frame(data: _Bytes, name: str) -> Iterator[bytes]:
    descriptor = data.take(1)
    header = descriptor + data.take(_fields_bytes(descriptor[0]) if descriptor else 0)
    if not descriptor or len(header) < 1 + _fields_bytes(descriptor[0]):
        yield FRAME_MAGIC + header
        return
    window = window_bytes(header)
    if window > MAX_WINDOW_BYTES:
        raise ConfigError(
            f"--input {name}: its Zstandard data was packed with a window of {window / 2**20:.0f} MiB (zstd --long, or one "
            f"block for all), and unpacking it here takes at most {MAX_WINDOW_BYTES >> 20} MiB; unpack it on the way: "
            "zstd -dc --long=31 FILE | ... --input -"
        )
    piece, num_blocks, is_last = [FRAME_MAGIC + header], 0, False
    while not is_last:
        block = data.take(3)
        fields = int.from_bytes(block, "little")
        is_last = bool(fields & 1) or len(block) < 3
        is_repeated = fields >> 1 & 3 == REPEATED_BYTE
        piece += [block, data.take(1 if is_repeated else fields >> 3)]
        num_blocks += 1
        if is_last or num_blocks == BLOCKS_AT_ONCE:
            yield b"".join(piece)
            piece, num_blocks = [], 0
    if descriptor[0] & 4:
        yield data.take(4)  # a checksum


def _fields_bytes(descriptor: int) -> int:
    """Length of what follows the descriptor in a frame header: window, dictionary, content size."""
    is_single = descriptor >> 5 & 1
    content = (1 if is_single else 0, 2, 4, 8)[descriptor >> 6]
    return (0 if is_single else 1) + (0, 1, 2, 4)[descriptor & 3] + content


def window_bytes(header: bytes) -> int:
    """How far back a frame refers; header: from the descriptor on, with all of its fields."""
    if header[0] >> 5 & 1:  # a single segment: all of the content
        content = header[1 + (0, 1, 2, 4)[header[0] & 3] : 1 + _fields_bytes(header[0])]
        return int.from_bytes(content, "little") + (256 if len(content) == 2 else 0)
    base = 1 << (10 + (header[1] >> 3))
    return base + base // 8 * (header[1] & 7)


@dataclass(slots=True)
class _Bytes:
    """Bytes to be taken in any amounts."""

    blocks: Iterator[bytes]
    _rest: bytes = field(default=b"")
    _start: int = field(default=0)

    def take(self, size: int) -> bytes:
        """So many, or what is left at the end."""
        if self._start + size <= len(self._rest):
            self._start += size
            return self._rest[self._start - size : self._start]
        parts = [self._rest[self._start :]]
        missing = size - len(parts[0])
        self._rest, self._start = b"", 0
        for block in self.blocks if missing > 0 else ():
            parts.append(block[:missing])
            if len(block) >= missing:
                self._rest, self._start = block, missing
                break
            missing -= len(block)
        return b"".join(parts)

    def parts(self, size: int) -> Iterator[bytes]:
        """So many, or what is left, a bounded number at a time."""
        while size > 0 and (part := self.take(min(size, SKIPPED_AT_ONCE))):
            size -= len(part)
            yield part
