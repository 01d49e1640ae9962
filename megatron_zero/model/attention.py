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

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: [micro_batch, 1, seq, seq] bool, true where a query (row) sees a key (column); None: causal."""
        batch, seq, hidden = x.shape
        heads = self.qkv(x).view(batch, seq, self._num_heads, 3, hidden // self._num_heads)
        query, key, value = (part.transpose(1, 2) for part in heads.unbind(3))  # [batch, heads, seq, head_dim]
        context = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self._dropout if self.training else 0.0,
            is_causal=mask is None,
        )
        projected: Tensor = self.dense(context.transpose(1, 2).reshape(batch, seq, hidden))
        return projected


def document_mask(document_ids: Tensor) -> Tensor:
    """[micro_batch, 1, seq, seq] bool: a token sees itself and what is before it in its own document.

    document_ids: [micro_batch, seq] int, rising along a row.
    """
    seq = document_ids.shape[1]
    past = torch.ones(seq, seq, dtype=torch.bool, device=document_ids.device).tril()
    same = document_ids[:, :, None] == document_ids[:, None, :]
    return (same & past)[:, None]


def attention_reference(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(d) + mask) v, step by step; all [batch, heads, seq, head_dim]. Slow, for tests.

    mask: as in SelfAttention.forward.
    """
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    seq = scores.shape[-1]
    seen = torch.ones(seq, seq, dtype=torch.bool, device=scores.device).tril() if mask is None else mask
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value
