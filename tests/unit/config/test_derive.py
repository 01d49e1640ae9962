"""Sizes that follow from configuration and world: batch arithmetic, the ramp, the run's length."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest

from megatron_zero.config.derive import (
    BatchSchedule,
    BatchSizes,
    DerivedSizes,
    RunLength,
    data_parallel_size,
    padded_vocab_size,
)
from megatron_zero.config.fields import ConfigError
from megatron_zero.config.tree import RunConfig, replace_path


def config_with(**values: object) -> RunConfig:
    """A tiny configuration; keywords are field paths with __ for dots."""
    config = RunConfig()
    defaults: dict[str, object] = {
        "model__seq_length": 32,
        "batch__micro_batch_size": 2,
        "batch__global_batch_size": 8,
        "adam__lr": 1e-3,
    }
    for path, value in {**defaults, **values}.items():
        config = replace_path(config, path.replace("__", "."), value)
    return config


def derived(world_size: int = 2, **values: object) -> DerivedSizes:
    return DerivedSizes.of(config_with(**values), world_size=world_size, vocab_size=50)


# Batch arithmetic


@pytest.mark.parametrize(
    "train, micro, accumulation, solved",
    [
        (8, 2, 2, (2, 8, 2)),
        (8, 2, None, (2, 8, 2)),
        (8, None, 2, (2, 8, 2)),
        (None, 2, 2, (2, 8, 2)),
        (8, None, None, (4, 8, 1)),
        (None, 2, None, (2, 4, 1)),
    ],
)
def test_every_solvable_subset_of_the_batch_numbers(
    train: int | None, micro: int | None, accumulation: int | None, solved: tuple[int, int, int]
) -> None:
    """H47 with two data-parallel ranks."""
    sizes = BatchSizes.solve(train=train, micro=micro, accumulation=accumulation, dp=2)
    assert (sizes.micro, sizes.train, sizes.accumulation) == solved


@pytest.mark.parametrize(
    "train, micro, accumulation, parts",
    [
        (None, None, 2, ("no batch size is given",)),
        (None, None, None, ("no batch size is given",)),
        (9, 2, None, ("9", "micro batch 2 x data-parallel size 2 = 4", "nearest valid: 8 or 12")),
        (8, 8, None, ("8", "micro batch 8 x data-parallel size 2 = 16", "nearest valid: 16")),
        (7, None, None, ("7", "accumulation 1 x data-parallel size 2 = 2", "6 or 8")),
        (8, 2, 4, ("8", "micro batch 2 x accumulation 4 x data-parallel size 2 = 16", "8 or 12")),
    ],
)
def test_unsolvable_batches_show_the_equation(
    train: int | None, micro: int | None, accumulation: int | None, parts: tuple[str, ...]
) -> None:
    """H47."""
    with pytest.raises(ConfigError) as caught:
        BatchSizes.solve(train=train, micro=micro, accumulation=accumulation, dp=2)
    assert all(part in str(caught.value) for part in parts)


def test_the_equation_shows_the_data_parallel_size_not_the_world() -> None:
    """H47: world 8 with tensor parallel 4."""
    with pytest.raises(ConfigError, match="data-parallel size 2 = 4"):
        derived(8, batch__global_batch_size=9, parallel__tensor_model_parallel_size=4, train__train_iters=1)


def test_thread_003_on_eight_ranks_of_one_replica_accumulates_256() -> None:
    assert BatchSizes.solve(train=512, micro=2, accumulation=None, dp=1).accumulation == 256


@pytest.mark.parametrize("world, tp, pp, dp", [(8, 1, 1, 8), (8, 2, 2, 2), (8, 8, 1, 1), (1, 1, 1, 1)])
def test_data_parallel_size_is_what_is_left(world: int, tp: int, pp: int, dp: int) -> None:
    assert data_parallel_size(world_size=world, tp=tp, pp=pp) == dp


@pytest.mark.parametrize(
    "tp, pp, worlds", [(3, 1, "start 6 or 9 processes"), (4, 4, "start 16 processes"), (16, 1, "start 16 processes")]
)
def test_widths_that_do_not_fit_list_those_that_do(tp: int, pp: int, worlds: str) -> None:
    listed = "1 x 1 x 8, 1 x 2 x 4, 1 x 4 x 2, 1 x 8 x 1, 2 x 1 x 4, 2 x 2 x 2, 2 x 4 x 1, 4 x 1 x 2, 4 x 2 x 1, 8 x 1 x 1"
    with pytest.raises(ConfigError) as caught:
        data_parallel_size(world_size=8, tp=tp, pp=pp)
    message = str(caught.value)
    assert f"--tensor-model-parallel-size {tp} x --pipeline-model-parallel-size {pp} = {tp * pp} does not" in message
    assert worlds in message and message.endswith(f"(tensor x pipeline x data): {listed}")


@pytest.mark.parametrize(
    "world, tp, pp, listed",
    [
        # Those that keep one of the two sizes; of 66 (1024) and 3 (a prime) factorisations.
        (1024, 3, 4, "1 x 4 x 256, 2 x 4 x 128, 4 x 4 x 64, 8 x 4 x 32, 16 x 4 x 16, 32 x 4 x 8, 64 x 4 x 4, 128 x 4 x 2, "
                     "256 x 4 x 1, and 57 more"),
        (7919, 8, 1, "1 x 1 x 7919, 1 x 7919 x 1, 7919 x 1 x 1"),
        (96, 5, 7, "1 x 1 x 96, 2 x 1 x 48, 3 x 1 x 32, 4 x 1 x 24, 6 x 1 x 16, 8 x 1 x 12, 12 x 1 x 8, 16 x 1 x 6, "
                   "24 x 1 x 4, 32 x 1 x 3, 48 x 1 x 2, 96 x 1 x 1, and 51 more"),
    ],
)  # fmt: skip
def test_the_list_stays_short_for_large_worlds(world: int, tp: int, pp: int, listed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        data_parallel_size(world_size=world, tp=tp, pp=pp)
    assert str(caught.value).endswith(f"(tensor x pipeline x data): {listed}")


@pytest.mark.parametrize("tp, pp", [(0, 1), (1, 0), (-2, 1)])
def test_widths_below_one_are_named(tp: int, pp: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"--tensor-model-parallel-size {tp} and --pipeline-.* {pp} must both be at least"
    ):
        data_parallel_size(world_size=8, tp=tp, pp=pp)


@pytest.mark.parametrize("size, by, tp, padded", [(50257, 128, 1, 50304), (50257, 128, 8, 51200), (128, 128, 1, 128)])
def test_vocabulary_is_padded_to_the_multiple(size: int, by: int, tp: int, padded: int) -> None:
    assert padded_vocab_size(size, divisible_by=by, tp=tp) == padded


# The ramp


def test_ramp_of_h39() -> None:
    """H39: sizes 4 4 4 8 8 12 16 16, consumed 4 8 12 20 28 40 56 72; micro 2, two ranks."""
    schedule = BatchSchedule.of((4, 4, 32), final=16, granule=4)
    consumed, sizes = [0], []
    for _ in range(8):
        sizes.append(schedule.global_batch_size(consumed[-1]))
        consumed.append(consumed[-1] + sizes[-1])
    assert sizes == [4, 4, 4, 8, 8, 12, 16, 16]
    assert consumed[1:] == [4, 8, 12, 20, 28, 40, 56, 72]


@pytest.mark.parametrize(
    "ramp, final, granule", [((4, 4, 32), 16, 4), ((6, 3, 100), 30, 3), ((4, 4, 1003), 32, 4), ((4, 4, 3), 64, 4)]
)
def test_closed_forms_equal_stepping(ramp: tuple[int, int, int], final: int, granule: int) -> None:
    schedule = BatchSchedule.of(ramp, final=final, granule=granule)
    consumed = 0
    for iteration in range(300):
        assert schedule.samples_after(iteration) == consumed
        assert schedule.iterations_within(consumed) == iteration
        assert schedule.iterations_to_reach(consumed) == iteration
        size = schedule.global_batch_size(consumed)
        assert schedule.iterations_within(consumed + size - 1) == iteration
        assert schedule.iterations_to_reach(consumed + 1) == iteration + 1
        assert schedule.num_microbatches(consumed) * granule == size
        consumed += size


def test_no_ramp_is_one_size_for_ever() -> None:
    schedule = BatchSchedule.of((), final=8, granule=4)
    assert [schedule.global_batch_size(consumed) for consumed in (0, 1, 10**12)] == [8, 8, 8]
    assert schedule.num_increments == 0


def test_start_equal_to_final_is_one_size_for_ever() -> None:
    schedule = BatchSchedule.of((8, 4, 100), final=8, granule=4)
    assert [schedule.global_batch_size(consumed) for consumed in (0, 50, 100, 101)] == [8, 8, 8, 8]
    assert schedule.samples_after(5) == 40


@pytest.mark.parametrize(
    "ramp, final, granule, part",
    [
        ((4, 4), 16, 4, "takes three numbers"),
        ((4, 4, 32, 1), 16, 4, "takes three numbers"),
        ((4, 0, 32), 16, 4, "at least 1"),
        ((4, 4, 0), 16, 4, "at least 1"),
        ((4, 5, 32), 16, 1, "16 - 4 = 12 must be a multiple of 5"),
        ((32, 4, 32), 16, 4, "does not reach the global batch 16"),
        ((4, 2, 32), 16, 4, "sizes 6, 10, 14 are not multiples"),
    ],
)
def test_a_ramp_that_breaks_later_breaks_now(ramp: tuple[int, ...], final: int, granule: int, part: str) -> None:
    with pytest.raises(ConfigError, match="--rampup-batch-size") as caught:
        BatchSchedule.of(ramp, final=final, granule=granule)
    assert part in str(caught.value)


@pytest.mark.skipif("MZ_SHARED" not in os.environ, reason="MZ_SHARED does not name the folder with the golden files")
def test_ramp_equals_the_goldens_of_both_peers() -> None:
    goldens = np.load(Path(os.environ["MZ_SHARED"]) / "data/goldens/batch_size/rampup.npz")
    cases = json.loads(str(goldens["params"]))
    ramps = [name for name, case in cases.items() if "ramp" in case]
    assert len(ramps) == 5
    for name in ramps:
        case = cases[name]
        schedule = BatchSchedule.of(
            (case["start"], case["inc"], case["ramp"]), final=case["gbs"], granule=case["mbs"] * case["dp"]
        )
        trace = goldens[f"{name}_trace"].tolist()
        assert [[c, schedule.global_batch_size(c), schedule.num_microbatches(c)] for c, _, _ in trace] == trace
        grid = goldens[f"{name}_grid"].tolist()
        assert [[c, schedule.global_batch_size(c)] for c, _ in grid] == grid
        assert [schedule.samples_after(i) for i in range(len(trace))] == [c for c, _, _ in trace]


# The run's length


@pytest.mark.parametrize(
    "train, iterations, samples, asked",
    [
        ({"train__train_iters": 6}, 6, 48, 48),
        ({"train__train_samples": 48}, 6, 48, 48),
        ({"train__train_samples": 55}, 6, 48, 55),
        ({"train__train_tokens": 6 * 8 * 32}, 6, 48, 48),
        ({"train__train_tokens": 6 * 8 * 32 + 1}, 7, 56, 56),
        ({"train__train_tokens": 1}, 1, 8, 8),
        ({"train__train_tokens": 6 * 8 * 32, "train__train_samples": 144}, 6, 48, 144),
        ({"train__train_tokens": 6 * 8 * 32, "train__train_iters": 100}, 6, 48, 800),
        ({"train__train_tokens": 10**9, "train__train_iters": 6}, 6, 48, 48),
        (
            {"train__train_samples": 80, "batch__global_batch_size": 16, "batch__rampup_batch_size": (4, 4, 32)},
            8,
            72,
            80,
        ),
        (
            {"train__train_tokens": 21 * 32, "batch__global_batch_size": 16, "batch__rampup_batch_size": (4, 4, 32)},
            5,
            28,
            28,
        ),
    ],
)
def test_what_ends_the_run_and_what_sizes_the_data(
    train: dict[str, object], iterations: int, samples: int, asked: int
) -> None:
    run = derived(**train).run
    assert (run.train_iterations, run.samples, run.tokens, run.num_samples[0]) == (
        iterations,
        samples,
        samples * 32,
        asked,
    )


def test_validation_and_test_samples() -> None:
    run = derived(train__train_iters=25, evaluation__eval_interval=10, evaluation__eval_iters=3).run
    assert run.num_samples == (200, 3 * 3 * 8, 3 * 8)


def test_where_tokens_end_the_run_does_not_change_the_data_sets() -> None:
    lengths = [derived(train__train_samples=800, train__train_tokens=tokens).run for tokens in (5000, 10000)]
    assert lengths[0].num_samples == lengths[1].num_samples
    assert lengths[0].train_iterations < lengths[1].train_iterations


def test_an_unset_decay_is_the_whole_run() -> None:
    run = derived(train__train_iters=6).run
    assert (run.lr_warmup_tokens, run.lr_decay_tokens) == (0, 6 * 8 * 32)


def test_a_warm_up_that_outlasts_the_decay_names_both() -> None:
    """H37."""
    with pytest.raises(ConfigError, match=r"--lr-warmup-tokens 2000.*--lr-decay-tokens"):
        derived(train__train_iters=6, schedule__lr_warmup_tokens=2000)


def test_a_run_inside_the_warm_up_warns_with_the_rate_it_reaches() -> None:
    """H37."""
    sizes = derived(train__train_iters=6, schedule__lr_warmup_tokens=3072, schedule__lr_decay_tokens=10000)
    (warning,) = sizes.warnings
    assert "5.000E-04 of --lr 1.000E-03" in warning


def test_samples_that_end_before_the_tokens_warn() -> None:
    (warning,) = derived(train__train_samples=48, train__train_tokens=10**6).warnings
    assert "before --train-tokens 1000000" in warning


def test_a_run_without_one_step_is_an_error() -> None:
    with pytest.raises(ConfigError, match="--train-samples 7 is less than the first global batch 8"):
        derived(train__train_samples=7)


def test_sizes_are_frozen_and_complete() -> None:
    sizes = derived(train__train_iters=6)
    assert (sizes.dp, sizes.micro_batch_size, sizes.global_batch_size, sizes.num_microbatches) == (2, 2, 8, 2)
    assert (sizes.vocab_size, sizes.padded_vocab_size) == (50, 128)
    assert isinstance(sizes.run, RunLength)
    with pytest.raises(dataclasses.FrozenInstanceError):
        sizes.dp = 3  # type: ignore[misc]
