"""Every stage and ratio trains like one process without sharding or offload (F2, F3, F4 of the checks).

Across layouts sums change order, so losses and norms agree to rounding; over ratio and sub_group_size on one layout
nothing changes order, so everything is bit-equal.
"""

import pytest
import torch
from helpers.tiny_run import initial_weights, run_tiny, tiny_arguments, write_json

from megatron_zero.distributed.context import ParallelContext

LOSS_RTOL, NORM_RTOL = 1e-5, 1e-4  # F4, up to six steps in fp32
LAYOUTS = [(0, None)] + [(1, None), (2, None), (3, None)] + [(s, r) for s in (1, 2, 3) for r in (0.0, 0.3, 1.0)]


def runs_on_rank(ctx, argument_lists):
    return [run_tiny(ctx, argv) for argv in argument_lists]


@pytest.fixture(scope="module")
def configs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")

    def make(stage, ratio=None, **more):
        name = f"{stage}_{ratio}_{len(list(folder.iterdir()))}.json"
        return write_json(folder / name, stage=stage, ratio=ratio, **more)

    return make


@pytest.fixture(scope="module")
def reference(corpus):
    """F3: one process, stage 0, no offload, no JSON."""
    return run_tiny(ParallelContext.single_process(), tiny_arguments(corpus, None))


def assert_agrees(result, reference):
    """F4, step by step."""
    assert len(result.losses) == len(reference.losses) == 6
    torch.testing.assert_close(
        torch.tensor(result.losses, dtype=torch.float64),
        torch.tensor(reference.losses, dtype=torch.float64),
        rtol=LOSS_RTOL,
        atol=0,
    )
    torch.testing.assert_close(
        torch.tensor(result.norms, dtype=torch.float64),
        torch.tensor(reference.norms, dtype=torch.float64),
        rtol=NORM_RTOL,
        atol=0,
    )


def assert_bit_equal(one, other):
    assert one.losses == other.losses and one.norms == other.norms
    assert one.weights.keys() == other.weights.keys()
    for name in one.weights:
        torch.testing.assert_close(one.weights[name], other.weights[name], rtol=0, atol=0, msg=name)
    assert_states_bit_equal(one, other)


def assert_states_bit_equal(one, other):
    """Masters and moments, put together by parameter: the two may be cut differently."""
    ours, theirs = assembled(one), assembled(other)
    assert ours.keys() == theirs.keys()
    for key in ours:
        torch.testing.assert_close(ours[key], theirs[key], rtol=0, atol=0, msg=key)


def assembled(result):
    pieces = {}
    for key, start, values in result.state:
        pieces.setdefault(key, []).append((start, values))
    return {
        key: torch.cat([values for _, values in sorted(parts, key=lambda part: part[0])]) for key, parts in pieces.items()
    }


def test_losses_fall(reference):
    assert reference.losses[-1] < reference.losses[0]


def test_stages_and_ratios_agree_with_one_process(pool, corpus, configs, reference):
    """H11's kind: stages 0-3, and 1-3 x ratio {0, .3, 1}, two processes, F4 against F3; ratios bit-equal."""
    argument_lists = [tiny_arguments(corpus, configs(stage, ratio)) for stage, ratio in LAYOUTS]
    by_rank = pool.run(runs_on_rank, argument_lists, timeout_s=300)
    results = dict(zip(LAYOUTS, by_rank[0], strict=True))
    for layout, result in results.items():
        assert_agrees(result, reference)
        stage, ratio = layout
        if ratio is not None:
            assert abs(result.ratio_realised - ratio) < 0.02
            assert_bit_equal(result, results[(stage, None)])
    for ours, theirs in zip(by_rank[0], by_rank[1], strict=True):
        assert ours.losses == theirs.losses and ours.norms == theirs.norms
        for name in ours.weights:
            assert torch.equal(ours.weights[name], theirs.weights[name]), f"ranks differ in {name}"


