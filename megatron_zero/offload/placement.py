"""Pure: the twin-flow plan. Which sub-groups rest on which tier, exact to the element.

DEVICE takes what the next forward needs first (offload.md section 3: the earliest deadlines), HOST the rest; the one
sub-group on the boundary is cut. `ratio` counts elements of parameters, never sub-groups and never padding.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from megatron_zero.optim.subgroup import SubGroup

# The boundary between tiers falls on a multiple of this many elements, counted in forward order: 256 bytes of fp32.
CUT_ALIGNMENT_NUMEL = 64


class Tier(enum.Enum):
    """Where a sub-group's master, exp_avg and exp_avg_sq rest, and so which kernel steps it."""

    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Placed:
    subgroup: SubGroup
    tier: Tier


@dataclass(frozen=True, slots=True)
class TwinFlowPlan:
    """placed: in forward order (earliest deadline first)."""

    placed: tuple[Placed, ...]
    ratio_asked: float

    def numel(self, tier: Tier) -> int:
        return sum(item.subgroup.numel for item in self.placed if item.tier is tier)

    @property
    def ratio_realised(self) -> float:
        """Share of this rank's elements that is not on DEVICE; ratio_asked for a rank that owns nothing."""
        total = sum(item.subgroup.numel for item in self.placed)
        return self.numel(Tier.HOST) / total if total else self.ratio_asked


def plan_twin_flow(subgroups: Sequence[SubGroup], *, ratio: float) -> TwinFlowPlan:
    """Put the last round(ratio * elements) elements, in forward order, on HOST.

    The boundary depends on the elements alone, never on how they are cut into sub-groups.
    |realised - asked| <= (CUT_ALIGNMENT_NUMEL / 2 + 1) / elements; exactly 0 at 0 and 1 at 1.
    Raises ValueError for a ratio outside [0, 1].
    """
    if not 0.0 <= ratio <= 1.0:
        raise ValueError(f"ratio is {ratio}, must lie in [0, 1]")
    device_left = _device_numel(sum(group.numel for group in subgroups), ratio)
    placed = []
    for group in subgroups:
        if device_left >= group.numel:
            placed.append(Placed(group, Tier.DEVICE))
        elif device_left == 0:
            placed.append(Placed(group, Tier.HOST))
        else:
            head, tail = group.split(device_left)
            placed += [Placed(head, Tier.DEVICE), Placed(tail, Tier.HOST)]
        device_left = max(0, device_left - group.numel)
    return TwinFlowPlan(tuple(placed), ratio)


def _device_numel(total: int, ratio: float) -> int:
    exact = total - round(ratio * total)
    if exact in (0, total) or total <= 16 * CUT_ALIGNMENT_NUMEL:
        return exact  # nothing to align, or too few elements to give any away
    return min(total, (exact + CUT_ALIGNMENT_NUMEL // 2) // CUT_ALIGNMENT_NUMEL * CUT_ALIGNMENT_NUMEL)
