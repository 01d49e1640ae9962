"""The split is by elements, exact, and blind to how sub-groups are cut (offload.md section 2; H1)."""

import pytest

from megatron_zero.offload.placement import CUT_ALIGNMENT_NUMEL, Tier, plan_twin_flow
from megatron_zero.optim.subgroup import Span, plan_subgroups

RATIOS = [i / 10 for i in range(11)] + [0.01, 0.99, 1 / 3]


def units(*sizes):
    return [[(Span(f"p{i}", (n,), 0, 0, n), i % 2 == 0)] for i, n in enumerate(sizes)]


@pytest.mark.parametrize("sizes", [(1,), (5,), (100,), (64, 1, 3000), (10_000, 77, 50_000), (1_000_003,)])
@pytest.mark.parametrize("sub_group_size", [7000, 10**9])
@pytest.mark.parametrize("ratio", RATIOS)
def test_realised_ratio_is_within_1024_elements(sizes, sub_group_size, ratio):
    plan = plan_twin_flow(plan_subgroups(units(*sizes), sub_group_size=sub_group_size), ratio=ratio)
    total = sum(sizes)
    assert plan.numel(Tier.DEVICE) + plan.numel(Tier.HOST) == total
    assert abs(plan.ratio_realised - ratio) <= (CUT_ALIGNMENT_NUMEL / 2 + 1) / total <= 1024 / total
    if ratio in (0.0, 1.0):
        assert plan.ratio_realised == ratio


@pytest.mark.parametrize("ratio", RATIOS)
def test_the_boundary_does_not_depend_on_sub_group_size(ratio):
    plans = [
        plan_twin_flow(plan_subgroups(units(999, 10_007, 4096), sub_group_size=size), ratio=ratio)
        for size in (1, 63, 1000, 10**9)
    ]
    assert len({plan.numel(Tier.HOST) for plan in plans}) == 1


def test_device_takes_the_earliest_deadlines():
    plan = plan_twin_flow(plan_subgroups(units(3000, 3000, 3000), sub_group_size=500), ratio=0.5)
    tiers = [item.tier for item in plan.placed]
    assert tiers == sorted(tiers, key=lambda tier: tier is Tier.HOST)
    assert [item.subgroup.unit for item in plan.placed] == sorted(item.subgroup.unit for item in plan.placed)


def test_shares_rise_strictly_over_the_ratio():
    groups = plan_subgroups(units(3000, 1000), sub_group_size=10**9)
    shares = [plan_twin_flow(groups, ratio=i / 10).numel(Tier.HOST) for i in range(11)]
    assert shares == sorted(set(shares)) and shares[0] == 0 and shares[-1] == 4000


def test_a_rank_that_owns_nothing_has_an_empty_plan():
    plan = plan_twin_flow((), ratio=0.3)
    assert plan.placed == () and plan.ratio_realised == 0.3


@pytest.mark.parametrize("ratio", [-0.1, 1.5, float("nan")])
def test_ratio_outside_0_1_raises(ratio):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        plan_twin_flow((), ratio=ratio)
