"""Names in a checkpoint root, and the steps by which a finished folder becomes the latest checkpoint.

    root/global_step20/                        a complete checkpoint; the name appears only when all of it is durable
    root/global_step20.tmp/                    being written, or left by a killed run
    root/global_step20.old/                    the former global_step20 while a new one takes its place
    root/latest_checkpointed_iteration.txt     the authority on which is the latest; moved last

At every moment each name of the first form is whole, and the text file names a checkpoint that find() finds.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Final

from .errors import CheckpointError
from .store import fsync_folder, write_file

POINTER: Final = "latest_checkpointed_iteration.txt"
COMPLETE: Final = re.compile(r"global_step(\d+)")
LEFTOVER: Final = re.compile(r"(global_step\d+)\.(tmp|old)")


def final_folder(root: Path, iteration: int) -> Path:
    return root / f"global_step{iteration}"


def temporary_folder(root: Path, iteration: int) -> Path:
    return root / f"global_step{iteration}.tmp"


def old_folder(root: Path, iteration: int) -> Path:
    return root / f"global_step{iteration}.old"


def complete_iterations(root: Path) -> tuple[int, ...]:
    """Iterations with a complete folder, rising."""
    matches = (COMPLETE.fullmatch(path.name) for path in root.iterdir() if path.is_dir())
    return tuple(sorted(int(match[1]) for match in matches if match))


def clear_leftovers(root: Path) -> tuple[str, ...]:
    """Undo what a killed save left: half-written folders go, an old one whose successor never came gets its name back.

    Returns one sentence for each. Touches nothing but names of LEFTOVER's exact form and the pointer's temporary.
    """
    said = []
    for path in sorted(root.iterdir()):
        match = LEFTOVER.fullmatch(path.name)
        if match is None or not path.is_dir():
            continue
        final = root / match[1]
        if match[2] == "old" and not final.exists():
            os.rename(path, final)
            said.append(f"{final} restored from {path.name}, which a killed save had moved aside")
        else:
            shutil.rmtree(path)
            said.append(f"{path} removed: left by a killed save")
    (root / f"{POINTER}.tmp").unlink(missing_ok=True)
    return tuple(said)


def publish(root: Path, iteration: int) -> None:
    """Give the finished temporary folder its name, then move the pointer to it, then drop what it replaces.

    Raises OSError; then the former checkpoint of that iteration, if any, has its name again unless the new one has it.
    """
    final, temporary, old = (place(root, iteration) for place in (final_folder, temporary_folder, old_folder))
    replaces = final.exists()
    fsync_folder(temporary)
    if replaces:
        os.rename(final, old)
    try:
        os.rename(temporary, final)
    except OSError:
        if replaces:
            os.rename(old, final)
        raise
    fsync_folder(root)
    write_pointer(root, iteration)
    if replaces:
        shutil.rmtree(old)


def write_pointer(root: Path, iteration: int) -> None:
    """Durable and atomic: a reader sees the former number or this one."""
    temporary = root / f"{POINTER}.tmp"
    temporary.unlink(missing_ok=True)
    write_file(temporary, f"{iteration}\n".encode("ascii"))
    os.replace(temporary, root / POINTER)
    fsync_folder(root)


def latest_iteration(root: Path) -> int | None:
    """The iteration that latest_checkpointed_iteration.txt names; None if that file (or root) does not exist.

    Every rank of a run should use one rank's answer: a network filesystem may show the file's change late.
    Raises CheckpointError if the file holds anything but a number.
    """
    path = root / POINTER
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not re.fullmatch(r"\s*[0-9]+\s*", text):
        raise CheckpointError(f"{path}: holds {text[:40]!r}, expected one iteration number")
    return int(text)


def find(root: Path, iteration: int) -> Path:
    """The folder of a complete checkpoint; the moved-aside one if a save was killed before its successor had the name.

    Raises CheckpointError naming the folder and the iterations that are there.
    """
    for folder in (final_folder(root, iteration), old_folder(root, iteration)):
        if folder.is_dir():
            return folder
    there = complete_iterations(root) if root.is_dir() else ()
    way_out = (
        f"complete checkpoints there: {', '.join(map(str, there))}; write one of them into {root / POINTER}"
        if there
        else "no complete checkpoint is there"
    )
    raise CheckpointError(f"{final_folder(root, iteration)}: no such checkpoint; {way_out}")
