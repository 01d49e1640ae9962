"""What a checkpoint of this trainer holds: optimizer state by parameter, counters, schedule, random state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from megatron_zero.checkpoint.load import load_checkpoint, read_common
from megatron_zero.checkpoint.save import SaveReport, save_checkpoint
from megatron_zero.checkpoint.tensors import TensorSlice
from megatron_zero.config.fields import ConfigError
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.distributed.rng import RngStreams
from megatron_zero.offload.optimizer import OffloadedAdam
from megatron_zero.optim.lr_schedule import LrSchedule
from megatron_zero.zero.engine import ZeroEngine

from .state import TrainState


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointParts:
    """What is saved and restored.

    identity: what must be equal on resume, by flag (model shape, vocabulary).   settings: every setting of this run with
    its source, one a line; kept with the checkpoint for people, never read back.   watched: what may differ on resume,
    but is told.
    """

    context: ParallelContext
    streams: RngStreams
    engine: ZeroEngine
    optimizer: OffloadedAdam
    lr_schedule: LrSchedule
    override_schedule: bool
    identity: dict[str, Any]
    settings: tuple[str, ...]
    watched: dict[str, Any]
    table_rows: Mapping[str, int]


def save_training(root: Path, parts: CheckpointParts, state: TrainState) -> SaveReport:
    """Write iteration `state.iteration` below root; every rank calls it. Weights are saved as fp32 masters."""
    return save_checkpoint(
        root,
        state.iteration,
        # At stage 0 every data-parallel rank holds the same state: the first one's copy is enough.
        slices=_tensor_slices(parts) if parts.engine.replica_axis.is_first else [],
        common={
            "train_state": state.as_dict(),
            "optimizer_step": parts.optimizer.step_count,
            "lr_schedule": dataclasses.asdict(parts.lr_schedule),
            "identity": parts.identity,
            "settings": parts.settings,
            "watched": parts.watched,
        },
        rank_state={f"rng/{name}": value for name, value in parts.streams.capture().items()},
        axis=parts.context.world,
        layout={axis.name: axis.size for axis in (parts.context.pp, parts.context.dp, parts.context.tp)},
    )


def load_training(root: Path, iteration: int, parts: CheckpointParts, state: TrainState) -> tuple[str, ...]:
    """Restore everything that save_training wrote: weights, moments, counters, random state, bit by bit.

    Random states belong to ranks: another number of ranks keeps the seeds that this run started with. Returns what the
    log should say about that.
    Raises ConfigError on every rank when the checkpoint is of another model, or of another learning-rate schedule
    without --override-opt_param-scheduler.
    """
    common = read_common(root, iteration, axis=parts.context.world)
    _check_identity(root, common["identity"], parts.identity)
    if not parts.override_schedule:
        _check_schedule(root, LrSchedule(**common["lr_schedule"]), parts.lr_schedule)
    loaded = load_checkpoint(root, iteration, wanted=_tensor_slices(parts), axis=parts.context.world)
    state.load(loaded.common["train_state"])
    parts.optimizer.step_count = int(loaded.common["optimizer_step"])
    with torch.no_grad():
        parts.optimizer.write_weights()
        parts.engine.after_step()
    changed = _changes(common["watched"], parts.watched)
    if loaded.saved_world_size != parts.context.world.size:
        return (
            *changed,
            f"the checkpoint is of {loaded.saved_world_size} processes and this run has {parts.context.world.size}: "
            "weights, moments and data position go on exactly; dropout starts from this run's own seeds",
        )
    rng = {name.removeprefix("rng/"): value for name, value in loaded.rank_state.items()}
    parts.streams.restore(rng)
    return changed


def _tensor_slices(parts: CheckpointParts) -> list[TensorSlice]:
    """What this rank holds of every logical tensor, without padding."""
    slices = []
    for piece in parts.optimizer.state_slices():
        shape = (parts.table_rows.get(piece.name, piece.shape[0]), *piece.shape[1:])
        numel = min(piece.data.numel(), math.prod(shape) - piece.start)
        if numel > 0:
            key = f"{piece.key}/{piece.name}"
            slices.append(TensorSlice(key=key, shape=shape, start=piece.start, data=piece.data[:numel]))
    return slices


def _changes(saved: dict[str, Any], ours: dict[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{name} was {saved.get(name)!r} when the checkpoint was made and is {value!r} now"
        for name, value in ours.items()
        if saved.get(name) != value
    )


def _check_identity(root: Path, saved: dict[str, Any], ours: dict[str, Any]) -> None:
    different = [
        f"{flag} {saved.get(flag)!r} there and {value!r} here" for flag, value in ours.items() if saved.get(flag) != value
    ]
    if different:
        raise ConfigError(f"the checkpoint in {root} is of another model: {'; '.join(different)}")


def _check_schedule(root: Path, saved: LrSchedule, ours: LrSchedule) -> None:
    """Only what shapes the curve counts: a constant rate has no decay."""
    decay = () if saved.style == ours.style == "constant" else ("min_lr", "decay_tokens")
    different = [
        f"{field} {getattr(saved, field)!r} there and {getattr(ours, field)!r} here"
        for field in ("style", "max_lr", "warmup_tokens", *decay)
        if getattr(saved, field) != getattr(ours, field)
    ]
    if different:
        raise ConfigError(
            f"the checkpoint in {root} has another learning-rate schedule: {'; '.join(different)}; "
            "give the same schedule, or --override-opt_param-scheduler to take the one of this command line"
        )
