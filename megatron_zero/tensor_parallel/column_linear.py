"""x W^T + b with W cut by rows, plain and with communication beside the weight gradient.

[Note: order of the backward pass]
    sequence parallel:  start gathering x;  dX = dY W;  start reduce-scattering dX;  db;  wait for x;  dW = dY^T x;  wait
    otherwise:                              dX = dY W;  start all-reducing dX;       db;               dW = dY^T x;  wait
The collectives run one after the other, beside the GEMMs: the gather beside dX's, the sum beside dW's. Every rank
starts the same ones in the same order, because which gradients are wanted is the same on all.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from megatron_zero.distributed.collectives import Handle, all_reduce_

from .group import TensorParallel
from .mappings import (
    apply,
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    start_gather_rows,
    start_reduce_scatter_rows,
)


def column_linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None, *, tp: TensorParallel) -> Tensor:
    """column_linear composed of a mapping and F.linear. The same bits; slow, because every collective is waited for.

    Under sequence parallel autograd keeps the gathered x until backward, size times as much as column_linear does.
    """
    enter = gather_from_sequence_parallel_region if tp.sequence_parallel else copy_to_tensor_model_parallel_region
    return F.linear(enter(x, axis=tp.axis), weight, bias)


class _ColumnLinear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tp: TensorParallel) -> Tensor:
        needs_x_grad, needs_weight_grad, *_ = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_weight_grad else None, weight if needs_x_grad else None)
        ctx.tp = tp
        return F.linear(_all_tokens(x, tp, async_op=False)[0], weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """See [Note: order of the backward pass]."""
        x, weight = ctx.saved_tensors
        x_grad = weight_grad = None
        gathering = reducing = Handle()
        if x is not None:
            x, gathering = _all_tokens(x, ctx.tp, async_op=True)
        if weight is not None:
            x_grad, reducing = _start_sum(grad.mm(weight), ctx.tp)
        bias_grad = grad.sum(0) if ctx.needs_input_grad[2] else None
        gathering.wait()
        if x is not None:
            weight_grad = grad.t().mm(x)
        reducing.wait()
        return x_grad, weight_grad, bias_grad, None


def _all_tokens(x: Tensor, tp: TensorParallel, *, async_op: bool) -> tuple[Tensor, Handle]:
    """x of all tokens: itself unless they are divided."""
    return start_gather_rows(x, tp.axis, async_op=async_op) if tp.sequence_parallel else (x, Handle())


def _start_sum(partial: Tensor, tp: TensorParallel) -> tuple[Tensor, Handle]:
    """The sum over the ranks, of this rank's tokens where they are divided; else in place."""
    if tp.sequence_parallel:
        return start_reduce_scatter_rows(partial, tp.axis, async_op=True)
    return partial, all_reduce_(partial, axis=tp.axis, async_op=True)


def column_linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, tp: TensorParallel) -> Tensor:
    """[tokens, in] (under sequence parallel [tokens / size, in]) -> [tokens, out_local].

    weight: [out_local, in].   bias: [out_local] or None.   One dtype.
    For backward it keeps x as it was given, not gathered, and weight; nothing under no_grad. Backward can be
    differentiated once only. Over an axis of one rank it is F.linear.
    Shoeybi et al. 2019 (arXiv:1909.08053), section 3; Korthikanti et al. 2022 (arXiv:2205.05198), section 4.2.2.
    """
    if tp.axis.size == 1:
        return F.linear(x, weight, bias)
    if not tp.overlap:
        return column_linear_reference(x, weight, bias, tp=tp)
    return apply(_ColumnLinear, x, weight, bias, tp)