def test_one_process_is_bit_equal_over_stage_ratio_and_sub_group_size(corpus, configs, reference):
    """offload.md section 2, with the clip active; a size-1 axis is a value, so the stage does not matter either."""
    single = ParallelContext.single_process()
    clipped = {"clip-grad": 0.5}
    base = run_tiny(single, tiny_arguments(corpus, None, **clipped))
    assert all(norm > 0.5 for norm in base.norms)
    for stage, ratio, size in [(1, 0.1, 10**9), (2, 0.5, 1000), (3, 0.3, 777), (3, 1.0, 10**9)]:
        config = configs(stage, ratio, zero_optimization={"sub_group_size": size})
        assert_bit_equal(run_tiny(single, tiny_arguments(corpus, config, **clipped)), base)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_norms_and_first_step_agree_under_an_active_clip(pool, corpus, configs, accumulation):
    """H17: clip 0.01, DP 2, stages 0-3: one norm for all ranks and stages; first-step weights within 0.05 lr."""
    micro = 8 // (2 * accumulation)
    shape = {"clip-grad": 0.01, "micro-batch-size": micro}
    alone = run_tiny(
        ParallelContext.single_process(), tiny_arguments(corpus, None, **{**shape, "train-iters": 1})
    )
    lists = [
        tiny_arguments(corpus, configs(stage), **{**shape, "train-iters": iters})
        for stage in (0, 1, 2, 3)
        for iters in (1, 6)
    ]
    reference_six = run_tiny(ParallelContext.single_process(), tiny_arguments(corpus, None, **shape))
    for rank_results in pool.run(runs_on_rank, lists, timeout_s=300):
        for first_step, six_steps in zip(rank_results[0::2], rank_results[1::2], strict=True):
            assert_agrees(six_steps, reference_six)
            for name, weight in first_step.weights.items():
                torch.testing.assert_close(weight, alone.weights[name], rtol=0, atol=0.05 * 1e-3, msg=name)


def test_recompute_and_dropout_are_bit_equal(corpus):
    """H42 (full recompute): dropout 0.1, on and off."""
    single = ParallelContext.single_process()
    dropout = {"attention-dropout": 0.1, "hidden-dropout": 0.1}
    plain = run_tiny(single, tiny_arguments(corpus, None, **dropout))
    again = run_tiny(single, tiny_arguments(corpus, None, **dropout, **{"checkpoint-activations": True}))
    assert_bit_equal(again, plain)
    assert plain.losses != run_tiny(single, tiny_arguments(corpus, None)).losses


def initial_on_rank(ctx, argument_lists):
    return [initial_weights(ctx, argv) for argv in argument_lists]


@pytest.mark.parametrize("bf16", [False, True])
def test_initial_weights_are_bit_equal_over_stages_and_ranks(pool, corpus, configs, bf16):
    """H14: one seed, one set of weights, whoever owns which part."""
    flags = {"bf16": bf16}
    expected = initial_weights(ParallelContext.single_process(), tiny_arguments(corpus, None, **flags))
    lists = [
        tiny_arguments(corpus, configs(stage, bf16={"enabled": bf16}), **flags) for stage in (0, 1, 2, 3)
    ]
    for rank_results in pool.run(initial_on_rank, lists, timeout_s=120):
        for weights in rank_results:
            assert weights.keys() == expected.keys()
            for name, weight in weights.items():
                torch.testing.assert_close(weight, expected[name], rtol=0, atol=0, msg=name)
    other_seed = initial_weights(ParallelContext.single_process(), tiny_arguments(corpus, None, **flags, seed=7))
    assert not torch.equal(other_seed["embedding.word.weight"], expected["embedding.word.weight"])


def test_bf16_ratios_are_bit_equal_on_two_ranks(pool, corpus, configs):
    lists = [
        tiny_arguments(corpus, configs(stage, ratio, bf16={"enabled": True}), bf16=True)
        for stage in (1, 2, 3)
        for ratio in (None, 0.3, 1.0)
    ]
    for results in pool.run(runs_on_rank, lists, timeout_s=300):
        for first in (0, 3, 6):
            for other in results[first + 1 : first + 3]:
                assert_bit_equal(other, results[first])
