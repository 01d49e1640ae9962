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
        largest, vocab_size = _maxima(logits, first_id + width, axis)
        _fail_outside(labels, vocab_size)
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
        # (softmax - one_hot) * grad, written over the exponentials; a second backward raises autograd's own error.
        exponentials.mul_((grad / total).unsqueeze(1))
        if exponentials.shape[1] > 0:
            # Not scatter_add_: on a GPU it has no deterministic form. An index appears once in a row, so this is the same.
            target = exponentials.gather(1, column) - grad.masked_fill(~owned, 0.0).unsqueeze(1)
            exponentials.scatter_(1, column, target)
        return exponentials.to(ctx.dtype), None, None, None


def _maxima(logits: Tensor, end_id: int, axis: ParallelAxis) -> tuple[Tensor, Tensor]:
    """([tokens, 1], []) fp32: each token's largest logit on any rank; the largest end_id of a rank that has columns.

    One collective; end_id is exact in fp32 up to 2**24, and no vocabulary comes near.
    """
    num_tokens, width = logits.shape
    maxima = logits.new_full((num_tokens + 1,), float("-inf"), dtype=torch.float32)
    if width > 0:
        maxima[:num_tokens] = logits.amax(1)
        maxima[num_tokens] = end_id
    all_reduce_(maxima, axis=axis, op="max").wait()
    return maxima[:num_tokens].unsqueeze(1), maxima[num_tokens]


def _fail_outside(labels: Tensor, vocab_size: Tensor) -> None:
    """Fail, on every rank, for a label that no rank has: it would count as a target logit of zero, unseen.

    A look-up does it because the device must decide: the host would have to wait for it.
    """
    is_outside = (labels < 0) | (labels >= vocab_size)
    labels.new_zeros(1).index_select(0, is_outside.long())


def vocab_parallel_cross_entropy(logits: Tensor, labels: Tensor, *, first_id: int, axis: ParallelAxis) -> Tensor:
    """[tokens] fp32: the loss of each token, equal on every rank.

    logits: [tokens, width], the vocabulary's columns [first_id, first_id + width); any floating dtype, computed in fp32;
    width may be 0.   labels: [tokens] int64 in [0, vocabulary), equal on every rank; others fail.
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
