"""One pre-norm transformer layer (Radford et al. 2019), with full activation recompute as a choice."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from megatron_zero.config.model import ModelConfig

from .attention import SelfAttention
from .mlp import MLP
from .norm import LayerNorm


class TransformerLayer(nn.Module):
    """x + dropout(attention(norm(x))), then the same around the MLP. [micro_batch, seq, hidden] -> same.

    recompute: keep only the input and run the layer again in backward, with the same dropout (Chen et al. 2016,
    arXiv:1604.06174). It sits inside forward, so hooks on this module are outside of what is run twice.
    """

    def __init__(self, config: ModelConfig, *, recompute: bool) -> None:
        super().__init__()
        assert config.hidden_size is not None
        self.input_norm = LayerNorm(config.hidden_size, eps=config.layernorm_epsilon)
        self.attention = SelfAttention(config)
        self.post_attention_norm = LayerNorm(config.hidden_size, eps=config.layernorm_epsilon)
        self.mlp = MLP(config)
        self._dropout = config.hidden_dropout
        self._recompute = recompute

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """mask: of the attention (SelfAttention.forward); None: causal."""
        if self._recompute and self.training:
            recomputed: Tensor = checkpoint(self._layer, x, mask, use_reentrant=False, preserve_rng_state=self._draws())
            return recomputed
        return self._layer(x, mask)

    def _layer(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + F.dropout(self.attention(self.input_norm(x), mask), self._dropout, self.training)
        return x + F.dropout(self.mlp(self.post_attention_norm(x)), self._dropout, self.training)

    def _draws(self) -> bool:
        """Whether this layer draws random numbers; saving the generators costs a host copy."""
        return self._dropout > 0.0 or self.attention.draws
