"""Tensor and sequence parallel through the real entry points, beyond the grid: copies, vocabulary padding, first values,
dropout and recompute."""

import dataclasses
from contextlib import closing

import pytest
import torch
from helpers.layout_grid import Cell, check_outcomes, run_cell
from helpers.spawn import PoolSet
from helpers.tiny_run import result_of, tiny_arguments, write_json

from megatron_zero.config.load import load_run_config
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.distributed.launch import LaunchEnvironment
from megatron_zero.training.build import build_trainer
from megatron_zero.training.determinism import determinism

PLAIN = Cell(1, 1, 0, None, False, "none", 1, "gpt")


@pytest.fixture(scope="module")
def pools():
    with closing(PoolSet()) as pools:
        yield pools


def run_on(pools, cell, function, corpus, tmp_path, **flags):
    argv = cell.arguments(corpus, tmp_path / "config.json", **flags)
    return pools(cell.world_size).run(function, argv, parallel=cell.parallel(), timeout_s=240)


# ---- copies on tensor-parallel ranks (H12)


def copies_after_each_step(ctx, argv):
    """(losses, replicated parameters after each step by name) of this rank."""
    env = LaunchEnvironment(ctx.world.rank, ctx.world.size, ctx.world.rank, ctx.world.size, "127.0.0.1", 29500)
    loaded = load_run_config(argv)
    with determinism(loaded.config.train.deterministic_mode), build_trainer(loaded, ctx, env) as trainer:
        engine, stage = trainer.parts.step.engine, trainer.parts.stage
        replicated = [name for name, split in stage.tensor_splits().items() if split.replicated]
        steps = []
        after_step = engine.after_step

        def record():
            after_step()
            with engine.summon_full_parameters() as parameters:
                steps.append({name: parameters[name].clone() for name in replicated})

        engine.after_step = record
        result = result_of(trainer)
    return result.losses, steps


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("dp", [1, 2])
@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_copies_keep_the_same_bits_for_20_steps(pools, corpus, tmp_path, stage, dp, sequence_parallel):
    """H12: norms, row biases and positions, stages 0-3."""
    cell = dataclasses.replace(
        PLAIN, tp=2, dp=dp, stage=stage, ratio=0.3 if stage else None, sequence_parallel=sequence_parallel
    )
    ranks = run_on(pools, cell, copies_after_each_step, corpus, tmp_path, **{"train-iters": 20})
    assert len(ranks[0][1]) == 20
    assert len(ranks[0][1][0]) == 1 + 2 * 6 + 2  # positions; two norms and two row biases a layer; the final norm
    for losses, steps in ranks[1:]:
        assert losses == ranks[0][0]
        for step, first in zip(steps, ranks[0][1], strict=True):
            for name, value in step.items():
                torch.testing.assert_close(value, first[name], rtol=0, atol=0, msg=name)


def test_20_steps_of_sequence_parallel_agree_with_one_process(pools, corpus, tmp_path):
    """H12: losses against F3, 1e-4 as it is a longer run."""
    flags = {"train-iters": 20}
    (alone,) = run_on(pools, PLAIN, run_cell, corpus, tmp_path, **flags)
    for stage in (0, 3):
        cell = dataclasses.replace(PLAIN, tp=2, stage=stage, ratio=1.0 if stage else None, sequence_parallel=True)
        ranks = run_on(pools, cell, run_cell, corpus, tmp_path, **flags)
        for name, rtol in (("losses", 1e-4), ("norms", 1e-3)):
            found, wanted = (torch.tensor(getattr(one, name), dtype=torch.float64) for one in (ranks[0], alone))
            torch.testing.assert_close(found, wanted, rtol=rtol, atol=0)


# ---- vocabulary padding (H13)

VOCABULARY = {"vocab-size": 50256, "make-vocab-size-divisible-by": 128}  # and the end of document: 50257


def test_padded_vocabulary_of_every_width_trains_alike(pools, corpus, tmp_path):
    """H13: 50304, 50432 and 50688 rows; the first loss and gradients, padding's exactly 0, and 20 steps."""
    flags = {**VOCABULARY, "train-iters": 20}
    (alone,) = run_on(pools, PLAIN, run_cell, corpus, tmp_path, **flags)
    for tp, rows in ((2, 50432), (4, 50688)):
        cell = dataclasses.replace(PLAIN, tp=tp, stage=1, ratio=0.3, sequence_parallel=tp == 4)
        ranks = run_on(pools, cell, run_cell, corpus, tmp_path, **flags)
        assert ranks[0].shapes["embedding.word.weight"] == (rows, 64)
        assert abs(ranks[0].losses[0] - alone.losses[0]) <= 1e-5
        first = [dataclasses.replace(one, losses=one.losses[:6], norms=one.norms[:6]) for one in (*ranks, alone)]
        check_outcomes(first[:-1], first[-1])  # F4 for 6 steps, gradients of the first, padding
        found, wanted = (torch.tensor(one.losses, dtype=torch.float64) for one in (ranks[0], alone))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=0)


