"""Pure: how a unit's parameters lie in one flat range, and which part of it each rank owns.

A *unit* is what one all-gather brings in. Its *members* (parameters) lie end to end in a flat range of `numel`
elements, which is cut into `num_shards` equal *shards*. No process group, no tensor: only integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Every member starts on a multiple of this: 128 bytes in the narrowest (2-byte) dtype. One number for all dtypes, so
# that the block order of the gradient norm is the same in fp32 and bf16.
MEMBER_ALIGNMENT_NUMEL = 64

# A shard is a whole number of these, so that a block of the gradient norm never straddles two ranks.
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
    """members in flat order; numel includes padding between members and at the end."""

    name: str
    members: tuple[Member, ...]
    numel: int
    num_shards: int

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


def lay_out_unit(name: str, shapes: Sequence[tuple[str, tuple[int, ...]]], *, num_shards: int) -> UnitLayout:
    """Lay (parameter name, shape) pairs end to end in the given order, aligned, padded to a multiple of the shards.

    Raises ValueError for num_shards < 1, a repeated name, or a unit without parameters.
    """
    if num_shards < 1:
        raise ValueError(f"unit {name}: num_shards is {num_shards}, must be at least 1")
    if not shapes:
        raise ValueError(f"unit {name} has no parameters")
    names = [member_name for member_name, _ in shapes]
    if len(set(names)) != len(names):
        raise ValueError(f"unit {name}: a parameter is listed twice: {sorted(n for n in names if names.count(n) > 1)}")
    members = []
    end = 0
    for member_name, shape in shapes:
        start = _round_up(end, MEMBER_ALIGNMENT_NUMEL)
        members.append(Member(member_name, tuple(shape), start))
        end = members[-1].stop
    return UnitLayout(name, tuple(members), max(1, _round_up(end, num_shards * NORM_BLOCK_NUMEL)), num_shards)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
