"""ModelConfig: the shape of the network and its initialisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .fields import knob

LEARNED, ROTARY, NO_POSITIONS = "learned_absolute", "rope", "none"
SWIGLU_MULTIPLE: Final = 64  # of its default width, as in Megatron-DeepSpeed


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What several flags decide together is a property: heads, widths, positions, activation."""

    num_layers: int | None = knob(None, flag="--num-layers", kind="int", help="count of transformer layers")
    hidden_size: int | None = knob(None, flag="--hidden-size", kind="int", help="width of the residual stream")
    ffn_hidden_size: int | None = knob(
        None,
        flag="--ffn-hidden-size",
        kind="int",
        help="inner width of the MLP; unset: 4 * hidden, with --swiglu 2/3 of that, rounded down to a multiple of 64",
    )
    num_attention_heads: int | None = knob(
        None,
        flag="--num-attention-heads",
        kind="int",
        help="query heads per layer; must divide --hidden-size unless --kv-channels is given",
    )
    num_key_value_heads: int | None = knob(
        None,
        flag="--num-key-value-heads",
        kind="int",
        help="key and value heads of grouped-query attention; unset: as many as query heads",
    )
    group_query_attention: bool = knob(
        False,
        flag="--group-query-attention",
        kind="bool",
        help="Megatron-core's way to ask for --num-query-groups key and value heads",
    )
    num_query_groups: int = knob(
        1, flag="--num-query-groups", kind="int", help="key and value heads with --group-query-attention"
    )
    kv_channels: int | None = knob(
        None, flag="--kv-channels", kind="int", help="width of a head; unset: hidden / query heads"
    )
    seq_length: int | None = knob(None, flag="--seq-length", kind="int", help="tokens per sample")
    max_position_embeddings: int | None = knob(
        None, flag="--max-position-embeddings", kind="int", help="rows of the learned position table, >= --seq-length"
    )
    position_embedding_type: str | None = knob(
        None,
        flag="--position-embedding-type",
        kind="str",
        choices=(LEARNED, ROTARY, NO_POSITIONS),
        help="Megatron-core's way to choose positions; unset: what the other flags say, else a learned table",
    )
    use_rotary_position_embeddings: bool = knob(
        False,
        flag="--use-rotary-position-embeddings",
        kind="bool",
        help="rotate queries and keys by position, in place of the learned table",
    )
    rotary_position_embeddings_theta: float = knob(
        10000.0,
        flag="--rotary-position-embeddings-theta",
        aliases=("--rotary-base",),
        kind="float",
        help="base of the rotary frequencies",
    )
    rotary_percent: float = knob(
        1.0, flag="--rotary-percent", kind="float", help="share of each head that is rotated, above 0 up to 1"
    )
    add_position_embedding: bool = knob(
        True, flag="--no-position-embedding", kind="bool", switch=False, help="no learned position table"
    )
    normalization: str = knob(
        "layernorm",
        flag="--normalization",
        kind="word",
        choices=("layernorm", "rmsnorm"),
        help="LayerNorm or RMSNorm, in any case",
    )
    apply_layernorm_1p: bool = knob(
        False, flag="--apply-layernorm-1p", kind="bool", help="store the gain of norms as its offset from 1"
    )
    layernorm_epsilon: float = knob(
        1e-5, flag="--layernorm-epsilon", aliases=("--norm-epsilon",), kind="float", help="epsilon of the norms"
    )
    fused_norm_kernels: str = knob(
        "none",
        flag="--fused-norm-kernels",
        kind="str",
        choices=("none", "apex"),
        help="apex: the norms of NVIDIA's apex, where it is importable; none: torch's",
    )
    squared_relu: bool = knob(False, flag="--squared-relu", kind="bool", help="the MLP's activation is relu(x)^2")
    swiglu: bool = knob(False, flag="--swiglu", kind="bool", help="the MLP is gated: silu(gate) * up")
    openai_gelu: bool = knob(
        False, flag="--openai-gelu", kind="bool", help="the tanh form of GELU also under --no-bias-gelu-fusion"
    )
    bias_gelu_fusion: bool = knob(
        True, flag="--no-bias-gelu-fusion", kind="bool", switch=False, help="the erf form of GELU; else the tanh form"
    )
    add_bias_linear: bool = knob(
        True, flag="--disable-bias-linear", kind="bool", switch=False, help="linear layers have no biases"
    )
    untie_embeddings_and_output_weights: bool = knob(
        False,
        flag="--untie-embeddings-and-output-weights",
        kind="bool",
        help="the output layer has a weight of its own, not the embedding's",
    )
    make_vocab_size_divisible_by: int = knob(
        128,
        flag="--make-vocab-size-divisible-by",
        kind="int",
        help="the vocabulary is padded to a multiple of this times the tensor-parallel size",
    )
    attention_dropout: float = knob(0.1, flag="--attention-dropout", kind="float", help="dropout on attention weights")
    hidden_dropout: float = knob(0.1, flag="--hidden-dropout", kind="float", help="dropout on block outputs")
    init_method_std: float = knob(0.02, flag="--init-method-std", kind="float", help="std of the normal initialisation")

    @property
    def num_groups(self) -> int:
        """Key and value heads; each serves num_attention_heads / num_groups query heads."""
        assert self.num_attention_heads is not None
        if self.num_key_value_heads is not None:
            return self.num_key_value_heads
        return self.num_query_groups if self.group_query_attention else self.num_attention_heads

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        assert self.hidden_size is not None and self.num_attention_heads is not None
        return self.kv_channels if self.kv_channels is not None else self.hidden_size // self.num_attention_heads

    @property
    def rotary_dim(self) -> int:
        """How many channels of a head are rotated, of its first."""
        return int(self.head_dim * self.rotary_percent)

    @property
    def mlp_width(self) -> int:
        """Inner width of the MLP."""
        assert self.hidden_size is not None
        if self.ffn_hidden_size is not None:
            return self.ffn_hidden_size
        if self.swiglu:
            return int(4 * self.hidden_size * 2 / 3) // SWIGLU_MULTIPLE * SWIGLU_MULTIPLE
        return 4 * self.hidden_size

    @property
    def positions(self) -> str:
        """LEARNED, ROTARY or NO_POSITIONS."""
        if self.position_embedding_type is not None:
            return self.position_embedding_type
        if self.use_rotary_position_embeddings:
            return ROTARY
        return LEARNED if self.add_position_embedding else NO_POSITIONS

    @property
    def is_rmsnorm(self) -> bool:
        return self.normalization.lower() == "rmsnorm"

    @property
    def activation(self) -> str:
        """ "swiglu", "squared_relu", "gelu_erf" or "gelu_tanh"."""
        if self.swiglu:
            return "swiglu"
        if self.squared_relu:
            return "squared_relu"
        return "gelu_tanh" if self.bias_gelu_fusion or self.openai_gelu else "gelu_erf"
