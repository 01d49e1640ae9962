"""One AdamW step over flat ranges: the C++ kernel for the CPU, and the same arithmetic in plain torch.

The two agree bit for bit, on the CPU and on CUDA, because both round every operation on its own and in one order, that
of csrc/adam/adam.h. So a result does not depend on which device, instruction set or thread stepped an element.
Decoupled weight decay: Loshchilov and Hutter 2019 (arXiv:1711.05101).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import ModuleType

import torch
from torch import Tensor

from .buffers import DTYPE_TAGS, tensor_buffer
from .native import load_extension

SMALLEST_NORMAL = 2.0**-126
REFERENCE_CHUNK_NUMEL = 1 << 24


def _fp32(value: float) -> float:
    """value rounded once to the nearest fp32."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


@dataclass(frozen=True, slots=True)
class AdamScalars:
    """The constants of one step. Each was computed in double precision and then rounded once to fp32."""

    beta1: float
    one_minus_beta1: float
    beta2: float
    one_minus_beta2: float
    sqrt_bias_correction2: float
    eps: float
    decay: float
    step_size: float
    grad_scale: float

    @staticmethod
    def of(
        *,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        grad_scale: float,
    ) -> AdamScalars:
        """Constants of optimizer step `step`, counted from 1.

        grad_scale multiplies every gradient: clip coefficient times 1/loss scale.
        Raises ValueError if step < 1 or a beta is outside [0, 1).
        """
        if step < 1:
            raise ValueError(f"step is {step}; optimizer steps are counted from 1")
        for name, beta in (("beta1", beta1), ("beta2", beta2)):
            if not 0.0 <= beta < 1.0:
                raise ValueError(f"{name} is {beta}; it must lie in [0, 1)")
        return AdamScalars(
            beta1=_fp32(beta1),
            one_minus_beta1=_fp32(1.0 - beta1),
            beta2=_fp32(beta2),
            one_minus_beta2=_fp32(1.0 - beta2),
            sqrt_bias_correction2=_fp32(math.sqrt(1.0 - beta2**step)),
            eps=_fp32(eps),
            decay=_fp32(1.0 - lr * weight_decay),
            step_size=_fp32(lr / (1.0 - beta1**step)),
            grad_scale=_fp32(grad_scale),
        )


def _extension() -> ModuleType:
    return load_extension("_C_adam")


def simd_level() -> str:
    """The instruction set the kernel uses on this machine: "avx512" or "baseline"."""
    level: str = _extension().native_simd_level()
    return level


def select_simd_level(features: Sequence[str]) -> str:
    """The level that a processor with these features (Linux's names) gets, whatever its vendor. Pure."""
    level: str = _extension().select_simd_level(list(features))
    return level


def adamw_step_(
    master: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    working: Tensor | None,
    *,
    scalars: AdamScalars,
    num_threads: int = 1,
    simd: str | None = None,
) -> None:
    """Step a flat range on the CPU in one pass of the C++ kernel; the GIL is released meanwhile.

    master, exp_avg, exp_avg_sq: [numel] fp32, updated in place.   grad: [numel] fp32, bf16 or fp16, only read.
    working: [numel] fp32, bf16 or fp16, overwritten with master rounded to nearest even; or None.
    All on the CPU, contiguous, pairwise disjoint in memory. num_threads: upper bound; small ranges use one.
    simd: None = best for this processor; "baseline" or "avx512" to force one. Results depend on neither.
    Raises TypeError or ValueError, naming the argument, before anything is written.
    """
    extension = _extension()
    master_buffer = tensor_buffer(master, name="master")
    exp_avg_buffer = tensor_buffer(exp_avg, name="exp_avg")
    exp_avg_sq_buffer = tensor_buffer(exp_avg_sq, name="exp_avg_sq")
    grad_buffer = tensor_buffer(grad, name="grad")
    working_buffer = None if working is None else tensor_buffer(working, name="working")
    extension.adamw_step(
        master=master_buffer.array,
        exp_avg=exp_avg_buffer.array,
        exp_avg_sq=exp_avg_sq_buffer.array,
        grad=grad_buffer.array,
        grad_dtype=grad_buffer.dtype,
        working=None if working_buffer is None else working_buffer.array,
        working_dtype="float32" if working_buffer is None else working_buffer.dtype,
        scalars=extension.AdamScalars(**asdict(scalars)),
        num_threads=num_threads,
        simd=simd_level() if simd is None else simd,
    )


