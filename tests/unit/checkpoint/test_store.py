"""Verified files: what is written comes back, and every kind of damage is named."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from megatron_zero.checkpoint import store
from megatron_zero.checkpoint.errors import CheckpointError
from megatron_zero.checkpoint.store import ChunkedWriter, FileEntry, VerifiedReader, read_file, write_file

CONTENT = bytes(range(256)) * 3


def written(folder: Path, *, chunk_bytes: int = 64, parts: tuple[int, ...] = (1, 63, 200, 0, 504)) -> FileEntry:
    with ChunkedWriter(folder / "f", chunk_bytes=chunk_bytes) as writer:
        start = 0
        for size in parts:
            writer.write(memoryview(CONTENT)[start : start + size])
            start += size
        return writer.finish()


def limited_write(limit: int) -> Callable[[int, bytes], int]:
    """An os.write that takes at most `limit` bytes a call."""
    real = os.write
    return lambda fd, data: real(fd, data[:limit])


def test_checksums_do_not_depend_on_how_the_bytes_were_passed(tmp_path: Path) -> None:
    entry = written(tmp_path)
    assert entry.num_bytes == len(CONTENT)
    assert entry.crc32 == tuple(zlib.crc32(CONTENT[i : i + 64]) for i in range(0, len(CONTENT), 64))


@pytest.mark.parametrize("chunk_bytes", [8, 64, 768, 1 << 20])
def test_content_comes_back(tmp_path: Path, chunk_bytes: int) -> None:
    assert read_file(tmp_path, written(tmp_path, chunk_bytes=chunk_bytes)) == CONTENT


def test_empty_file_comes_back(tmp_path: Path) -> None:
    entry = write_file(tmp_path / "f", b"")
    assert entry.crc32 == ()
    assert read_file(tmp_path, entry) == b""


def test_entry_survives_json(tmp_path: Path) -> None:
    entry = written(tmp_path)
    assert FileEntry.from_json(entry.as_json()) == entry


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", limited_write(7))
    entry = written(tmp_path)
    monkeypatch.undo()
    assert read_file(tmp_path, entry) == CONTENT


def test_full_disk_raises_with_path_and_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", fails)
    with pytest.raises(OSError, match=r"No space left on device \(wrote 0 of 1 bytes of a block\).*f'") as caught:
        written(tmp_path)
    assert caught.value.errno == errno.ENOSPC


def test_write_that_makes_no_progress_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda fd, data: 0)
    with pytest.raises(OSError, match=r"f: write returned 0 with 1 bytes left"):
        written(tmp_path)


def test_failed_fsync_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output error"):
        written(tmp_path)


def test_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(FileExistsError):
        ChunkedWriter(tmp_path / "f")


def test_flipped_byte_names_path_range_and_both_checksums(tmp_path: Path) -> None:
    entry = written(tmp_path)
    damaged = bytearray(CONTENT)
    damaged[130] ^= 1
    (tmp_path / "f").write_bytes(damaged)
    expected = rf"f: bytes \[128, 192\) have crc32 [0-9a-f]{{8}}, expected {entry.crc32[2]:08x}"
    with pytest.raises(CheckpointError, match=expected):
        read_file(tmp_path, entry)


def test_damage_elsewhere_does_not_stop_a_read_of_whole_chunks(tmp_path: Path) -> None:
    entry = written(tmp_path)
    (tmp_path / "f").write_bytes(b"\xff" + CONTENT[1:])
    with VerifiedReader(tmp_path, entry) as reader:
        assert reader.chunk(3) == CONTENT[192:256]


def test_truncated_file_names_both_sizes(tmp_path: Path) -> None:
    entry = written(tmp_path)
    os.truncate(tmp_path / "f", 100)
    with pytest.raises(CheckpointError, match="f: has 100 bytes, expected 768"):
        read_file(tmp_path, entry)


def test_file_truncated_while_read_raises(tmp_path: Path) -> None:
    entry = written(tmp_path)
    with VerifiedReader(tmp_path, entry) as reader:
        os.truncate(tmp_path / "f", 100)
        with pytest.raises(CheckpointError, match="f: ended at byte 100, expected 768 bytes"):
            reader.chunk(1)


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = written(tmp_path)
    real = os.preadv
    monkeypatch.setattr(store.os, "preadv", lambda fd, views, offset: real(fd, [views[0][:5]], offset))
    assert read_file(tmp_path, entry) == CONTENT


def test_missing_file_is_named(tmp_path: Path) -> None:
    entry = written(tmp_path)
    (tmp_path / "f").unlink()
    with pytest.raises(CheckpointError, match="f: missing; expected a file of 768 bytes"):
        read_file(tmp_path, entry)


@pytest.mark.parametrize("change", [{"bytes": -1}, {"chunk_bytes": 0}, {"chunk_bytes": 12}, {"crc32": ["0"]}])
def test_entry_that_cannot_be_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="checksums do not fit"):
        FileEntry.from_json(written(tmp_path).as_json() | change)
