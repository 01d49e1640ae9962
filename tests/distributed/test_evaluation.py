"""H51: an evaluation ends on every rank however few samples there are, and its loss is the mean over what was read."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.spawn import DistributedPool
from torch import nn

from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.data.document_masks import DocumentRules
from megatron_zero.data.loader import BatchLoader
from megatron_zero.training.evaluate import evaluate

SAMPLES, SEQ, MICRO, RANKS, EOD = 13, 5, 2, 4, 0
ITERATIONS = range(1, 11)


class Thirteen:
    """Sample i is i in every place, but for an end of document (0) in its first i % 4 places."""

    name = "valid"

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        sample = np.full(SEQ + 1, index)
        sample[: index % 4] = EOD
        return sample


class Recorder(nn.Module):
    """Its loss is the mean of labels ** 2 over the tokens that count; keeps the ids it saw."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, batch):
        assert not self.training
        self.seen += batch.sample_ids
        losses = batch.labels.float() ** 2
        return (losses * batch.loss_mask).sum() / batch.loss_mask.sum().clamp(min=1.0)


def evaluations_on_rank(ctx, num_workers, masked):
    """(loss, ids that this rank read) for each number of iterations, one after the other as in a run."""
    stage, results, consumed = Recorder(), [], 0
    loader = BatchLoader(
        Thirteen(),
        micro_batch_size=MICRO,
        dp_rank=ctx.dp.rank,
        dp_size=ctx.dp.size,
        device=ctx.device,
        num_workers=num_workers,
        wrap=True,
        documents=DocumentRules(EOD, eod_mask_loss=masked),
    )
    with loader:
        for eval_iters in ITERATIONS:
            loss = evaluate(
                stage,
                stage,
                loader,
                context=ctx,
                consumed_samples=consumed,
                eval_iters=eval_iters,
                num_microbatches=2,
            )
            results.append((loss, stage.seen))
            stage.seen = []
            consumed += eval_iters * 2 * loader.round_size
    assert stage.training, "as it was before"
    return results


def mean_loss(ids, *, masked):
    """Of one micro-batch, token by token."""
    losses, tokens = 0.0, 0
    for index in ids:
        sample = Thirteen()[index].tolist()
        for token, label in pairwise(sample):
            if not (masked and token == EOD):
                losses, tokens = losses + float(label) ** 2, tokens + 1
    return losses / max(tokens, 1)


@pytest.fixture(scope="module")
def pool():
    with DistributedPool(RANKS) as pool:
        yield pool


@pytest.mark.parametrize("num_workers, masked, tp", [(0, False, 1), (1, True, 1), (0, True, 2), (0, False, 4)])
def test_13_samples_on_4_ranks(pool, num_workers, masked, tp):
    """Ranks of one tensor-parallel group read the same samples; each sample counts once."""
    mesh = ParallelConfig(tensor_model_parallel_size=tp)
    every_rank = pool.run(evaluations_on_rank, num_workers, masked, parallel=mesh, timeout_s=60)
    by_rank = every_rank[::tp]
    assert all(every_rank[rank] == by_rank[rank // tp] for rank in range(RANKS))
    data_parallel = RANKS // tp
    consumed = 0
    for eval_iters, results in zip(ITERATIONS, zip(*by_rank, strict=True), strict=True):
        num_samples = eval_iters * 2 * data_parallel * MICRO
        read = sorted(index for _, ids in results for index in ids)
        assert read == sorted((consumed + i) % SAMPLES for i in range(num_samples))
        micro_batches = [
            mean_loss(ids[first : first + MICRO], masked=masked)
            for _, ids in results
            for first in range(0, len(ids), MICRO)
        ]
        assert len(micro_batches) == eval_iters * 2 * data_parallel
        for loss, _ in results:
            # Each micro-batch's mean is rounded to fp32; their mean is taken in fp64.
            torch.testing.assert_close(loss, sum(micro_batches) / len(micro_batches), rtol=1e-6, atol=0)
        assert len({loss for loss, _ in results}) == 1, "every rank has the same number"
        consumed += num_samples
