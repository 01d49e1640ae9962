"""Forward-only loss over a fixed number of global batches."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from megatron_zero.data.loader import BatchLoader, MicroBatch
from megatron_zero.distributed.collectives import all_reduce_
from megatron_zero.distributed.context import ParallelContext


def evaluate(
    stage: nn.Module,
    forward: Callable[[MicroBatch], Tensor],
    loader: BatchLoader,
    *,
    context: ParallelContext,
    consumed_samples: int,
    eval_iters: int,
    num_microbatches: int,
) -> float:
    """Mean loss of eval_iters global batches of num_microbatches x data-parallel micro-batches, from consumed_samples on.

    Dropout is off. Mutates no weight, no gradient and no random state. Every rank calls it and gets the same number.
    """
    was_training = stage.training
    stage.eval()
    try:
        with torch.no_grad():
            total = torch.zeros((), dtype=torch.float64, device=context.device)
            for iteration in range(eval_iters):
                position = consumed_samples + iteration * num_microbatches * loader.round_size
                for micro_batch in loader.next_microbatches(position, num_microbatches):
                    total += forward(micro_batch).double()
            # Over the world, not the data-parallel axis: one collective, so tensor-parallel ranks get the same bits, too.
            all_reduce_(total, axis=context.world)
    finally:
        stage.train(was_training)
    return float(total.item()) / (eval_iters * num_microbatches * context.dp.size * context.tp.size)
