"""Documents packed into one row, with positions and attention reset, are the documents alone (H34)."""

import pytest
import torch

from megatron_zero.config.model import ModelConfig
from megatron_zero.config.training import RecomputeConfig
from megatron_zero.distributed.rng import RngStreams
from megatron_zero.model.attention import Rows, SelfAttention, attention_reference, document_mask
from megatron_zero.model.gpt import GPTStage
from megatron_zero.model.initialization import ParameterInitializer
from megatron_zero.model.recompute import plan_recompute
from megatron_zero.tensor_parallel.group import TensorParallel

VOCAB, SEQ = 50, 24
LENGTHS = (6, 15, 3)  # of the documents in a row


ROTARY = {
    "use_rotary_position_embeddings": True,
    "normalization": "rmsnorm",
    "swiglu": True,
    "num_key_value_heads": 2,
    "untie_embeddings_and_output_weights": True,
}


def config(dropout=0.0, **more):
    return ModelConfig(
        **more,
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        seq_length=SEQ,
        max_position_embeddings=SEQ,
        attention_dropout=dropout,
        hidden_dropout=dropout,
    )


def build(*, dropout=0.0, recompute=False, dtype=torch.float64, **more):
    plan = plan_recompute(RecomputeConfig(checkpoint_activations=recompute), num_layers=2)
    stage = GPTStage(config(dropout, **more), vocab_size=VOCAB, padded_vocab_size=64, plan=plan)
    fill = ParameterInitializer(config(dropout, **more), seed=3)
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            fill(name, 0, parameter.view(-1))
    return stage.to(dtype)


def row(seed=0):
    """tokens, labels [1, seq]; position_ids, document_ids of LENGTHS."""
    tokens = torch.randint(0, VOCAB, (1, SEQ + 1), generator=torch.Generator().manual_seed(seed))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    documents = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))[None]
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), positions, documents


def test_mask_is_that_of_the_documents():
    _, _, _, documents = row()
    mask = document_mask(documents)[0, 0]
    for query in range(SEQ):
        for key in range(SEQ):
            assert mask[query, key] == (key <= query and documents[0, query] == documents[0, key])


def test_token_6_sees_nothing_before_6():
    stage = build()
    tokens, _, positions, documents = row()
    changed = tokens.clone()
    changed[:, :6] = (changed[:, :6] + 1) % VOCAB
    before, after = (stage(each, position_ids=positions, document_ids=documents) for each in (tokens, changed))
    torch.testing.assert_close(before[:, 6:], after[:, 6:], rtol=0, atol=0)
    assert (before[:, :6] != after[:, :6]).any()
    assert (stage(tokens)[:, 6:] != stage(changed)[:, 6:]).any()


def test_masked_attention_equals_the_slow_form():
    torch.manual_seed(0)
    attention = SelfAttention(config(), tp=TensorParallel.single(), streams=RngStreams.plain()).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x = torch.randn(SEQ, 64, dtype=torch.float64)
    heads = attention.qkv(x).view(1, SEQ, 4, 3, 16)
    q, k, v = (heads[:, :, :, i].transpose(1, 2) for i in range(3))
    mask = document_mask(row()[3])
    expected = attention.dense(attention_reference(q, k, v, mask).transpose(1, 2).reshape(SEQ, 64))
    torch.testing.assert_close(attention(x, Rows(1, SEQ, mask)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("more", [{}, ROTARY], ids=["learned", "rotary"])
@pytest.mark.parametrize("recompute", [False, True])
def test_packed_documents_equal_the_documents_alone(recompute, more):
    """Logits, the mean loss, and every gradient; fp64, since sums come in another order."""
    tokens, labels, positions, documents = row()
    packed, alone = build(recompute=recompute, **more), build(recompute=recompute, **more)
    logits = packed(tokens, position_ids=positions, document_ids=documents)
    loss = packed(tokens, position_ids=positions, document_ids=documents, labels=labels)
    loss.backward()
    start, total = 0, 0.0
    for length in LENGTHS:
        part = slice(start, start + length)
        torch.testing.assert_close(alone(tokens[:, part]), logits[:, part], rtol=1e-12, atol=1e-12)
        one = alone(tokens[:, part], labels=labels[:, part]) * (length / SEQ)
        one.backward()
        total += one.item()
        start += length
    torch.testing.assert_close(loss.item(), total, rtol=1e-6, atol=0)  # the loss is computed in fp32
    gradients = dict(alone.named_parameters())
    for name, parameter in packed.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name].grad, rtol=1e-5, atol=1e-8, msg=name)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_recompute_changes_nothing(dropout):
    tokens, labels, positions, documents = row()
    results = []
    for recompute in (False, True):
        stage = build(dropout=dropout, recompute=recompute, dtype=torch.float32)
        torch.manual_seed(5)
        loss = stage(tokens, position_ids=positions, document_ids=documents, labels=labels)
        loss.backward()
        results.append((loss.detach(), {name: p.grad for name, p in stage.named_parameters()}))
    assert torch.equal(results[0][0], results[1][0])
    for name, gradient in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], gradient, rtol=0, atol=0, msg=name)


def test_one_document_is_the_plain_row():
    stage = build()
    tokens, _, _, _ = row()
    zeros = torch.zeros(1, SEQ, dtype=torch.int64)
    positions = torch.arange(SEQ)[None]
    torch.testing.assert_close(
        stage(tokens, position_ids=positions, document_ids=zeros), stage(tokens), rtol=1e-12, atol=1e-12
    )


def test_loss_is_the_mean_over_what_counts():
    stage = build(dtype=torch.float32)
    tokens, labels, _, _ = row()
    mask = torch.ones(1, SEQ)
    mask[0, [5, 20]] = 0.0
    losses = torch.nn.functional.cross_entropy(stage(tokens)[0], labels[0], reduction="none")
    expected = (losses.sum() - losses[5] - losses[20]) / (SEQ - 2)
    torch.testing.assert_close(stage(tokens, labels=labels, loss_mask=mask), expected, rtol=1e-6, atol=0)
