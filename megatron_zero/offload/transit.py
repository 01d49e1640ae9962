"""Gradients to the host kernel and weights back: directly on a CPU device, through pinned slabs from a GPU.

[Note: who waits]
The gradient stream waits for the compute stream, so it reads final gradients; the kernel waits for the gradient's
event on the host; the weight stream takes finished slabs in order; join() makes the compute stream wait for all
weights. A slab is written again only in the next step, which starts after the host has read that step's norm from the
compute stream: every copy of this step is over by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from megatron_zero.optim.subgroup import SubGroup
from megatron_zero.storage.pinned import PinnedPool


@dataclass(frozen=True, slots=True)
class HostPiece:
    """What one host kernel call reads and writes beside the state: elements [state_start, state_start + numel).

    grad: [numel] fp32.   working: [numel] working dtype, written by the kernel.   Both in host memory.
    """

    state_start: int
    numel: int
    grad: Tensor
    working: Tensor


class HostTransit(Protocol):
    def start(self, grad_shards: Sequence[Tensor]) -> None:
        """Final gradients are on the device: begin bringing every host sub-group's to the host."""

    def pieces(self, index: int) -> Sequence[HostPiece]:
        """The kernel calls of the index-th host sub-group; returns once its gradient has arrived."""

    def send(self, index: int) -> None:
        """The kernel has written the working copy: begin bringing it to the weight shards."""

    def join(self) -> None:
        """Later work on the device sees all new weights."""


class DirectTransit:
    """The device is the CPU: the host kernel reads the gradient shard and writes the weight shard in place."""

    def __init__(self, subgroups: Sequence[SubGroup], *, weight_shards: Sequence[Tensor]) -> None:
        self._subgroups = tuple(subgroups)
        self._weights = tuple(weight_shards)
        self._grads: tuple[Tensor, ...] = ()

    def start(self, grad_shards: Sequence[Tensor]) -> None:
        self._grads = tuple(grad_shards)

    def pieces(self, index: int) -> Sequence[HostPiece]:
        group = self._subgroups[index]
        grad, weight = self._grads[group.unit], self._weights[group.unit]
        return tuple(
            HostPiece(
                run.state_start,
                run.numel,
                grad[run.shard_start : run.shard_start + run.numel],
                weight[run.shard_start : run.shard_start + run.numel],
            )
            for run in group.runs()
        )

    def send(self, index: int) -> None:
        return None

    def join(self) -> None:
        return None


class PinnedTransit:
    """The device is a GPU: one fp32 gradient slab and one working-dtype weight slab per host sub-group."""

    def __init__(
        self, subgroups: Sequence[SubGroup], *, weight_shards: Sequence[Tensor], pool: PinnedPool, device: torch.device
    ) -> None:
        self._subgroups = tuple(subgroups)
        self._weights = tuple(weight_shards)
        self._grad_slabs = tuple(pool.buffer(group.numel, torch.float32) for group in subgroups)
        self._weight_slabs = tuple(
            pool.buffer(group.numel, self._weights[group.unit].dtype) for group in subgroups
        )
        self._device = device
        self._grad_stream = torch.cuda.Stream(device)
        self._weight_stream = torch.cuda.Stream(device)
        self._arrived = tuple(torch.cuda.Event() for _ in subgroups)
        self._grads: tuple[Tensor, ...] = ()

    def start(self, grad_shards: Sequence[Tensor]) -> None:
        # Held until the next step: the allocator must not give these bytes away while the side stream reads them.
        self._grads = tuple(grad_shards)
        self._grad_stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._grad_stream):
            for group, slab, event in zip(self._subgroups, self._grad_slabs, self._arrived, strict=True):
                for run in group.runs():
                    slab[run.state_start : run.state_start + run.numel].copy_(
                        grad_shards[group.unit][run.shard_start : run.shard_start + run.numel], non_blocking=True
                    )
                event.record()

    def pieces(self, index: int) -> Sequence[HostPiece]:
        self._arrived[index].synchronize()
        return (HostPiece(0, self._subgroups[index].numel, self._grad_slabs[index], self._weight_slabs[index]),)

    def send(self, index: int) -> None:
        group, slab = self._subgroups[index], self._weight_slabs[index]
        with torch.cuda.stream(self._weight_stream):
            for run in group.runs():
                self._weights[group.unit][run.shard_start : run.shard_start + run.numel].copy_(
                    slab[run.state_start : run.state_start + run.numel], non_blocking=True
                )

    def join(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._weight_stream)
