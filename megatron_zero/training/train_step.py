"""One optimizer step, from micro-batches to new weights. Sizes, stages and tiers are values in `parts`, not branches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from megatron_zero.config.derive import BatchSchedule
from megatron_zero.data.loader import BatchLoader, MicroBatch
from megatron_zero.distributed.collectives import all_reduce_
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.observability.timers import Timers
from megatron_zero.offload.optimizer import OffloadedAdam
from megatron_zero.optim.grad_norm import clip_coefficient, counted_parts, norm_of, sum_of_squares
from megatron_zero.optim.lr_schedule import LrSchedule
from megatron_zero.pipeline.runner import ScheduleRunner
from megatron_zero.pipeline.schedule import one_f_one_b
from megatron_zero.zero.engine import ZeroEngine

from .state import StepReport, TrainState

# No element is larger than the norm, and the second moment holds an element's square in fp32: above this it would
# become infinite and stay so. Reached only with clipping off.
LARGEST_NORM: Final = math.sqrt((2.0 - 2.0**-23) * 2.0**127)


@dataclass(frozen=True, slots=True)
class StepParts:
    """What a step uses. wants_exit: this rank's own vote to stop, asked once a step."""

    context: ParallelContext
    batch_schedule: BatchSchedule
    loader: BatchLoader
    runner: ScheduleRunner[MicroBatch]
    engine: ZeroEngine
    optimizer: OffloadedAdam
    lr_schedule: LrSchedule
    clip_grad: float
    seq_length: int
    timers: Timers
    wants_exit: Callable[[], bool]


def train_step(parts: StepParts, state: TrainState) -> StepReport:
    """Train on the next global batch. Mutates weights, optimizer state and `state`; one host sync."""
    global_batch_size = parts.batch_schedule.global_batch_size(state.consumed_samples)
    num_microbatches = parts.batch_schedule.num_microbatches(state.consumed_samples)
    with parts.timers.span("batch-generator", level=1):
        micro_batches = parts.loader.next_microbatches(state.consumed_samples, num_microbatches)

    with parts.timers.span("forward-backward", level=1):
        parts.engine.begin_step()
        actions = one_f_one_b(num_microbatches, num_stages=parts.context.pp.size)
        losses = parts.runner.run(actions, micro_batches, loss_divisor=num_microbatches * parts.context.dp.size)
    with parts.timers.span("grads-reduce", level=1):
        parts.engine.finish_backward()
    with parts.timers.span("grad-norm", level=1):
        agreed = agree_on_scalars(losses, engine=parts.engine, context=parts.context, wants_exit=parts.wants_exit())

    learning_rate = parts.lr_schedule.at(state.consumed_tokens)
    grad_scale = clip_coefficient(agreed.grad_norm, max_norm=parts.clip_grad)
    # Written so that NaN skips, too: no comparison with it holds.
    skipped = not agreed.grad_norm * grad_scale <= LARGEST_NORM
    if not skipped:
        with parts.timers.span("optimizer", level=1):
            parts.optimizer.step(parts.engine.grad_shards, lr=learning_rate, grad_scale=grad_scale)
            parts.engine.after_step()
    state.advance(samples=global_batch_size, tokens=global_batch_size * parts.seq_length, skipped=skipped)
    return StepReport(
        loss=agreed.loss,
        grad_norm=agreed.grad_norm,
        learning_rate=learning_rate,
        global_batch_size=global_batch_size,
        num_microbatches=num_microbatches,
        skipped=skipped,
        wants_exit=agreed.wants_exit,
    )


@dataclass(frozen=True, slots=True)
class AgreedScalars:
    """Numbers that every rank holds alike, so every rank takes the same branch."""

    loss: float
    grad_norm: float
    wants_exit: bool


def agree_on_scalars(
    losses: Sequence[Tensor], *, engine: ZeroEngine, context: ParallelContext, wants_exit: bool
) -> AgreedScalars:
    """Global norm, global mean loss and the vote to stop, in one fp64 collective and one host sync.

    Each gradient element counts once: a shard by its owner, a copy (stage 0) by its share of the copies, what tensor
    parallelism replicates by its first rank. Tensor-parallel ranks hold the same losses.
    """
    counted = counted_parts(engine.grad_shards, engine.replicated_ranges, counts_replicated=context.tp.is_first)
    square_sum = sum_of_squares(counted) / engine.replica_axis.size
    loss = torch.stack(list(losses)).double().mean() / (context.dp.size * context.tp.size)
    vote = torch.full_like(loss, float(wants_exit))
    scalars = torch.stack([square_sum, loss, vote])
    all_reduce_(scalars, axis=context.world)
    square_sum_value, loss_value, votes = scalars.tolist()
    return AgreedScalars(loss=loss_value, grad_norm=norm_of(square_sum_value), wants_exit=votes > 0.0)
