"""Typed collectives over a ParallelAxis. Sizes, dtypes and layout are checked on every call, before anything travels.

A size-1 axis short-circuits: no process group is needed. Tensors are 1-D and contiguous for gather and scatter; an
operation that asks async_op=True returns a Handle at once and the tensors must be left alone until its wait().
This file alone names the torch functions, whose names depend on the torch version. Wrong arguments raise ValueError:
they are programming errors, and every rank of the axis must make the same calls in the same order. A rank that has gone,
or does not answer within the time-out, raises PeerLost (NCCL may end the process itself, with a message of its own).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, TypeVar

import torch.distributed as dist
from torch import Tensor

from megatron_zero.config.fields import ConfigError

from .context import ParallelAxis

Result = TypeVar("Result")
ReduceName = Literal["sum", "max", "min"]

# torch 2.13 renamed the two and made the old names warn on every call; 2.11 knows only the old ones.
ALL_GATHER: Final = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
REDUCE_SCATTER: Final = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class PeerLost(RuntimeError):
    """A collective did not complete: names it, its axis, who may be the cause, and what the backend says."""


def _complete(what: str, axis: ParallelAxis, call: Callable[[], Result]) -> Result:
    """call(), a backend's failure as PeerLost."""
    try:
        return call()
    except RuntimeError as error:
        # gloo raises RuntimeError itself; its subclasses (out of memory) are something else, but for torch.distributed's.
        if type(error) is not RuntimeError and not isinstance(error, dist.DistError):
            raise
        others = [rank for rank in axis.global_ranks if rank != axis.global_ranks[axis.rank]]
        who = f"rank {others[0]}" if len(others) == 1 else f"one of ranks {', '.join(map(str, others))}"
        raise PeerLost(
            f"{what} over axis {axis.name} did not complete: {who} ended, or did not answer within the time-out "
            f"(--distributed-timeout-minutes); the cause is in what it wrote last ({error})"
        ) from error


class Handle:
    """A collective under way (or already finished). Keeps its tensors alive until wait()."""

    __slots__ = ("_axis", "_tensors", "_what", "_work")

    def __init__(
        self,
        work: dist.Work | None = None,
        tensors: tuple[Tensor, ...] = (),
        *,
        what: str = "",
        axis: ParallelAxis | None = None,
    ) -> None:
        self._work = work
        self._tensors = tensors
        self._what, self._axis = what, axis

    def wait(self) -> None:
        """The result may be read after this: gloo blocks the host, NCCL makes the current stream wait.

        Calling it again does nothing. Raises PeerLost.
        """
        work, self._work = self._work, None
        if work is not None:
            assert self._axis is not None
            _complete(self._what, self._axis, work.wait)
        self._tensors = ()


def _check(what: str, axis: ParallelAxis, *tensors: Tensor) -> None:
    """Contiguity, one dtype and one device; raises ValueError that names the operation and the axis."""
    first = tensors[0]
    for tensor in tensors:
        if not tensor.is_contiguous():
            raise ValueError(
                f"{what} over axis {axis.name}: a tensor of shape {tuple(tensor.shape)} and stride {tensor.stride()} "
                "is not contiguous; a copy would be reduced instead of the tensor itself"
            )
        if tensor.dtype != first.dtype or tensor.device != first.device:
            raise ValueError(
                f"{what} over axis {axis.name}: tensors differ, {first.dtype} on {first.device} and "
                f"{tensor.dtype} on {tensor.device}"
            )


def _check_flat(what: str, axis: ParallelAxis, *, whole: Tensor, part: Tensor) -> None:
    """_check, and that whole and part are 1-D with whole exactly axis.size times part."""
    _check(what, axis, whole, part)
    if whole.dim() != 1 or part.dim() != 1:
        raise ValueError(
            f"{what} over axis {axis.name}: tensors must be 1-D, got {tuple(whole.shape)} and {tuple(part.shape)}"
        )
    if whole.numel() != axis.size * part.numel():
        raise ValueError(
            f"{what} over axis {axis.name}: {whole.numel()} elements are not axis size {axis.size} x shard of "
            f"{part.numel()} = {axis.size * part.numel()}"
        )


def _copy_unless_same(out: Tensor, source: Tensor) -> Handle:
    """The size-1 gather and scatter: a copy, or nothing where source already lies at out."""
    if out.data_ptr() != source.data_ptr():
        out.copy_(source)
    return Handle()


def all_reduce_(tensor: Tensor, *, axis: ParallelAxis, op: ReduceName = "sum", async_op: bool = False) -> Handle:
    """Replace tensor, on every rank of the axis, by the elementwise sum, max or min over the ranks.

    tensor: any shape, contiguous; mutated. The sum is rounded in tensor's dtype, in an order the backend chooses.
    """
    _check("all_reduce", axis, tensor)
    operation = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}.get(op)
    if operation is None:
        raise ValueError(f"all_reduce over axis {axis.name}: unknown op {op!r}; one of sum, max, min")
    if axis.group is None:
        return Handle()
    call = partial(dist.all_reduce, tensor, op=operation, group=axis.group, async_op=async_op)
    return Handle(_complete("all_reduce", axis, call), (tensor,), what="all_reduce", axis=axis)


