"""Pieces hold every line once, in order, whole; and only of files that stay as they are."""

import gzip
import os
import threading

import pytest

from megatron_zero.data import text_pieces as text_pieces_module
from megatron_zero.data.text_input import find_sources
from megatron_zero.data.text_pieces import FileSlice, TextBlock, piece_bytes_for, text_pieces, whole_lines

CONTENTS = (
    b"",
    b"\n",
    b"no newline",
    b"1\n22\n333\n",
    b"\n\n\n1\n\n\n",
    b"4\r\n\n no newline at the end",
    b"a" * 50 + b"\n" + b"b\n" + b"c" * 30,
    b"x\n" + b"y" * 64 + b"\nz\n",
)


def pieces_of(path, piece_bytes):
    return list(text_pieces(find_sources([str(path)]), piece_bytes=piece_bytes))


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 16, 1000])
@pytest.mark.parametrize("packed", [False, True])
def test_pieces_put_together_are_the_input(tmp_path, content, piece_bytes, packed):
    data = gzip.compress(content) if packed else content
    (tmp_path / "a").write_bytes(data)
    pieces = pieces_of(tmp_path / "a", piece_bytes)
    texts = [piece.read() for piece in pieces]
    assert b"".join(texts) == content
    assert all(text.endswith(b"\n") for text in texts if text and not content.endswith(text))
    assert all(isinstance(piece, TextBlock if packed else FileSlice) for piece in pieces)
    assert sum(piece.input_bytes for piece in pieces) == (len(data) if content else 0)


def test_line_of_many_pieces_belongs_to_the_one_where_it_begins(tmp_path):
    long = b"x" * (3 << 20)
    (tmp_path / "a").write_bytes(b"1\n" + long + b"\n2\n")
    texts = [piece.read() for piece in pieces_of(tmp_path / "a", 1 << 20)]
    assert texts == [b"1\n" + long + b"\n", b"", b"", b"2\n"]


@pytest.mark.parametrize("size", [1, 5, 64, 10**6])
def test_stream_is_cut_behind_newlines_only(size):
    data = b"".join(b"x" * (number % 40) + b"\n" for number in range(300)) + b"end"
    blocks = (data[start : start + size] for start in range(0, len(data), size))
    parts = list(whole_lines(blocks, 100))
    assert b"".join(parts) == data
    assert all(part.endswith(b"\n") for part in parts[:-1])
    assert max(map(len, parts)) < 100 + 40 + min(size, 100)


def test_pipe_is_read_as_a_stream_also_when_it_is_compressed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    data = gzip.compress(b"1\n2\n")

    def feed():
        with open(tmp_path / "pipe", "wb", buffering=0) as pipe:
            for position in range(len(data)):
                pipe.write(data[position : position + 1])

    feeder = threading.Thread(target=feed)
    sources = find_sources([str(tmp_path / "pipe")])
    feeder.start()
    blocks = list(text_pieces(sources))
    feeder.join()
    assert b"".join(block.text for block in blocks) == b"1\n2\n"
    assert sum(block.input_bytes for block in blocks) == len(data)


# ---- files that change


def grow(path):
    with open(path, "ab") as file:
        file.write(b"more\n")


def shrink(path):
    os.truncate(path, 3)


def rewrite(path):
    status = os.stat(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def replace(path):
    new = path.with_name("new")
    new.write_bytes(path.read_bytes())
    rewrite(new)
    os.replace(new, path)


@pytest.mark.parametrize("change", [grow, shrink, rewrite, replace])
@pytest.mark.parametrize("packed", [False, True])
def test_file_that_changed_since_the_run_began_is_an_error(tmp_path, change, packed):
    (tmp_path / "a").write_bytes(gzip.compress(b"1\n2\n3\n") if packed else b"1\n2\n3\n")
    sources = find_sources([str(tmp_path / "a")])
    change(tmp_path / "a")
    with pytest.raises(OSError, match="a: changed while it was read"):
        [piece.read() for piece in text_pieces(sources)]


def test_file_that_changes_during_the_read_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"1\n2\n3\n")
    piece = pieces_of(tmp_path / "a", 100)[0]

    def pread(descriptor, size, position, real=os.pread):
        shrink(tmp_path / "a")
        return real(descriptor, size, position)

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(OSError, match=r"a: changed while it was read \(it had 6 bytes when the run began, now 3\)"):
        piece.read()


def test_short_reads_are_continued_and_failed_ones_named(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"12\n345\n6")
    piece = pieces_of(tmp_path / "a", 100)[0]
    monkeypatch.setattr(os, "pread", lambda descriptor, size, position, real=os.pread: real(descriptor, 1, position))
    assert piece.read() == b"12\n345\n6"

    def pread(descriptor, size, position):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", pread)
    with pytest.raises(OSError, match=r"cannot read .*a \(byte 0\): Input/output error"):
        piece.read()


def test_failed_read_of_a_compressed_file_is_named(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(gzip.compress(b"1\n"))
    sources = find_sources([str(tmp_path / "a")])

    def read(descriptor, size):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(text_pieces_module.os, "read", read)
    with pytest.raises(OSError, match=r"cannot read .*a \(byte 0\): Input/output error"):
        list(text_pieces(sources))


@pytest.mark.parametrize("size,workers,piece_bytes", [(0, 1, 1 << 16), (4 << 20, 4, 1 << 17), (1 << 30, 4, 1 << 20)])
def test_every_worker_gets_pieces_of_small_inputs(tmp_path, size, workers, piece_bytes):
    with open(tmp_path / "a", "wb") as file:
        file.truncate(size)
    assert piece_bytes_for(find_sources([str(tmp_path / "a")]), workers=workers) == piece_bytes
