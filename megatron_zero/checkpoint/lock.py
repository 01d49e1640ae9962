"""One run at a time in a checkpoint folder: two would clear each other's half-written saves."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from megatron_zero.config.fields import ConfigError

LOCK = ".lock"


class FolderLock:
    """Holds root for this process until close(), or until the process ends in any way: the kernel keeps the lock.

    Makes root. Raises ConfigError if that cannot be done, or if another process holds it. Where the filesystem has no
    locks (some network ones), nothing is held. One rank of a run takes it.
    """

    def __init__(self, root: Path) -> None:
        self._descriptor = -1
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigError(
                f"--save {root} cannot be written ({error.strerror}): name a folder that can be made and written"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise ConfigError(
                f"--save {root}: another run is saving there; wait for it to end, or name another folder"
            ) from None
        except OSError:  # ENOLCK, ENOSYS, EOPNOTSUPP: nothing to hold on to
            return

    def close(self) -> None:
        """Give the folder back; may be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
