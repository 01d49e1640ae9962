"""JsonlLog: one JSON object a step in a file that survives kills and resumes without a step missing or told twice."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from megatron_zero.config.fields import ConfigError


class JsonlLog:
    """The file of --log-jsonl, open for one run. A context manager.

    resume_iteration: the iteration that training goes on from; 0 = a fresh start. On resume, lines of later iterations
    are dropped (they will come again), as is a last line torn by a kill. On a fresh start a file that is there is moved
    aside to the first free name of path.1, path.2, ...; nothing is overwritten. say: is told what was done.
    Raises ConfigError if the path cannot be opened or holds other things; OSError if the disk fails or is full.
    """

    def __init__(self, path: str | Path, resume_iteration: int, *, say: Callable[[str], None] = print) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.is_file() and self.path.stat().st_size > 0:
                if resume_iteration > 0:
                    _keep_until(self.path, resume_iteration, say)
                else:
                    next(_parsed(self.path), None)  # raises for a file that is not ours: that one is not moved
                    _move_aside(self.path, say)
            # Unbuffered: a line is with the operating system when write() returns, so a kill of this process keeps it.
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115  # closed by close()
        except (FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
            raise ConfigError(
                f"--log-jsonl {self.path} cannot be written ({error.strerror}: {error.filename}); "
                "name a file in a folder that can be written"
            ) from error

    def __enter__(self) -> JsonlLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def write(self, value: Mapping[str, Any]) -> None:
        """Append one line. Raises OSError with path and byte counts if not all of it could be written."""
        line = json.dumps(value, allow_nan=False).encode("ascii") + b"\n"
        done = 0
        while done < len(line):
            try:
                done += self._file.write(line[done:]) or 0
            except OSError as error:
                raise OSError(
                    error.errno, f"{error.strerror} (wrote {done} of {len(line)} bytes of a line)", str(self.path)
                ) from error

    def close(self) -> None:
        self._file.close()


def _move_aside(path: Path, say: Callable[[str], None]) -> None:
    number = 1
    while (aside := path.with_name(f"{path.name}.{number}")).exists():
        number += 1
    os.rename(path, aside)
    say(f"--log-jsonl: {path} was there and this run starts fresh; moved to {aside}")


def _keep_until(path: Path, last: int, say: Callable[[str], None]) -> None:
    """Rewrite path (new file, fsync, rename) with the lines up to iteration `last`; leave it if that is all."""
    temporary = path.with_name(f"{path.name}.tmp")
    dropped, is_torn, ends_with_newline = 0, False, True
    with open(temporary, "wb") as kept:
        for line, iteration in _parsed(path):
            if iteration is None:
                is_torn = True
            elif iteration > last:
                dropped += 1
            else:
                kept.write(line.rstrip(b"\n") + b"\n")
                ends_with_newline = line.endswith(b"\n")
        kept.flush()
        os.fsync(kept.fileno())
    if not dropped and not is_torn and ends_with_newline:
        temporary.unlink()
        return
    os.replace(temporary, path)
    if dropped:
        say(f"--log-jsonl: {path}: dropped {dropped} lines after iteration {last}, where this run resumes")
    if is_torn:
        say(f"--log-jsonl: {path}: dropped the last line, which a killed run had left unfinished")


def _parsed(path: Path) -> Iterator[tuple[bytes, int | None]]:
    """(line, its iteration), the latter None for a last line that is unfinished.

    Raises ConfigError for any other line that is not an object with an integer "iteration": the file is not ours.
    """
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                iteration = json.loads(line)["iteration"]
            except (ValueError, KeyError, TypeError):
                iteration = None
            if type(iteration) is int:
                yield line, iteration
            elif not line.endswith(b"\n"):  # only the last line of a file can be without one
                yield line, None
            else:
                raise ConfigError(
                    f'--log-jsonl {path} line {number} is not a JSON object with an integer "iteration": '
                    "not a metrics file of this program, or damaged; name another file or move this one away"
                )
