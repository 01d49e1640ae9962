"""Gradients that are not finite change nothing on any rank, and their state never becomes the latest checkpoint."""

import pytest
import torch
from helpers.tiny_run import LaunchEnvironment, tiny_arguments, write_json

from megatron_zero.config.load import load_run_config
from megatron_zero.training.build import build_trainer
from megatron_zero.training.trainer import TrainingFailed


def poisoned(ctx, argv, *, rank, after, value):
    """Train; from step `after` on, one rank's gradient gets one bad element. (error, bits before, bits after, pointer)."""
    env = LaunchEnvironment(ctx.world.rank, ctx.world.size, ctx.world.rank, ctx.world.size, "127.0.0.1", 29500)
    with build_trainer(load_run_config(argv), ctx, env) as trainer:
        engine, optimizer = trainer.parts.step.engine, trainer.parts.step.optimizer
        finish, steps, kept = engine.finish_backward, [0], {}

        def finish_backward():
            finish()
            steps[0] += 1
            if steps[0] > after:
                kept.setdefault("before", [piece.data.clone() for piece in optimizer.state_slices()])
                if ctx.world.rank == rank:
                    engine.grad_shards[1][3] = value

        engine.finish_backward = finish_backward
        try:
            trainer.run()
        except TrainingFailed as error:
            after_state = [piece.data.clone() for piece in optimizer.state_slices()]
            return str(error), kept["before"], after_state, trainer.state.skipped_iterations
    return None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e25])
@pytest.mark.parametrize("limit, message", [(3, "3 steps in a row were skipped"), (50, "while gradients are not finite")])
def test_nothing_is_touched_and_nothing_is_saved(pool, corpus, tmp_path, value, limit, message):
    """H54, and offload.md section 4: every tier untouched, on every rank; clipping off, so 1e25 would overflow v."""
    config = write_json(tmp_path / "ds.json", stage=2, ratio=0.5)
    folder = tmp_path / "checkpoint"
    flags = {"save": folder, "save-interval": 1, "max-consecutive-skips": limit, "clip-grad": 0.0, "train-iters": 8}
    argv = tiny_arguments(corpus, config, **flags)
    for error, before, after, skipped in pool.run(run_poisoned, argv, value, timeout_s=120):
        assert message in error
        assert skipped == (3 if limit == 3 else 6)
        for ours, theirs in zip(after, before, strict=True):
            assert torch.equal(ours, theirs)
    assert (folder / "latest_checkpointed_iteration.txt").read_text().strip() == "2"


def run_poisoned(ctx, argv, value):
    return poisoned(ctx, argv, rank=1, after=2, value=value)
