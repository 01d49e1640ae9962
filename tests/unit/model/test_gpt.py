"""The model: names, units, attention, recompute, padding, loss."""

import pytest
import torch

from megatron_zero.config.model import ModelConfig
from megatron_zero.config.training import RecomputeConfig
from megatron_zero.distributed.rng import RngStreams
from megatron_zero.model.attention import Rows, SelfAttention, attention_reference
from megatron_zero.model.gpt import GPTStage, masked_mean, no_weight_decay
from megatron_zero.model.initialization import ParameterInitializer
from megatron_zero.model.recompute import plan_recompute
from megatron_zero.tensor_parallel.group import TensorParallel

VOCAB, PADDED = 50, 64


def config(dropout=0.0):
    return ModelConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        seq_length=32,
        max_position_embeddings=32,
        attention_dropout=dropout,
        hidden_dropout=dropout,
    )


def build(*, dropout=0.0, recompute=False, seed=3):
    plan = plan_recompute(RecomputeConfig(checkpoint_activations=recompute), num_layers=2)
    stage = GPTStage(config(dropout), vocab_size=VOCAB, padded_vocab_size=PADDED, plan=plan)
    fill = ParameterInitializer(config(dropout), seed=seed)
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            fill(name, 0, parameter.view(-1))
    return stage


def batch(seed=0):
    tokens = torch.randint(0, VOCAB, (2, 33), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def test_parameter_names_are_the_logical_ones():
    layer = [
        f"{module}.{kind}"
        for module in ("input_norm", "attention.qkv", "attention.dense", "post_attention_norm", "mlp.fc1", "mlp.fc2")
        for kind in ("weight", "bias")
    ]
    expected = {"embedding.word.weight", "embedding.position.weight", "final_norm.weight", "final_norm.bias"}
    expected |= {f"layers.{i}.{name}" for i in range(2) for name in layer}
    assert {name for name, _ in build().named_parameters()} == expected


def test_units_hold_every_parameter_once():
    stage = build()
    held = [key for _, modules in stage.gather_units() for key in {id(p) for m in modules for p in m.parameters()}]
    assert sorted(held) == sorted(id(p) for p in stage.parameters())


def test_attention_equals_the_slow_form():
    torch.manual_seed(0)
    attention = SelfAttention(config(), tp=TensorParallel.single(), streams=RngStreams.plain())
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x = torch.randn(64, 64)
    heads = attention.qkv(x).view(2, 32, 4, 3, 16)
    q, k, v = (heads[:, :, :, i].transpose(1, 2) for i in range(3))
    expected = attention.dense(attention_reference(q, k, v).transpose(1, 2).reshape(64, 64))
    torch.testing.assert_close(attention(x, Rows(2, 32)), expected, rtol=1e-6, atol=1e-6)


def test_no_token_sees_a_later_one():
    stage = build()
    tokens, _ = batch()
    changed = tokens.clone()
    changed[:, 20] = (changed[:, 20] + 1) % VOCAB
    before, after = stage(tokens), stage(changed)
    torch.testing.assert_close(before[:, :20], after[:, :20], rtol=0, atol=1e-6)
    assert (before[:, 20:] != after[:, 20:]).any()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_recompute_changes_nothing(dropout):
    """H42: the loss and every gradient are bit-equal with and without it, dropout on."""
    tokens, labels = batch()
    results = []
    for recompute in (False, True):
        stage = build(dropout=dropout, recompute=recompute)
        torch.manual_seed(5)
        loss = stage(tokens, labels=labels)
        loss.backward()
        results.append((loss.detach(), {n: p.grad for n, p in stage.named_parameters()}))
    assert torch.equal(results[0][0], results[1][0])
    for name, grad in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], grad, rtol=0, atol=0, msg=name)


def test_padding_rows_get_exactly_no_gradient():
    stage = build()
    tokens, labels = batch()
    stage(tokens, labels=labels).backward()
    grad = stage.embedding.word.weight.grad
    assert not grad[VOCAB:].any() and grad[:VOCAB].any(dim=1).all()


def test_the_tied_gradient_is_the_sum_of_both_uses():
    """H14."""
    tokens, labels = batch()
    tied = build()
    tied(tokens, labels=labels).backward()
    split = build()
    split.head.weight = torch.nn.Parameter(split.embedding.word.weight.detach().clone())
    split(tokens, labels=labels).backward()
    total = split.embedding.word.weight.grad + split.head.weight.grad
    torch.testing.assert_close(tied.embedding.word.weight.grad, total, rtol=1e-6, atol=1e-8)


def test_loss_is_the_masked_mean_in_fp32():
    losses = torch.rand(10, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([1, 0, 1, 1, 0, 0, 0, 0, 1, 1])
    torch.testing.assert_close(masked_mean(losses, mask), losses[mask.bool()].mean(), rtol=1e-6, atol=0)
    torch.testing.assert_close(masked_mean(losses, None), losses.mean(), rtol=0, atol=0)
    assert masked_mean(losses, torch.zeros(10)).item() == 0.0
    tokens, labels = batch()
    stage = build().bfloat16()
    logits = stage(tokens)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
    loss = stage(tokens, labels=labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)


def test_evaluation_draws_nothing():
    stage = build(dropout=0.5).eval()
    tokens, labels = batch()
    with torch.no_grad():
        before = torch.get_rng_state()
        assert torch.equal(stage(tokens, labels=labels), stage(tokens, labels=labels))
        assert torch.equal(torch.get_rng_state(), before)


def test_decay_leaves_biases_and_norms_alone():
    spared = {n for n, p in build().named_parameters() if no_weight_decay(n, tuple(p.shape))}
    assert spared == {n for n, _ in build().named_parameters() if n.endswith("bias") or "norm" in n}
