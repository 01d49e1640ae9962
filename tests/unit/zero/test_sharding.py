"""Layouts: every element has one owner, padding has none, blocks never straddle ranks."""

import pytest

from megatron_zero.zero.sharding import MEMBER_ALIGNMENT_NUMEL, NORM_BLOCK_NUMEL, lay_out_unit

SHAPES = {
    "one element": [("a", (1,))],
    "one member": [("a", (64, 64))],
    "odd sizes": [("a", (3, 5)), ("b", (7,)), ("c", (1,))],
    "numel below ranks": [("a", (2,)), ("b", (1,))],
    "just over a block": [("a", (1025,)), ("b", (1023,))],
    "scalar": [("a", ()), ("b", (65,))],
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("num_shards", [1, 2, 3, 8])
def test_every_element_is_owned_exactly_once(shapes, num_shards):
    layout = lay_out_unit("u", shapes, num_shards=num_shards)
    owned = {name: [] for name, _ in shapes}
    for rank in range(num_shards):
        start, stop = layout.shard_range(rank)
        for span in layout.owned_spans(rank):
            assert span.shard_start >= 0 and span.shard_start + span.numel <= stop - start
            member = next(m for m in layout.members if m.name == span.name)
            assert start + span.shard_start == member.start + span.member_start
            owned[span.name].extend(range(span.member_start, span.member_start + span.numel))
    for member in layout.members:
        assert owned[member.name] == list(range(member.numel))


@pytest.mark.parametrize("num_shards", [1, 2, 3, 8])
def test_members_are_aligned_and_shards_are_whole_blocks(num_shards):
    layout = lay_out_unit("u", SHAPES["odd sizes"], num_shards=num_shards)
    assert all(member.start % MEMBER_ALIGNMENT_NUMEL == 0 for member in layout.members)
    assert layout.numel == num_shards * layout.shard_numel
    assert layout.shard_numel % NORM_BLOCK_NUMEL == 0
    assert layout.parameter_numel == 15 + 7 + 1


def test_member_places_do_not_depend_on_the_number_of_shards():
    places = [[m.start for m in lay_out_unit("u", SHAPES["odd sizes"], num_shards=n).members] for n in (1, 2, 5)]
    assert places[0] == places[1] == places[2]


REPLICATED = {
    "none": frozenset(),
    "all": frozenset("abc"),
    "the first": frozenset("a"),
    "the last": frozenset("c"),
    "one of another unit": frozenset({"z", "b"}),
}


@pytest.mark.parametrize("replicated", REPLICATED.values(), ids=REPLICATED.keys())
@pytest.mark.parametrize("num_shards", [1, 2, 3, 8])
def test_every_block_is_wholly_replicated_or_wholly_split(num_shards, replicated):
    """Real elements inside the replicated ranges of the shards are those of replicated members, and nobody else's."""
    shapes = [("a", (3, 5)), ("b", (2047,)), ("c", (1024,))]
    layout = lay_out_unit("u", shapes, num_shards=num_shards, replicated=replicated)
    assert layout.replicated_start % NORM_BLOCK_NUMEL == layout.replicated_stop % NORM_BLOCK_NUMEL == 0
    assert layout.numel % (num_shards * NORM_BLOCK_NUMEL) == 0
    inside = {name: 0 for name, _ in shapes}
    for rank in range(num_shards):
        start, stop = layout.replicated_in_shard(rank)
        assert 0 <= start <= stop <= layout.shard_numel
        assert start % NORM_BLOCK_NUMEL == stop % NORM_BLOCK_NUMEL == 0
        for span in layout.owned_spans(rank):
            whole = start <= span.shard_start and span.shard_start + span.numel <= stop
            assert whole is (span.name in replicated) or span.numel == 0
            inside[span.name] += span.numel if whole else 0
    assert inside == {m.name: m.numel if m.name in replicated else 0 for m in layout.members}


def test_replicated_members_come_last_and_both_keep_their_order():
    layout = lay_out_unit("u", [(n, (10,)) for n in "abcd"], num_shards=1, replicated={"c", "a"})
    assert [(m.name, m.start) for m in layout.members] == [("b", 0), ("d", 64), ("a", 1024), ("c", 1088)]
    assert (layout.replicated_start, layout.replicated_stop, layout.numel) == (1024, 2048, 2048)


def test_replicated_ranges_of_shards_are_cut_where_the_shards_are():
    """Three blocks split, four replicated, five of padding: shards of three blocks."""
    shapes = [("split", (3 * 1024,)), ("norm", (4 * 1024,))]
    layout = lay_out_unit("u", shapes, num_shards=4, replicated={"norm"})
    assert layout.shard_numel == 2 * 1024
    assert [layout.replicated_in_shard(rank) for rank in range(4)] == [(2048, 2048), (1024, 2048), (0, 2048), (0, 1024)]
    with pytest.raises(ValueError, match="shard 4 of 4"):
        layout.replicated_in_shard(4)


def test_a_rank_past_the_data_owns_nothing():
    layout = lay_out_unit("u", [("a", (10,))], num_shards=4)
    assert [len(layout.owned_spans(rank)) for rank in range(4)] == [1, 0, 0, 0]


def test_bad_requests_raise_with_the_names():
    with pytest.raises(ValueError, match="num_shards is 0"):
        lay_out_unit("u", [("a", (1,))], num_shards=0)
    with pytest.raises(ValueError, match="unit u has no parameters"):
        lay_out_unit("u", [], num_shards=1)
    with pytest.raises(ValueError, match=r"listed twice.*'a'"):
        lay_out_unit("u", [("a", (1,)), ("a", (2,))], num_shards=1)
    with pytest.raises(ValueError, match="shard 2 of 2"):
        lay_out_unit("u", [("a", (1,))], num_shards=2).shard_range(2)
