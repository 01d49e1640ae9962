"""A file that appears under its name only when it is complete.

It is written under a temporary name in the target's own folder (a rename is atomic only inside one file system), sealed
(flushed, fsynced) and then published by a rename. Several files can be sealed first and published afterwards.

The writer holds an flock on its temporary file, so that what a killed writer left can be told from what a living one is
writing: process ids come back, locks end with their process. Locks of other machines cannot be trusted everywhere, so
the name carries a mark of the machine, and clear_abandoned() leaves the files of others alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import signal
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from types import FrameType, TracebackType


class StagedFile:
    """One file being written for `path`: write() as often as needed, seal(), publish(); or discard().

    As a context manager it discards what was not published, so an error leaves nothing behind.
    Errors: OSError with the path, also where the system call itself (write, fsync) names none.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.bytes_written = 0
        self.is_published = False
        if self.path.is_dir():
            raise IsADirectoryError(f"cannot write {self.path}: a folder of that name is in the way")
        self._sealed = False
        while True:
            self.temporary = temporary_path(self.path)
            try:
                self._file = open(self.temporary, "xb")  # noqa: SIM115 - closed by rename() or discard()
            except OSError as error:
                raise OSError(error.errno, f"cannot write into folder {self.path.parent}: {error.strerror}") from error
            # A new file is nobody's until it is locked: clear_abandoned() elsewhere may have locked or removed it.
            if try_lock(self._file.fileno()) is not False and _is_named(self._file.fileno(), self.temporary):
                return
            self._file.close()

    def write(self, data: bytes | memoryview) -> None:
        with self._errors_named():
            self._file.write(data)
        self.bytes_written += len(data) if isinstance(data, bytes) else data.nbytes

    def seal(self) -> None:
        """Everything written is on the device when this returns; the target is untouched."""
        with self._errors_named():
            self._file.flush()
            os.fsync(self._file.fileno())
        self._sealed = True

    def publish(self) -> None:
        """Give the sealed file its name, replacing a file of that name."""
        self.rename()
        with self._errors_named():
            fsync_folder(self.path.parent)

    def rename(self) -> None:
        """The first half of publish(): after a crash the rename may be undone until the folder is fsynced."""
        assert self._sealed, "seal() comes before publish()"
        with self._errors_named():
            try:
                os.replace(self.temporary, self.path)  # still locked: nobody takes it for abandoned
            except OSError:
                # NFS sends a request again whose answer was lost, and the second one finds nothing to rename.
                if not _is_named(self._file.fileno(), self.path):
                    raise
        self.is_published = True
        with suppress(OSError):  # all of it is on the device since seal()
            self._file.close()

    def discard(self) -> None:
        """Remove the temporary file; nothing happens after publish(). Never touches the target."""
        try:
            self.temporary.unlink(missing_ok=True)
        finally:
            # Closing flushes; what fails there failed in write() or seal() already, and is thrown away.
            with suppress(OSError):
                self._file.close()

    def __enter__(self) -> StagedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.discard()

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, f"cannot write {self.path} (byte {self.bytes_written}): {error.strerror}") from error


def make_folder_for(path: str | Path, *, flag: str) -> None:
    """The folder that a file named behind a flag goes into, parents too, as training's --log-jsonl has it.

    Errors: OSError naming flag and folder.
    """
    folder = Path(path).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{flag} {path}: cannot write into folder {folder}, which cannot be made: {error.strerror}; name another one, "
            f"or make it: mkdir -p '{folder}'",
        ) from error


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Temporary files that were found beside a target.

    removed: their writer is gone.   kept: their writer lives, or runs on another machine, or cannot be asked.
    removed_empty: nobody held them. Where others may begin to write meanwhile, one may have been made this instant.
    """

    removed: tuple[Path, ...] = ()
    kept: tuple[Path, ...] = ()
    removed_empty: tuple[Path, ...] = ()

    def lines(self) -> list[str]:
        """For the user."""
        return [
            *(f"removed {path}, which a run that was killed left" for path in self.removed),
            *(
                f"left alone: {path}; its writer may live (on another machine, or there are no file locks here): remove "
                "it if not"
                for path in self.kept
            ),
        ]


def temporary_path(path: Path) -> Path:
    """A new name beside `path`: NAME.MACHINE-PID-RANDOM.tmp."""
    return path.with_name(f"{path.name}.{_machine_mark()}-{os.getpid()}-{secrets.token_hex(4)}.tmp")


def clear_abandoned(path: Path) -> Leftovers:
    """Remove the temporary files for `path` whose writers, on this machine, are gone.

    For a caller that keeps others from writing `path` meanwhile (prefix_lock.py): empty files are abandoned, too.
    """
    found = clear_abandoned_in(path.parent, re.escape(path.name))
    return Leftovers(tuple(sorted(found.removed + found.removed_empty)), found.kept)


def clear_abandoned_in(folder: Path, names: str) -> Leftovers:
    """The same for all paths of a folder whose name matches a regular expression. Others may begin to write meanwhile."""
    pattern = re.compile(rf"(?:{names})\.(?P<machine>[0-9a-f]{{8}})-\d+-[0-9a-f]{{8}}\.tmp")
    fates: dict[_Fate, list[Path]] = {fate: [] for fate in _Fate}
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if (match := pattern.fullmatch(entry.name)) is not None:
            fate = _remove_unlocked(entry) if match["machine"] == _machine_mark() else _Fate.KEPT
            fates[fate].append(entry)
    return Leftovers(tuple(fates[_Fate.REMOVED]), tuple(fates[_Fate.KEPT]), tuple(fates[_Fate.REMOVED_EMPTY]))


def try_lock(descriptor: int) -> bool | None:
    """Take an flock without waiting. False: another process holds it. None: the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # ENOLCK, ENOSYS, EOPNOTSUPP
        return None
    return True


def fsync_folder(folder: Path) -> None:
    """Make the renames and removals in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def signals_held() -> Iterator[None]:
    """SIGTERM, SIGINT and SIGHUP that come inside take effect at the end: renames that belong together stay together.

    For the main thread; elsewhere no Python handler runs anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    # None: a handler that is not Python's cannot be put back, so it stays.
    before = {number: handler for number in numbers if (handler := signal.getsignal(number)) is not None}
    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for missed in received:
            signal.raise_signal(missed)


def _machine_mark() -> str:
    return f"{zlib.crc32(os.uname().nodename.encode()):08x}"


def _is_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class _Fate(Enum):
    """GONE: its writer, or another process, renamed or removed it meanwhile."""

    REMOVED = auto()
    REMOVED_EMPTY = auto()
    KEPT = auto()
    GONE = auto()


def _remove_unlocked(path: Path) -> _Fate:
    """Remove a file that nobody holds. A writer that has not locked its new, empty one yet makes another."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if not try_lock(descriptor):
                return _Fate.KEPT
            path.unlink()
            return _Fate.REMOVED if os.fstat(descriptor).st_size > 0 else _Fate.REMOVED_EMPTY
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return _Fate.GONE
    except OSError:  # of another user, in a folder that cannot be written, ...: it is for a person to look at
        return _Fate.KEPT
