"""What happens to activations between a divided and an undivided layer, as differentiable functions in conjugate pairs.

    name (after Megatron's)                        forward                     backward
    copy_to_tensor_model_parallel_region           nothing                     all-reduce
    reduce_from_tensor_model_parallel_region       all-reduce                  nothing
    gather_from_tensor_model_parallel_region       all-gather the last dim     this rank's slice
    gather_from_sequence_parallel_region           all-gather dim 0            reduce-scatter
    reduce_scatter_to_sequence_parallel_region     reduce-scatter dim 0        all-gather
    scatter_to_sequence_parallel_region            this rank's slice of dim 0  all-gather

Shoeybi et al. 2019 (arXiv:1909.08053), section 3; sequence parallel: Korthikanti et al. 2022 (arXiv:2205.05198), section
4.2. Sums are rounded in the dtype that is given. Over an axis of one rank each returns its input itself. Inputs and
gradients need not be contiguous and are never mutated, but by the one with a trailing underscore.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from megatron_zero.config.fields import ConfigError
from megatron_zero.distributed.collectives import Handle, all_gather_into, all_reduce_, reduce_scatter_into
from megatron_zero.distributed.context import ParallelAxis

from .splits import nearest_multiples


def check_tokens(num_tokens: int, axis: ParallelAxis) -> int:
    """Tokens of one rank under sequence parallel; raises ConfigError when they do not divide."""
    if num_tokens % axis.size != 0:
        raise ConfigError(
            f"{num_tokens} tokens of a micro-batch (--micro-batch-size x --seq-length) do not divide by the "
            f"tensor-parallel size {axis.size}, as --sequence-parallel needs; {nearest_multiples(num_tokens, axis.size)}"
        )
    return num_tokens // axis.size


def start_gather_rows(shard: Tensor, axis: ParallelAxis, *, async_op: bool) -> tuple[Tensor, Handle]:
    """(out, handle): out [size * n, ...] holds the shards [n, ...] of all ranks once the handle has been waited for."""
    out = shard.new_empty((axis.size * shard.shape[0], *shard.shape[1:]))
    return out, all_gather_into(out.view(-1), shard.contiguous().view(-1), axis=axis, async_op=async_op)


def start_reduce_scatter_rows(full: Tensor, axis: ParallelAxis, *, async_op: bool) -> tuple[Tensor, Handle]:
    """(out, handle): out [n, ...] holds this rank's rows of the sum of full [size * n, ...] once waited for."""
    out = full.new_empty((check_tokens(full.shape[0], axis), *full.shape[1:]))
    return out, reduce_scatter_into(out.view(-1), full.contiguous().view(-1), axis=axis, async_op=async_op)


def _gather_rows(shard: Tensor, axis: ParallelAxis) -> Tensor:
    out, handle = start_gather_rows(shard, axis, async_op=False)
    handle.wait()
    return out


def _reduce_scatter_rows(full: Tensor, axis: ParallelAxis) -> Tensor:
    out, handle = start_reduce_scatter_rows(full, axis, async_op=False)
    handle.wait()
    return out


def _own_rows(full: Tensor, axis: ParallelAxis) -> Tensor:
    num_rows = check_tokens(full.shape[0], axis)
    return full.narrow(0, axis.rank * num_rows, num_rows)


def _sum(tensor: Tensor, axis: ParallelAxis) -> Tensor:
    """A new tensor."""
    total = tensor.clone(memory_format=torch.contiguous_format)
    all_reduce_(total, axis=axis).wait()
    return total


def apply(function: type[Function], *arguments: Any) -> Tensor:
    """function.apply(*arguments), which torch leaves untyped, of a Function with one output."""
    untyped: Any = function.apply
    output: Tensor = untyped(*arguments)
    return output


class _Copy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: ParallelAxis) -> Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _sum(grad, ctx.axis), None


