"""GPTStage of every family, divided, against itself on one rank: logits, loss and every gradient, in fp64."""

import math

import pytest
import torch
from helpers.spawn import DistributedPool

from megatron_zero.config.model import ModelConfig
from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.model.gpt import GPTStage
from megatron_zero.model.initialization import ParameterInitializer
from megatron_zero.tensor_parallel.group import TensorParallel

VOCAB, ROWS, MICRO_BATCH, SEQ = 50, 96, 2, 12  # of ROWS on 4 ranks: 24, 24, 2 and 0 are vocabulary
BASE = {
    "num_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 8,
    "seq_length": SEQ,
    "max_position_embeddings": SEQ,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "init_method_std": 0.2,
}
FAMILIES = {
    "GPT-2": {},
    "Llama": {
        "num_key_value_heads": 4,
        "use_rotary_position_embeddings": True,
        "normalization": "rmsnorm",
        "swiglu": True,
        "ffn_hidden_size": 40,
        "add_bias_linear": False,
        "untie_embeddings_and_output_weights": True,
    },
    # A gated bias, [2, ffn] cut along dim 1; heads that are wider together than hidden.
    "gated with biases": {"swiglu": True, "ffn_hidden_size": 40, "kv_channels": 6, "num_key_value_heads": 4},
    "NeoX": {
        "use_rotary_position_embeddings": True,
        "rotary_percent": 0.5,
        "bias_gelu_fusion": False,
        "untie_embeddings_and_output_weights": True,
    },
    "no positions": {"add_position_embedding": False, "squared_relu": True, "apply_layernorm_1p": True},
}


@pytest.fixture(scope="module")
def pool():
    with DistributedPool(4) as pool:
        yield pool


def build(config, tp):
    """Filled with this rank's parts; norms and biases moved off 1 and 0, equally on all ranks."""
    stage = GPTStage(config, vocab_size=VOCAB, padded_vocab_size=ROWS, tp=tp).double()
    splits = stage.tensor_splits()
    fill = ParameterInitializer(config, seed=5, vocab_size=VOCAB, splits=splits)
    for index, (name, parameter) in enumerate(stage.named_parameters()):
        values = torch.empty(parameter.numel())
        fill(name, 0, values)
        if name.endswith(".bias") or "norm" in name:
            drawn = torch.randn(math.prod(splits[name].shape), generator=torch.Generator().manual_seed(index))
            values += 0.3 * torch.cat(
                [drawn[run.start : run.start + run.numel] for run in splits[name].runs(0, len(values))]
            )
        parameter.data.copy_(values.view_as(parameter))
    return stage


def inputs(documents):
    """tokens; labels and, if asked, two documents a row whose ends differ from row to row."""
    drawn = torch.randint(0, VOCAB, (MICRO_BATCH, SEQ + 1), generator=torch.Generator().manual_seed(2))
    more = {}
    if documents:
        ids = torch.stack([torch.arange(SEQ) >= end for end in (5, 9)]).long()
        starts = torch.tensor([[5], [9]]) * ids
        more = {"document_ids": ids, "position_ids": torch.arange(SEQ) - starts, "loss_mask": (ids == 0).float()}
        more["loss_mask"][:, -1] = 1.0
    return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous(), more


def run(ctx, more, documents, sequence_parallel):
    """(splits, logits, loss, gradients) of this rank."""
    tp = TensorParallel(ctx.tp, sequence_parallel=sequence_parallel)
    stage = build(ModelConfig(**BASE, **more), tp)
    tokens, labels, given = inputs(documents)
    with torch.no_grad():
        logits = stage(tokens, **{name: value for name, value in given.items() if name != "loss_mask"})
    loss = stage(tokens, labels=labels, **given)
    loss.backward()
    return stage.tensor_splits(), logits, loss.detach(), {name: p.grad for name, p in stage.named_parameters()}


def whole(results, name, sequence_parallel):
    """The gradient of the logical parameter, from every rank's."""
    split = results[0][0][name]
    grads = [gradients[name] for _, _, _, gradients in results]
    if split.replicated:
        return sum(grads) if sequence_parallel else grads[0]
    flat = torch.full((math.prod(split.shape),), float("nan"), dtype=torch.float64)
    for (splits, *_), grad in zip(results, grads, strict=True):
        place = 0
        for stretch in splits[name].runs(0, grad.numel()):
            flat[stretch.start : stretch.start + stretch.numel] = grad.flatten()[place : place + stretch.numel]
            place += stretch.numel
    return flat.view(split.shape)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("documents", [False, True], ids=["whole rows", "documents"])
@pytest.mark.parametrize("size,sequence_parallel", [(2, False), (2, True), (4, False), (4, True)])
def test_the_divided_model_is_the_undivided_one(pool, family, documents, size, sequence_parallel):
    """The loss is computed in fp32, so gradients agree to its rounding."""
    more = FAMILIES[family]
    (alone, *_) = pool.run(run, more, documents, False)
    results = pool.run(run, more, documents, sequence_parallel, parallel=ParallelConfig(tensor_model_parallel_size=size))[
        :size
    ]
    assert alone[1].shape == (MICRO_BATCH, SEQ, VOCAB)
    for _, logits, loss, _ in results:
        torch.testing.assert_close(logits, alone[1], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(loss, alone[2], rtol=1e-6, atol=0)
        assert torch.equal(loss, results[0][2])
    assert alone[3].keys() == results[0][3].keys()
    for name, expected in alone[3].items():
        found = whole(results, name, sequence_parallel)
        largest = float(expected.abs().max())
        assert largest > 0.0, name
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6 * largest, msg=name)
        if name in ("embedding.word.weight", "head.weight"):
            assert not found[VOCAB:].any(), f"padding of {name}"
