"""save_checkpoint: every rank writes its own slices, then rank 0 publishes all of them at once, or nothing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from megatron_zero.distributed.collectives import all_gather_object
from megatron_zero.distributed.context import ParallelAxis

from .errors import CheckpointError
from .folder import clear_leftovers, publish, temporary_folder
from .manifest import COMMON, MANIFEST, Header, Manifest, data_name, encode_common, header_name
from .plan import Extent, SavePlan, check_complete, plan_save
from .store import ChunkedWriter, FileEntry, write_file
from .tensors import TensorSlice, byte_blocks, dtype_name
from .together import together


@dataclass(frozen=True, slots=True)
class SaveReport:
    """bytes: of the files of all ranks together.   seconds: from call to return.   notes: for the log (rank 0)."""

    bytes: int
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RankFiles:
    """What one rank will write: the plan of its data file and the tensors in the plan's order."""

    plan: SavePlan
    tensors: tuple[Tensor, ...]
    num_slices: int  # the first of them are slices, the rest is rank state

    def extents(self) -> tuple[Extent, ...]:
        return tuple(record.extent for record in self.plan.records[: self.num_slices])


def save_checkpoint(
    root: Path,
    iteration: int,
    *,
    slices: Sequence[TensorSlice],
    common: Mapping[str, Any],
    rank_state: Mapping[str, Tensor],
    axis: ParallelAxis,
    layout: Mapping[str, int] | None = None,
) -> SaveReport:
    """Write root/global_step{iteration} and make it the latest; returns, on every rank, when all of it is durable.

    Every rank of axis (the world) calls it; root must be one folder that all of them see.
    slices: of all ranks together every element of each tensor, at least once.   common: JSON values; rank 0's are kept.
    rank_state: tensors of any shape that belong to this rank alone (RNG).   layout: sizes by axis name, for the record.
    The state is streamed: no second copy of it is made in host memory.

    Raises on all ranks if any rank fails (OSError for I/O); then the temporary folder is gone and the former latest
    checkpoint is untouched. A saved iteration is replaced only once the new one is complete.
    """
    started = time.perf_counter()
    root = Path(root)
    what = f"saving checkpoint at iteration {iteration} to {root}"
    with together(axis, what):
        files = _plan_rank(slices, rank_state, axis.rank)
        common_json = encode_common(common)
    extents = all_gather_object(files.extents(), axis=axis)
    with together(axis, what):
        check_complete(extent for each in extents for extent in each)
    notes: tuple[str, ...] = ()
    temporary = temporary_folder(root, iteration)
    with together(axis, what):
        if axis.is_first:
            root.mkdir(parents=True, exist_ok=True)
            notes = clear_leftovers(root)
            temporary.mkdir()
    try:
        with together(axis, what):
            entries = _write_rank(temporary, axis.rank, files)
        gathered = [entry for each in all_gather_object(entries, axis=axis) for entry in each]
        with together(axis, what):
            if axis.is_first:
                listed = [*gathered, write_file(temporary / COMMON, common_json)]
                manifest = Manifest(iteration, axis.size, layout or {}, {entry.name: entry for entry in listed})
                write_file(temporary / MANIFEST, manifest.encode())
                publish(root, iteration)
    except Exception:
        # All ranks are past together(), so nobody writes into the folder any more.
        if axis.is_first and temporary.exists():
            shutil.rmtree(temporary)
        raise
    num_bytes = sum(entry.num_bytes for entry in gathered)
    return SaveReport(num_bytes, time.perf_counter() - started, notes)


def _plan_rank(slices: Sequence[TensorSlice], rank_state: Mapping[str, Tensor], rank: int) -> RankFiles:
    extents = [each.extent() for each in slices]
    extents += [Extent(key, tuple(each.shape), dtype_name(each), 0, each.numel()) for key, each in rank_state.items()]
    tensors = [each.data for each in slices] + [each.contiguous().reshape(-1) for each in rank_state.values()]
    return RankFiles(plan_save(extents, file=data_name(rank)), tuple(tensors), len(slices))


def _write_rank(folder: Path, rank: int, files: RankFiles) -> tuple[FileEntry, FileEntry]:
    """This rank's data file and header, fsynced."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: made by rank 0 but not seen by rank {rank}; --save must be a shared folder")
    with ChunkedWriter(folder / data_name(rank)) as writer:
        for record, tensor in zip(files.plan.records, files.tensors, strict=True):
            writer.pad_to(record.offset)
            for block in byte_blocks(tensor):
                writer.write(block)
        data = writer.finish()
    records = files.plan.records
    header = Header(rank, records[: files.num_slices], records[files.num_slices :])
    return data, write_file(folder / header_name(rank), header.encode())
