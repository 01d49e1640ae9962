"""ModelConfig: the shape of the network and its initialisation."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import knob


@dataclass(frozen=True, slots=True)
class ModelConfig:
    num_layers: int | None = knob(None, flag="--num-layers", kind="int", help="count of transformer layers")
    hidden_size: int | None = knob(None, flag="--hidden-size", kind="int", help="width of the residual stream")
    num_attention_heads: int | None = knob(
        None, flag="--num-attention-heads", kind="int", help="query heads per layer; must divide --hidden-size"
    )
    seq_length: int | None = knob(None, flag="--seq-length", kind="int", help="tokens per sample")
    max_position_embeddings: int | None = knob(
        None, flag="--max-position-embeddings", kind="int", help="rows of the learned position table, >= --seq-length"
    )
    make_vocab_size_divisible_by: int = knob(
        128,
        flag="--make-vocab-size-divisible-by",
        kind="int",
        help="the vocabulary is padded to a multiple of this times the tensor-parallel size",
    )
    layernorm_epsilon: float = knob(
        1e-5, flag="--layernorm-epsilon", aliases=("--norm-epsilon",), kind="float", help="LayerNorm epsilon"
    )
    attention_dropout: float = knob(0.1, flag="--attention-dropout", kind="float", help="dropout on attention weights")
    hidden_dropout: float = knob(0.1, flag="--hidden-dropout", kind="float", help="dropout on block outputs")
    init_method_std: float = knob(0.02, flag="--init-method-std", kind="float", help="std of the normal initialisation")

    @property
    def ffn_hidden_size(self) -> int:
        """Inner width of the MLP: 4 * hidden (Megatron's default)."""
        assert self.hidden_size is not None
        return 4 * self.hidden_size
