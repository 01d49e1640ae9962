"""OffloadedAdam: one AdamW step over DEVICE and HOST sub-groups, bit-equal for every split.

Policy `sync`: called after the global norm, returns when both tiers are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_zero.ops.cpu_adam import AdamScalars, adamw_step_, adamw_step_reference_
from megatron_zero.optim.adam import AdamState, StateSlice
from megatron_zero.optim.subgroup import SubGroup
from megatron_zero.storage.pinned import PinnedPool

from .placement import Tier, TwinFlowPlan
from .transit import DirectTransit, HostTransit, PinnedTransit

# The plain-torch form makes some 24 bytes of temporaries an element: this bounds them to 400 MB.
DEVICE_CHUNK_NUMEL = 1 << 24


@dataclass(frozen=True, slots=True)
class AdamHyperparameters:
    """Constants of the run; the learning rate is given to each step."""

    beta1: float
    beta2: float
    eps: float
    weight_decay: float


class OffloadedAdam:
    """plan: what rests where.   weight_shards: per unit, working dtype, on `device`; each step writes new values there.

    A DEVICE sub-group is stepped by the device's kernel (plain torch), a HOST one by the C++ kernel; the two round
    alike (offload.md section 2), so the plan never changes a result. Moments start at zero; fill the masters through
    state_slices() before the first step.
    """

    def __init__(
        self,
        plan: TwinFlowPlan,
        *,
        weight_shards: Sequence[Tensor],
        hyperparameters: AdamHyperparameters,
        device: torch.device,
        pin_memory: bool,
        num_threads: int,
    ) -> None:
        self.plan = plan
        self.step_count = 0
        self._hyperparameters = hyperparameters
        self._num_threads = num_threads
        self._weights = tuple(weight_shards)
        self.pool = PinnedPool(pinned=pin_memory and device.type == "cuda")
        host_device = torch.device("cpu")
        self._device_states = tuple(
            AdamState(item.subgroup, device=device) for item in plan.placed if item.tier is Tier.DEVICE
        )
        self._host_states = tuple(
            AdamState(item.subgroup, device=host_device) for item in plan.placed if item.tier is Tier.HOST
        )
        host_groups = [state.subgroup for state in self._host_states]
        self._transit: HostTransit = (
            PinnedTransit(host_groups, weight_shards=weight_shards, pool=self.pool, device=device)
            if device.type == "cuda"
            else DirectTransit(host_groups, weight_shards=weight_shards)
        )

    def step(self, grad_shards: Sequence[Tensor], *, lr: float, grad_scale: float) -> None:
        """Update masters, moments and weight_shards with grad * grad_scale.

        grad_shards: per unit [shard] fp32 on the device, final and finite; not modified.
        grad_scale: clip coefficient (and, with a loss scale, its reciprocal) as one number.
        Returns when every weight is on its way: later work on the device's current stream sees all of them.
        """
        self.step_count += 1
        scalars = {decays: self._scalars(decays, lr=lr, grad_scale=grad_scale) for decays in (True, False)}
        self._transit.start(grad_shards)
        # The device's kernels are only queued here, and run while the host works on its share.
        for state in self._device_states:
            self._step_on_device(state, grad_shards, scalars[state.subgroup.decays])
        for index, state in enumerate(self._host_states):
            self._step_on_host(index, state, scalars[state.subgroup.decays])
            self._transit.send(index)
        self._transit.join()

    def state_slices(self) -> list[StateSlice]:
        """Every element of the state by parameter, in every tier; views, so a load fills them in place."""
        return [piece for state in self._device_states + self._host_states for piece in state.slices()]

    def write_weights(self) -> None:
        """Set every weight shard to its rounded master (after a load)."""
        for state in self._device_states + self._host_states:
            weights = self._weights[state.subgroup.unit]
            for run in state.subgroup.runs():
                weights[run.shard_start : run.shard_start + run.numel].copy_(
                    state.master[run.state_start : run.state_start + run.numel]
                )

    @property
    def subgroups(self) -> dict[Tier, tuple[SubGroup, ...]]:
        return {
            Tier.DEVICE: tuple(state.subgroup for state in self._device_states),
            Tier.HOST: tuple(state.subgroup for state in self._host_states),
        }

    @property
    def tier_bytes(self) -> dict[str, int]:
        """Bytes of optimizer state (master and two moments) by tier, counted from the tensors that hold them."""
        return {
            Tier.DEVICE.value: sum(state.nbytes for state in self._device_states),
            Tier.HOST.value: sum(state.nbytes for state in self._host_states),
            "nvme": 0,
        }

    def close(self) -> None:
        """Give page-locked memory back; no step may follow."""
        if self.pool.pinned_bytes:
            torch.cuda.synchronize()
        self.pool.close()

    def _scalars(self, decays: bool, *, lr: float, grad_scale: float) -> AdamScalars:
        constants = self._hyperparameters
        return AdamScalars.of(
            step=self.step_count,
            lr=lr,
            beta1=constants.beta1,
            beta2=constants.beta2,
            eps=constants.eps,
            weight_decay=constants.weight_decay if decays else 0.0,
            grad_scale=grad_scale,
        )

    def _step_on_device(self, state: AdamState, grad_shards: Sequence[Tensor], scalars: AdamScalars) -> None:
        unit = state.subgroup.unit
        for run in state.subgroup.runs():
            for start in range(0, run.numel, DEVICE_CHUNK_NUMEL):
                numel = min(DEVICE_CHUNK_NUMEL, run.numel - start)
                in_state = slice(run.state_start + start, run.state_start + start + numel)
                in_shard = slice(run.shard_start + start, run.shard_start + start + numel)
                adamw_step_reference_(
                    state.master[in_state],
                    state.exp_avg[in_state],
                    state.exp_avg_sq[in_state],
                    grad_shards[unit][in_shard],
                    self._weights[unit][in_shard],
                    scalars=scalars,
                )

    def _step_on_host(self, index: int, state: AdamState, scalars: AdamScalars) -> None:
        for piece in self._transit.pieces(index):
            in_state = slice(piece.state_start, piece.state_start + piece.numel)
            adamw_step_(
                state.master[in_state],
                state.exp_avg[in_state],
                state.exp_avg_sq[in_state],
                piece.grad,
                piece.working,
                scalars=scalars,
                num_threads=self._num_threads,
            )
