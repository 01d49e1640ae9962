"""Activation recompute (Chen et al. 2016, arXiv:1604.06174; selective: Korthikanti et al. 2022, arXiv:2205.05198)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.checkpoint import checkpoint, noop_context_fn

from megatron_zero.config.training import RecomputeConfig
from megatron_zero.distributed.rng import RngStreams


@dataclass(frozen=True, slots=True)
class RecomputePlan:
    """What a stage runs again in backward.

    chunks: ranges of layers, in order, that together are all of them.   recomputed: per chunk, whether only its input is
    kept.   core_attention: whether every layer that is not recomputed whole runs softmax(q k^T) v again.
    """

    chunks: tuple[range, ...]
    recomputed: tuple[bool, ...]
    core_attention: bool

    @property
    def recomputed_layers(self) -> int:
        """How many layers run forward twice."""
        return sum(len(chunk) for chunk, again in zip(self.chunks, self.recomputed, strict=True) if again)


def plan_recompute(config: RecomputeConfig, *, num_layers: int) -> RecomputePlan:
    """Pure. uniform: chunks of --recompute-num-layers layers, the last one shorter if need be, each kept by its input;
    block: the first --recompute-num-layers layers one by one, the others not."""
    single = tuple(range(index, index + 1) for index in range(num_layers))
    if config.granularity != "full":
        return RecomputePlan(single, (False,) * num_layers, core_attention=config.granularity == "selective")
    size = config.recompute_num_layers
    if config.method == "block":
        return RecomputePlan(single, tuple(index < size for index in range(num_layers)), core_attention=False)
    chunks = tuple(range(first, min(first + size, num_layers)) for first in range(0, num_layers, size))
    return RecomputePlan(chunks, (True,) * len(chunks), core_attention=False)


def recompute(run: Callable[..., Tensor], *inputs: Any, streams: RngStreams, draws: bool) -> Tensor:
    """run(*inputs), keeping its inputs only; backward runs it again, with the same random numbers of both streams.

    draws: whether it draws any; saving the generators costs a copy on the host.
    """
    context = streams.replay if draws else noop_context_fn
    result: Tensor = checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=draws, context_fn=context)
    return result
