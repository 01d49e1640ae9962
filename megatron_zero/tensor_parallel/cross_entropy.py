"""-log softmax(logits)[label] with the vocabulary divided over the tensor-parallel axis: the logits never travel.

Shoeybi et al. 2019 (arXiv:1909.08053), section 3.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from megatron_zero.distributed.collectives import all_reduce_
from megatron_zero.distributed.context import ParallelAxis

from .mappings import apply, gather_from_tensor_model_parallel_region


class _VocabParallelCrossEntropy(Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, first_id: int, axis: ParallelAxis) -> Tensor:
        num_tokens, width = logits.shape
        largest = _largest(logits, labels, first_id, axis)
        exponentials = torch.sub(logits, largest, out=logits.new_empty(logits.shape, dtype=torch.float32))
        owned = (labels >= first_id) & (labels < first_id + width)
        column = (labels - first_id).masked_fill_(~owned, 0).unsqueeze(1)

        sums = logits.new_zeros((2, num_tokens), dtype=torch.float32)  # of the exponentials; the target's logit
        if width > 0:
            sums[1] = exponentials.gather(1, column).squeeze(1).masked_fill_(~owned, 0.0)
            torch.sum(exponentials.exp_(), 1, out=sums[0])
        all_reduce_(sums, axis=axis).wait()
        ctx.save_for_backward(exponentials, sums[0], owned, column)
        ctx.dtype = logits.dtype
        return sums[0].log() - sums[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        exponentials, total, owned, column = ctx.saved_tensors
        # (softmax - one_hot) * grad, written over the exponentials: a second backward raises autograd's own error.
        exponentials.mul_((grad / total).unsqueeze(1))
        if exponentials.shape[1] > 0:
            exponentials.scatter_add_(1, column, (-grad).masked_fill(~owned, 0.0).unsqueeze(1))
        return exponentials.to(ctx.dtype), None, None, None


def _largest(logits: Tensor, labels: Tensor, first_id: int, axis: ParallelAxis) -> Tensor:
    """[tokens, 1] fp32: each token's largest logit on any rank."""
    largest = logits.new_full((logits.shape[0],), float("-inf"), dtype=torch.float32)
    if logits.shape[1] > 0:
        largest.copy_(logits.amax(1))
    all_reduce_(largest, axis=axis, op="max").wait()
    return largest.unsqueeze(1)


def vocab_parallel_cross_entropy(logits: Tensor, labels: Tensor, *, first_id: int, axis: ParallelAxis) -> Tensor:
    """[tokens] fp32: the loss of each token, equal on every rank.

    logits: [tokens, width], the vocabulary's columns [first_id, first_id + width); any floating dtype, computed in fp32;
    width may be 0.   labels: [tokens] int64 in [0, vocabulary), equal on every rank.
    The gradient has the logits' dtype. Two collectives forward, none backward; backward can run once.
    """
    if axis.size == 1:
        return F.cross_entropy(logits.float(), labels, reduction="none")
    return apply(_VocabParallelCrossEntropy, logits, labels, first_id, axis)


def vocab_parallel_cross_entropy_reference(
    logits: Tensor, labels: Tensor, *, widths: tuple[int, ...], axis: ParallelAxis
) -> Tensor:
    """The same by gathering all logits on every rank. Slow, for tests. widths: of every rank's logits, in axis order."""
    whole = gather_from_tensor_model_parallel_region(logits, axis=axis, widths=widths)
    return F.cross_entropy(whole.float(), labels, reduction="none")
