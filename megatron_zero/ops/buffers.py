"""Tensors as zero-copy buffers for the C++ kernels.

Python's buffer protocol knows no bfloat16, so 16-bit floats travel as uint16 beside a dtype tag. The C++ side checks
format, size, alignment and writability again: it does not trust this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

DTYPE_TAGS: Final[Mapping[torch.dtype, str]] = MappingProxyType(
    {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
)


@dataclass(frozen=True, slots=True)
class TaggedBuffer:
    """array: 1-D view of the tensor's own memory, float32 or uint16. dtype: what its elements are, by name."""

    array: np.ndarray[Any, Any]
    dtype: str


def tensor_buffer(tensor: Tensor, *, name: str) -> TaggedBuffer:
    """The tensor's memory, shared: writes through the buffer are seen in the tensor. The tensor must outlive it.

    tensor: [numel] fp32, bf16 or fp16, on the CPU, contiguous.
    Raises TypeError for another dtype, ValueError for another device, layout or number of dimensions; both name `name`.
    """
    tag = DTYPE_TAGS.get(tensor.dtype)
    if tag is None:
        raise TypeError(f"{name} is {tensor.dtype}; allowed: {', '.join(str(dtype) for dtype in DTYPE_TAGS)}")
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} is on {tensor.device}; this kernel works on the CPU")
    if tensor.dim() != 1:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; a flat range (one dimension) is wanted")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is not contiguous (stride {tensor.stride(0)})")
    raw = tensor.detach()
    if tensor.dtype != torch.float32:
        raw = raw.view(torch.uint16)
    return TaggedBuffer(raw.numpy(), tag)
