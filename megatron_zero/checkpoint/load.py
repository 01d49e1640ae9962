"""load_checkpoint: every rank reads what it wants from whichever rank's file holds it, verified, bit-exact."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from megatron_zero.distributed.collectives import all_gather_object
from megatron_zero.distributed.context import ParallelAxis

from .errors import CheckpointError
from .folder import find
from .manifest import COMMON, Header, Manifest, data_name, header_name
from .plan import Piece, Record, plan_load
from .store import VerifiedReader, check_size, read_file
from .tensors import DTYPES, TensorSlice, check_byte_order
from .together import together


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load brings besides the tensors it filled.

    common: as saved (tuples as lists).   rank_state: this rank's tensors on the CPU, {} if no such rank was saved.
    saved_world_size, layout: of the run that saved. Where layout is not the caller's own, rank_state is of other ranks and
    the caller decides (and says) whether to use it or to seed anew.
    unread_keys: tensors in the checkpoint that no rank wanted; the same on every rank.
    """

    common: dict[str, Any]
    rank_state: dict[str, Tensor]
    saved_world_size: int
    layout: Mapping[str, int]
    unread_keys: tuple[str, ...]


def read_common(root: Path, iteration: int, *, axis: ParallelAxis) -> dict[str, Any]:
    """The common values of root/global_step{iteration}, and nothing else: whether it fits can be judged before a load.

    Every rank of axis calls it; raises on all ranks if any fails.
    """
    with together(axis, f"reading checkpoint at iteration {iteration} in {root}"):
        folder = find(Path(root), iteration)
        common: dict[str, Any] = json.loads(read_file(folder, Manifest.read(folder).entry(folder, COMMON)))
    return common


def stored_tensors(root: Path, iteration: int) -> dict[str, tuple[int, ...]]:
    """Key -> shape of every tensor in root/global_step{iteration}, sorted by key. For one process."""
    folder = find(Path(root), iteration)
    manifest = Manifest.read(folder)
    headers = [_read_header(folder, manifest, rank) for rank in range(manifest.world_size)]
    extents = [record.extent for header in headers for record in header.slices]
    return {extent.key: extent.shape for extent in sorted(extents, key=lambda extent: extent.key)}


def load_checkpoint(root: Path, iteration: int, *, wanted: Sequence[TensorSlice], axis: ParallelAxis) -> Loaded:
    """Fill wanted[*].data in place, bit for bit, from root/global_step{iteration}.

    Every rank of axis (the world) calls it; each reads what it needs of the files, in chunks, and keeps no copy.
    Raises on all ranks if any fails: CheckpointError/OSError when files are missing, damaged or do not hold a wanted
    element; ConfigError when a tensor has another shape or dtype. wanted may then be partly filled.
    """
    root = Path(root)
    with together(axis, f"loading checkpoint at iteration {iteration} from {root}"):
        check_byte_order()
        folder = find(root, iteration)
        manifest = Manifest.read(folder)
        if manifest.iteration != iteration:
            raise CheckpointError(f"{folder}: holds iteration {manifest.iteration}, expected {iteration}: renamed by hand?")
        for entry in manifest.files.values():
            check_size(folder, entry)
        headers = [_read_header(folder, manifest, rank) for rank in range(manifest.world_size)]
        records = [record for header in headers for record in header.slices]
        _fill(folder, manifest, wanted, records)
        rank_state = _read_rank_state(folder, manifest, headers[axis.rank]) if axis.rank < len(headers) else {}
        common = json.loads(read_file(folder, manifest.entry(folder, COMMON)))
    stored = {record.extent.key for record in records}
    for keys in all_gather_object({each.key for each in wanted}, axis=axis):
        stored -= keys
    return Loaded(common, rank_state, manifest.world_size, manifest.layout, tuple(sorted(stored)))


def _read_header(folder: Path, manifest: Manifest, rank: int) -> Header:
    content = read_file(folder, manifest.entry(folder, header_name(rank)))
    return Header.decode(content, path=folder / header_name(rank), data=manifest.entry(folder, data_name(rank)))


def _fill(folder: Path, manifest: Manifest, wanted: Sequence[TensorSlice], records: Sequence[Record]) -> None:
    plan = plan_load([each.extent() for each in wanted], records)
    for file, pieces in plan.by_file().items():
        with VerifiedReader(folder, manifest.entry(folder, file)) as reader:
            for piece in pieces:
                target = wanted[piece.index].data.detach()[piece.position : piece.position + piece.numel]
                _read_piece(reader, piece, target)


def _read_piece(reader: VerifiedReader, piece: Piece, target: Tensor) -> None:
    """target: 1-D, numel of the piece; filled. An element never spans two chunks: chunk sizes are multiples of 8."""
    item = target.element_size()
    chunk_bytes = reader.entry.chunk_bytes
    done = 0
    while done < piece.numel:
        index, within = divmod(piece.offset + done * item, chunk_bytes)
        count = min(piece.numel - done, (chunk_bytes - within) // item)
        source = torch.frombuffer(reader.chunk(index), dtype=target.dtype, count=count, offset=within)
        target[done : done + count].copy_(source)
        done += count


def _read_rank_state(folder: Path, manifest: Manifest, header: Header) -> dict[str, Tensor]:
    state = {}
    with VerifiedReader(folder, manifest.entry(folder, data_name(header.rank))) as reader:
        for record in header.rank_state:
            extent = record.extent
            tensor = torch.empty(extent.numel, dtype=DTYPES[extent.dtype])
            _read_piece(reader, Piece(record.file, record.offset, 0, 0, extent.numel), tensor)
            state[extent.key] = tensor.reshape(extent.shape)
    return state
