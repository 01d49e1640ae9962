"""A small tied network of the tensor-parallel layers, gated and replicated parameters too: one model for every mesh."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron_zero.config.model import ModelConfig
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.model.initialization import ParameterInitializer
from megatron_zero.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from megatron_zero.tensor_parallel.grads import sum_replicated_
from megatron_zero.tensor_parallel.group import TensorParallel
from megatron_zero.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelHead,
)
from megatron_zero.tensor_parallel.splits import TensorSplit, collect_splits
from megatron_zero.zero.engine import ZeroEngine

VOCABULARY, WIDTH, FFN, TOKENS, LAYERS = 37, 24, 32, 16, 2
CONFIG = ModelConfig(num_layers=LAYERS, hidden_size=WIDTH, init_method_std=0.2)


class Embedding(nn.Module):
    def __init__(self, rows: int, width: int, tp: TensorParallel) -> None:
        super().__init__()
        self.word = VocabParallelEmbedding(rows, width, tp=tp)
        self.position = nn.Embedding(TOKENS, width)
        self.tp = tp

    def forward(self, tokens: Tensor) -> Tensor:
        place = torch.arange(TOKENS)
        if self.tp.sequence_parallel:
            place = place.chunk(self.tp.axis.size)[self.tp.axis.rank]
        return self.word(tokens) + self.position(place)  # type: ignore[no-any-return]


class Mlp(nn.Module):
    def __init__(self, width: int, ffn: int, tp: TensorParallel) -> None:
        super().__init__()
        self.fc1 = ColumnParallelLinear(width, (2, ffn), split_dim=1, bias=True, tp=tp)
        self.fc2 = RowParallelLinear(ffn, width, bias=True, tp=tp)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.fc1(x).chunk(2, -1)
        return self.fc2(F.silu(gate) * up)  # type: ignore[no-any-return]


class Layer(nn.Module):
    def __init__(self, width: int, ffn: int, tp: TensorParallel) -> None:
        super().__init__()
        self.input_norm = nn.LayerNorm(width)
        self.mlp = Mlp(width, ffn, tp)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.input_norm(x))  # type: ignore[no-any-return]


class TensorNet(nn.Module):
    """[TOKENS] ids of a micro-batch of one row -> mean loss of predicting the next one."""

    def __init__(self, tp: TensorParallel, *, vocabulary: int, width: int = WIDTH, divisible_by: int = 8) -> None:
        super().__init__()
        rows = -(-vocabulary // (divisible_by * tp.axis.size)) * divisible_by * tp.axis.size
        self.embedding = Embedding(rows, width, tp)
        self.layers = nn.ModuleList(Layer(width, FFN, tp) for _ in range(LAYERS))
        self.final_norm = nn.LayerNorm(width)
        self.head = VocabParallelHead(self.embedding.word.weight, rows, width, vocab_size=vocabulary, tp=tp)
        self.axis = tp.axis

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.final_norm(x))
        losses = vocab_parallel_cross_entropy(logits, tokens.roll(-1), first_id=self.head.first_id, axis=self.axis)
        return losses.mean()

    def groups(self) -> Iterator[tuple[str, Sequence[nn.Module]]]:
        yield "embedding", (self.embedding, self.head)
        for index, layer in enumerate(self.layers):
            yield f"layers.{index}", (layer,)
        yield "final_norm", (self.final_norm,)


def build_net(
    ctx: ParallelContext, *, stage: int, sequence_parallel: bool = False, vocabulary: int = VOCABULARY, **sizes: int
) -> tuple[TensorNet, ZeroEngine, dict[str, TensorSplit]]:
    """The network under the engine as training/build.py wires it, first values from one seed."""
    tp = TensorParallel(ctx.tp, sequence_parallel=sequence_parallel and ctx.tp.size > 1)
    with torch.device("meta"):
        net = TensorNet(tp, vocabulary=vocabulary, **sizes)
    splits = collect_splits(net)
    engine = ZeroEngine(
        net,
        net.groups(),
        stage=stage,
        dp=ctx.dp,
        dtype=torch.float32,
        device=ctx.device,
        init=ParameterInitializer(CONFIG, seed=5, vocab_size=vocabulary, splits=splits),
        replicated=frozenset(name for name, split in splits.items() if split.replicated),
        shard_reduction=lambda shards, replicated: sum_replicated_(shards, replicated, tp=tp),
    )
    return net, engine, splits


def real_shape(name: str, split: TensorSplit, *, vocabulary: int = VOCABULARY) -> tuple[int, ...]:
    """The logical shape without rows of padding."""
    return (vocabulary, *split.shape[1:]) if name == "embedding.word.weight" else split.shape


def num_real_elements(splits: dict[str, TensorSplit], *, vocabulary: int = VOCABULARY) -> int:
    """Of the whole model."""
    return sum(math.prod(real_shape(name, split, vocabulary=vocabulary)) for name, split in splits.items())
