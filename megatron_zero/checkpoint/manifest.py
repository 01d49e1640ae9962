"""The JSON documents of a checkpoint as typed values: the manifest, one header per rank, and the common state.

Only these are parsed; nothing is ever unpickled. format.md shows them.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from .errors import CheckpointError
from .plan import ITEM_BYTES, Extent, Record
from .store import FileEntry

FORMAT: Final = "megatron_zero.checkpoint"
VERSION: Final = 2
# Why a version cannot be read: the file says what is in it, not what it means.
UNREADABLE: Final[Mapping[int, str]] = MappingProxyType(
    {1: "it was made before 0.1.0: attention.dense and mlp.fc2 weights lie the other way round there; train anew"}
)
MANIFEST: Final = "manifest.json"
COMMON: Final = "common.json"


def header_name(rank: int) -> str:
    return f"rank_{rank:05d}.json"


def data_name(rank: int) -> str:
    return f"rank_{rank:05d}.bin"


def to_json(value: Any) -> bytes:
    """Compact, ASCII, key order kept: the same value gives the same bytes."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


@dataclass(frozen=True, slots=True)
class Manifest:
    """All files of one checkpoint but itself. layout: axis name -> size, as the saving run described itself."""

    iteration: int
    world_size: int
    layout: Mapping[str, int]
    files: Mapping[str, FileEntry]

    def encode(self) -> bytes:
        """The document with its own crc32 beside it, since no other file vouches for it."""
        body = {
            "format": FORMAT,
            "version": VERSION,
            "iteration": self.iteration,
            "world_size": self.world_size,
            "layout": dict(self.layout),
            "files": [entry.as_json() for entry in self.files.values()],
        }
        return to_json({"crc32": f"{zlib.crc32(to_json(body)):08x}", "manifest": body}) + b"\n"

    @staticmethod
    def read(folder: Path) -> Manifest:
        """Raises CheckpointError if it is missing, damaged, not ours or of a later version."""
        path = folder / MANIFEST
        try:
            document = json.loads(path.read_bytes())
            body, expected = document["manifest"], int(document["crc32"], 16)
            found = zlib.crc32(to_json(body))
            if not isinstance(body, dict):
                raise TypeError(f"the manifest is a {type(body).__name__}")
        except FileNotFoundError:
            raise CheckpointError(f"{path}: missing; a folder without it is not a complete checkpoint") from None
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: not a manifest of {FORMAT}: {error!r}") from error
        if found != expected:
            raise CheckpointError(f"{path}: has crc32 {found:08x}, expected {expected:08x}: damaged after it was saved")
        kind, version = body.get("format"), body.get("version")
        if (kind, version) != (FORMAT, VERSION):
            why = UNREADABLE.get(version) if kind == FORMAT and isinstance(version, int) else None
            raise CheckpointError(
                f"{path}: format {kind} version {version}, expected {FORMAT} version {VERSION}{f': {why}' if why else ''}"
            )
        try:
            entries = [FileEntry.from_json(entry) for entry in body["files"]]
            return Manifest(body["iteration"], body["world_size"], body["layout"], {each.name: each for each in entries})
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: not a manifest of {FORMAT}: {error!r}") from error

    def entry(self, folder: Path, name: str) -> FileEntry:
        """Raises CheckpointError if the manifest does not list the file."""
        if name not in self.files:
            raise CheckpointError(f"{folder / MANIFEST}: does not list {name}; expected one per rank of {self.world_size}")
        return self.files[name]


@dataclass(frozen=True, slots=True)
class Header:
    """What lies in one rank's data file: slices of the logical tensors, and tensors that belong to this rank alone."""

    rank: int
    slices: tuple[Record, ...]
    rank_state: tuple[Record, ...]

    def encode(self) -> bytes:
        return to_json(
            {
                "format": FORMAT,
                "version": VERSION,
                "rank": self.rank,
                "data": data_name(self.rank),
                "slices": [_record_to_json(record) for record in self.slices],
                "rank_state": [_record_to_json(record) for record in self.rank_state],
            }
        )

    @staticmethod
    def decode(content: bytes, *, path: Path, data: FileEntry) -> Header:
        """path: for messages.   data: the file the records lie in. Raises CheckpointError if they cannot lie there."""
        try:
            value = json.loads(content)
            slices = tuple(_record_from_json(each, data) for each in value["slices"])
            rank_state = tuple(_record_from_json(each, data) for each in value["rank_state"])
            return Header(value["rank"], slices, rank_state)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: not a rank header of {FORMAT}: {error!r}") from error


def _record_to_json(record: Record) -> dict[str, Any]:
    extent = record.extent
    return {
        "key": extent.key,
        "dtype": extent.dtype,
        "shape": list(extent.shape),
        "start": extent.start,
        "numel": extent.numel,
        "offset": record.offset,
    }


def _record_from_json(value: Mapping[str, Any], data: FileEntry) -> Record:
    extent = Extent(value["key"], tuple(value["shape"]), value["dtype"], value["start"], value["numel"])
    extent.check()
    record = Record(extent, data.name, value["offset"])
    if record.offset < 0 or record.offset % ITEM_BYTES[extent.dtype] or record.end > data.num_bytes:
        raise ValueError(
            f"{extent.key}: bytes [{record.offset}, {record.end}) cannot lie in {data.name} of {data.num_bytes}"
        )
    return record


def encode_common(common: Mapping[str, Any]) -> bytes:
    """JSON that decodes to an equal value (tuples come back as lists); floats keep every bit.

    Raises ValueError naming the place of anything JSON would change: non-string keys, NaN and infinity, other objects.
    """
    _check_plain(common, "common")
    return to_json(common)


def _check_plain(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for key, each in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{where}: key {key!r} is not a string and would come back as one")
            _check_plain(each, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for index, each in enumerate(value):
            _check_plain(each, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where} is {value}, which JSON has no word for")
    elif value is not None and not isinstance(value, (str, int, float)):
        raise ValueError(f"{where} is a {type(value).__name__}, which JSON has no word for; tensors go into rank_state")
