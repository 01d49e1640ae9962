"""Giving a .bin and its .idx their names, such that no .idx ever stands beside a .bin that it does not describe.

Two renames cannot be one, so the old .idx steps aside first, as NAME.idx.previous. Until the last rename there is no
.idx: a kill in between leaves a pair that cannot be opened, never a wrong one, and nothing takes the old index away
before the next pair is complete. What fails is undone where it can be; where it cannot, the error
says what lies where.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from .staged_file import StagedFile, fsync_folder

PREVIOUS: Final = ".previous"  # not a temporary name: after a kill it may be the only index of a .bin that is whole


def publish_pair(data: StagedFile, index: StagedFile) -> None:
    """Rename two sealed files, replacing a pair of that name. Errors: OSError with the state of the files."""
    aside = index.path.with_name(f"{index.path.name}{PREVIOUS}")
    folder = index.path.parent
    had_index = os.path.lexists(index.path)
    try:
        if had_index:
            os.rename(index.path, aside)
        fsync_folder(folder)
        data.rename()
    except OSError as error:
        raise OSError(error.errno, f"{_said(error)}. {_put_back(aside, index.path)}") from error
    try:
        fsync_folder(folder)
        index.rename()
    except OSError as error:
        kept = _keep(index)
        raise OSError(
            error.errno,
            f"{_said(error)}. {data.path} is the new file and complete, but its index has no name yet: "
            f"mv '{kept}' '{index.path}' completes the pair",
        ) from error
    finally:
        with suppress(OSError):  # the old index is worth nothing now; the next pair takes it away
            aside.unlink(missing_ok=True)
    try:
        fsync_folder(folder)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{_said(error)}. {data.path} and {index.path} are the new pair, but the folder could not be brought to the "
            "device: check them after a crash of the machine",
        ) from error


def _put_back(aside: Path, path: Path) -> str:
    if not os.path.lexists(aside):
        return "The files of that name are as they were"
    try:
        os.rename(aside, path)
    except OSError as error:
        return f"The old .bin is as it was, and its index lies in {aside} ({error.strerror}): mv '{aside}' '{path}'"
    return "The files of that name are as they were"


def _keep(index: StagedFile) -> Path:
    """The complete index under a name that neither discard() nor a later run takes away."""
    kept = index.path.with_name(f"{index.path.name}.complete")
    try:
        os.link(index.temporary, kept)
    except OSError:
        os.replace(index.temporary, kept)  # no hard links here; discard() then finds nothing to remove
    return kept


def _said(error: OSError) -> str:
    return error.strerror or str(error)
