"""One writer for a prefix; the lock ends with its holder and leaves no file."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest
from helpers.tools import load_tool

from megatron_zero.config.fields import ConfigError
from megatron_zero.data.indexed_dataset import IndexedDataset
from megatron_zero.data.prefix_lock import PrefixLock


def test_second_holder_is_refused_until_the_first_one_closes(tmp_path):
    first = PrefixLock(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"a\.bin and \.idx are being written by another run .*a\.lock"):
        PrefixLock(tmp_path / "a")
    PrefixLock(tmp_path / "b").close()
    first.close()
    first.close()
    assert list(tmp_path.iterdir()) == []
    PrefixLock(tmp_path / "a").close()


def test_lock_of_a_killed_process_is_taken_over(tmp_path):
    script = (
        "import os, signal, sys\nfrom megatron_zero.data.prefix_lock import PrefixLock\n"
        "lock = PrefixLock(sys.argv[1])\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", script, tmp_path / "a"], env=environment, timeout=60)
    assert killed.returncode == -9
    assert [path.name for path in tmp_path.iterdir()] == ["a.lock"]
    PrefixLock(tmp_path / "a").close()
    assert list(tmp_path.iterdir()) == []


def test_lock_on_a_file_that_its_holder_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """Between our open and our flock the holder closes: what we hold is no longer the file of that name."""
    holder = PrefixLock(tmp_path / "a")

    def flock(descriptor, operation, real=fcntl.flock):
        holder.close()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    second = PrefixLock(tmp_path / "a")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="another run"):
        PrefixLock(tmp_path / "a")
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_file_with_content_of_that_name_is_not_removed(tmp_path):
    (tmp_path / "a.lock").write_text("mine")
    PrefixLock(tmp_path / "a").close()
    assert (tmp_path / "a.lock").read_text() == "mine"


def test_without_locks_in_the_file_system_nothing_is_held(tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    lock = PrefixLock(tmp_path / "a")
    assert not lock.held
    assert lock.warning().startswith(
        f"{tmp_path} has no file locks, so nothing keeps a second run from writing a.bin and .idx"
    )
    assert "\n" not in lock.warning()
    lock.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.lock"]  # another machine may hold it
    monkeypatch.undo()
    held = PrefixLock(tmp_path / "a")
    assert held.warning() == ""
    held.close()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_tools_warn_once_where_there_are_no_locks_and_work(tmp_path, monkeypatch, capsys, code):
    def flock(descriptor, operation):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    (tmp_path / "in").write_text('{"text": "1"}\n')
    words = ["--input", str(tmp_path / "in"), "--output-prefix", str(tmp_path / "a"), "--workers", "1"]
    assert load_tool("preprocess_data").main([*words, "--tokenizer-type", "NullTokenizer", "--vocab-size", "9"]) == 0
    prefix = str(tmp_path / "a_text_document")
    assert capsys.readouterr().err.count("has no file locks") == 1
    assert load_tool("merge_datasets").main(["--input", prefix, "--output-prefix", str(tmp_path / "b")]) == 0
    assert capsys.readouterr().err.count("has no file locks") == 1
    assert IndexedDataset(tmp_path / "b").get(0).tolist() == [1]


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(OSError, match=r"cannot write into folder .*nowhere"):
        PrefixLock(tmp_path / "nowhere/a")
