"""Causal self-attention, and the slow form that it is compared with."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron_zero.config.model import ModelConfig

from .linear import Linear


class SelfAttention(nn.Module):
    """[micro_batch, seq, hidden] -> same.

    qkv rows go head by head, each head's query, key and value rows together (Megatron's layout), so that a cut of the
    rows by heads is a cut of the tensor.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.hidden_size is not None and config.num_attention_heads is not None
        self._num_heads = config.num_attention_heads
        self._dropout = config.attention_dropout
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.dense = Linear(config.hidden_size, config.hidden_size)

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers here."""
        return self._dropout > 0.0

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, hidden = x.shape
        heads = self.qkv(x).view(batch, seq, self._num_heads, 3, hidden // self._num_heads)
        query, key, value = (part.transpose(1, 2) for part in heads.unbind(3))  # [batch, heads, seq, head_dim]
        context = F.scaled_dot_product_attention(
            query, key, value, dropout_p=self._dropout if self.training else 0.0, is_causal=True
        )
        projected: Tensor = self.dense(context.transpose(1, 2).reshape(batch, seq, hidden))
        return projected


def attention_reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d) + causal mask) v, step by step; all [batch, heads, seq, head_dim]. Slow, for tests."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    seq = scores.shape[-1]
    future = torch.ones(seq, seq, dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ value
