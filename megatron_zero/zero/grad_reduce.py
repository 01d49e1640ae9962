"""UnitGradients: one unit's gradients, from .grad of each parameter to the reduced fp32 shard.

Gradients arrive in any order, each exactly once per micro-batch; all sums are fp32. Two ways, one outcome:
*scatter*: the whole gradient of a micro-batch is reduce-scattered and added to the shard (stages 2 and 3);
*accumulate*: the whole gradient is summed over micro-batches and reduced once (stages 0 and 1; also one rank alone,
where it saves a pass because the shard is the whole).
The loss is already divided by micro-batches x data-parallel ranks, so every reduction here is a plain sum.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from megatron_zero.distributed.collectives import all_reduce_, reduce_scatter_into
from megatron_zero.distributed.context import ParallelAxis

from .sharding import UnitLayout


class GradientCountError(RuntimeError):
    """A parameter's gradient came twice, or not at all, in one micro-batch: names the parameters."""


class ShardReduction(Protocol):
    """What is summed on the shards after data parallelism and before they are final, over axes that ZeRO does not know."""

    def __call__(self, shards: Sequence[Tensor], replicated: Sequence[tuple[int, int]]) -> None:
        """Called once a step on every rank; mutates shards.

        shards: per unit in forward order [shard_numel] fp32 on the device.
        replicated: per unit [start, stop) within the shard of members that tensor parallelism replicates.
        """


class BackwardState(enum.Enum):
    """Where one unit is in the backward of one micro-batch."""

    AT_REST = "at rest"
    BEGUN = "begun"  # gradients are outstanding: its weights must stay, whatever forward runs inside backward
    COUNTED = "counted"  # every gradient has come


class UnitGradients:
    """shard_axis: ranks that own the shards.   replica_axis: ranks that hold the same shard (stage 0: data parallel).

    Exactly one of the two has more than one rank; both are size 1 for a single process.
    """

    def __init__(
        self,
        layout: UnitLayout,
        *,
        shard_axis: ParallelAxis,
        replica_axis: ParallelAxis,
        scatters_each_micro_batch: bool,
        device: torch.device,
    ) -> None:
        self._layout = layout
        self._shard_axis = shard_axis
        self._replica_axis = replica_axis
        self._scatters = scatters_each_micro_batch and shard_axis.size > 1
        self._device = device
        self._members = {member.name: member for member in layout.members}
        self._arrived: set[str] = set()
        self._whole: Tensor | None = None  # [layout.numel] fp32; padding stays zero
        self._shard: Tensor | None = None  # [layout.shard_numel] fp32
        self._micro_batches = 0
        self.state = BackwardState.AT_REST

    def begin_step(self) -> None:
        """Forget the last step's gradients (buffers are kept) and any micro-batch that was cut short."""
        self._arrived.clear()
        self._micro_batches = 0
        self.state = BackwardState.AT_REST

    def begin_backward(self) -> None:
        """The gradient of an output of the unit is there. AT_REST -> BEGUN; again for each module of the unit."""
        if self.state is BackwardState.AT_REST:
            self.state = BackwardState.BEGUN

    def add(self, name: str, grad: Tensor) -> bool:
        """Take one parameter's gradient (any float dtype, full shape). True when the unit's last one has arrived.

        Raises GradientCountError if this parameter's gradient already came in this micro-batch.
        """
        if name in self._arrived:
            raise GradientCountError(f"parameter {name}: a second gradient in one micro-batch")
        self.begin_backward()
        self._arrived.add(name)
        member = self._members[name]
        if self._whole is None:
            self._whole = torch.zeros(self._layout.numel, dtype=torch.float32, device=self._device)
        target = self._whole[member.start : member.stop]
        # The first micro-batch overwrites, so nothing needs to be zeroed between steps.
        if self._scatters or self._micro_batches == 0:
            target.copy_(grad.reshape(-1))
        else:
            target.add_(grad.reshape(-1))
        return len(self._arrived) == len(self._members)

    def finish_micro_batch(self) -> None:
        """All members have arrived: reduce if this stage does so each micro-batch. BEGUN -> COUNTED."""
        assert self._whole is not None and len(self._arrived) == len(self._members)
        if self._scatters:
            reduced = torch.empty(self._layout.shard_numel, dtype=torch.float32, device=self._device)
            reduce_scatter_into(reduced, self._whole, axis=self._shard_axis)
            # Held only while one unit is in backward: freed here, so one whole gradient is live at a time.
            self._whole = None
            if self._shard is None or self._micro_batches == 0:
                self._shard = reduced
            else:
                self._shard.add_(reduced)
        self._micro_batches += 1
        self.state = BackwardState.COUNTED

    def check_micro_batch(self) -> None:
        """After a backward: every parameter's gradient must have come; then count from anew. -> AT_REST."""
        missing = [name for name in self._members if name not in self._arrived]
        if missing:
            raise GradientCountError(
                f"unit {self._layout.name}: no gradient for {', '.join(missing)}: "
                "every parameter of a unit must take part in each loss"
            )
        self._arrived.clear()
        self.state = BackwardState.AT_REST

    def finish_step(self) -> None:
        """After the last micro-batch: the reduction of those stages that reduce once a step."""
        if self._scatters:
            return
        assert self._whole is not None
        if self._shard_axis.size == 1:
            self._shard = self._whole
        else:
            if self._shard is None:
                self._shard = torch.empty(self._layout.shard_numel, dtype=torch.float32, device=self._device)
            reduce_scatter_into(self._shard, self._whole, axis=self._shard_axis)
        all_reduce_(self._shard, axis=self._replica_axis)

    @property
    def shard(self) -> Tensor:
        """[layout.shard_numel] fp32, reduced over data parallel and micro-batches; padding is zero."""
        if self._shard is None:
            raise GradientCountError(f"unit {self._layout.name}: no gradient was reduced yet")
        return self._shard

    @property
    def resident_bytes(self) -> int:
        """Bytes of gradient buffers on the device now."""
        buffers = [buffer for buffer in (self._whole, self._shard) if buffer is not None]
        return sum({buffer.data_ptr(): buffer.untyped_storage().nbytes() for buffer in buffers}.values())
