"""Pure: what one optimizer tick updates.

A *sub-group* is a slice of one unit's shard whose elements share their hyperparameters, at most `sub_group_size`
elements. Its state (master, exp_avg, exp_avg_sq) is contiguous; its spans say where those elements lie in the shard
and in the parameters. Cutting it anywhere never changes a result: the update is elementwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive elements of one parameter in one shard.

    member_start: first element within the flattened parameter.   shard_start: its place within the unit's shard.
    """

    name: str
    shape: tuple[int, ...]
    member_start: int
    shard_start: int
    numel: int

    def head(self, numel: int) -> Span:
        """The first `numel` elements."""
        return dataclasses.replace(self, numel=numel)

    def tail(self, numel: int) -> Span:
        """All but the first `numel` elements."""
        return dataclasses.replace(
            self,
            member_start=self.member_start + numel,
            shard_start=self.shard_start + numel,
            numel=self.numel - numel,
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Elements contiguous both in the shard and in the sub-group's state: what one kernel call takes."""

    shard_start: int
    state_start: int
    numel: int


@dataclass(frozen=True, slots=True)
class SubGroup:
    """unit: index of the unit in forward order.   decays: whether weight decay applies.   spans: in flat order."""

    unit: int
    decays: bool
    spans: tuple[Span, ...]

    @property
    def numel(self) -> int:
        return sum(span.numel for span in self.spans)

    def runs(self) -> tuple[Run, ...]:
        """The fewest contiguous runs that cover the spans in order."""
        runs: list[Run] = []
        position = 0
        for span in self.spans:
            if runs and runs[-1].shard_start + runs[-1].numel == span.shard_start:
                runs[-1] = dataclasses.replace(runs[-1], numel=runs[-1].numel + span.numel)
            else:
                runs.append(Run(span.shard_start, position, span.numel))
            position += span.numel
        return tuple(runs)

    def split(self, numel: int) -> tuple[SubGroup, SubGroup]:
        """(first `numel` elements, the rest); ValueError unless 0 < numel < self.numel."""
        if not 0 < numel < self.numel:
            raise ValueError(f"cannot split {self.numel} elements at {numel}")
        first: list[Span] = []
        rest: list[Span] = []
        left = numel
        for span in self.spans:
            taken = min(left, span.numel)
            if taken:
                first.append(span.head(taken))
            if taken < span.numel:
                rest.append(span.tail(taken))
            left -= taken
        return (
            dataclasses.replace(self, spans=tuple(first)),
            dataclasses.replace(self, spans=tuple(rest)),
        )


def plan_subgroups(units: Sequence[Iterable[tuple[Span, bool]]], *, sub_group_size: int) -> tuple[SubGroup, ...]:
    """Sub-groups of every unit in forward order, decaying ones first within a unit.

    units: per unit its owned (span, decays) pairs in flat order; a unit of which this rank owns nothing has none.
    Raises ValueError for sub_group_size < 1.
    """
    if sub_group_size < 1:
        raise ValueError(f"sub_group_size is {sub_group_size}, must be at least 1")
    groups: list[SubGroup] = []
    for index, pairs in enumerate(units):
        owned = tuple(pairs)
        for decays in (True, False):
            spans = tuple(span for span, span_decays in owned if span_decays is decays)
            if spans:
                groups.extend(_cut(SubGroup(index, decays, spans), sub_group_size))
    return tuple(groups)


def _cut(group: SubGroup, size: int) -> Iterator[SubGroup]:
    while group.numel > size:
        head, group = group.split(size)
        yield head
    yield group
