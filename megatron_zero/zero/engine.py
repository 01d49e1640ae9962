"""ZeroEngine: acquire, release and reduce units, by the stage's policy.

One step, as the caller sees it:

    engine.begin_step()
    for each micro-batch:  loss = module(...);  loss.backward();  engine.finish_micro_batch()
    engine.finish_backward()                     # grad_shards are final
    ... write new weights into weight_shards ...
    engine.after_step()                          # every later forward sees them
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from megatron_zero.distributed.context import ParallelAxis

from .grad_reduce import BackwardState, ShardReduction, UnitGradients
from .hooks import install_hooks
from .materialize import ParamInit, UnitSpec, materialize_units, unit_specs
from .policy import stage_policy
from .sharding import UnitLayout
from .unit import ShardState, ZeroUnit


class ZeroEngine:
    """Takes over the parameters of `module` (built on meta) and trains them at one ZeRO stage.

    groups: (unit name, modules whose forward needs it) in forward order; every parameter is in exactly one unit.
    dtype: of weights and activations; gradients are accumulated and reduced in fp32 at every stage.
    shard_axis: data parallel at stages 1 to 3, a single rank at stage 0, whose copies form replica_axis.
    replicated: parameters of which every tensor-parallel rank has a whole copy; of the others the module holds this
    rank's part. It shapes the layouts, so it must be a fact of the model: the same names for every tensor-parallel size.
    shard_reduction: what else has to be summed before gradients are final (ShardReduction).
    Mutates module: its parameters become views into flat buffers, and it gets hooks until close().
    """

    def __init__(
        self,
        module: nn.Module,
        groups: Iterable[tuple[str, Sequence[nn.Module]]],
        *,
        stage: int,
        dp: ParallelAxis,
        dtype: torch.dtype,
        device: torch.device,
        init: ParamInit,
        replicated: frozenset[str] = frozenset(),
        shard_reduction: ShardReduction | None = None,
    ) -> None:
        policy = stage_policy(stage)
        alone = ParallelAxis.single("replica", dp.global_ranks[dp.rank])
        self.stage = stage
        self.shard_axis, self.replica_axis = (dp, alone) if policy.optimizer else (alone, dp)
        self.specs: tuple[UnitSpec, ...] = unit_specs(module, groups)
        self.units: tuple[ZeroUnit, ...] = materialize_units(
            module,
            self.specs,
            shard_axis=self.shard_axis,
            replicated=replicated,
            # One rank owns everything: nothing to gather or free, whatever the stage.
            stays_whole=not policy.parameters or self.shard_axis.size == 1,
            dtype=dtype,
            device=device,
            init=init,
        )
        self._gradients = {
            unit.name: UnitGradients(
                unit.layout,
                shard_axis=self.shard_axis,
                replica_axis=self.replica_axis,
                scatters_each_micro_batch=policy.gradients,
                device=device,
            )
            for unit in self.units
        }
        self._shard_reduction = shard_reduction
        self._hooks = install_hooks(self.units, self.specs, self)

    # -- called by the training step --------------------------------------------------------------------------------

    def begin_step(self) -> None:
        """Start a step: gradients of the last one, also of one that was cut short, no longer count."""
        for gradients in self._gradients.values():
            gradients.begin_step()

    def finish_micro_batch(self) -> None:
        """After each backward: every parameter was reduced exactly once, and every sharded unit is at rest.

        Raises GradientCountError naming the parameters that got no gradient.
        """
        for unit in self.units:
            self._gradients[unit.name].check_micro_batch()
            if not unit.stays_whole and unit.state is not ShardState.SHARDED:
                unit.release()

    def finish_backward(self) -> None:
        """After the last micro-batch: do what is reduced once a step. grad_shards are final afterwards."""
        for unit in reversed(self.units):
            self._gradients[unit.name].finish_step()
        if self._shard_reduction is not None:
            self._shard_reduction(self.grad_shards, self.replicated_ranges)

    def after_step(self) -> None:
        """New weights are in weight_shards: make them visible to the next forward on every rank."""
        for unit in self.units:
            unit.refresh()

    @property
    def layouts(self) -> tuple[UnitLayout, ...]:
        """One per unit, in forward order."""
        return tuple(unit.layout for unit in self.units)

    @property
    def replicated_ranges(self) -> tuple[tuple[int, int], ...]:
        """Per unit [start, stop) within this rank's shard: the blocks that every tensor-parallel rank holds alike."""
        return tuple(layout.replicated_in_shard(self.shard_axis.rank) for layout in self.layouts)

    @property
    def grad_shards(self) -> tuple[Tensor, ...]:
        """Per unit [layout.shard_numel] fp32 on the device, padding zero; valid after finish_backward()."""
        return tuple(self._gradients[unit.name].shard for unit in self.units)

    @property
    def weight_shards(self) -> tuple[Tensor, ...]:
        """Per unit [layout.shard_numel] working dtype on the device; the optimizer writes new values here."""
        return tuple(unit.shard for unit in self.units)

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes on the device by purpose, now."""
        return {
            "weights": sum(unit.resident_bytes for unit in self.units),
            "gradients": sum(gradients.resident_bytes for gradients in self._gradients.values()),
        }

    @contextmanager
    def summon_full_parameters(self) -> Iterator[dict[str, Tensor]]:
        """All parameters as the module holds them (under tensor parallelism this rank's part), by name, read-only views;
        gathered on entry and released on exit. Every rank calls it."""
        gathered = [unit for unit in self.units if unit.state is ShardState.SHARDED]
        for unit in gathered:
            self._acquire(unit)
        try:
            yield {name: p.detach() for unit in self.units for name, p in unit.parameters.items()}
        finally:
            for unit in gathered:
                unit.release()

    def close(self) -> None:
        """Remove the hooks; the module keeps its (possibly sharded) parameters."""
        for handle in self._hooks:
            handle.remove()
        self._hooks = ()

    # -- called by the hooks (hooks.py, [Note: hook order]) -----------------------------------------------------------

    def before_forward(self, unit: ZeroUnit) -> None:
        self._acquire(unit)

    def after_forward(self, unit: ZeroUnit) -> None:
        # A forward that recomputes inside backward: the weights are about to be used, or already are.
        if self._gradients[unit.name].state is not BackwardState.BEGUN:
            self._release(unit)

    def before_backward(self, unit: ZeroUnit) -> None:
        self._gradients[unit.name].begin_backward()
        self._acquire(unit)

    def on_gradient(self, unit: ZeroUnit, name: str, parameter: nn.Parameter) -> None:
        assert parameter.grad is not None
        gradients = self._gradients[unit.name]
        is_last = gradients.add(name, parameter.grad)
        parameter.grad = None
        if is_last:
            gradients.finish_micro_batch()
            self._release(unit)

    def _acquire(self, unit: ZeroUnit) -> None:
        if unit.state is ShardState.SHARDED:
            unit.start_gather()
        if unit.state is ShardState.GATHERING:
            unit.finish_gather()

    def _release(self, unit: ZeroUnit) -> None:
        if not unit.stays_whole:
            unit.release()