@torch.no_grad()
def adamw_step_reference_(
    master: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    grad: Tensor,
    working: Tensor | None,
    *,
    scalars: AdamScalars,
) -> None:
    """What adamw_step_ does, in plain torch, on the CPU or on CUDA: bit-equal to the kernel. Same arguments.

    No host synchronisation. Works through the range in chunks, which bounds the temporaries to about
    32 * REFERENCE_CHUNK_NUMEL bytes; elementwise, so the cuts do not show in the result.
    Raises TypeError or ValueError, naming the argument, before anything is written.
    """
    arguments = {"master": master, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq, "grad": grad}
    if working is not None:
        arguments["working"] = working
    _check_like_kernel(arguments)
    constants = {
        # On the device: CUDA turns division by a Python scalar into a multiplication by its reciprocal.
        name: torch.full((), value, dtype=torch.float32, device=master.device)
        for name, value in asdict(scalars).items()
    }
    for start in range(0, master.numel(), REFERENCE_CHUNK_NUMEL):
        chunk = slice(start, start + REFERENCE_CHUNK_NUMEL)
        new_master = _step_chunk_(master[chunk], exp_avg[chunk], exp_avg_sq[chunk], grad[chunk], constants)
        if working is not None:
            working[chunk].copy_(new_master)


def _step_chunk_(
    master: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, grad: Tensor, constants: Mapping[str, Tensor]
) -> Tensor:
    """The formula of csrc/adam/adam.h, in place; returns master."""
    c = constants
    # Separate mul and add, never addcmul, lerp or add(alpha=): those may round once where the kernel rounds twice.
    g = grad.float() * c["grad_scale"]
    exp_avg.copy_((c["beta1"] * exp_avg) + (c["one_minus_beta1"] * g))
    exp_avg_sq.copy_((c["beta2"] * exp_avg_sq) + (c["one_minus_beta2"] * (g * g)))
    exp_avg.masked_fill_(exp_avg.abs() < SMALLEST_NORMAL, 0.0)
    exp_avg_sq.masked_fill_(exp_avg_sq.abs() < SMALLEST_NORMAL, 0.0)
    # By way of fp64: torch's fp32 square root on the CPU is not correctly rounded.
    root = exp_avg_sq.double().sqrt().float()
    d = (root / c["sqrt_bias_correction2"]) + c["eps"]
    return master.copy_((master * c["decay"]) - (c["step_size"] * (exp_avg / d)))


def _check_like_kernel(arguments: Mapping[str, Tensor]) -> None:
    """Raise for what the kernel refuses: without it, torch would broadcast or convert silently."""
    master = arguments["master"]
    for name, tensor in arguments.items():
        allowed = tuple(DTYPE_TAGS) if name in ("grad", "working") else (torch.float32,)
        if tensor.dtype not in allowed:
            raise TypeError(f"{name} is {tensor.dtype}; allowed: {', '.join(map(str, allowed))}")
        if tensor.dim() != 1 or not tensor.is_contiguous():
            raise ValueError(
                f"{name} has shape {list(tensor.shape)}, stride {tensor.stride()}; a flat contiguous range is wanted"
            )
        if tensor.numel() != master.numel():
            raise ValueError(f"{name} has {tensor.numel()} elements, master has {master.numel()}")
        if tensor.device != master.device:
            raise ValueError(f"{name} is on {tensor.device}, master is on {master.device}")
