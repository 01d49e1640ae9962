"""GPTStage: the layers of one pipeline stage, with the embedding and the head if it is an end.

Shapes: tokens [micro_batch, seq] int64; hidden [micro_batch x seq (/tp under sequence parallel), hidden_size], row after
row; logits [micro_batch, seq, vocab].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron_zero.config.model import LEARNED, ROTARY, ModelConfig
from megatron_zero.distributed.rng import RngStreams
from megatron_zero.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from megatron_zero.tensor_parallel.group import TensorParallel
from megatron_zero.tensor_parallel.layers import VocabParallelEmbedding, VocabParallelHead
from megatron_zero.tensor_parallel.mappings import gather_from_tensor_model_parallel_region
from megatron_zero.tensor_parallel.splits import TensorSplit, collect_splits

from .attention import Rows, document_mask
from .dropout import hidden_dropout
from .norm import build_norm
from .positions import rotary
from .recompute import RecomputePlan, SavedInputs, recompute
from .transformer import TransformerLayer


class Table(nn.Module):
    """Rows looked up by index. weight: [rows, hidden]."""

    def __init__(self, rows: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, hidden_size))

    def forward(self, index: Tensor) -> Tensor:
        return F.embedding(index, self.weight)


class Embedding(nn.Module):
    """Word row, + position row where positions are learned, dropout. [micro_batch, seq] -> hidden. Positions count from 0
    unless given."""

    def __init__(
        self, config: ModelConfig, *, padded_vocab_size: int, tp: TensorParallel, streams: RngStreams
    ) -> None:
        super().__init__()
        assert config.hidden_size is not None and config.max_position_embeddings is not None
        self.word = VocabParallelEmbedding(padded_vocab_size, config.hidden_size, tp=tp)
        self.position = (
            Table(config.max_position_embeddings, config.hidden_size) if config.positions == LEARNED else None
        )
        self._dropout = config.hidden_dropout
        self._tp, self._streams = tp, streams

    def forward(self, tokens: Tensor, position_ids: Tensor | None) -> Tensor:
        hidden: Tensor = self.word(tokens.flatten())
        if self.position is not None:
            hidden = hidden + self.position(self._own_positions(tokens, position_ids))
        return hidden_dropout(
            hidden,
            self._dropout,
            training=self.training,
            divided=self._tp.sequence_parallel,
            streams=self._streams,
        )

    def _own_positions(self, tokens: Tensor, position_ids: Tensor | None) -> Tensor:
        """[tokens (/tp)]: of the tokens that this rank holds."""
        if position_ids is None:
            position_ids = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        flat = position_ids.flatten()
        if not self._tp.sequence_parallel:
            return flat
        own = len(flat) // self._tp.axis.size
        return flat[self._tp.axis.rank * own : (self._tp.axis.rank + 1) * own]


class GPTStage(nn.Module):
    """A GPT decoder: GPT-2, GPT-NeoX style or Llama style, as the config says. Built on any device, meta too: no value is
    set or read here.

    vocab_size: ids that the tokenizer can give.   padded_vocab_size: rows of the embedding.   tp: how layers are divided.
    plan: what is recomputed; None: nothing.   saved: where kept inputs of recomputed layers wait.
    streams: random numbers of dropout.
    Parameter names are logical: a layer is called by its index in the whole model.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        vocab_size: int,
        padded_vocab_size: int,
        tp: TensorParallel | None = None,
        plan: RecomputePlan | None = None,
        saved: SavedInputs | None = None,
        streams: RngStreams | None = None,
    ) -> None:
        super().__init__()
        assert config.hidden_size is not None and config.num_layers is not None
        self._config = config
        self._tp = tp = TensorParallel.single() if tp is None else tp
        self._streams = streams = RngStreams.plain() if streams is None else streams
        self._saved = saved = SavedInputs(tp.axis) if saved is None else saved
        self._plan = plan = RecomputePlan.nothing(config.num_layers) if plan is None else plan
        self.embedding = Embedding(config, padded_vocab_size=padded_vocab_size, tp=tp, streams=streams)
        self.layers = nn.ModuleList(
            TransformerLayer(
                config,
                tp=tp,
                streams=streams,
                saved=saved,
                # A chunk of several layers is recomputed around them, see forward().
                recomputed=again and len(chunk) == 1,
                recomputes_core=plan.core_attention,
            )
            for chunk, again in zip(plan.chunks, plan.recomputed, strict=True)
            for _ in chunk
        )
        self.final_norm = build_norm(config)
        self.head = VocabParallelHead(
            None if config.untie_embeddings_and_output_weights else self.embedding.word.weight,
            padded_vocab_size,
            config.hidden_size,
            vocab_size=vocab_size,
            tp=tp,
        )

    def forward(
        self,
        tokens: Tensor,
        *,
        position_ids: Tensor | None = None,
        document_ids: Tensor | None = None,
        labels: Tensor | None = None,
        loss_mask: Tensor | None = None,
    ) -> Tensor:
        """Logits [micro_batch, seq, vocab_size], or with labels the mean loss, an fp32 scalar; equal on all tensor-parallel
        ranks, as the arguments must be.

        position_ids: [micro_batch, seq] int64; None: from 0 in each row.
        document_ids: [micro_batch, seq] int64, rising along a row: no attention between two; None: causal throughout.
        labels: [micro_batch, seq] int64.   loss_mask: [micro_batch, seq], 0 where a token does not count; all 0 gives 0.
        """
        rows = self._rows(tokens, position_ids, document_ids)
        hidden = self.embedding(tokens, position_ids)
        for chunk, again in zip(self._plan.chunks, self._plan.recomputed, strict=True):
            layers = [self.layers[index] for index in chunk]
            if again and len(layers) > 1 and self.training:
                draws = any(layer.draws for layer in layers)
                hidden = recompute(
                    run_layers, hidden, layers, rows, streams=self._streams, draws=draws, saved=self._saved
                )
            else:
                hidden = run_layers(hidden, layers, rows)
        logits: Tensor = self.head(self.final_norm(hidden))
        if labels is None:
            whole = gather_from_tensor_model_parallel_region(logits, axis=self._tp.axis, widths=self.head.valid_widths)
            return whole.view(*tokens.shape, -1)
        losses = vocab_parallel_cross_entropy(
            logits, labels.flatten(), first_id=self.head.first_id, axis=self._tp.axis
        )
        return masked_mean(losses, None if loss_mask is None else loss_mask.flatten())

    def _rows(self, tokens: Tensor, position_ids: Tensor | None, document_ids: Tensor | None) -> Rows:
        micro_batch, seq = tokens.shape
        return Rows(
            micro_batch,
            seq,
            mask=None if document_ids is None else document_mask(document_ids),
            rotary=rotary(self._config, seq, position_ids, device=tokens.device)
            if self._config.positions == ROTARY
            else None,
        )

    def tensor_splits(self) -> dict[str, TensorSplit]:
        """Parameter name -> how it is divided over tensor parallel, for every parameter."""
        return collect_splits(self)

    def gather_units(self) -> tuple[tuple[str, tuple[nn.Module, ...]], ...]:
        """(unit name, modules whose forward needs its weights), in forward order; every parameter in exactly one."""
        untied = self._config.untie_embeddings_and_output_weights
        return (
            ("embedding", (self.embedding,) if untied else (self.embedding, self.head)),
            *((f"layers.{index}", (layer,)) for index, layer in enumerate(self.layers)),
            ("final_norm", (self.final_norm,)),
            *((("head", (self.head,)),) if untied else ()),
        )


def run_layers(hidden: Tensor, layers: Sequence[nn.Module], rows: Rows) -> Tensor:
    """One after the other."""
    for layer in layers:
        hidden = layer(hidden, rows)
    return hidden


def masked_mean(losses: Tensor, loss_mask: Tensor | None) -> Tensor:
    """Mean over the unmasked tokens, 0 if there are none. losses: [tokens] fp32.   loss_mask: [tokens]; None: all count."""
    if loss_mask is None:
        return losses.mean()
    mask = loss_mask.float()
    return (losses * mask).sum() / mask.sum().clamp(min=1.0)


def no_weight_decay(name: str, shape: tuple[int, ...]) -> bool:
    """Whether weight decay leaves a parameter alone: biases and norm gains."""
    return len(shape) == 1 or name.endswith(".bias")
