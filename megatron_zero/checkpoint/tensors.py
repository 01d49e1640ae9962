"""Tensors as bytes and back: TensorSlice, dtype names, and views that do not copy host memory."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from .plan import ITEM_BYTES, Extent

BLOCK_BYTES: Final = 16 << 20  # device tensors pass through host memory in blocks of this size

DTYPES: Final[Mapping[str, torch.dtype]] = MappingProxyType({name: getattr(torch, name) for name in ITEM_BYTES})
DTYPE_NAMES: Final[Mapping[torch.dtype, str]] = MappingProxyType({dtype: name for name, dtype in DTYPES.items()})


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Elements [start, start + data.numel()) of the flattened tensor `key`, held by this rank.

    key: "master", "exp_avg" or "exp_avg_sq", "/", and the logical parameter name.   shape: of the whole tensor.
    data: 1-D, contiguous, on any device; read by a save, filled by a load.
    """

    key: str
    shape: tuple[int, ...]
    start: int
    data: Tensor

    def extent(self) -> Extent:
        """Raises ValueError if data is not 1-D and contiguous, or of a dtype that cannot be stored."""
        if self.data.dim() != 1 or not self.data.is_contiguous():
            raise ValueError(
                f"tensor {self.key}: a slice must be 1-D and contiguous, got shape {tuple(self.data.shape)} and "
                f"stride {self.data.stride()}"
            )
        return Extent(self.key, tuple(self.shape), dtype_name(self.data), self.start, self.data.numel())


def dtype_name(tensor: Tensor) -> str:
    return DTYPE_NAMES.get(tensor.dtype, str(tensor.dtype))


def byte_blocks(data: Tensor) -> Iterator[memoryview]:
    """The bytes of a 1-D contiguous tensor, in order. Host: one view, not a copy. Device: blocks, copied over."""
    check_byte_order()
    flat = data.detach()
    if flat.numel() == 0:
        return
    if flat.device.type == "cpu":
        yield _byte_view(flat)
        return
    step = BLOCK_BYTES // flat.element_size()
    for start in range(0, flat.numel(), step):
        yield _byte_view(flat[start : start + step].cpu())


def _byte_view(flat: Tensor) -> memoryview:
    return flat.view(torch.uint8).numpy().data


def check_byte_order() -> None:
    if sys.byteorder != "little":
        raise RuntimeError(f"checkpoints are little-endian; this machine is {sys.byteorder}-endian and not supported")
