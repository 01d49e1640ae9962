"""x W^T + b with W cut by rows, plain and with communication beside the weight gradient."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .group import TensorParallel
from .mappings import copy_to_tensor_model_parallel_region, gather_from_sequence_parallel_region


def column_linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None, *, tp: TensorParallel) -> Tensor:
    """column_linear as a composition that autograd differentiates: what is slow is that every collective is waited for."""
    enter = gather_from_sequence_parallel_region if tp.sequence_parallel else copy_to_tensor_model_parallel_region
    return F.linear(enter(x, axis=tp.axis), weight, bias)


def column_linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, tp: TensorParallel) -> Tensor:
    """[tokens, in] (under sequence parallel [tokens / size, in]) -> [tokens, out_local].

    weight: [out_local, in].   bias: [out_local] or None.   One dtype.
    """
    if tp.axis.size == 1:
        return F.linear(x, weight, bias)
    return column_linear_reference(x, weight, bias, tp=tp)
