"""One writer at a time for a PREFIX.bin/.idx pair: two could publish the .bin of one beside the .idx of the other."""

from __future__ import annotations

import os
from pathlib import Path

from ..config.fields import ConfigError
from .staged_file import try_lock


class PrefixLock:
    """Holds PREFIX.lock until close(), or until the process ends in any way: the kernel keeps the lock.

    close() removes the empty file; one that a killed run left is taken over. Where the file system has no locks (some
    network ones) nothing is held, `held` says so, and the file stays: machines that do have locks there may hold it.
    Errors: ConfigError if another process holds it; OSError naming
    the folder.
    """

    def __init__(self, prefix: str | Path) -> None:
        self.path = Path(f"{prefix}.lock")
        while True:
            self._descriptor = self._open()
            taken = try_lock(self._descriptor)
            self.held = taken is True
            if taken is False:
                os.close(self._descriptor)
                raise ConfigError(
                    f"{prefix}.bin and .idx are being written by another run (it holds {self.path}); wait for it to "
                    "end, or choose another prefix"
                )
            if self._is_the_file_of_that_name():
                return
            os.close(self._descriptor)  # its holder removed it between our open and our lock

    def close(self) -> None:
        """Give the prefix back; may be called twice."""
        if self._descriptor < 0:
            return
        # Under the lock, so that nobody can hold a file that is removed here. A file with content is not ours.
        if self.held and self._is_the_file_of_that_name() and os.fstat(self._descriptor).st_size == 0:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1

    def warning(self) -> str:
        """For the user where nothing is held, or ""."""
        if self.held:
            return ""
        return (
            f"{self.path.parent} has no file locks, so nothing keeps a second run from writing {self.path.stem}.bin and "
            f".idx at the same time: start one at a time; {self.path.name} stays, and may be removed after the run"
        )

    def _open(self) -> int:
        try:
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise OSError(
                error.errno, f"cannot write into folder {self.path.parent} ({self.path.name}): {error.strerror}"
            ) from error

    def _is_the_file_of_that_name(self) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False
