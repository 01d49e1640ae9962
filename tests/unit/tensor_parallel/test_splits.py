"""Runs pick the elements that numpy's own cut of the array holds, for any piece of them."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from megatron_zero.config.fields import ConfigError
from megatron_zero.tensor_parallel.group import TensorParallel
from megatron_zero.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron_zero.tensor_parallel.splits import Run, TensorSplit, collect_splits

SIZES = (1, 2, 3, 4, 8)


def random_case(rng):
    """(shape, dim, size): up to four dims, of 1 to 5 parts of each size; sometimes empty, sometimes not cut."""
    size = rng.choice(SIZES)
    shape = [rng.choice((1, 1, 2, 3, 5)) for _ in range(rng.randint(1, 4))]
    dim = rng.choice([None, *range(len(shape))])
    if dim is not None:
        shape[dim] = size * rng.choice((0, 1, 1, 2, 3))
    return tuple(shape), dim, size


def picked(split, start, numel):
    """Logical flat indices that the runs name, in order."""
    return [index for run in split.runs(start, numel) for index in range(run.start, run.start + run.numel)]


@pytest.mark.parametrize("seed", range(300))
def test_runs_pick_what_numpy_split_holds(seed):
    rng = random.Random(seed)
    shape, dim, size = random_case(rng)
    logical = np.arange(math.prod(shape)).reshape(shape)
    for rank in range(size):
        split = TensorSplit(shape, dim, rank, size)
        part = logical if dim is None else np.split(logical, size, axis=dim)[rank]
        assert split.local_shape == part.shape
        local = part.ravel().tolist()
        assert picked(split, 0, len(local)) == local
        for _ in range(5):
            start = rng.randint(0, len(local))
            numel = rng.randint(0, len(local) - start)
            assert picked(split, start, numel) == local[start : start + numel]


@pytest.mark.parametrize("seed", range(50))
def test_runs_are_merged_and_never_empty(seed):
    shape, dim, size = random_case(random.Random(seed))
    for rank in range(size):
        split = TensorSplit(shape, dim, rank, size)
        runs = list(split.runs(0, math.prod(split.local_shape)))
        assert all(run.numel > 0 for run in runs)
        assert all(run.start + run.numel < after.start for run, after in itertools.pairwise(runs))


@pytest.mark.parametrize("seed", range(50))
def test_the_ranks_cover_a_cut_parameter_once(seed):
    shape, dim, size = random_case(random.Random(seed))
    if dim is None:
        return
    parts = [TensorSplit(shape, dim, rank, size) for rank in range(size)]
    everywhere = [index for part in parts for index in picked(part, 0, math.prod(part.local_shape))]
    assert sorted(everywhere) == list(range(math.prod(shape)))


@pytest.mark.parametrize(
    "split, start, numel, runs",
    [
        (TensorSplit((8, 3), 0, 1, 4), 0, 6, [Run(6, 6)]),
        (TensorSplit((2, 8, 3), 1, 1, 4), 0, 12, [Run(6, 6), Run(30, 6)]),
        (TensorSplit((2, 8, 3), 1, 1, 4), 5, 2, [Run(11, 1), Run(30, 1)]),
        (TensorSplit((2, 8, 3), 1, 0, 1), 0, 48, [Run(0, 48)]),
        (TensorSplit((2, 8), None, 3, 4), 3, 13, [Run(3, 13)]),
        (TensorSplit((), None, 0, 2), 0, 1, [Run(0, 1)]),
        (TensorSplit((8, 3), 0, 1, 4), 6, 0, []),
        (TensorSplit((8, 0), 0, 1, 4), 0, 0, []),
    ],
)
def test_runs_of_the_model_s_cuts(split, start, numel, runs):
    assert list(split.runs(start, numel)) == runs


def test_a_size_that_does_not_divide_names_shape_dim_and_the_nearest():
    split = TensorSplit((2, 10, 3), 1, 0, 4)
    with pytest.raises(
        ConfigError,
        match=r"dim 1 of a parameter of shape \(2, 10, 3\) is 10.*size 4; nearest valid: 8 or 12",
    ):
        _ = split.local_shape
    with pytest.raises(ValueError, match=r"nearest valid: 4$"):
        next(TensorSplit((3,), 0, 0, 4).runs(0, 1))


@pytest.mark.parametrize("start, numel", [(-1, 1), (0, -1), (0, 7), (6, 1), (5, 2)])
def test_elements_outside_of_the_part_are_refused(start, numel):
    with pytest.raises(ValueError, match=r"not within the 6 of the local shape \(2, 3\)"):
        list(TensorSplit((8, 3), 0, 1, 4).runs(start, numel))


def test_a_split_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match=r"rank 2 is not in \[0, size 2\)"):
        TensorSplit((4,), 0, 2, 2)
    with pytest.raises(ValueError, match=r"dim 1 is not a dim of shape \(4,\)"):
        TensorSplit((4,), 1, 0, 2)
    with pytest.raises(ValueError, match="dim -1"):
        TensorSplit((4,), -1, 0, 2)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        tp = TensorParallel.single()
        self.up = ColumnParallelLinear(4, (2, 6), split_dim=1, bias=True, tp=tp)
        self.down = RowParallelLinear(6, 4, bias=True, tp=tp)
        self.norm = nn.LayerNorm(4)
        self.tied = nn.Linear(4, 6, bias=False)
        self.tied.weight = self.down.weight
        self.gain = nn.Parameter(torch.zeros(3))


def test_splits_are_collected_by_parameter_name_and_the_rest_is_replicated():
    module = Small()
    splits = collect_splits(module)
    assert list(splits) == [name for name, _ in module.named_parameters()]
    assert splits["up.weight"] == TensorSplit((2, 6, 4), 1, 0, 1)
    assert splits["up.bias"] == TensorSplit((2, 6), 1, 0, 1)
    assert splits["down.weight"] == TensorSplit((6, 4), 0, 0, 1)
    assert splits["down.bias"] == TensorSplit((4,), None, 0, 1)
    assert splits["norm.weight"] == TensorSplit((4,), None, 0, 1)
    assert splits["gain"].replicated and not splits["up.bias"].replicated
    assert collect_splits(module.up)["weight"] == splits["up.weight"]


def test_a_declaration_that_does_not_fit_the_module_is_refused():
    module = Small()
    module.up.splits["weight"] = TensorSplit((4, 6, 4), 1, 0, 2)
    with pytest.raises(ValueError, match=r"parameter up\.weight has shape \(2, 6, 4\), but .* local shape \(4, 3, 4\)"):
        collect_splits(module)
    module = Small()
    module.down.splits["gain"] = TensorSplit((3,), None, 0, 1)
    with pytest.raises(ValueError, match=r"module down declares splits of \['gain'\], .* \['bias', 'weight'\]"):
        collect_splits(module)
