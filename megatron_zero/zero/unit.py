"""ZeroUnit: parameters that are gathered, released and reduced together, over one flat buffer.

```
            start_gather            finish_gather
  SHARDED --------------> GATHERING --------------> UNSHARDED
     ^                                                  |
     +-------------------- release ---------------------+
```

[Note: one storage, resized]
Each nn.Parameter keeps its full shape as a view into `full`. Releasing resizes that storage to zero bytes and
gathering grows it again, so views stay in place: also those that autograd saved (`weight.t()` in a linear layer) are
whole again after the refill. The parameters are made on empty tensors and pointed at `full` through `.data`: a
parameter that was a slice of `full` would share its version counter, and refilling would make backward fail.

[Note: whole units]
A unit that need not be sharded (stages 0 to 2, or one rank) has `shard` as a slice of `full` and stays UNSHARDED:
gathering it after a step moves data only between ranks, and with one rank moves nothing.
"""

from __future__ import annotations

import enum

import torch
from torch import nn

from megatron_zero.distributed.collectives import Handle, all_gather_into
from megatron_zero.distributed.context import ParallelAxis

from .sharding import UnitLayout


class ShardState(enum.Enum):
    SHARDED = "sharded"
    GATHERING = "gathering"
    UNSHARDED = "unsharded"


class ShardStateError(RuntimeError):
    """A unit was asked for a transition that its state does not allow: names unit, state and allowed states."""


class ZeroUnit:
    """layout: where members lie.   axis: the ranks that hold the shards.   stays_whole: see [Note: whole units].

    full:  [layout.numel] working dtype, on device; no storage while SHARDED.
    shard: [layout.shard_numel] working dtype, on device; what this rank owns, and where new weights are written.
    parameters: name -> nn.Parameter of the full shape, a view into `full`.
    """

    def __init__(
        self, layout: UnitLayout, *, axis: ParallelAxis, dtype: torch.dtype, device: torch.device, stays_whole: bool
    ) -> None:
        if layout.num_shards != axis.size:
            raise ValueError(f"unit {layout.name}: {layout.num_shards} shards over an axis of {axis.size} ranks")
        self.layout = layout
        self.stays_whole = stays_whole
        self._axis = axis
        self._handle: Handle | None = None
        self.full = torch.zeros(layout.numel, dtype=dtype, device=device)
        self.parameters: dict[str, nn.Parameter] = {}
        for member in layout.members:
            parameter = nn.Parameter(torch.empty(0, dtype=dtype, device=device))
            parameter.data = self.full[member.start : member.stop].view(member.shape)
            self.parameters[member.name] = parameter
        start, stop = layout.shard_range(axis.rank)
        self.shard = self.full[start:stop] if stays_whole else torch.zeros(stop - start, dtype=dtype, device=device)
        self.state = ShardState.UNSHARDED
        if not stays_whole:
            self._free()
            self.state = ShardState.SHARDED

    @property
    def name(self) -> str:
        return self.layout.name

    def start_gather(self) -> None:
        """Begin bringing the whole unit to the device; returns before it has arrived. SHARDED -> GATHERING.

        Grows `full` on the current stream. Call finish_gather() on the same stream before reading.
        """
        self._move(ShardState.SHARDED, ShardState.GATHERING)
        self.full.untyped_storage().resize_(self.full.numel() * self.full.element_size())
        with torch.no_grad():
            self._handle = all_gather_into(self.full, self.shard, axis=self._axis, async_op=True)

    def finish_gather(self) -> None:
        """Wait for the gather. GATHERING -> UNSHARDED."""
        self._move(ShardState.GATHERING, ShardState.UNSHARDED)
        assert self._handle is not None
        self._handle.wait()
        self._handle = None

    def release(self) -> None:
        """Free the full copy. UNSHARDED -> SHARDED. Work already queued on the current stream still sees it."""
        if self.stays_whole:
            raise ShardStateError(f"unit {self.name} stays whole and cannot be released")
        self._move(ShardState.UNSHARDED, ShardState.SHARDED)
        self._free()

    def refresh(self) -> None:
        """After `shard` got new values: bring every rank's new shard into a whole unit's `full`, in place.

        A sharded unit has nothing to do: its next gather is fresh. Raises if it is not at rest.
        """
        if self.stays_whole:
            with torch.no_grad():
                all_gather_into(self.full, self.shard, axis=self._axis)
        elif self.state is not ShardState.SHARDED:
            raise ShardStateError(f"unit {self.name} got new values while {self.state.value}; allowed: sharded")

    @property
    def resident_bytes(self) -> int:
        """Bytes this unit's weights take on the device now."""
        whole = self.full.untyped_storage().nbytes()
        return whole if self.stays_whole else whole + self.shard.untyped_storage().nbytes()

    def _free(self) -> None:
        self.full.untyped_storage().resize_(0)

    def _move(self, expected: ShardState, new: ShardState) -> None:
        if self.state is not expected:
            raise ShardStateError(
                f"unit {self.name} is {self.state.value}: it can only become {new.value} from {expected.value}"
            )
        self.state = new
