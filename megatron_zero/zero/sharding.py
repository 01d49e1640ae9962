"""Pure: how a unit's parameters lie in one flat range, and which part of it each rank owns.

A *unit* is what one all-gather brings in. Its *members* (parameters) lie end to end in a flat range of `numel`
elements, which is cut into `num_shards` equal *shards*. No process group, no tensor: only integers.

A member is *replicated* if tensor parallelism keeps a whole copy of it on each of its ranks, otherwise *split* (a rank's
own part is all that this file sees of it). Replicated members come last, from the start of a block on: what has to be
summed over tensor parallel, counted once in the norm and saved once is one range.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

# Every member starts on a multiple of this: 128 bytes in the narrowest (2-byte) dtype. One number for all dtypes, so
# that the block order of the gradient norm is the same in fp32 and bf16.
MEMBER_ALIGNMENT_NUMEL = 64

# A shard is a whole number of these, so that a block of the gradient norm never straddles two ranks; and each of them
# is wholly replicated or wholly split.
NORM_BLOCK_NUMEL = 1024


@dataclass(frozen=True, slots=True)
class Member:
    """One parameter's place in the flat range: elements [start, start + numel)."""

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def stop(self) -> int:
        return self.start + self.numel


@dataclass(frozen=True, slots=True)
class OwnedSpan:
    """The part of one member that lies in one shard.

    member_start: first owned element within the flattened member.   shard_start: its place within the shard.
    """

    name: str
    shape: tuple[int, ...]
    member_start: int
    shard_start: int
    numel: int


@dataclass(frozen=True, slots=True)
class UnitLayout:
    """members in flat order; numel includes padding between members and at the end.

    replicated_start, replicated_stop: the blocks that hold the replicated members; behind them is only padding.
    """

    name: str
    members: tuple[Member, ...]
    numel: int
    num_shards: int
    replicated_start: int
    replicated_stop: int

    @property
    def shard_numel(self) -> int:
        return self.numel // self.num_shards

    @property
    def parameter_numel(self) -> int:
        """Elements of real parameters, without padding."""
        return sum(member.numel for member in self.members)

    def shard_range(self, rank: int) -> tuple[int, int]:
        """[start, stop) of a rank's shard in the flat range."""
        if not 0 <= rank < self.num_shards:
            raise ValueError(f"unit {self.name}: shard {rank} of {self.num_shards} does not exist")
        return rank * self.shard_numel, (rank + 1) * self.shard_numel

    def replicated_in_shard(self, rank: int) -> tuple[int, int]:
        """[start, stop) of the replicated blocks within a rank's shard; start == stop if it has none of them."""
        first, last = self.shard_range(rank)
        start = min(max(self.replicated_start, first), last)
        return start - first, max(start, min(self.replicated_stop, last)) - first

    def owned_spans(self, rank: int) -> tuple[OwnedSpan, ...]:
        """The real elements of a rank's shard, in flat order; padding belongs to nobody."""
        first, last = self.shard_range(rank)
        spans = []
        for member in self.members:
            start, stop = max(first, member.start), min(last, member.stop)
            if start < stop:
                spans.append(
                    OwnedSpan(member.name, member.shape, start - member.start, start - first, stop - start)
                )
        return tuple(spans)


def lay_out_unit(
    name: str,
    shapes: Sequence[tuple[str, tuple[int, ...]]],
    *,
    num_shards: int,
    replicated: Collection[str] = frozenset(),
) -> UnitLayout:
    """Lay (parameter name, shape) pairs end to end, aligned, padded to a multiple of the shards.

    Split members first, then those named in `replicated`, each in the given order. Names of other units are ignored.
    Raises ValueError for num_shards < 1, a repeated name, or a unit without parameters.
    """
    if num_shards < 1:
        raise ValueError(f"unit {name}: num_shards is {num_shards}, must be at least 1")
    if not shapes:
        raise ValueError(f"unit {name} has no parameters")
    names = [member_name for member_name, _ in shapes]
    if len(set(names)) != len(names):
        raise ValueError(f"unit {name}: a parameter is listed twice: {sorted(n for n in names if names.count(n) > 1)}")
    split = _place([pair for pair in shapes if pair[0] not in replicated], start=0)
    replicated_start = _round_up(_end(split), NORM_BLOCK_NUMEL)
    whole = _place([pair for pair in shapes if pair[0] in replicated], start=replicated_start)
    replicated_stop = max(replicated_start, _round_up(_end(whole), NORM_BLOCK_NUMEL))
    numel = max(1, _round_up(replicated_stop, num_shards * NORM_BLOCK_NUMEL))
    return UnitLayout(name, (*split, *whole), numel, num_shards, replicated_start, replicated_stop)


def _place(shapes: Sequence[tuple[str, tuple[int, ...]]], *, start: int) -> tuple[Member, ...]:
    """Members one after the other from start on, each aligned."""
    members = []
    for name, shape in shapes:
        members.append(Member(name, tuple(shape), _round_up(start, MEMBER_ALIGNMENT_NUMEL)))
        start = members[-1].stop
    return tuple(members)


def _end(members: Sequence[Member]) -> int:
    return members[-1].stop if members else 0


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
