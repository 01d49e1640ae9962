"""Initial values: the same bits for any cut, normal, and different for other names and seeds."""

import math

import pytest
import torch

from megatron_zero.config.model import ModelConfig
from megatron_zero.model.gpt import GPTStage
from megatron_zero.model.initialization import (
    CHUNK_NUMEL,
    ParameterInitializer,
    init_rule,
    parameter_key,
    standard_normal,
)

CONFIG = ModelConfig(
    num_layers=3, hidden_size=64, num_attention_heads=4, seq_length=16, max_position_embeddings=16, init_method_std=0.02
)
CPU = torch.device("cpu")


def filled(name, start, numel, seed=1):
    out = torch.full((numel,), float("nan"))
    ParameterInitializer(CONFIG, seed=seed)(name, start, out)
    return out


@pytest.mark.parametrize("start, numel", [(0, 1), (1, 7), (4095, 2), (CHUNK_NUMEL - 3, 10), (5000, 60_000)])
def test_a_slice_has_the_bits_of_the_whole(start, numel):
    name = "layers.1.mlp.fc1.weight"
    whole = filled(name, 0, CHUNK_NUMEL + 100_000)
    torch.testing.assert_close(filled(name, start, numel), whole[start : start + numel], rtol=0, atol=0)


def test_values_are_normal():
    values = standard_normal(parameter_key(7, "embedding.word.weight"), 0, 4_000_000, device=CPU)
    assert torch.isfinite(values).all()
    n = values.numel()
    assert abs(values.mean()) < 5 / math.sqrt(n)
    assert abs(values.var() - 1) < 5 * math.sqrt(2 / n)
    assert abs((values**3).mean()) < 5 * math.sqrt(15 / n)
    assert abs((values**4).mean() - 3) < 5 * math.sqrt(96 / n)
    for lag in (1, 2, 64, 1024):
        assert abs((values[lag:] * values[:-lag]).mean()) < 5 / math.sqrt(n)
    for z in (1.0, 2.0, 3.0, 4.0):
        expected = math.erfc(z / math.sqrt(2))
        assert abs((values.abs() > z).double().mean() - expected) < 5 * math.sqrt(expected / n)


def test_streams_of_names_and_seeds_differ():
    values = standard_normal(parameter_key(1, "a"), 0, 1_000_000, device=CPU)
    for other in (parameter_key(1, "b"), parameter_key(2, "a")):
        correlation = (values * standard_normal(other, 0, values.numel(), device=CPU)).mean()
        assert abs(correlation) < 5 / math.sqrt(values.numel())


def test_inverse_normal_equals_scipys_definition_in_both_tails():
    from megatron_zero.model.initialization import _inverse_normal

    p = torch.tensor([1e-300, 1e-17, 1e-10, 0.01, 0.075, 0.3, 0.5, 0.7, 0.99, 1 - 1e-10], dtype=torch.float64)
    torch.testing.assert_close(_inverse_normal(p), torch.special.ndtri(p), rtol=1e-13, atol=1e-15)


def test_every_parameter_has_a_rule_and_unknown_names_raise():
    with torch.device("meta"):
        stage = GPTStage(CONFIG, vocab_size=50, padded_vocab_size=64)
    rules = {name: init_rule(name, CONFIG) for name, _ in stage.named_parameters()}
    assert rules["final_norm.weight"].mean == 1.0 and rules["layers.0.input_norm.bias"].mean == 0.0
    assert rules["layers.2.mlp.fc2.weight"].std == 0.02 / math.sqrt(6)
    assert rules["layers.2.attention.dense.weight"].std == 0.02 / math.sqrt(6)
    assert rules["layers.0.attention.qkv.weight"].std == rules["embedding.word.weight"].std == 0.02
    with pytest.raises(ValueError, match=r"no initialisation rule for parameter head\.scale"):
        init_rule("head.scale", CONFIG)
