"""One writer for a prefix; the lock ends with its holder and leaves no file."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from megatron_zero.config.fields import ConfigError
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
    lock.close()


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(OSError, match=r"cannot write into folder .*nowhere"):
        PrefixLock(tmp_path / "nowhere/a")
