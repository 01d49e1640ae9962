"""GPTStage: the layers of one pipeline stage, with the embedding and the head if it is an end.

Shapes: tokens [micro_batch, seq] int64; hidden [micro_batch, seq, hidden]; logits [micro_batch, seq, vocab].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron_zero.config.model import ModelConfig

from .attention import document_mask
from .norm import LayerNorm
from .transformer import TransformerLayer


class Table(nn.Module):
    """Rows looked up by index. weight: [rows, hidden]."""

    def __init__(self, rows: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, hidden_size))

    def forward(self, index: Tensor) -> Tensor:
        return F.embedding(index, self.weight)


class Embedding(nn.Module):
    """Word row + position row, dropout. Positions count from 0 unless given."""

    def __init__(self, config: ModelConfig, *, padded_vocab_size: int) -> None:
        super().__init__()
        assert config.hidden_size is not None and config.max_position_embeddings is not None
        self.word = Table(padded_vocab_size, config.hidden_size)
        self.position = Table(config.max_position_embeddings, config.hidden_size)
        self._dropout = config.hidden_dropout

    def forward(self, tokens: Tensor, position_ids: Tensor | None) -> Tensor:
        if position_ids is None:
            position_ids = torch.arange(tokens.shape[1], device=tokens.device)
        return F.dropout(self.word(tokens) + self.position(position_ids), self._dropout, self.training)


class TiedHead(nn.Module):
    """Logits of the real vocabulary from the word embedding's own weight (the same nn.Parameter).

    Rows of vocabulary padding are cut off before anything uses them, so their gradient is exactly zero.
    """

    def __init__(self, weight: nn.Parameter, *, vocab_size: int) -> None:
        super().__init__()
        self.weight = weight
        self._vocab_size = vocab_size

    def forward(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.weight)[..., : self._vocab_size]


class GPTStage(nn.Module):
    """A GPT-2 style decoder. Built on any device, meta too: no value is set or read here.

    vocab_size: ids that the tokenizer can give.   padded_vocab_size: rows of the embedding.   recompute: of every layer.
    Parameter names are logical: a layer is called by its index in the whole model.
    """

    def __init__(self, config: ModelConfig, *, vocab_size: int, padded_vocab_size: int, recompute: bool = False) -> None:
        super().__init__()
        assert config.hidden_size is not None and config.num_layers is not None
        self.embedding = Embedding(config, padded_vocab_size=padded_vocab_size)
        self.layers = nn.ModuleList(TransformerLayer(config, recompute=recompute) for _ in range(config.num_layers))
        self.final_norm = LayerNorm(config.hidden_size, eps=config.layernorm_epsilon)
        self.head = TiedHead(self.embedding.word.weight, vocab_size=vocab_size)

    def forward(
        self,
        tokens: Tensor,
        *,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        labels: Tensor | None = None,
        loss_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits [micro_batch, seq, vocab_size], or with labels the mean loss, an fp32 scalar.

        position_ids: [micro_batch, seq] int64; None: from 0 in each row.
        document_ids: [micro_batch, seq] int64, rising along a row: no attention between two; None: causal throughout.
        labels: [micro_batch, seq] int64.   loss_mask: [micro_batch, seq], 0 where a token does not count; all 0 gives 0.
        """
        hidden = self.embedding(tokens, position_ids)
        mask = None if document_ids is None else document_mask(document_ids)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        logits: Tensor = self.head(self.final_norm(hidden))
        return logits if labels is None else cross_entropy(logits, labels, loss_mask)

    def gather_units(self) -> tuple[tuple[str, tuple[nn.Module, ...]], ...]:
        """(unit name, modules whose forward needs its weights), in forward order; every parameter in exactly one."""
        return (
            ("embedding", (self.embedding, self.head)),
            *((f"layers.{index}", (layer,)) for index, layer in enumerate(self.layers)),
            ("final_norm", (self.final_norm,)),
        )


def cross_entropy(logits: Tensor, labels: Tensor, loss_mask: Tensor | None) -> Tensor:
    """Mean of -log softmax(logits)[label] over unmasked tokens, computed in fp32."""
    losses = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none")
    if loss_mask is None:
        return losses.mean()
    mask = loss_mask.flatten().float()
    return (losses * mask).sum() / mask.sum().clamp(min=1.0)


def no_weight_decay(name: str, shape: tuple[int, ...]) -> bool:
    """Whether weight decay leaves a parameter alone: biases and norm gains, which are the 1-D ones."""
    return len(shape) == 1 or name.endswith(".bias")
