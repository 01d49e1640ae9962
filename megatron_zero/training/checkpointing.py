"""What a checkpoint of this trainer holds: optimizer state by parameter, counters, schedule, random state."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
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
from megatron_zero.optim.adam import StateSlice
from megatron_zero.optim.lr_schedule import LrSchedule
from megatron_zero.tensor_parallel.splits import TensorSplit
from megatron_zero.zero.engine import ZeroEngine

from .state import TrainState


@dataclasses.dataclass(frozen=True, slots=True)
class CheckpointParts:
    """What is saved and restored.

    identity: what must be equal on resume, by flag (model shape, vocabulary).   settings: every setting of this run with
    its source, one a line; kept with the checkpoint for people, never read back.   watched: what may differ on resume,
    but is told.   table_rows: real rows of the parameters whose last rows are padding.   splits: of every parameter.
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
    splits: Mapping[str, TensorSplit]

    @property
    def layout(self) -> dict[str, int]:
        """Axis name -> size: which rank is which."""
        context = self.context
        return {axis.name: axis.size for axis in (context.pp, context.dp, context.tp)}


def save_training(root: Path, parts: CheckpointParts, state: TrainState) -> SaveReport:
    """Write iteration `state.iteration` below root; every rank calls it. Weights are saved as fp32 masters."""
    return save_checkpoint(
        root,
        state.iteration,
        slices=_saved_slices(parts),
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
        layout=parts.layout,
    )


def load_training(root: Path, iteration: int, parts: CheckpointParts, state: TrainState) -> tuple[str, ...]:
    """Restore everything that save_training wrote: weights, moments, counters, random state, bit by bit.

    Random states belong to ranks of one layout: under another one this run keeps the seeds that it started with. Returns
    what the log should say about that.
    Raises ConfigError on every rank when the checkpoint is of another model, or of another learning-rate schedule
    without --override-opt_param-scheduler.
    """
    common = read_common(root, iteration, axis=parts.context.world)
    _check_identity(root, common["identity"], parts.identity)
    if not parts.override_schedule:
        _check_schedule(root, LrSchedule(**common["lr_schedule"]), parts.lr_schedule)
    loaded = load_checkpoint(root, iteration, wanted=_wanted_slices(parts), axis=parts.context.world)
    state.load(loaded.common["train_state"])
    parts.optimizer.step_count = int(loaded.common["optimizer_step"])
    with torch.no_grad():
        parts.optimizer.write_weights()
        parts.engine.after_step()
    changed = _changes(common["watched"], parts.watched)
    if dict(loaded.layout) != parts.layout:
        return (
            *changed,
            f"the checkpoint is of {_layout_text(loaded.layout)} and this run has {_layout_text(parts.layout)}: "
            "weights, moments and data position go on exactly; dropout starts from this run's own seeds",
        )
    rng = {name.removeprefix("rng/"): value for name, value in loaded.rank_state.items()}
    parts.streams.restore(rng)
    return changed


def _saved_slices(parts: CheckpointParts) -> list[TensorSlice]:
    """What this rank writes: copies that several ranks hold alike are written by the first of them.

    Those are the whole state at stage 0 (data-parallel ranks) and replicated parameters (tensor-parallel ranks).
    """
    if not parts.engine.replica_axis.is_first:
        return []
    writes_replicated = parts.context.tp.is_first
    return [
        tensor
        for piece in parts.optimizer.state_slices()
        if writes_replicated or not parts.splits[piece.name].replicated
        for tensor in _logical_slices(piece, parts)
    ]


def _wanted_slices(parts: CheckpointParts) -> list[TensorSlice]:
    """What this rank needs: everything it holds."""
    return [tensor for piece in parts.optimizer.state_slices() for tensor in _logical_slices(piece, parts)]


def _logical_slices(piece: StateSlice, parts: CheckpointParts) -> Iterator[TensorSlice]:
    """A rank's piece of state as runs of the logical tensor, without the padding rows at its end."""
    split = parts.splits[piece.name]
    shape = (parts.table_rows.get(piece.name, split.shape[0]), *split.shape[1:]) if split.shape else ()
    whole = math.prod(shape)
    done = 0
    for run in split.runs(piece.start, piece.data.numel()):
        numel = min(run.numel, whole - run.start)
        if numel > 0:
            data = piece.data[done : done + numel]
            yield TensorSlice(key=f"{piece.key}/{piece.name}", shape=shape, start=run.start, data=data)
        done += run.numel


def _layout_text(layout: Mapping[str, int]) -> str:
    """As a person says it: "tensor 2 x pipeline 1 x data 4 = 8 processes"."""
    words = {"tp": "tensor", "pp": "pipeline", "dp": "data"}
    sizes = [f"{word} {layout[name]}" for name, word in words.items() if name in layout]
    return f"{' x '.join(sizes)} = {math.prod(layout.values())} processes"


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
