"""The feed-forward block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import torch.nn.functional as F
from torch import Tensor, nn

from megatron_zero.config.model import ModelConfig
from megatron_zero.tensor_parallel.group import TensorParallel
from megatron_zero.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear


def squared_relu(x: Tensor) -> Tensor:
    """relu(x)^2 (So et al. 2021, arXiv:2109.08668)."""
    return F.relu(x).square()


def swiglu(x: Tensor) -> Tensor:
    """silu(gate) * up (Shazeer 2020, arXiv:2002.05202). [..., 2 width], gates before ups -> [..., width]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


# GELU: Hendrycks and Gimpel 2016, arXiv:1606.08415. The tanh form is what Megatron's fused path computes.
ACTIVATIONS: Final[Mapping[str, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
        "gelu_erf": F.gelu,
        "squared_relu": squared_relu,
        "swiglu": swiglu,
    }
)


class MLP(nn.Module):
    """fc2(activation(fc1(x))), the inner width divided over tensor parallel. [tokens (/tp), hidden] -> same.

    fc1 of swiglu has logical weight [2, width, hidden]: a rank holds its part of the gates and the same part of the ups.
    """

    def __init__(self, config: ModelConfig, *, tp: TensorParallel) -> None:
        super().__init__()
        assert config.hidden_size is not None
        width, bias = config.mlp_width, config.add_bias_linear
        shape, dim = ((2, width), 1) if config.swiglu else ((width,), 0)
        self.fc1 = ColumnParallelLinear(config.hidden_size, shape, split_dim=dim, bias=bias, tp=tp)
        self.fc2 = RowParallelLinear(width, config.hidden_size, bias=bias, tp=tp)
        self._activation = ACTIVATIONS[config.activation]

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.fc2(self._activation(self.fc1(x)))
        return projected
