"""Sums over tensor parallel that gradients still need after data parallelism: of what every rank holds whole."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from megatron_zero.distributed.collectives import all_reduce_

from .group import TensorParallel


def sum_replicated_(shards: Sequence[Tensor], replicated: Sequence[tuple[int, int]], *, tp: TensorParallel) -> None:
    """Sum each shard's [start, stop) over the tensor-parallel ranks, all in one all-reduce; mutates shards.

    Under sequence parallelism the gradients of replicated parameters are those of a rank's own tokens; afterwards they
    are whole, and the same bits on every rank of the axis. Without it they are whole already: nothing happens.
    shards: 1-D, fp32, of one device.   replicated: one range a shard, equal on every rank of the axis.
    """
    if not tp.sequence_parallel:
        return
    parts = [shard[start:stop] for shard, (start, stop) in zip(shards, replicated, strict=True) if start < stop]
    if not parts:
        return
    total = torch.cat(parts)
    all_reduce_(total, axis=tp.axis)
    for part, summed in zip(parts, total.split([part.numel() for part in parts]), strict=True):
        part.copy_(summed)