# ---- first values (H14)


def owned_initial_weights(ctx, argv):
    """[(name, first logical element, values)] and the first loss of this rank."""
    env = LaunchEnvironment(ctx.world.rank, ctx.world.size, ctx.world.rank, ctx.world.size, "127.0.0.1", 29500)
    with build_trainer(load_run_config(argv), ctx, env) as trainer:
        splits = trainer.parts.stage.tensor_splits()
        found = []
        with trainer.parts.step.engine.summon_full_parameters() as parameters:
            for name, value in parameters.items():
                flat, place = value.flatten(), 0
                for run in splits[name].runs(0, len(flat)):
                    found.append((name, run.start, flat[place : place + run.numel].clone()))
                    place += run.numel
    return found


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_first_values_have_the_same_bits_for_every_width_and_stage(pools, corpus, tmp_path, family):
    """H14: tied and untied heads, stages 0-3, TP 1, 2, 4."""
    plain = dataclasses.replace(PLAIN, family=family)
    (alone,) = run_on(pools, plain, owned_initial_weights, corpus, tmp_path)
    wanted = {name: values for name, _, values in alone}
    for tp, stage in ((2, 0), (2, 1), (2, 2), (2, 3), (4, 3)):
        cell = dataclasses.replace(plain, tp=tp, stage=stage, ratio=1.0 if stage else None)
        for rank in run_on(pools, cell, owned_initial_weights, corpus, tmp_path):
            assert {name for name, _, _ in rank} == wanted.keys()
            for name, start, values in rank:
                common = wanted[name][start : start + len(values)]
                assert torch.equal(values[: len(common)], common), name
                assert not values[len(common) :].any(), f"padding of {name}"


# ---- dropout and recompute (H42)

RECOMPUTE = {
    "none": {},
    "full": {"checkpoint-activations": True},
    "every 2 layers": {"checkpoint-activations": True, "recompute-num-layers": 2},
    "block": {"recompute-granularity": "full", "recompute-method": "block"},
    "selective": {"recompute-activations": True},
    "in host memory": {"checkpoint-activations": True, "checkpoint-in-cpu": True},
    "spread": {"checkpoint-activations": True, "partition-activations": True},
    "spread, in host memory, every 2 layers": {
        "checkpoint-activations": True,
        "recompute-num-layers": 2,
        "partition-activations": True,
        "checkpoint-in-cpu": True,
    },
}


def losses_and_weights(ctx, argv_lists):
    found = []
    for argv in argv_lists:
        env = LaunchEnvironment(ctx.world.rank, ctx.world.size, ctx.world.rank, ctx.world.size, "127.0.0.1", 29500)
        loaded = load_run_config(argv)
        with determinism(loaded.config.train.deterministic_mode), build_trainer(loaded, ctx, env) as trainer:
            result = result_of(trainer)
            found.append((result.losses, result.norms, result.weights))
    return found


@pytest.mark.parametrize("tp,stage,sequence_parallel", [(1, 3, False), (2, 0, False), (2, 3, False), (2, 3, True)])
@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_recompute_changes_no_bit_under_dropout(pools, corpus, tmp_path, tp, stage, sequence_parallel, family):
    """H42: dropout 0.1, five steps, every kind of recompute."""
    cell = Cell(tp, 1, stage, 0.3 if stage else None, sequence_parallel, "none", 2, family)
    dropout = {"attention-dropout": 0.1, "hidden-dropout": 0.1, "train-iters": 5, "num-layers": 3}
    kinds = {name: flags for name, flags in RECOMPUTE.items() if not (sequence_parallel and "spread" in name)}
    lists = [cell.arguments(corpus, tmp_path / "config.json", **dropout, **flags) for flags in kinds.values()]
    ranks = pools(cell.world_size).run(losses_and_weights, lists, parallel=cell.parallel(), timeout_s=240)
    for results in ranks:
        losses, norms, weights = results[0]
        for kind, (found_losses, found_norms, found) in zip(kinds, results, strict=True):
            assert (found_losses, found_norms) == (losses, norms), kind
            for name, value in weights.items():
                torch.testing.assert_close(found[name], value, rtol=0, atol=0, msg=f"{kind}: {name}")
    (no_dropout,) = pools(cell.world_size).run(
        losses_and_weights,
        [cell.arguments(corpus, tmp_path / "config.json", **{"train-iters": 1, "num-layers": 3})],
        parallel=cell.parallel(),
    )[0]
    assert no_dropout[0][0] != ranks[0][0][0][0]


