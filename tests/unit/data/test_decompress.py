"""gzip and Zstandard data become the text that was packed, or an error: never a part of it."""

import gzip
import random
import struct
import sys

import pytest

from megatron_zero.config.fields import ConfigError
from megatron_zero.data.decompress import codec_for, unpacked

TEXT = b"".join(b'{"text": "%d"}\n' % number for number in range(3000))


def zstd_compress(data):
    return (
        pytest.importorskip("zstandard", reason="packs the data of this test")
        .ZstdCompressor(write_checksum=True)
        .compress(data)
    )


PACKERS = {"gzip": gzip.compress, "zstd": zstd_compress}


def blocks(data, size):
    return iter([data[start : start + size] for start in range(0, len(data), size)])


def unpack(data, compression, *, block_bytes=1000):
    return b"".join(unpacked(blocks(data, block_bytes), codec_for(compression, name="a"), name="a"))


@pytest.mark.parametrize("compression", PACKERS)
@pytest.mark.parametrize("block_bytes", [1, 7, 1000, 10**9])
def test_one_and_several_members_are_unpacked_whatever_the_blocks(compression, block_bytes):
    pack = PACKERS[compression]
    data = pack(TEXT[:20000]) + pack(b"") + pack(TEXT[20000:])
    assert unpack(data, compression, block_bytes=block_bytes) == TEXT
    assert unpack(pack(b""), compression, block_bytes=block_bytes) == b""


@pytest.mark.parametrize("compression", PACKERS)
def test_data_cut_anywhere_is_an_error(compression):
    data = PACKERS[compression](TEXT)
    for size in random.Random(3).sample(range(1, len(data)), 50):
        with pytest.raises(OSError, match=rf"a: the .* data is cut short: it ends after {size} bytes"):
            unpack(data[:size], compression)


@pytest.mark.parametrize("compression", PACKERS)
def test_inverted_byte_is_an_error_or_changes_nothing(compression):
    """Some header bits (a time, say) mean nothing to the text."""
    data = PACKERS[compression](TEXT)
    messages = []
    for position in random.Random(4).sample(range(len(data)), 100):
        damaged = data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :]
        try:
            assert unpack(damaged, compression) == TEXT
        except OSError as error:
            messages.append(str(error))
    assert len(messages) > 90
    assert all(message.startswith("a: ") for message in messages)


def test_what_follows_a_gzip_member_is_padding_or_an_error():
    assert unpack(gzip.compress(TEXT) + bytes(5000), "gzip") == TEXT
    with pytest.raises(OSError, match="damaged gzip data between bytes"):
        unpack(gzip.compress(TEXT) + b"garbage", "gzip")


def test_skippable_zstandard_frames_are_passed_over():
    frame = struct.pack("<II", 0x184D2A53, 5) + b"12345"
    assert unpack(frame + zstd_compress(TEXT) + frame, "zstd", block_bytes=3) == TEXT


def test_missing_package_is_named_with_the_way_out(monkeypatch):
    for name in ("zstandard", "compression.zstd"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"'zstandard' is not installed: pip install zstandard, or .*zstd -dc FILE"):
        codec_for("zstd", name="a")
