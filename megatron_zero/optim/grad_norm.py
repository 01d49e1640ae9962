"""Global gradient norm over shards, each element counted once, blind to tiers and cuts.

Squares are summed in fp64 over fixed blocks of each unit's flat range, blocks are combined in a fixed tree, units in
forward order: the result does not depend on ratio, tier or sub_group_size, nor on the number of threads.
What tensor parallelism replicates lies in blocks of its own, and its first rank counts them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK_NUMEL = 1024  # equals zero.sharding.NORM_BLOCK_NUMEL: a shard is a whole number of blocks
_CHUNK_BLOCKS = 4096  # bounds the fp64 copy to 32 MiB


def counted_parts(
    shards: Sequence[Tensor], replicated: Sequence[tuple[int, int]], *, counts_replicated: bool
) -> list[Tensor]:
    """Views of what this rank counts: everything, or (counts_replicated False) all but the replicated [start, stop)."""
    if counts_replicated:
        return list(shards)
    parts = []
    for shard, (start, stop) in zip(shards, replicated, strict=True):
        parts += [shard[:start], shard[stop:]]
    return parts


def sum_of_squares(shards: Sequence[Tensor]) -> Tensor:
    """fp64 scalar on the shards' device: the sum of squares of all shards (fp32, whole blocks each, or empty). No host sync.

    Raises ValueError for a shard that is not a whole number of blocks.
    """
    total = torch.zeros((), dtype=torch.float64, device=shards[0].device)
    for shard in shards:
        if shard.numel() % BLOCK_NUMEL:
            raise ValueError(f"a gradient shard of {shard.numel()} elements is not whole blocks of {BLOCK_NUMEL}")
        if shard.numel() == 0:
            continue
        blocks = shard.view(-1, BLOCK_NUMEL)
        sums = [chunk.double().square_().sum(1) for chunk in blocks.split(_CHUNK_BLOCKS)]
        total = total + _combine(torch.cat(sums))
    return total


def clip_coefficient(norm: float, *, max_norm: float) -> float:
    """min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0 (clipping off)."""
    if max_norm == 0.0:
        return 1.0
    return min(1.0, max_norm / (norm + 1e-6))


def norm_of(square_sum: float) -> float:
    """The norm of a sum of squares; NaN and infinity stay what they are."""
    return math.sqrt(square_sum) if square_sum >= 0 else math.nan


def _combine(values: Tensor) -> Tensor:
    # Rows of BLOCK_NUMEL, then their sums again: each row is summed by one thread in one order, where a plain sum()
    # over a long vector is split by the number of threads.
    while values.numel() > 1:
        padding = -values.numel() % BLOCK_NUMEL
        values = torch.nn.functional.pad(values, (0, padding)).view(-1, BLOCK_NUMEL).sum(1)
    return values[0]
