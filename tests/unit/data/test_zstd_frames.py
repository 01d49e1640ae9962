"""Zstandard data is cut at its blocks, so that memory for unpacking is bounded, whatever the data."""

import random
import struct
import tracemalloc

import pytest

from megatron_zero.config.fields import ConfigError
from megatron_zero.data.decompress import codec_for, unpacked
from megatron_zero.data.zstd_frames import (
    BLOCKS_AT_ONCE,
    FRAME_MAGIC,
    MAX_BLOCK_BYTES,
    MAX_WINDOW_BYTES,
    cut_frames,
    is_skippable,
    window_bytes,
)

SKIPPABLE = struct.pack("<II", 0x184D2A53, 700_000) + bytes(700_000)
TEXT = b"".join(b'{"text": "%d"}\n' % (number * number) for number in range(100_000))
BIGGEST_PIECE = BLOCKS_AT_ONCE * MAX_BLOCK_BYTES


def blocks(data, size):
    return iter([data[start : start + size] for start in range(0, len(data), size)])


def unpack(data, block_bytes=1 << 18):
    return unpacked(blocks(data, block_bytes), codec_for("zstd", name="a"), name="a")


def frame_of(*block_headers_and_contents, window_descriptor=0x38):
    """A frame without content size or checksum; 0x38: a window of 128 KiB."""
    return FRAME_MAGIC + bytes([0, window_descriptor]) + b"".join(block_headers_and_contents)


def block(kind, size, content, *, is_last=False):
    return (size << 3 | kind << 1 | is_last).to_bytes(3, "little") + content


def repeated(count, *, size=MAX_BLOCK_BYTES):
    """A dense frame: each block of 4 bytes stands for `size` equal ones."""
    return frame_of(*(block(1, size, b"x", is_last=number == count - 1) for number in range(count)))


@pytest.fixture
def zstandard():
    return pytest.importorskip("zstandard", reason="packs the data of this test")


def frames(zstandard):
    """Frames of every kind of header."""
    settings = [
        {},
        {"write_checksum": True},
        {"write_content_size": False},
        {"write_checksum": True, "write_content_size": False, "level": 19},
        {"level": 1, "threads": 2},
    ]
    for options in settings:
        for text in (b"", b"x", TEXT[:300], TEXT[:70_000], TEXT, bytes(400_000)):
            yield zstandard.ZstdCompressor(**options).compress(text)
    streamed = zstandard.ZstdCompressor().compressobj()
    yield (
        streamed.compress(TEXT)
        + streamed.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        + streamed.compress(b"x")
        + streamed.flush()
    )


@pytest.mark.parametrize("block_bytes", [1, 100, 4099, 1 << 18, 1 << 30])
def test_cut_data_is_the_same_data_and_no_piece_goes_beyond_a_frame(zstandard, block_bytes):
    members = [SKIPPABLE, *frames(zstandard), SKIPPABLE[:8].replace(b"\x60\xae\x0a\x00", b"\0\0\0\0")]
    data = b"".join(members)
    ends = {sum(map(len, members[:number])) for number in range(len(members) + 1)}
    position = 0
    for piece in cut_frames(blocks(data, block_bytes), name="a"):
        assert piece == data[position : position + len(piece)]
        assert not any(position < end < position + len(piece) for end in ends)
        position += len(piece)
    assert position == len(data)


def test_frames_of_every_kind_are_unpacked_as_by_the_library(zstandard):
    for data in frames(zstandard):
        expected = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        assert b"".join(unpack(data, 1000)) == expected
        assert window_bytes(data[4:]) == zstandard.get_frame_parameters(data).window_size


@pytest.mark.parametrize("cut", [0, 1, 3, 4, 5, 6, 8, 9, 12, 40])
def test_data_cut_in_a_header_goes_on_as_it_is(cut):
    data = repeated(20)[:cut]
    assert b"".join(cut_frames(blocks(data, 2), name="a")) == data


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_go_on_as_they_are(seed):
    data = random.Random(seed).randbytes(2000)
    for start in (b"", FRAME_MAGIC + b"\0\x38", SKIPPABLE[:4]):
        assert b"".join(cut_frames(blocks(start + data, 300), name="a")) == start + data


def test_dense_data_is_unpacked_in_bounded_memory():
    pytest.importorskip("zstandard", reason="unpacks the data of this test")
    data = repeated(16_384)  # 2 GiB in 64 KiB
    tracemalloc.start()
    try:
        total = 0
        for piece in unpack(data):
            assert len(piece) <= BIGGEST_PIECE
            total += len(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == 16_384 * MAX_BLOCK_BYTES
    assert peak < 8 * BIGGEST_PIECE


def test_many_tiny_blocks_are_unpacked():
    pytest.importorskip("zstandard", reason="unpacks the data of this test")
    assert b"".join(unpack(repeated(50_000, size=1), 777)) == b"x" * 50_000


@pytest.mark.parametrize("log", [10, 20, 27])
def test_windows_up_to_the_limit_are_unpacked(zstandard, log):
    window = zstandard.ZstdCompressionParameters(window_log=log)
    packing = zstandard.ZstdCompressor(compression_params=window).compressobj()
    data = packing.compress(TEXT) + packing.flush()
    assert window_bytes(data[4:]) == 1 << log <= MAX_WINDOW_BYTES
    assert b"".join(unpack(data)) == TEXT


@pytest.mark.parametrize(
    "header,mebibytes",
    [
        (bytes([0, 0x88 | 1]), 144),
        (bytes([0, (31 - 10) << 3]), 2048),
        (bytes([0b10100000]) + struct.pack("<I", (1 << 27) + 1), 128),
        (bytes([0b11100000]) + struct.pack("<Q", 1 << 40), 1 << 20),
        (bytes([0b10100001]) + b"\7" + struct.pack("<I", 1 << 28), 256),
    ],
    ids=["by-an-eighth", "long-31", "one-segment", "huge-segment", "with-a-dictionary"],
)
def test_larger_window_is_refused_with_the_way_out(header, mebibytes):
    message = rf"--input a: .* window of {mebibytes} MiB .* at most 128 MiB; .*zstd -dc --long=31 FILE \| .* --input -"
    with pytest.raises(ConfigError, match=message):
        list(cut_frames(iter([FRAME_MAGIC + header + bytes(100)]), name="a"))


def test_long_window_of_the_program_zstd_is_refused(zstandard):
    window = zstandard.ZstdCompressionParameters(window_log=28)
    packing = zstandard.ZstdCompressor(compression_params=window).compressobj()
    data = packing.compress(b"x" * 100) + packing.flush()
    with pytest.raises(ConfigError, match="a window of 256 MiB"):
        list(unpack(data))


@pytest.mark.parametrize(
    "magic,expected", [(b"\x50\x2a\x4d\x18", True), (b"\x5f\x2a\x4d\x18", True), (b"\x60\x2a\x4d\x18", False)]
)
def test_skippable_frames_are_known_by_their_magic(magic, expected):
    assert is_skippable(magic) == expected
    assert not is_skippable(magic[:3])
