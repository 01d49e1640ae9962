"""Sub-groups cover each owned element once, whatever their size."""

import pytest

from megatron_zero.optim.subgroup import Run, Span, SubGroup, plan_subgroups


def span(name, numel, shard_start, member_start=0):
    return Span(name, (numel + member_start,), member_start, shard_start, numel)


UNITS = (
    [(span("w", 100, 0), True), (span("b", 10, 128), False), (span("w2", 33, 192, member_start=5), True)],
    [],
    [(span("norm", 7, 64), False)],
)


def elements(groups):
    return sorted(
        (g.unit, s.name, s.member_start + i, s.shard_start + i) for g in groups for s in g.spans for i in range(s.numel)
    )


@pytest.mark.parametrize("size", [1, 2, 7, 64, 100, 101, 1000])
def test_elements_do_not_depend_on_sub_group_size(size):
    groups = plan_subgroups(UNITS, sub_group_size=size)
    assert elements(groups) == elements(plan_subgroups(UNITS, sub_group_size=10**9))
    assert len(elements(groups)) == len(set(elements(groups))) == 150
    assert all(0 < group.numel <= size for group in groups)


def test_a_sub_group_has_one_unit_and_one_decay():
    groups = plan_subgroups(UNITS, sub_group_size=10**9)
    assert [(g.unit, g.decays, g.numel) for g in groups] == [(0, True, 133), (0, False, 10), (2, False, 7)]


def test_runs_merge_what_is_contiguous():
    group = SubGroup(0, True, (span("a", 4, 0), span("b", 6, 4), span("c", 5, 16)))
    assert group.runs() == (Run(0, 0, 10), Run(16, 10, 5))


def test_split_keeps_places_and_refuses_the_ends():
    group = SubGroup(0, True, (span("a", 4, 0), span("b", 6, 64, member_start=2)))
    head, tail = group.split(7)
    assert (head.numel, tail.numel) == (7, 3)
    assert tail.spans == (Span("b", (8,), 5, 67, 3),)
    assert elements((head, tail)) == elements((group,))
    for numel in (0, 10, 11):
        with pytest.raises(ValueError, match="cannot split 10 elements"):
            group.split(numel)


def test_sub_group_size_below_one_raises():
    with pytest.raises(ValueError, match="sub_group_size is 0"):
        plan_subgroups(UNITS, sub_group_size=0)