class _Reduce(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: ParallelAxis) -> Tensor:
        return _sum(x, axis)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _ReduceInPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: ParallelAxis) -> Tensor:
        ctx.mark_dirty(x)
        all_reduce_(x, axis=axis).wait()
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class _GatherLastDim(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: ParallelAxis, widths: tuple[int, ...]) -> Tensor:
        ctx.first, ctx.width = sum(widths[: axis.rank]), x.shape[-1]
        widest = max(widths)
        if widest == 0:
            return x.clone()
        # The collective wants equal parts: each is [widest, rows], dim 0 the one that is gathered, padding cut off below.
        part = x.new_zeros((widest, *x.shape[:-1]))
        part[: x.shape[-1]] = x.movedim(-1, 0)
        parts = _gather_rows(part, axis).unflatten(0, (axis.size, widest))
        whole = torch.cat([part[:width] for part, width in zip(parts, widths, strict=True)])
        return whole.movedim(0, -1).contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.narrow(-1, ctx.first, ctx.width).contiguous(), None, None


class _GatherRows(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: ParallelAxis) -> Tensor:
        ctx.axis = axis
        return _gather_rows(x, axis)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _reduce_scatter_rows(grad, ctx.axis), None


class _ReduceScatterRows(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: ParallelAxis) -> Tensor:
        ctx.axis = axis
        return _reduce_scatter_rows(x, axis)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gather_rows(grad, ctx.axis), None


class _ScatterRows(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: ParallelAxis) -> Tensor:
        ctx.axis = axis
        return _own_rows(x, axis).clone(memory_format=torch.contiguous_format)  # not a view: the whole may be freed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gather_rows(grad, ctx.axis), None


def copy_to_tensor_model_parallel_region(x: Tensor, *, axis: ParallelAxis) -> Tensor:
    """x, for a column-parallel layer; its gradients of all ranks are summed. Any shape and dtype."""
    if axis.size == 1:
        return x
    return apply(_Copy, x, axis)


def reduce_from_tensor_model_parallel_region(x: Tensor, *, axis: ParallelAxis) -> Tensor:
    """The sum of x over the ranks, a new tensor of the same shape and dtype."""
    if axis.size == 1:
        return x
    return apply(_Reduce, x, axis)


def reduce_from_tensor_model_parallel_region_(x: Tensor, *, axis: ParallelAxis) -> Tensor:
    """The same in place, for a result that nothing else needs: no second buffer. x: contiguous; mutated, returned."""
    if axis.size == 1:
        return x
    return apply(_ReduceInPlace, x, axis)


def gather_from_tensor_model_parallel_region(
    x: Tensor, *, axis: ParallelAxis, widths: Sequence[int] | None = None
) -> Tensor:
    """The ranks' parts side by side: [..., width] -> [..., sum of the widths], equal on every rank.

    widths: of every rank's part in axis order, where they are not all this one's (a vocabulary with padding); 0 is
    allowed. The gradient is taken to be equal on every rank: each gets its slice. Raises ValueError for widths that do
    not fit x.
    """
    if axis.size == 1:
        return x
    parts = (x.shape[-1],) * axis.size if widths is None else tuple(widths)
    if len(parts) != axis.size or parts[axis.rank] != x.shape[-1]:
        raise ValueError(
            f"widths {parts} over axis {axis.name} of size {axis.size}: rank {axis.rank} holds {x.shape[-1]} columns"
        )
    return apply(_GatherLastDim, x, axis, parts)


def gather_from_sequence_parallel_region(x: Tensor, *, axis: ParallelAxis) -> Tensor:
    """All tokens, for a column-parallel layer: [tokens / size, ...] -> [tokens, ...].

    The gradient is partial on each rank: its sum is scattered.
    """
    if axis.size == 1:
        return x
    return apply(_GatherRows, x, axis)


def reduce_scatter_to_sequence_parallel_region(x: Tensor, *, axis: ParallelAxis) -> Tensor:
    """This rank's tokens of the sum over the ranks: [tokens, ...] -> [tokens / size, ...].

    Raises ConfigError when the tokens do not divide.
    """
    if axis.size == 1:
        return x
    return apply(_ReduceScatterRows, x, axis)


def scatter_to_sequence_parallel_region(x: Tensor, *, axis: ParallelAxis) -> Tensor:
    """This rank's tokens of x, which every rank holds: [tokens, ...] -> [tokens / size, ...].

    The gradient is gathered, so all ranks get the whole one. Raises ConfigError when the tokens do not divide.
    """
    if axis.size == 1:
        return x
    return apply(_ScatterRows, x, axis)
