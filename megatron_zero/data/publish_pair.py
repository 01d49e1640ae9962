"""Giving a .bin and its .idx their names, such that no .idx ever stands beside a .bin that it does not describe.

Two renames cannot be one, so the old .idx steps aside first, as NAME.idx.previous. Until the last rename there is no
.idx: a kill in between leaves a pair that cannot be opened, never a wrong one, and nothing takes the old index away
before the next pair is complete. missing_index() tells who opens such a pair what happened. What fails is undone where
it can be; where it cannot, the error says what lies where.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from ..config.fields import ConfigError
from .index_format import HEADER, parse_header
from .staged_file import StagedFile, fsync_folder

PREVIOUS: Final = ".previous"  # not a temporary name: after a kill it may be the only index of a .bin that is whole
COMPLETE: Final = ".complete"  # of a new .bin whose index could not be renamed


def publish_pair(data: StagedFile, index: StagedFile) -> None:
    """Rename two sealed files, replacing a pair of that name. Errors: OSError with the state of the files."""
    aside = _beside(index.path, PREVIOUS)
    folder = index.path.parent
    had_index = os.path.lexists(index.path)
    try:
        if had_index:
            os.rename(index.path, aside)
        fsync_folder(folder)
        data.rename()
    except OSError as error:
        # What stood aside before belongs to another .bin: only what was moved just now is put back.
        moved = had_index and not os.path.lexists(index.path)
        state = _put_back(aside, index.path) if moved else "The files of that name are as they were"
        raise OSError(error.errno, f"{_said(error)}. {state}") from error
    try:
        fsync_folder(folder)
        index.rename()
    except OSError as error:
        state = _keep(index)
        _remove(aside)
        raise OSError(error.errno, f"{_said(error)}. {data.path} is the new file and complete, but {state}") from error
    try:
        fsync_folder(folder)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{_said(error)}. {data.path} and {index.path} are the new pair, but the folder could not be brought to the "
            "device: check them after a crash of the machine",
        ) from error
    _remove(aside)


def missing_index(bin_path: Path, idx_path: Path) -> str | None:
    """What happened to a pair without .idx, and the way out; None where .idx is there, or nothing tells of it.

    An index that stands aside is never taken unasked: that it belongs to the .bin is likely at best.
    """
    if os.path.lexists(idx_path) or not bin_path.is_file():
        return None
    found = [path for path in (_beside(idx_path, COMPLETE), _beside(idx_path, PREVIOUS)) if path.is_file()]
    if not found:
        return None
    happened = f"{idx_path} is not there: a run that replaced this pair was killed, or failed, between its renames"
    for aside in found:
        if _may_describe(aside, bin_path):
            return (
                f"{happened}. {aside} belongs to {_owner(aside)}, and gives the size of {bin_path} "
                f"({_written(bin_path)}): if that is still the same file, mv '{aside}' '{idx_path}' completes the pair; "
                "else make the pair again"
            )
    aside = found[-1]
    return (
        f"{happened}. {aside} belongs to {_owner(aside)}, and {bin_path} ({_written(bin_path)}) is another one: make the "
        "pair again"
    )


def _owner(aside: Path) -> str:
    return "the .bin that was there before" if aside.name.endswith(PREVIOUS) else "the .bin that this run wrote"


def _may_describe(aside: Path, bin_path: Path) -> bool:
    """Whether an index gives the size of the .bin and was written after it, as every index is after its own."""
    status = bin_path.stat()
    try:
        with open(aside, "rb") as file:
            header = parse_header(file.read(HEADER.size), path=aside, file_bytes=aside.stat().st_size)
        sizes = np.fromfile(aside, "<i4", header.num_sequences, offset=header.sizes_offset)
        size = int(sizes.sum(dtype=np.int64)) * header.dtype.itemsize
    except ConfigError:  # it is no index
        return False
    return size == status.st_size and status.st_mtime_ns <= aside.stat().st_mtime_ns


def _written(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size} bytes, written {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(status.st_mtime))}"


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}{suffix}")


def _remove(aside: Path) -> None:
    with suppress(OSError):  # the old index is worth nothing now; the next pair takes it away
        aside.unlink(missing_ok=True)


def _put_back(aside: Path, path: Path) -> str:
    try:
        os.rename(aside, path)
    except OSError as error:
        return f"The old .bin is as it was, and its index lies in {aside} ({error.strerror}): mv '{aside}' '{path}'"
    return "The files of that name are as they were"


def _keep(index: StagedFile) -> str:
    """Give the complete index a name that neither discard() nor a later run takes away; what is to be done then."""
    kept = _beside(index.path, COMPLETE)
    try:
        kept.unlink(missing_ok=True)
        try:
            os.link(index.temporary, kept)
        except OSError:
            os.replace(index.temporary, kept)  # no hard links here; discard() then finds nothing to remove
    except OSError as error:
        return f"its index has no name, and could not be kept ({error.strerror}): make the pair again"
    return f"its index has no name yet: mv '{kept}' '{index.path}' completes the pair"


def _said(error: OSError) -> str:
    return error.strerror or str(error)
