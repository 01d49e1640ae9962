"""A file that appears under its name only when it is complete.

It is written under a temporary name in the target's own folder (a rename is atomic only inside one file system), sealed
(flushed, fsynced, closed) and then published by a rename. Several files can be sealed first and published afterwards.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType


class StagedFile:
    """One file being written for `path`: write() as often as needed, seal(), publish(); or discard().

    As a context manager it discards what was not published, so an error leaves nothing behind.
    Errors: OSError with the path, also where the system call itself (write, fsync) names none.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.bytes_written = 0
        self._temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        if self.path.is_dir():
            raise IsADirectoryError(f"cannot write {self.path}: a folder of that name is in the way")
        try:
            self._file = open(self._temporary, "xb")  # noqa: SIM115 - closed by seal() or discard()
        except OSError as error:
            raise OSError(error.errno, f"cannot write into folder {self.path.parent}: {error.strerror}") from error

    def write(self, data: bytes | memoryview) -> None:
        with self._errors_named():
            self._file.write(data)
        self.bytes_written += len(data) if isinstance(data, bytes) else data.nbytes

    def seal(self) -> None:
        """Everything written is on the device when this returns; the target is untouched."""
        with self._errors_named():
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def publish(self) -> None:
        """Give the sealed file its name, replacing a file of that name."""
        assert self._file.closed, "seal() comes before publish()"
        with self._errors_named():
            os.replace(self._temporary, self.path)
            fsync_folder(self.path.parent)

    def discard(self) -> None:
        """Remove the temporary file; nothing happens after publish(). Never touches the target."""
        with suppress(
            OSError
        ):  # closing flushes; what fails there failed in write() or seal() already, and is thrown away
            self._file.close()
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> StagedFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(
                error.errno, f"cannot write {self.path} (byte {self.bytes_written}): {error.strerror}"
            ) from error


def fsync_folder(folder: Path) -> None:
    """Make the renames and removals in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
