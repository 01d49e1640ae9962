"""The mesh of ranks as values: ParallelAxis is one named axis seen from this rank, ParallelContext all of them.

The mesh has shape (pp, dp, tp) with tp innermost, Megatron's order: global rank = (pp_rank * dp + dp_rank) * tp + tp_rank.
*axis* is of the mesh, *dim* of a tensor. Rank lists are pure (mesh_rank_lists), so they are tested without processes.
Refuses to know: how the ranks were launched (launch.py) and what travels over an axis (collectives.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from megatron_zero.config.fields import ConfigError
from megatron_zero.config.parallel import ParallelConfig


@dataclass(frozen=True, slots=True)
class ParallelAxis:
    """One named axis of the mesh, as seen from this rank.

    rank: this rank's position on the axis, an index into global_ranks.   group: None exactly when size is 1.
    """

    name: str
    size: int
    rank: int
    group: ProcessGroup | None
    global_ranks: tuple[int, ...]

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        return self.rank == self.size - 1

    @staticmethod
    def single(name: str, global_rank: int = 0) -> ParallelAxis:
        """An axis of one rank: every collective over it is a no-op and needs no process group."""
        return ParallelAxis(name=name, size=1, rank=0, group=None, global_ranks=(global_rank,))


def mesh_rank_lists(*, pp: int, dp: int, tp: int) -> Mapping[str, tuple[tuple[int, ...], ...]]:
    """Axis name -> the global ranks of each of its groups, both in an order that is the same on every rank.

    "world" is one list of all. "model" is tp x pp for one dp position, sorted. "embedding" joins the first and the last
    stage (one rank when pp is 1); ranks of middle stages are in none of its lists. All others cover every rank once.
    """
    if min(pp, dp, tp) < 1:
        raise ValueError(f"mesh widths must be at least 1, got pp={pp}, dp={dp}, tp={tp}")

    def at(p: int, d: int, t: int) -> int:
        return (p * dp + d) * tp + t

    stages, replicas, parts = range(pp), range(dp), range(tp)
    ends = (0,) if pp == 1 else (0, pp - 1)
    return MappingProxyType(
        {
            "world": (tuple(range(pp * dp * tp)),),
            "tp": tuple(tuple(at(p, d, t) for t in parts) for p in stages for d in replicas),
            "dp": tuple(tuple(at(p, d, t) for d in replicas) for p in stages for t in parts),
            "pp": tuple(tuple(at(p, d, t) for p in stages) for d in replicas for t in parts),
            "model": tuple(tuple(at(p, d, t) for p in stages for t in parts) for d in replicas),
            "embedding": tuple(tuple(at(p, d, t) for p in ends) for d in replicas for t in parts),
        }
    )


def _make_groups(
    rank_lists: Mapping[str, tuple[tuple[int, ...], ...]], *, device: torch.device, timeout: timedelta
) -> dict[tuple[int, ...], ProcessGroup]:
    """Rank list -> its process group, for every list of two or more ranks.

    Creating a group is a collective of the whole world: each rank walks all lists in the same order, also those it is
    not in. Equal lists (tp and model without pipeline) share a group, and a list of everyone is the world group, because
    each NCCL communicator holds device memory.
    """
    everyone = rank_lists["world"][0]
    groups: dict[tuple[int, ...], ProcessGroup] = {}
    for lists in rank_lists.values():
        for ranks in lists:
            if len(ranks) == 1 or ranks in groups:
                continue
            if ranks == everyone:
                assert dist.group.WORLD is not None
                groups[ranks] = dist.group.WORLD
            else:
                device_id = device if device.type == "cuda" else None
                groups[ranks] = dist.new_group(list(ranks), timeout=timeout, device_id=device_id)
    return groups


@dataclass(frozen=True, slots=True)
class ParallelContext:
    """Every axis of the mesh and this rank's device. Passed down; a module keeps only the axis it uses.

    world: all ranks.   tp: tensor parallel, innermost.   dp: data parallel, ZeRO shards over it.   pp: stages, outermost.
    model: tp x pp, for norms.   embedding: first and last stage, for tied embeddings (size 1 in a middle stage).
    """

    device: torch.device
    world: ParallelAxis
    tp: ParallelAxis
    dp: ParallelAxis
    pp: ParallelAxis
    model: ParallelAxis
    embedding: ParallelAxis

    @staticmethod
    def create(
        parallel: ParallelConfig, *, rank: int, world_size: int, device: torch.device, timeout: timedelta
    ) -> ParallelContext:
        """The mesh of this run; collective over the world, inside launch.process_group.

        The data-parallel size is world_size / (tp * pp). Raises ConfigError when that does not divide; the check looks
        only at numbers that every rank holds, so all ranks raise together.
        """
        tp, pp = parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size
        if tp < 1 or pp < 1:
            raise ConfigError(
                f"--tensor-model-parallel-size {tp} and --pipeline-model-parallel-size {pp} must be at least 1"
            )
        if world_size % (tp * pp) != 0:
            raise ConfigError(
                f"{world_size} processes do not divide into groups of --tensor-model-parallel-size {tp} x "
                f"--pipeline-model-parallel-size {pp} = {tp * pp}; start a multiple of {tp * pp} processes"
            )
        rank_lists = mesh_rank_lists(pp=pp, dp=world_size // (tp * pp), tp=tp)
        groups = _make_groups(rank_lists, device=device, timeout=timeout)

        def axis(name: str) -> ParallelAxis:
            for ranks in rank_lists[name]:
                if rank in ranks:
                    return ParallelAxis(name, len(ranks), ranks.index(rank), groups.get(ranks), ranks)
            return ParallelAxis.single(name, rank)

        return ParallelContext(
            device, axis("world"), axis("tp"), axis("dp"), axis("pp"), axis("model"), axis("embedding")
        )

    @staticmethod
    def single_process(device: torch.device | str = "cpu") -> ParallelContext:
        """A mesh of one rank: size-1 axes, no process group, nothing to initialise."""
        axes = [ParallelAxis.single(name) for name in ("world", "tp", "dp", "pp", "model", "embedding")]
        return ParallelContext(torch.device(device), *axes)
