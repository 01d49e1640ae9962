"""Interval arithmetic of saving and loading, on edge tables."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from megatron_zero.checkpoint.errors import CheckpointError
from megatron_zero.checkpoint.plan import Extent, LoadPlan, Record, check_complete, plan_load, plan_save
from megatron_zero.config.fields import ConfigError


def extent(start: int, numel: int, *, key: str = "master/w", shape: tuple[int, ...] = (10, 10)) -> Extent:
    return Extent(key, shape, "float32", start, numel)


def random_extents(rng: random.Random, tensors: dict[str, tuple[int, ...]], *, num_cuts: int) -> list[Extent]:
    """Each tensor cut at num_cuts places; equal places give empty extents."""
    extents = []
    for key, shape in tensors.items():
        total = math.prod(shape)
        edges = [0, *sorted(rng.randrange(total + 1) for _ in range(num_cuts)), total]
        extents += [extent(a, b - a, key=key, shape=shape) for a, b in pairwise(edges)]
    return extents


def element(of: Extent, index: int) -> int:
    """A number that tells every element of every tensor from all others."""
    return ord(of.key) * 1000 + of.start + index


def apply(plan: LoadPlan, wanted: list[Extent], files: dict[str, list[int]]) -> list[list[int | None]]:
    """Carry the plan out on lists: files hold one number per element, placed at offset / 4."""
    out: list[list[int | None]] = [[None] * each.numel for each in wanted]
    for piece in plan.pieces:
        for i in range(piece.numel):
            assert out[piece.index][piece.position + i] is None, "an element was filled twice"
            out[piece.index][piece.position + i] = files[piece.file][piece.offset // 4 + i]
    return out


def test_records_are_aligned_in_order_and_do_not_overlap() -> None:
    plan = plan_save([extent(0, 3), extent(3, 0), extent(3, 17), extent(20, 1)], file="f", alignment=64)
    assert [record.offset for record in plan.records] == [0, 64, 64, 192]
    assert plan.file_bytes == 192 + 4


@pytest.mark.parametrize("start, numel", [(-1, 2), (99, 2), (0, 101), (0, -1)])
def test_extent_outside_its_tensor_is_refused_by_name(start: int, numel: int) -> None:
    with pytest.raises(ValueError, match=r"master/w: elements .* not inside shape \(10, 10\), which has 100"):
        plan_save([extent(start, numel)], file="f")


def test_unknown_dtype_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="master/w: dtype complex64 cannot be stored"):
        plan_save([Extent("master/w", (2,), "complex64", 0, 2)], file="f")


@pytest.mark.parametrize("seed", range(30))
def test_any_cut_loads_what_any_other_cut_saved(seed: int) -> None:
    rng = random.Random(seed)
    tensors = {"a": (7, 11), "b": (1,), "c": (5, 3, 2)}
    saved = random_extents(rng, tensors, num_cuts=5)
    rng.shuffle(saved)
    records: list[Record] = []
    files: dict[str, list[int]] = {}
    for index in range(3):
        plan = plan_save(saved[index::3], file=f"f{index}", alignment=16)
        content = [-1] * (plan.file_bytes // 4)
        for record in plan.records:
            for i in range(record.extent.numel):
                content[record.offset // 4 + i] = element(record.extent, i)
        files[f"f{index}"] = content
        records += plan.records
    check_complete(record.extent for record in records)
    wanted = random_extents(rng, tensors, num_cuts=rng.randrange(6))
    rng.shuffle(wanted)
    filled = apply(plan_load(wanted, records), wanted, files)
    for each, values in zip(wanted, filled, strict=True):
        assert values == [element(each, i) for i in range(each.numel)]


def test_overlapping_records_fill_each_element_once() -> None:
    records = [Record(extent(0, 60), "f", 0), Record(extent(10, 20), "g", 0), Record(extent(40, 60), "h", 0)]
    plan = plan_load([extent(5, 90)], records)
    files = {"f": list(range(60)), "g": list(range(10, 30)), "h": list(range(40, 100))}
    assert apply(plan, [extent(5, 90)], files) == [list(range(5, 95))]


def test_pieces_are_sorted_by_file_and_offset() -> None:
    records = [Record(extent(50, 50), "f", 0), Record(extent(0, 50), "f", 200)]
    plan = plan_load([extent(0, 100)], records)
    assert [piece.offset for piece in plan.pieces] == [0, 200]


@pytest.mark.parametrize(
    "saved, wanted, missing",
    [
        ([(0, 40), (50, 50)], (0, 100), r"\[40, 50\)"),
        ([(0, 40)], (30, 20), r"\[40, 50\)"),
        ([(10, 90)], (0, 100), r"\[0, 10\)"),
        ([(0, 10)], (50, 5), r"\[50, 55\)"),
    ],
)
def test_missing_elements_are_named(saved: list[tuple[int, int]], wanted: tuple[int, int], missing: str) -> None:
    records = [Record(extent(*run), "f", 0) for run in saved]
    with pytest.raises(CheckpointError, match=rf"tensor master/w: elements {missing} of shape \(10, 10\)"):
        plan_load([extent(*wanted)], records)


def test_missing_tensor_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"tensor master/v \(10, 10\) is not in the checkpoint"):
        plan_load([extent(0, 100, key="master/v")], [Record(extent(0, 100), "f", 0)])


def test_other_shape_names_both_shapes() -> None:
    with pytest.raises(ConfigError, match=r"master/w: the checkpoint has shape \(10, 10\), this model wants \(20, 5\)"):
        plan_load([extent(0, 100, shape=(20, 5))], [Record(extent(0, 100), "f", 0)])


def test_other_dtype_names_both_dtypes() -> None:
    with pytest.raises(ConfigError, match="master/w: the checkpoint has float32, this run wants bfloat16"):
        plan_load([Extent("master/w", (10, 10), "bfloat16", 0, 1)], [Record(extent(0, 100), "f", 0)])


def test_empty_wanted_extent_needs_no_bytes() -> None:
    assert plan_load([extent(100, 0)], [Record(extent(0, 100), "f", 0)]).pieces == ()


@pytest.mark.parametrize("runs, missing", [([(0, 99)], r"\[99, 100\)"), ([(1, 99)], r"\[0, 1\)"), ([(0, 0)], r"\[0, 100\)")])
def test_incomplete_save_names_the_gap(runs: list[tuple[int, int]], missing: str) -> None:
    with pytest.raises(ValueError, match=rf"master/w: no rank saves elements {missing}"):
        check_complete(extent(*run) for run in runs)


def test_ranks_with_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="master/w: ranks disagree"):
        check_complete([extent(0, 100), extent(0, 100, shape=(100,))])
