"""Which elements lie where, and which bytes fill what: pure arithmetic on intervals, without torch and without I/O.

An *extent* is a run of elements of one flattened tensor; a *record* is an extent at a place in a file; a *piece* is the
part of a record that fills part of a wanted extent. Because saving and loading meet only in element numbers of the
logical tensor, a load may cut the tensors otherwise than the save did (data-parallel size, stage, ratio, sub-groups).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from megatron_zero.config.fields import ConfigError

from .errors import CheckpointError

ALIGNMENT: Final = 64  # bytes; only the writer uses it, readers take every offset from the header

ITEM_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "bool": 1,
        "uint8": 1,
        "int8": 1,
        "int16": 2,
        "int32": 4,
        "int64": 8,
        "float16": 2,
        "bfloat16": 2,
        "float32": 4,
        "float64": 8,
    }
)


@dataclass(frozen=True, slots=True)
class Extent:
    """Elements [start, start + numel) of the flattened tensor `key`, whose global shape is `shape`."""

    key: str
    shape: tuple[int, ...]
    dtype: str  # a key of ITEM_BYTES
    start: int
    numel: int

    @property
    def stop(self) -> int:
        return self.start + self.numel

    @property
    def num_bytes(self) -> int:
        return self.numel * ITEM_BYTES[self.dtype]

    def check(self) -> None:
        """Raises ValueError if the dtype is unknown or the range is not inside the tensor."""
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"tensor {self.key}: dtype {self.dtype} cannot be stored; one of {', '.join(ITEM_BYTES)}")
        whole = math.prod(self.shape)
        if self.start < 0 or self.numel < 0 or self.stop > whole:
            raise ValueError(
                f"tensor {self.key}: elements [{self.start}, {self.stop}) are not inside shape {self.shape}, "
                f"which has {whole}"
            )


@dataclass(frozen=True, slots=True)
class Record:
    """An extent that lies in `file`, its first byte at `offset`, element after element, little-endian."""

    extent: Extent
    file: str
    offset: int

    @property
    def end(self) -> int:
        return self.offset + self.extent.num_bytes


@dataclass(frozen=True, slots=True)
class SavePlan:
    """Records of one file in the order in which they are written; gaps between them are zero bytes."""

    records: tuple[Record, ...]
    file_bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """numel elements at byte offset of file, which become elements [position, position + numel) of wanted[index]."""

    file: str
    offset: int
    index: int
    position: int
    numel: int


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Pieces by file and rising offset, so that every file is read once, forwards."""

    pieces: tuple[Piece, ...]

    def by_file(self) -> Mapping[str, tuple[Piece, ...]]:
        files: dict[str, list[Piece]] = {}
        for piece in self.pieces:
            files.setdefault(piece.file, []).append(piece)
        return {file: tuple(pieces) for file, pieces in files.items()}


def align_up(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def plan_save(extents: Sequence[Extent], *, file: str, alignment: int = ALIGNMENT) -> SavePlan:
    """Places for the extents in one file, in the order given, each at a multiple of alignment.

    Raises ValueError for an extent that is not inside its tensor.
    """
    records = []
    end = 0
    for extent in extents:
        extent.check()
        record = Record(extent, file, align_up(end, alignment))
        records.append(record)
        end = record.end
    return SavePlan(tuple(records), end)


def check_complete(extents: Iterable[Extent]) -> None:
    """That the extents of all ranks together hold every element of every tensor they name, with one shape and dtype.

    Elements held by several ranks are allowed. Raises ValueError naming the tensor: a checkpoint that could not be
    loaded must not be published.
    """
    for key, group in _by_key(extents).items():
        first = group[0]
        for other in group[1:]:
            if (other.shape, other.dtype) != (first.shape, first.dtype):
                raise ValueError(
                    f"tensor {key}: ranks disagree, {first.dtype} {first.shape} and {other.dtype} {other.shape}"
                )
        end = 0
        for extent in sorted(group, key=lambda each: each.start):
            if extent.start > end:
                raise ValueError(f"tensor {key}: no rank saves elements [{end}, {extent.start}) of shape {first.shape}")
            end = max(end, extent.stop)
        if end < math.prod(first.shape):
            raise ValueError(
                f"tensor {key}: no rank saves elements [{end}, {math.prod(first.shape)}) of shape {first.shape}"
            )


def plan_load(wanted: Sequence[Extent], records: Iterable[Record]) -> LoadPlan:
    """How records fill every element of every wanted extent, each element exactly once.

    Raises CheckpointError naming the tensor and the elements that are in no file; ConfigError when a tensor is there
    with another shape or dtype.
    """
    stored: dict[str, list[Record]] = {}
    for record in records:
        stored.setdefault(record.extent.key, []).append(record)
    for group in stored.values():
        group.sort(key=lambda record: record.extent.start)
    pieces: list[Piece] = []
    for index, extent in enumerate(wanted):
        extent.check()
        group = stored.get(extent.key, [])
        _check_same_tensor(extent, group)
        pieces.extend(_pieces(index, extent, group))
    return LoadPlan(tuple(sorted(pieces, key=lambda piece: (piece.file, piece.offset))))


def _by_key(extents: Iterable[Extent]) -> dict[str, list[Extent]]:
    groups: dict[str, list[Extent]] = {}
    for extent in extents:
        groups.setdefault(extent.key, []).append(extent)
    return groups


def _check_same_tensor(extent: Extent, group: Sequence[Record]) -> None:
    if not group:
        raise CheckpointError(
            f"tensor {extent.key} {extent.shape} is not in the checkpoint; this model or optimizer needs it"
        )
    for record in group:
        saved = record.extent
        if saved.shape != extent.shape:
            raise ConfigError(
                f"tensor {extent.key}: the checkpoint has shape {saved.shape}, this model wants {extent.shape}; "
                "give the model sizes that the checkpoint was made with"
            )
        if saved.dtype != extent.dtype:
            raise ConfigError(
                f"tensor {extent.key}: the checkpoint has {saved.dtype}, this run wants {extent.dtype}; "
                "precision is not converted on load"
            )


def _pieces(index: int, extent: Extent, group: Sequence[Record]) -> Iterator[Piece]:
    """Fill extent from the left. group: records of its tensor by rising start; where they overlap any one is used."""
    item = ITEM_BYTES[extent.dtype]
    done = extent.start
    for record in group:
        saved = record.extent
        if done >= extent.stop or saved.start > done:
            break
        stop = min(saved.stop, extent.stop)
        if stop > done:
            offset = record.offset + (done - saved.start) * item
            yield Piece(record.file, offset, index, done - extent.start, stop - done)
            done = stop
    if done < extent.stop:
        # Up to the next stored element, not up to the end of what is wanted: the message names what is missing.
        after = [record.extent.start for record in group if record.extent.start > done]
        gap = min([extent.stop, *after])
        raise CheckpointError(
            f"tensor {extent.key}: elements [{done}, {gap}) of shape {extent.shape} are in no file of the checkpoint"
        )
