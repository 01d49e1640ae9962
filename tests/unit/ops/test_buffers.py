"""Tensors as buffers share memory; the C++ side refuses what it cannot use, whoever made the buffer."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import numpy as np
import pytest
import torch

from megatron_zero.ops.buffers import tensor_buffer
from megatron_zero.ops.cpu_adam import AdamScalars
from megatron_zero.ops.native import load_extension


@pytest.mark.parametrize(
    ("dtype", "tag", "format"),
    [(torch.float32, "float32", "f"), (torch.bfloat16, "bfloat16", "H"), (torch.float16, "float16", "H")],
)
def test_buffer_shares_the_tensors_memory(dtype: torch.dtype, tag: str, format: str) -> None:
    tensor = torch.arange(9).to(dtype)
    buffer = tensor_buffer(tensor[1:], name="x")
    assert buffer.dtype == tag
    assert memoryview(buffer.array).format == format
    assert buffer.array.ctypes.data == tensor[1:].data_ptr()


def test_parameter_is_taken_without_its_graph() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    tensor_buffer(parameter, name="x").array[1] = 5.0
    assert parameter.tolist() == [1.0, 5.0, 1.0]


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (torch.zeros(3, dtype=torch.float64), TypeError, "x is torch.float64; allowed: torch.float32"),
        (torch.zeros(2, 2), ValueError, r"x has shape \[2, 2\]"),
        (torch.zeros(8)[::2], ValueError, r"x is not contiguous \(stride 2\)"),
        (torch.zeros(3, device="meta"), ValueError, "x is on meta"),
    ],
)
def test_unusable_tensor_raises_by_name(tensor: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tensor_buffer(tensor, name="x")


def read_only(numel: int) -> np.ndarray:
    array = np.ones(numel, dtype=np.float32)
    array.setflags(write=False)
    return array


def misaligned(numel: int) -> np.ndarray:
    return np.zeros(4 * numel + 1, dtype=np.uint8)[1:].view(np.float32)


def arguments_of(extension: ModuleType) -> dict[str, object]:
    """What adamw_step takes, all of it valid; 8 elements."""
    scalars = extension.AdamScalars(**{field.name: 0.5 for field in dataclasses.fields(AdamScalars)})
    ones = {name: np.ones(8, dtype=np.float32) for name in ("master", "exp_avg", "exp_avg_sq", "grad")}
    rest = {"grad_dtype": "float32", "working": None, "working_dtype": "float32", "num_threads": 1, "simd": "baseline"}
    return {**ones, **rest, "scalars": scalars}


@pytest.mark.parametrize(
    ("argument", "bad", "message"),
    [
        ("master", read_only(8), "master: the buffer is read-only"),
        ("exp_avg", misaligned(8), "exp_avg: address not aligned to 4 bytes"),
        ("exp_avg_sq", np.ones(16, dtype=np.float32)[::2], "exp_avg_sq: not contiguous"),
        ("master", np.ones(8, dtype=np.float64), "master: buffer format 'd', expected 'f'"),
        ("grad", np.ones((2, 4), dtype=np.float32), "grad: 2 dimensions, expected 1"),
        ("grad", np.ones(8, dtype=np.uint16), "grad: buffer format 'H', expected 'f'"),
        ("grad_dtype", "float8", "dtype 'float8' is not one of"),
        ("grad", np.ones(9, dtype=np.float32), "grad has 9 elements, master has 8"),
    ],
)
def test_extension_checks_for_itself(argument: str, bad: object, message: str) -> None:
    extension = load_extension("_C_adam")
    with pytest.raises(ValueError, match=message):
        extension.adamw_step(**{**arguments_of(extension), argument: bad})


def test_read_only_gradient_is_accepted() -> None:
    extension = load_extension("_C_adam")
    extension.adamw_step(**{**arguments_of(extension), "grad": read_only(8)})
