"""Index arrays kept in a folder, so that they are built once and shared by the ranks of a node through its page cache.

An entry is a description (JSON: everything that decides the arrays, and what the files must look like) and one .npy
file per array, named by a digest of the description. Files appear complete or not at all, the description last. Of
several jobs that build one entry at the same time the first to name a file wins; the others find an equal one and leave
it, because a rank may have it mapped, and on NFS a mapped file that is replaced kills the reader. There is no lock to be
left behind. Every reader checks the digest of every file, because indices with other numbers, all zero after a crash say,
would give other samples and no error. Knows nothing of what the arrays mean.
"""

from __future__ import annotations

import errno
import filecmp
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from ..config.fields import ConfigError
from .staged_file import StagedFile, clear_abandoned_in, fsync_folder

Arrays = Mapping[str, NDArray[Any]]

DIGEST_LETTERS: Final = 32
ENTRY_NAMES: Final = rf".+-[0-9a-f]{{{DIGEST_LETTERS}}}(-\w+\.npy|\.json)"
WRITE_BYTES: Final = 1 << 26
READ_BYTES: Final = 1 << 20
LEFT_SECONDS: Final = 24 * 3600.0  # a temporary file of another machine that grew no more for so long is told

# What file systems answer that have no hard links, or no more of them.
NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


class CacheEntryError(ValueError):
    """Files that are not what their description says."""


@dataclass(frozen=True, slots=True)
class IndexCache:
    """folder: made when it is first written to; None keeps nothing.

    required: a folder that cannot be written is an error, not just told.
    tell: takes the lines that a user should see.
    """

    folder: Path | None
    required: bool = False
    tell: Callable[[str], None] = lambda line: None

    def get(self, what: str, recipe: Mapping[str, object], build: Callable[[], Arrays]) -> Arrays:
        """The arrays of `recipe`, from the folder, or built and then kept there. Those from files are read-only.

        what: a word for file names and messages.   recipe: JSON values that decide every number in the arrays.
        Errors: what build raises; ConfigError where the folder is required and cannot be written.
        """
        if self.folder is None:
            return build()
        entry = _Entry(self.folder, what, recipe)
        try:
            return entry.load()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, CacheEntryError) as error:
            self.tell(f"{what} index: {error}; building it again")
        arrays = build()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._clear(self.folder)
            entry.store(arrays)
            return entry.load()
        except (OSError, CacheEntryError) as error:
            if self.required:
                raise ConfigError(
                    f"--data-cache-path {self.folder}: the {what} index cannot be kept there: {error}; name a folder "
                    "with room that every rank can write"
                ) from error
            self.tell(
                f"{what} index: kept in the memory of each rank, because {self.folder} cannot be written ({error}); "
                "name a folder with --data-cache-path to share it"
            )
            return arrays

    def _clear(self, folder: Path) -> None:
        """Remove what killed builds of any entry left; that of other machines, which may live, is told when it is old."""
        try:
            found = clear_abandoned_in(folder, ENTRY_NAMES)
            for path in found.removed:  # not those that were empty: another job may have made them this instant
                self.tell(f"removed {path}, which a run that was killed left")
            for path in found.kept:
                if _age_seconds(path) > LEFT_SECONDS:
                    self.tell(f"{path} seems to be left by a run that was killed on another machine: remove it if so")
        except OSError as error:
            self.tell(f"{folder} cannot be searched for files that killed runs left: {error}")


class _Entry:
    """The files of one recipe."""

    def __init__(self, folder: Path, what: str, recipe: Mapping[str, object]) -> None:
        text = json.dumps(recipe, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LETTERS]
        self._recipe = json.loads(text)
        self._stem = folder / f"{what}-{digest}"
        self._description = Path(f"{self._stem}.json")

    def load(self) -> Arrays:
        """Errors: FileNotFoundError without a description; CacheEntryError, OSError."""
        try:
            description = json.loads(self._description.read_bytes())
            stored, shapes = description["recipe"], description["arrays"]
            wanted = {name: (str(text), tuple(shape), str(sha256)) for name, (text, shape, sha256) in shapes.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CacheEntryError(f"{self._description} is no description of an index: {error!r}") from error
        if stored != self._recipe:
            raise CacheEntryError(f"{self._description} describes another index")
        return {name: self._load_array(name, *of_array) for name, of_array in wanted.items()}

    def store(self, arrays: Arrays) -> None:
        with ExitStack() as opened:
            staged = [opened.enter_context(StagedFile(self._array_path(name))) for name in arrays]
            shapes = {}
            for file, (name, array) in zip(staged, arrays.items(), strict=True):
                shapes[name] = (array.dtype.str, array.shape, _write_npy(file, array))
                file.seal()
            description = opened.enter_context(StagedFile(self._description))
            description.write(json.dumps({"recipe": self._recipe, "arrays": shapes}, indent=2).encode())
            description.seal()
            for file in staged:
                _name(file)
            _sync(self._description.parent)
            _name(description)
            _sync(self._description.parent)

    def _array_path(self, name: str) -> Path:
        return Path(f"{self._stem}-{name}.npy")

    def _load_array(self, name: str, dtype: str, shape: tuple[int, ...], sha256: str) -> NDArray[Any]:
        path = self._array_path(name)
        try:
            if _digest(path) != sha256:
                raise CacheEntryError(f"{path} is damaged: its bytes are not those that were written")
            # An empty array has no bytes to map.
            array = np.load(path, mmap_mode=None if 0 in shape else "r", allow_pickle=False)
        except FileNotFoundError as error:
            raise CacheEntryError(f"{path} is missing") from error
        if array.dtype.str != dtype or array.shape != shape:
            raise CacheEntryError(f"{path} holds {array.dtype} {array.shape}, not {dtype} {shape}")
        return np.asarray(array)


def _digest(path: Path) -> str:
    """SHA-256 of a file; read, not mapped, as in _holds_the_same."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while part := file.read(READ_BYTES):
            digest.update(part)
    return digest.hexdigest()


def _name(file: StagedFile) -> None:
    """Give a sealed file its name, unless an equal one has it already: that one stays, whoever has it mapped."""
    try:
        os.link(file.temporary, file.path)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise OSError(error.errno, f"cannot write {file.path}: {error.strerror}") from error
    else:
        file.discard()  # its temporary name only, and at once: a kill from here on leaves nothing of this file
        return
    if not _holds_the_same(file.path, file.temporary):
        file.rename()


def _holds_the_same(path: Path, temporary: Path) -> bool:
    """Read, not mapped: a file that fails under a mapping ends the process."""
    try:
        return filecmp.cmp(path, temporary, shallow=False)
    except OSError:  # nothing of that name, or nothing that can be read
        return False


def _sync(folder: Path) -> None:
    try:
        fsync_folder(folder)
    except OSError as error:
        raise OSError(error.errno, f"cannot write folder {folder}: {error.strerror}") from error


def _age_seconds(path: Path) -> float:
    """Since it was last written to; 0 where it is gone."""
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _write_npy(file: StagedFile, array: NDArray[Any]) -> str:
    """Returns the SHA-256 of what was written."""
    digest = hashlib.sha256()
    header = io.BytesIO()
    npy.write_array_header_1_0(header, npy.header_data_from_array_1_0(array))
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    parts: list[bytes | memoryview] = [header.getvalue()]
    parts += [data[start : start + WRITE_BYTES].data for start in range(0, len(data), WRITE_BYTES)]
    for part in parts:
        file.write(part)
        digest.update(part)
    return digest.hexdigest()
