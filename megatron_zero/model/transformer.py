"""One pre-norm transformer layer (Radford et al. 2019)."""

from __future__ import annotations

from torch import Tensor, nn

from megatron_zero.config.model import ModelConfig
from megatron_zero.distributed.rng import RngStreams
from megatron_zero.tensor_parallel.group import TensorParallel

from .attention import Rows, SelfAttention
from .dropout import hidden_dropout
from .mlp import MLP
from .norm import build_norm
from .recompute import SavedInputs, recompute


class TransformerLayer(nn.Module):
    """x + dropout(attention(norm(x))), then the same around the MLP. [tokens (/tp under sequence parallel), hidden] -> same.

    recomputed: keep only the input and run the layer again in backward. It happens inside forward, so hooks on this module
    are outside of what is run twice.   recomputes_core: of the attention.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        tp: TensorParallel,
        streams: RngStreams,
        saved: SavedInputs,
        recomputed: bool = False,
        recomputes_core: bool = False,
    ) -> None:
        super().__init__()
        self.input_norm = build_norm(config)
        self.attention = SelfAttention(config, tp=tp, streams=streams, recomputes_core=recomputes_core)
        self.post_attention_norm = build_norm(config)
        self.mlp = MLP(config, tp=tp)
        self._dropout = config.hidden_dropout
        self._divided = tp.sequence_parallel
        self._streams, self._saved = streams, saved
        self._recomputed = recomputed

    @property
    def draws(self) -> bool:
        """Whether training draws random numbers here."""
        return self._dropout > 0.0 or self.attention.draws

    def forward(self, x: Tensor, rows: Rows) -> Tensor:
        if self._recomputed and self.training:
            return recompute(self._layer, x, rows, streams=self._streams, draws=self.draws, saved=self._saved)
        return self._layer(x, rows)

    def _layer(self, x: Tensor, rows: Rows) -> Tensor:
        x = x + self._drop(self.attention(self.input_norm(x), rows))
        return x + self._drop(self.mlp(self.post_attention_norm(x)))

    def _drop(self, x: Tensor) -> Tensor:
        return hidden_dropout(x, self._dropout, training=self.training, divided=self._divided, streams=self._streams)
