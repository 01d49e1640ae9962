"""Which layers are run again, for every granularity, method and number of layers."""

import pytest

from megatron_zero.config.training import RecomputeConfig
from megatron_zero.model.recompute import plan_recompute


def shape(plan):
    return [(chunk.start, chunk.stop, again) for chunk, again in zip(plan.chunks, plan.recomputed, strict=True)]


@pytest.mark.parametrize("granularity", [None, "selective"])
def test_without_full_recompute_no_layer_runs_twice(granularity):
    plan = plan_recompute(RecomputeConfig(recompute_granularity=granularity), num_layers=3)
    assert shape(plan) == [(0, 1, False), (1, 2, False), (2, 3, False)]
    assert plan.core_attention == (granularity == "selective")
    assert plan.recomputed_layers == 0


@pytest.mark.parametrize(
    "layers,size,wanted",
    [
        (3, 1, [(0, 1, True), (1, 2, True), (2, 3, True)]),
        (4, 2, [(0, 2, True), (2, 4, True)]),
        (5, 2, [(0, 2, True), (2, 4, True), (4, 5, True)]),
        (5, 5, [(0, 5, True)]),
        (0, 1, []),
    ],
)
def test_uniform(layers, size, wanted):
    plan = plan_recompute(
        RecomputeConfig(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=size),
        num_layers=layers,
    )
    assert shape(plan) == wanted
    assert not plan.core_attention
    assert plan.recomputed_layers == layers


@pytest.mark.parametrize("size,count", [(1, 1), (3, 3), (4, 4)])
def test_block(size, count):
    plan = plan_recompute(
        RecomputeConfig(checkpoint_activations=True, recompute_method="block", recompute_num_layers=size), num_layers=4
    )
    assert shape(plan) == [(index, index + 1, index < size) for index in range(4)]
    assert plan.recomputed_layers == count


@pytest.mark.parametrize("layers", range(6))
@pytest.mark.parametrize("method", ["uniform", "block"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_chunks_are_all_layers_in_order(layers, method, size):
    plan = plan_recompute(
        RecomputeConfig(recompute_granularity="full", recompute_method=method, recompute_num_layers=size), num_layers=layers
    )
    assert [layer for chunk in plan.chunks for layer in chunk] == list(range(layers))
    assert len(plan.recomputed) == len(plan.chunks)