def all_gather_into(out: Tensor, shard: Tensor, *, axis: ParallelAxis, async_op: bool = False) -> Handle:
    """Fill out with the shards of all ranks, end to end in axis order.

    shard: [n].   out: [axis.size * n], same dtype and device; mutated. shard may be out's own slice
    [axis.rank * n, (axis.rank + 1) * n), and then needs no copy; any other overlap is undefined.
    """
    _check_flat("all_gather", axis, whole=out, part=shard)
    if axis.group is None:
        return _copy_unless_same(out, shard)
    call = partial(ALL_GATHER, out, shard, group=axis.group, async_op=async_op)
    return Handle(_complete("all_gather", axis, call), (out, shard), what="all_gather", axis=axis)


def reduce_scatter_into(out: Tensor, full: Tensor, *, axis: ParallelAxis, async_op: bool = False) -> Handle:
    """Fill out with this rank's slice of the sum of full over the ranks.

    full: [axis.size * n], same dtype and device; its contents are undefined afterwards only where out overlaps it.
    out: [n]; mutated. The sum is rounded in the tensors' dtype, in an order the backend chooses.
    """
    _check_flat("reduce_scatter", axis, whole=full, part=out)
    if axis.group is None:
        return _copy_unless_same(out, full)
    call = partial(REDUCE_SCATTER, out, full, group=axis.group, async_op=async_op)
    return Handle(_complete("reduce_scatter", axis, call), (out, full), what="reduce_scatter", axis=axis)


def broadcast_(tensor: Tensor, *, axis: ParallelAxis, source: int = 0, async_op: bool = False) -> Handle:
    """Replace tensor on every rank by the source's. source: rank within the axis. tensor: any shape, contiguous."""
    _check("broadcast", axis, tensor)
    _check_source("broadcast", axis, source)
    if axis.group is None:
        return Handle()
    call = partial(dist.broadcast, tensor, src=axis.global_ranks[source], group=axis.group, async_op=async_op)
    return Handle(_complete("broadcast", axis, call), (tensor,), what="broadcast", axis=axis)


def _check_source(what: str, axis: ParallelAxis, source: int) -> None:
    if not 0 <= source < axis.size:
        raise ValueError(f"{what} over axis {axis.name}: source {source} is not a rank of the axis [0, {axis.size})")


def all_gather_object(value: Any, *, axis: ParallelAxis) -> list[Any]:
    """The values of all ranks, in axis order; pickled, so small things only. The host waits."""
    if axis.group is None:
        return [value]
    values: list[Any] = [None] * axis.size
    _complete("all_gather of objects", axis, partial(dist.all_gather_object, values, value, group=axis.group))
    return values


def broadcast_object(value: Any, *, axis: ParallelAxis, source: int = 0) -> Any:
    """The source's value on every rank (others pass anything); pickled. source: rank within the axis. The host waits."""
    _check_source("broadcast_object", axis, source)
    if axis.group is None:
        return value
    box = [value if axis.rank == source else None]
    call = partial(dist.broadcast_object_list, box, src=axis.global_ranks[source], group=axis.group)
    _complete("broadcast of an object", axis, call)
    return box[0]


def barrier(*, axis: ParallelAxis) -> None:
    """Return once every rank of the axis has called it. The host waits, also under NCCL."""
    all_gather_object(None, axis=axis)


def raise_together(error: Exception | None, *, axis: ParallelAxis, what: str) -> None:
    """Raise on every rank of the axis if any rank has an error; return on every rank if none has.

    Every rank calls it, after a step that may fail on some ranks only; nobody is left waiting in a later collective.
    The message names the first failing rank (global number), what it was doing and its own message. ConfigError and
    OSError keep their class, so callers may tell them apart; any other becomes RuntimeError. On a rank that failed, its
    own error is the cause. On a size-1 axis the error is raised as it is.
    """
    if axis.group is None:
        if error is not None:
            raise error
        return
    report = None if error is None else _report(error)
    reports = all_gather_object(report, axis=axis)
    failed = [rank for rank, each in enumerate(reports) if each is not None]
    if failed:
        kind, message = reports[failed[0]]
        others = f" (and on {len(failed) - 1} more of {axis.size} ranks)" if len(failed) > 1 else ""
        raised = {"config": ConfigError, "os": OSError}.get(kind, RuntimeError)
        raise raised(f"{what} failed on rank {axis.global_ranks[failed[0]]}{others}: {message}") from error


def _report(error: Exception) -> tuple[str, str]:
    """(class to raise on the other ranks, message); the class is part of the message where it is not kept."""
    if isinstance(error, ConfigError):
        return "config", str(error)
    if isinstance(error, OSError):
        return "os", str(error)
    return "runtime", f"{type(error).__name__}: {error}"
