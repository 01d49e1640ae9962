"""--deterministic-mode: two runs of the same layout are bit-equal on a GPU too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from megatron_zero.distributed.launch import request_deterministic_cublas


@contextmanager
def determinism(enabled: bool) -> Iterator[None]:
    """Inside: deterministic algorithms only (an operation without one raises), attention's backward among them.

    Flash attention has a deterministic backward, the plain form needs none; the other two backends have not. TF32 is
    off, so that fp32 means fp32. Everything is as before on exit.
    """
    if not enabled:
        yield
        return
    request_deterministic_cublas()
    algorithms = torch.are_deterministic_algorithms_enabled()
    precision = torch.get_float32_matmul_precision()
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest")
    try:
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            yield
    finally:
        torch.use_deterministic_algorithms(algorithms)
        torch.set_float32_matmul_precision(precision)
