"""A file appears under its name complete, or not at all."""

import resource
from contextlib import contextmanager

import pytest

from megatron_zero.data.staged_file import StagedFile


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


@contextmanager
def _file_size_limit(size):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
