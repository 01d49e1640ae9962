"""A file appears under its name complete, or not at all."""

import errno
import fcntl
import io
import os
import resource
from contextlib import contextmanager

import pytest

from megatron_zero.data import staged_file
from megatron_zero.data.staged_file import Leftovers, StagedFile, clear_abandoned, clear_abandoned_in


def test_published_file_holds_what_was_written(tmp_path):
    with StagedFile(tmp_path / "a.bin") as file:
        file.write(b"one ")
        file.write(b"two")
        file.seal()
        file.publish()
    assert (tmp_path / "a.bin").read_bytes() == b"one two"
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_old_file_stays_until_publish(tmp_path):
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    with StagedFile(target) as file:
        file.write(b"new")
        file.seal()
        assert target.read_bytes() == b"old"
        file.publish()
    assert target.read_bytes() == b"new"


def test_error_leaves_nothing_behind_and_the_old_file_alone(tmp_path):
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), StagedFile(target) as file:
        file.write(b"new")
        1 / 0  # noqa: B018
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert target.read_bytes() == b"old"


def test_failed_write_names_path_and_position(tmp_path):
    with StagedFile(tmp_path / "a.bin") as file:
        file.write(b"x" * 100_000)
        with _file_size_limit(150_000), pytest.raises(OSError, match=r"a\.bin \(byte \d+\): File too large"):
            file.write(b"x" * 100_000)
            file.seal()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["regular-file/a.bin", "missing-folder/a.bin"])
def test_path_that_cannot_be_written_is_named(tmp_path, below):
    (tmp_path / "regular-file").write_bytes(b"")
    with pytest.raises(OSError, match="cannot write into folder .*" + below.split("/")[0]):
        StagedFile(tmp_path / below)


def test_folder_in_the_way_is_named_before_anything_is_written(tmp_path):
    (tmp_path / "a.bin").mkdir()
    with pytest.raises(IsADirectoryError, match=r"a\.bin"):
        StagedFile(tmp_path / "a.bin")
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


class FailingFile(io.FileIO):
    """A file on a device that is full, or broken, from some byte on."""

    def __init__(self, path, mode, *, fails_from, error):
        super().__init__(path, mode)
        self.fails_from, self.error = fails_from, error

    def write(self, data):
        if self.tell() + len(data) > self.fails_from:
            raise OSError(self.error, os.strerror(self.error))
        return super().write(data)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_full_or_broken_device_is_named_and_leaves_nothing(tmp_path, monkeypatch, error):
    def open_failing(path, mode):
        return io.BufferedWriter(FailingFile(path, mode, fails_from=150_000, error=error))

    monkeypatch.setattr(staged_file, "open", open_failing, raising=False)
    with StagedFile(tmp_path / "a.bin") as file:
        file.write(b"x" * 100_000)
        with pytest.raises(OSError, match=r"cannot write .*a\.bin \(byte 100000\): ") as caught:
            file.write(b"x" * 100_000)
    assert caught.value.errno == error
    assert list(tmp_path.iterdir()) == []


def test_failed_fsync_is_an_error_with_the_path(tmp_path, monkeypatch):
    def fsync(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with StagedFile(tmp_path / "a.bin") as file:
        file.write(b"x")
        with pytest.raises(OSError, match=r"cannot write .*a\.bin \(byte 1\): Input/output error"):
            file.seal()
    assert list(tmp_path.iterdir()) == []


# ---- what killed writers leave


def abandoned(path):
    """A temporary file for `path` whose writer is gone: like one of a killed process, it has no lock."""
    temporary = staged_file.temporary_path(path)
    temporary.write_bytes(b"half")
    return temporary


def test_file_of_a_writer_that_is_gone_is_removed_and_named(tmp_path):
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    left = abandoned(target)
    assert clear_abandoned(target) == Leftovers(removed=(left,))
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("sealed", [False, True])
def test_file_of_a_living_writer_stays(tmp_path, sealed):
    with StagedFile(tmp_path / "a.bin") as file:
        file.write(b"new")
        if sealed:
            file.seal()
        assert clear_abandoned(tmp_path / "a.bin") == Leftovers(kept=(file.temporary,))
        file.seal()
        file.publish()
    assert (tmp_path / "a.bin").read_bytes() == b"new"


def test_file_of_another_machine_stays_and_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(staged_file, "_machine_mark", lambda: "0badcafe")
    left = abandoned(tmp_path / "a.bin")
    monkeypatch.undo()
    assert clear_abandoned(tmp_path / "a.bin") == Leftovers(kept=(left,))
    assert left.exists()


@pytest.mark.parametrize("locked_by", ["nobody", "the other process"])
def test_file_taken_for_abandoned_before_its_writer_locked_it_is_made_again(tmp_path, monkeypatch, locked_by):
    """Between open and flock another process clears up: it has removed the file, or is about to."""
    target, held = tmp_path / "a.bin", []

    def flock(descriptor, operation, real=fcntl.flock):
        monkeypatch.setattr(fcntl, "flock", real)
        (new,) = tmp_path.iterdir()
        if locked_by == "nobody":
            assert clear_abandoned_in(tmp_path, "a.bin") == Leftovers(removed_empty=(new,))
        else:
            held.append(open(new, "rb"))  # noqa: SIM115 - closed below
            real(held[0], operation)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with StagedFile(target) as file:
        for other in held:
            other.close()
        file.write(b"new")
        file.seal()
        assert clear_abandoned(target).kept == (file.temporary,)
        file.publish()
    assert target.read_bytes() == b"new"


def test_writers_that_finish_meanwhile_are_neither_removed_nor_kept(tmp_path, monkeypatch):
    target = tmp_path / "a.bin"
    file = StagedFile(target)
    file.write(b"new")
    file.seal()

    def flock(descriptor, operation, real=fcntl.flock):
        file.publish()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    assert clear_abandoned(target) == Leftovers()
    assert target.read_bytes() == b"new"
    assert clear_abandoned(target) == Leftovers()


def test_file_that_cannot_be_removed_is_kept(tmp_path, monkeypatch):
    left = abandoned(tmp_path / "a.bin")

    def unlink(path, *arguments, **options):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "unlink", unlink)
    monkeypatch.setattr(type(left), "unlink", unlink)
    assert clear_abandoned(tmp_path / "a.bin") == Leftovers(kept=(left,))


def test_files_of_many_names_are_cleared_by_a_pattern(tmp_path):
    left = [abandoned(tmp_path / name) for name in ("x-1.npy", "x-2.json", "x-3.bin")]
    assert clear_abandoned_in(tmp_path, r"x-\d\.(npy|json)") == Leftovers(removed=tuple(left[:2]))


@pytest.mark.parametrize(
    "name", ["a.bin", "a.bin.tmp", "b.bin.00000000-1-00000000.tmp", "a.bin.1-00000000.tmp", "a.bin.note", "aXbin.tmp"]
)
def test_files_of_other_names_are_not_looked_at(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    assert clear_abandoned(tmp_path / "a.bin") == Leftovers()
    assert (tmp_path / name).exists()


def test_file_system_without_locks_keeps_everything(tmp_path, monkeypatch):
    left = abandoned(tmp_path / "a.bin")

    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    assert clear_abandoned(tmp_path / "a.bin") == Leftovers(kept=(left,))


@contextmanager
def _file_size_limit(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
