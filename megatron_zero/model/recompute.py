"""Activation recompute (Chen et al. 2016, arXiv:1604.06174; selective: Korthikanti et al. 2022, arXiv:2205.05198)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint, noop_context_fn

from megatron_zero.config.training import RecomputeConfig
from megatron_zero.distributed.collectives import all_gather_into
from megatron_zero.distributed.context import ParallelAxis
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

    @staticmethod
    def nothing(num_layers: int) -> RecomputePlan:
        """Every layer keeps what backward needs."""
        single = tuple(range(index, index + 1) for index in range(num_layers))
        return RecomputePlan(single, (False,) * num_layers, core_attention=False)

    @property
    def recomputed_layers(self) -> int:
        """How many layers run forward twice."""
        return sum(len(chunk) for chunk, again in zip(self.chunks, self.recomputed, strict=True) if again)


def plan_recompute(config: RecomputeConfig, *, num_layers: int) -> RecomputePlan:
    """Pure. uniform: chunks of --recompute-num-layers layers, the last one shorter if need be, each kept by its input;
    block: the first --recompute-num-layers layers one by one, the others not."""
    none = RecomputePlan.nothing(num_layers)
    if config.granularity != "full":
        return dataclasses.replace(none, core_attention=config.granularity == "selective")
    size = config.recompute_num_layers
    if config.method == "block":
        return dataclasses.replace(none, recomputed=tuple(index < size for index in range(num_layers)))
    chunks = tuple(range(first, min(first + size, num_layers)) for first in range(0, num_layers, size))
    return RecomputePlan(chunks, (True,) * len(chunks), core_attention=False)


@dataclass(frozen=True, slots=True)
class SavedInputs:
    """Where the kept input of recomputed layers, [tokens, hidden], waits for backward; the bits that come back are the same.

    tp: tensor-parallel ranks, which all hold the input whole.   partition: each keeps its part of the tokens and gathers
    them in backward (Rajbhandari et al. 2020, arXiv:1910.02054, section 6.1).   on_cpu: in host memory, pinned on a GPU
    run; the copies run on the stream of the computation.
    """

    tp: ParallelAxis
    partition: bool = False
    on_cpu: bool = False

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Tensors that autograd saves inside are kept this way. Inside there must be kept inputs only."""
        if not self.on_cpu and (not self.partition or self.tp.size == 1):
            yield
            return
        with saved_tensors_hooks(self._pack, self._unpack):
            yield

    def _pack(self, tensor: Tensor) -> tuple[torch.device, int, Tensor]:
        kept = tensor.detach()
        if self.partition and self.tp.size > 1:
            rows = len(tensor) // self.tp.size
            assert rows * self.tp.size == len(tensor), "checked before the run: tokens divide by the tensor-parallel size"
            # A copy: a view would keep the whole storage.
            kept = kept[self.tp.rank * rows : (self.tp.rank + 1) * rows].clone()
        if self.on_cpu:
            on_gpu = kept.is_cuda
            host = torch.empty(kept.shape, dtype=kept.dtype, pin_memory=on_gpu)
            kept = host.copy_(kept, non_blocking=on_gpu)
        return tensor.device, len(tensor), kept

    def _unpack(self, packed: tuple[torch.device, int, Tensor]) -> Tensor:
        device, rows, kept = packed
        kept = kept.to(device, non_blocking=True)
        if len(kept) == rows:
            return kept
        whole = torch.empty(rows, *kept.shape[1:], dtype=kept.dtype, device=device)
        all_gather_into(whole.view(-1), kept.view(-1), axis=self.tp).wait()
        return whole


def recompute(run: Callable[..., Tensor], *inputs: Any, streams: RngStreams, draws: bool, saved: SavedInputs) -> Tensor:
    """run(*inputs), keeping its inputs only; backward runs it again, with the same random numbers of both streams.

    draws: whether it draws any; saving the generators costs a copy on the host.
    """
    context = streams.replay if draws else noop_context_fn
    with saved.hooks():
        result: Tensor = checkpoint(run, *inputs, use_reentrant=False, preserve_rng_state=draws, context_fn=context)
    return result
