"""Which text files --input names: files, globs and standard input, and how each is compressed.

Compression is told by a file's first bytes, not by its name: a .gz that is plain text is read as text, and gzip data
without that name is unpacked.
"""

from __future__ import annotations

import glob
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ..config.fields import ConfigError
from .zstd_frames import FRAME_MAGIC, is_skippable

STDIN: Final = "-"
STDIN_NAME: Final = "<stdin>"
GZIP: Final = "gzip"
ZSTD: Final = "zstd"
MAGIC_BYTES: Final = 6
NOT_READ: Final = MappingProxyType(
    {b"\xfd7zXZ\x00": "xz -dc", b"BZh": "bzip2 -dc", b"PK\x03\x04": "unzip -p", b"\x04\x22\x4d\x18": "lz4 -dc"}
)


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What a regular file was when the run began. Device and inode tell one file from another, size and time its content:
    network file systems may number a file anew while it is open."""

    device: int
    inode: int
    num_bytes: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class TextSource:
    """One input. path: None for standard input.   identity: None for a pipe, whose compression is found in reading.

    is_lasting: path names the file in every process; /dev/fd/3 does so in this one only.
    """

    name: str
    path: str | None
    compression: str = ""
    identity: FileIdentity | None = None
    is_lasting: bool = True

    def check_unchanged(self, descriptor: int) -> None:
        """Errors: OSError if the open file is not the one that the run began with."""
        self._compare(os.fstat(descriptor))

    def check_still_unchanged(self) -> None:
        """After the whole run: also what was added behind the last piece that was read. Errors: OSError."""
        if self.identity is not None and self.path is not None:
            self._compare(os.stat(self.path))

    def _compare(self, status: os.stat_result) -> None:
        if self.identity is None:
            return
        now = FileIdentity.of(status)
        if (now.num_bytes, now.mtime_ns) != (self.identity.num_bytes, self.identity.mtime_ns):
            raise OSError(
                f"{self.name}: changed while it was read (it had {self.identity.num_bytes} bytes when the run began, now "
                f"{now.num_bytes}); run again when nobody writes to it"
            )


def find_sources(names: Sequence[str], *, flag: str = "--input") -> tuple[TextSource, ...]:
    """The inputs in the order given, those of a glob by name. A name that exists is that file, whatever is in it.

    Errors: ConfigError for what is missing, a folder, named twice, or compressed in a way that is not read; OSError.
    """
    sources = [_source(name, flag) for given in names for name in _expanded(given, flag)]
    seen: dict[tuple[int, int] | str, str] = {}
    for source in sources:
        key = _file_key(source)
        if key in seen:
            also = f" ({seen[key]})" if seen[key] != source.name else ""
            raise ConfigError(
                f"{flag} {source.name}: named twice{also}, so each of its documents would come twice; name it once "
                "(training weighs data sets in --data-path)"
            )
        seen[key] = source.name
    return tuple(sources)


def compression_of(first_bytes: bytes, *, name: str) -> str:
    """GZIP, ZSTD or "" for text. Errors: ConfigError, with the way out, for other compressed files."""
    if first_bytes.startswith(b"\x1f\x8b"):
        return GZIP
    if first_bytes.startswith(FRAME_MAGIC) or is_skippable(first_bytes):
        return ZSTD
    for magic, command in NOT_READ.items():
        if first_bytes.startswith(magic):
            raise ConfigError(
                f"--input {name}: compressed in a way that is not read here; unpack it on the way: "
                f"{command} FILE | ... --input {STDIN}"
            )
    return ""


def _expanded(name: str, flag: str) -> Iterator[str]:
    if name == STDIN or os.path.lexists(name) or not glob.has_magic(name):
        yield name
        return
    matches = sorted(glob.glob(name, recursive=True))
    if not matches:
        raise ConfigError(f"{flag} {name}: there is no such file, and as a pattern it matches none")
    yield from matches


def _source(name: str, flag: str) -> TextSource:
    if name == STDIN:
        if sys.stdin is None:  # its number may be another file's by now
            raise ConfigError(f"{flag} {STDIN}: standard input is closed")
        return TextSource(STDIN_NAME, None)
    if name == "":
        raise ConfigError(f"{flag} '': an empty name; an unset variable?")
    try:
        status = os.stat(name)
    except FileNotFoundError:
        raise ConfigError(f"{flag} {name}: there is no such file") from None
    if stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"{flag} {name}: is a folder; give its files, e.g. '{Path(name) / '*.jsonl'}'")
    if not stat.S_ISREG(status.st_mode):
        return TextSource(name, name)
    with open(name, "rb") as file:
        identity = FileIdentity.of(os.fstat(file.fileno()))
        compression = compression_of(file.read(MAGIC_BYTES), name=name)
    path = lasting_path(name)
    return TextSource(name, path or name, compression, identity, is_lasting=path is not None)


def lasting_path(name: str) -> str | None:
    """A path of an existing file that means it in other processes, too; None where there is none (a file without a name
    that is open as /dev/fd/3)."""
    path = os.path.realpath(name)
    try:
        return path if os.path.samefile(path, name) else None
    except OSError:
        return None


def _file_key(source: TextSource) -> tuple[int, int] | str:
    """Equal for two names of one file."""
    if source.identity is not None:
        return source.identity.device, source.identity.inode
    if source.path is None:
        try:
            status = os.fstat(sys.stdin.fileno())
        except (OSError, ValueError):  # no descriptor behind it
            return STDIN
        # `tool --input - FILE <FILE` would read the file twice.
        return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else STDIN
    status = os.stat(source.path)
    return status.st_dev, status.st_ino