def layer_outputs(ctx, argv):
    """Every layer's output in the first forward, under dropout."""
    env = LaunchEnvironment(ctx.world.rank, ctx.world.size, ctx.world.rank, ctx.world.size, "127.0.0.1", 29500)
    with build_trainer(load_run_config(argv), ctx, env) as trainer:
        outputs = []
        handles = [
            layer.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach().clone()))
            for layer in (trainer.parts.stage.embedding, *trainer.parts.stage.layers)
        ]
        trainer.run()
        for handle in handles:
            handle.remove()
    return outputs


def test_ranks_drop_the_same_hidden_states_and_other_tokens(pools, corpus, tmp_path):
    """Without sequence parallel what ranks hold alike stays alike; with it each draws for its own tokens."""
    flags = {"hidden-dropout": 0.5, "attention-dropout": 0.5, "train-iters": 1}
    cell = dataclasses.replace(PLAIN, tp=2)
    first, second = run_on(pools, cell, layer_outputs, corpus, tmp_path, **flags)
    assert len(first) == len(second) >= 3
    for ours, theirs in zip(first, second, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    divided = dataclasses.replace(cell, sequence_parallel=True)
    first, second = run_on(pools, divided, layer_outputs, corpus, tmp_path, **flags)
    dropped = [output[0].eq(0.0) for output in (first, second)]  # of the embedding: half of the elements each
    for each in dropped:
        assert 0.4 < each.float().mean() < 0.6
    assert not torch.equal(*dropped)


# ---- a wrong world


def test_no_overlap_changes_no_bit(pools, corpus, tmp_path):
    cell = dataclasses.replace(PLAIN, tp=2, stage=2, ratio=0.0)
    for sequence_parallel in (False, True):
        cell = dataclasses.replace(cell, sequence_parallel=sequence_parallel)
        overlapped = run_on(pools, cell, run_cell, corpus, tmp_path)
        plain = run_on(
            pools, cell, run_cell, corpus, tmp_path, **{"no-async-tensor-model-parallel-allreduce": True}
        )
        for one, other in zip(overlapped, plain, strict=True):
            assert one.losses == other.losses and one.norms == other.norms
            for (name, _, ours), (_, _, theirs) in zip(one.gradients, other.gradients, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=name)


def test_bf16_trains_at_every_width(pools, corpus, tmp_path):
    """The same global batch in bf16: losses near those of one process, ratios bit-equal."""
    json = {"bf16": {"enabled": True}}
    losses = {}
    for tp, sequence_parallel in ((1, False), (2, False), (2, True)):
        cell = dataclasses.replace(PLAIN, tp=tp, dp=2, stage=3, ratio=0.3, sequence_parallel=sequence_parallel)
        for ratio in (0.3, 1.0):
            argv = cell.arguments(corpus, tmp_path / "config.json", bf16=True)
            write_json(tmp_path / "config.json", stage=3, ratio=ratio, **json)
            ranks = pools(cell.world_size).run(run_cell, argv, parallel=cell.parallel(), timeout_s=240)
            losses[tp, sequence_parallel, ratio] = ranks[0].losses
        assert losses[tp, sequence_parallel, 0.3] == losses[tp, sequence_parallel, 1.0]
    for key, found in losses.items():
        torch.testing.assert_close(
            torch.tensor(found), torch.tensor(losses[1, False, 0.3]), rtol=5e-3, atol=0, msg=str(key)
        )


def test_one_process_ignores_none_of_the_flags(corpus, tmp_path):
    """The command line of a divided run on one process without the width: the same model."""
    single = ParallelContext.single_process()
    plain = run_cell(single, tiny_arguments(corpus, None))
    told = run_cell(single, tiny_arguments(corpus, None, **{"sequence-parallel": True}))
    assert plain.losses == told.losses and plain.norms == told.norms
