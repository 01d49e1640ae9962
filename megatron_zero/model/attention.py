"""Causal self-attention, and the slow form that it is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron_zero.config.fields import ConfigError
from megatron_zero.config.model import ModelConfig
from megatron_zero.distributed.rng import RngStreams
from megatron_zero.tensor_parallel.group import TensorParallel
from megatron_zero.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

from .positions import Rotary
from .recompute import SavedInputs, recompute


@dataclass(frozen=True, slots=True)
class Rows:
    """How the tokens of a micro-batch lie in rows, for all layers of one forward.

    mask: [micro_batch, 1, seq, seq] bool, true where a query (row) sees a key (column); None: causal.
    rotary: None without rotary positions.
    """

    micro_batch: int
    seq: int
    mask: Tensor | None = None
    rotary: Rotary | None = None


class SelfAttention(nn.Module):
    """[tokens (/tp), hidden] -> same; tokens are micro_batch x seq, row by row. Heads are divided over tensor parallel.

    Grouped queries (Ainslie et al. 2023, arXiv:2305.13245): each key and value head serves as many query heads as there
    are to a group. qkv rows go group by group: its query heads, its key head, its value head (Megatron-core's layout),
    so that a cut of the rows by groups is a cut of the tensor.
    recomputes_core: run softmax(q k^T) v again in backward instead of keeping its inside.
    Raises ConfigError for heads and groups that do not divide.
    """

    def __init__(
        self, config: ModelConfig, *, tp: TensorParallel, streams: RngStreams, recomputes_core: bool = False
    ) -> None:
        super().__init__()
        assert config.hidden_size is not None and config.num_attention_heads is not None
        heads, groups = config.num_attention_heads, config.num_groups
        if heads % groups != 0 or groups % tp.axis.size != 0:
            raise ConfigError(
                f"{heads} query heads in {groups} groups (--num-key-value-heads) over a tensor-parallel size of"
                f" {tp.axis.size}: the heads must be a multiple of the groups, the groups of that size"
            )
        self._head_dim = config.head_dim
        self._queries = heads // groups  # of a group
        self._groups = groups // tp.axis.size  # on this rank
        self._dropout = config.attention_dropout
        self._streams = streams
        self._recomputes_core = recomputes_core
        self._saved = SavedInputs(tp.axis)
        bias = config.add_bias_linear
        self.qkv = ColumnParallelLinear(
            config.hidden_size, groups * (self._queries + 2) * self._head_dim, bias=bias, tp=tp
        )
        self.dense = RowParallelLinear(heads * self._head_dim, config.hidden_size, bias=bias, tp=tp)

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers here."""
        return self._dropout > 0.0

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        heads = self.qkv(x).view(rows.micro_batch, rows.seq, self._groups, self._queries + 2, self._head_dim)
        query = heads[..., :-2, :].flatten(2, 3)  # [micro_batch, seq, heads, head_dim]
        key, value = heads[..., -2, :], heads[..., -1, :]
        if rows.rotary is not None:
            query, key = rows.rotary.turn(query), rows.rotary.turn(key)
        if self._recomputes_core and self.training:
            context = recompute(
                self._core, query, key, value, rows.mask, streams=self._streams, draws=self.draws, saved=self._saved
            )
        else:
            context = self._core(query, key, value, rows.mask)
        projected: Tensor = self.dense(context)
        return projected

    def _core(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """[micro_batch, seq, heads, head_dim], key and value of groups -> [tokens, heads x head_dim]."""
        query, key, value = (part.transpose(1, 2) for part in (query, key, value))
        # Grouped kernels are those of flash attention, which takes no mask and no fp32: elsewhere keys are repeated.
        grouped = self._queries > 1 and mask is None and query.is_cuda and query.dtype != torch.float32
        if self._queries > 1 and not grouped:
            key, value = (part.repeat_interleave(self._queries, dim=1) for part in (key, value))
        if self.draws and self.training:
            with self._streams.tensor_parallel():
                context = self._attend(query, key, value, mask, self._dropout, grouped)
        else:
            context = self._attend(query, key, value, mask, 0.0, grouped)
        return context.transpose(1, 2).flatten(0, 1).flatten(1)

    @staticmethod
    def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, grouped: bool) -> Tensor:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, enable_gqa=grouped
        )


def document_mask(document_ids: Tensor) -> Tensor:
    """[micro_batch, 1, seq, seq] bool: a token sees itself and what is before it in its own document.

    document_ids: [micro_batch, seq] int, rising along a row.
    """
    seq = document_ids.shape[1]
    past = torch.ones(seq, seq, dtype=torch.bool, device=document_ids.device).tril()
    same = document_ids[:, :, None] == document_ids[:, None, :]
    return (same & past)[:, None]


def attention_reference(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(d) + mask) v, step by step; [batch, heads, seq, head_dim], fewer heads of key and value where
    queries are grouped: query head h uses head h // (heads / groups). Slow, for tests.

    mask: as in Rows.
    """
    group = [head * key.shape[1] // query.shape[1] for head in range(query.shape[1])]
    key, value = key[:, group], value[:, group]
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    seq = scores.shape[-1]
    seen = torch.ones(seq, seq, dtype=torch.bool, device=scores.device).tril() if mask is None else mask
    return scores.masked_fill(~seen, float("-inf")).softmax(-1) @ value
