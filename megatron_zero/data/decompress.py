"""Blocks of gzip or Zstandard data -> blocks of text, for streams of any length.

A file may hold several members (gzip) or frames (Zstandard), as `cat a.gz b.gz` makes them. Data that ends in the middle
of one, or is damaged, is an error: half a corpus never passes for a whole one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final, Protocol

from ..config.fields import ConfigError
from .text_input import GZIP, ZSTD
from .zstd_frames import MAX_WINDOW_BYTES, cut_frames

FEED_BYTES: Final = 1 << 14  # of gzip, where data grows a thousandfold at most when it is unpacked
GZIP_WINDOW_BITS: Final = 31  # zlib's way to ask for a gzip header and checksum


class Member(Protocol):
    """One gzip member or Zstandard frame being unpacked."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Codec:
    """cut: makes of the packed data pieces that can be unpacked at once in bounded memory.

    padding: bytes that may follow a member and mean nothing.
    """

    name: str
    cut: Callable[[Iterator[bytes]], Iterator[bytes]]
    new_member: Callable[[], Member]
    error: type[Exception]
    padding: bytes


def codec_for(compression: str, *, name: str) -> Codec:
    """Errors: ConfigError naming the package where Zstandard cannot be unpacked."""
    if compression == GZIP:
        cut = partial(cut_blocks, max_bytes=FEED_BYTES)
        return Codec("gzip", cut, lambda: zlib.decompressobj(GZIP_WINDOW_BITS), zlib.error, b"\0")
    assert compression == ZSTD
    return _zstd_codec(name)


def unpacked(blocks: Iterator[bytes], codec: Codec, *, name: str) -> Iterator[bytes]:
    """In blocks of bounded size. Errors: OSError naming file and compressed byte, where the data is damaged or cut short;
    ConfigError for Zstandard data that needs too much memory (zstd_frames.py)."""
    member: Member | None = None
    position = 0
    for block in codec.cut(blocks):
        rest = block
        while rest:
            if member is None:
                rest = rest.lstrip(codec.padding) if codec.padding else rest
                if not rest:
                    break
                member = codec.new_member()
            try:
                data = member.decompress(rest)
            except codec.error as error:
                raise OSError(
                    f"{name}: damaged {codec.name} data between bytes {position} and {position + len(block)}: {error}"
                ) from error
            if data:
                yield data
            rest = member.unused_data if member.eof else b""
            member = None if member.eof else member
        position += len(block)
    if member is not None:
        raise OSError(f"{name}: the {codec.name} data is cut short: it ends after {position} bytes inside a block")


def cut_blocks(blocks: Iterator[bytes], max_bytes: int) -> Iterator[bytes]:
    """The same bytes in blocks that are no longer."""
    for block in blocks:
        for start in range(0, len(block), max_bytes):
            yield block[start : start + max_bytes]


def _zstd_codec(name: str) -> Codec:
    cut = partial(cut_frames, name=name)
    # Python 3.14 has it in the standard library.
    zstd: Any = _module("compression.zstd")
    if zstd is not None:
        option = {zstd.DecompressionParameter.window_log_max: MAX_WINDOW_BYTES.bit_length() - 1}
        return Codec("Zstandard", cut, lambda: zstd.ZstdDecompressor(options=option), zstd.ZstdError, b"")
    zstandard: Any = _module("zstandard")
    if zstandard is None:
        raise ConfigError(
            f"--input {name}: Zstandard data, and the Python package 'zstandard' is not installed: pip install zstandard, "
            "or unpack it on the way: zstd -dc FILE | ... --input -"
        )
    unpacker = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    return Codec("Zstandard", cut, unpacker.decompressobj, zstandard.ZstdError, b"")


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None
