"""The feed-forward block."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from megatron_zero.config.model import ModelConfig

from .linear import Linear


class MLP(nn.Module):
    """fc2(gelu(fc1(x))), GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv:1606.08415)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.hidden_size is not None
        self.fc1 = Linear(config.hidden_size, config.ffn_hidden_size)
        self.fc2 = Linear(config.ffn_hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return projected
