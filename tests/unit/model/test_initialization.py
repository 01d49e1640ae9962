"""Initial values: the same bits for any cut, normal, and different for other names and seeds."""

import itertools
import math

import numpy as np
import pytest
import torch

from megatron_zero.config.model import ModelConfig
from megatron_zero.model import initialization
from megatron_zero.model.gpt import GPTStage
from megatron_zero.model.initialization import (
    CHUNK_NUMEL,
    ParameterInitializer,
    init_rule,
    parameter_key,
    standard_normal,
)
from megatron_zero.tensor_parallel.splits import TensorSplit

CONFIG = ModelConfig(
    num_layers=3, hidden_size=64, num_attention_heads=4, seq_length=16, max_position_embeddings=16, init_method_std=0.02
)
CPU = torch.device("cpu")
# embedding.word.weight, elements 0 to 3, seed 1234, std 0.02 (fp32)
FIRST_VALUES = [-0.006160989869385958, -0.02449374459683895, -0.024022521451115608, 0.0076317088678479195]


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


def in_plain_python(key, index):
    """One value of the stream in Python's own integers and floats: each operation rounded alone, as IEEE 754 says."""
    mask = (1 << 64) - 1

    def mix(x):
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
        return x ^ x >> 31

    def polynomial(coefficients, x):
        total = coefficients[0]
        for coefficient in coefficients[1:]:
            total = total * x + coefficient
        return total

    def log(x):
        mantissa, exponent = math.frexp(x)
        if mantissa < math.sqrt(0.5):
            mantissa, exponent = mantissa * 2.0, exponent - 1
        ratio = (mantissa - 1.0) / (mantissa + 1.0)
        series = polynomial([1.0 / k for k in range(23, 0, -2)], ratio * ratio)
        return exponent * 0.6931471805599453 + ratio * series * 2.0

    golden = 0x9E3779B97F4A7C15
    p = ((mix(mix(index * golden + key & mask) + golden & mask) >> 12) + 0.5) * 2.0**-52
    q = p - 0.5
    if abs(q) <= 0.425:
        centre = 0.180625 - q * q
        return q * polynomial(initialization._CENTRE_NUM, centre) / polynomial(initialization._CENTRE_DEN, centre)
    x = -log(min(p, 1.0 - p))
    root = x * (1.0 / 6.0) + 1.5
    for _ in range(6):
        root = (root + x / root) * 0.5
    shift, num, den = 1.6, initialization._MIDDLE_NUM, initialization._MIDDLE_DEN
    if root > 5.0:
        shift, num, den = 5.0, initialization._FAR_NUM, initialization._FAR_DEN
    tail = polynomial(num, root - shift) / polynomial(den, root - shift)
    return -tail if q < 0.0 else tail


@pytest.mark.parametrize("start", [0, 5_000_000_000])
def test_values_have_the_bits_of_plain_python(start):
    """So torch's vector kernels fuse nothing: those of another processor, another version and a GPU agree with them."""
    key = parameter_key(1234, "layers.0.mlp.fc1.weight")
    values = standard_normal(key, start, 20_000, device=CPU)
    assert values.tolist() == [in_plain_python(key, start + i) for i in range(20_000)]


def test_first_values_are_the_ones_of_every_release():
    """A seed names a model: a change here would change what every seed gives."""
    assert filled("embedding.word.weight", 0, 4, seed=1234).tolist() == FIRST_VALUES


def test_square_roots_are_good_to_the_last_bit_but_one():
    x = torch.rand(1_000_000, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) * 36.3 + 0.69
    exact = np.sqrt(x.numpy())  # IEEE 754's; torch.sqrt is not
    assert np.abs(initialization._sqrt(x).numpy() - exact).max() <= np.spacing(exact).max()


def test_the_extreme_uniforms_are_finite_and_mirrored():
    lowest, highest = 2.0**-53, 1.0 - 2.0**-53  # of (52 random bits + 1/2) / 2^52
    low, high = initialization._inverse_normal(torch.tensor([lowest, highest], dtype=torch.float64)).tolist()
    assert low == -high
    assert 8.2 < high < 8.3


def test_inverse_normal_equals_scipys_definition_in_both_tails():
    p = torch.tensor([2.0**-53, 1e-10, 0.01, 0.075, 0.3, 0.5, 0.7, 0.99, 1 - 1e-10], dtype=torch.float64)
    torch.testing.assert_close(initialization._inverse_normal(p), torch.special.ndtri(p), rtol=1e-13, atol=1e-15)


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


@pytest.mark.parametrize("cut", [0, 1, 100, 50 * 64 - 1, 50 * 64, 50 * 64 + 7, 56 * 64 - 1])
def test_padding_of_the_vocabulary_is_zero_however_it_is_cut(cut):
    """Rows 50 to 55 of the word embedding; the rows before are as without padding, and other tables have none."""
    padded, plain = (ParameterInitializer(CONFIG, seed=1, vocab_size=size) for size in (50, None))
    name, numel = "embedding.word.weight", 56 * 64
    expected = torch.empty(numel)
    plain(name, 0, expected)
    expected[50 * 64 :] = 0.0
    found = torch.full((numel,), -1.0)
    padded(name, 0, found[:cut])
    padded(name, cut, found[cut:])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    others = torch.empty(2, 16 * 64)
    for fill, out in ((padded, others[0]), (plain, others[1])):
        fill("embedding.position.weight", 0, out)
    torch.testing.assert_close(others[0], others[1], rtol=0, atol=0)


HIDDEN, VOCAB, PADDED = 64, 50, {1: 50, 2: 56, 4: 72}  # of 4 ranks the last holds only padding
# Parameter -> (logical shape for a tensor-parallel size, dim that is cut).
CUTS = {
    "embedding.word.weight": (lambda tp: (PADDED[tp], HIDDEN), 0),
    "head.weight": (lambda tp: (PADDED[tp], HIDDEN), 0),
    "layers.0.attention.qkv.weight": (lambda tp: (3 * HIDDEN, HIDDEN), 0),
    "layers.0.mlp.fc1.weight": (lambda tp: (2, 4 * HIDDEN, HIDDEN), 1),
    "layers.1.mlp.fc2.weight": (lambda tp: (12, HIDDEN, 8), 2),
    "embedding.position.weight": (lambda tp: (16, HIDDEN), None),
    "layers.0.mlp.fc1.bias": (lambda tp: (2, 4 * HIDDEN), 1),
    "final_norm.weight": (lambda tp: (HIDDEN,), None),
}


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_every_tensor_parallel_size_has_the_logical_elements(name, tp, monkeypatch):
    """Parts of all ranks put together are the whole model's parameter, bit for bit; rows of padding are 0."""
    monkeypatch.setattr(initialization, "init_rule", rule_of_any_table)
    shape, dim = CUTS[name]
    whole = torch.empty(math.prod(shape(tp)))
    ParameterInitializer(CONFIG, seed=3)(name, 0, whole)  # knows nothing of splits or padding
    expected = whole.view(shape(tp)).clone()
    if name in initialization.VOCABULARY_TABLES:
        expected[VOCAB:] = 0.0
    parts = []
    for rank in range(tp):
        split = TensorSplit(shape(tp), dim, rank, tp)
        fill = ParameterInitializer(CONFIG, seed=3, vocab_size=VOCAB, splits={name: split})
        part = torch.full((math.prod(split.local_shape),), float("nan"))
        cuts = [0, 1, 77, part.numel() // 2, part.numel()]  # as shards of a unit would cut it
        for start, stop in itertools.pairwise(sorted(min(cut, part.numel()) for cut in cuts)):
            fill(name, start, part[start:stop])
        parts.append(part.view(split.local_shape))
    if dim is None:
        for part in parts:
            torch.testing.assert_close(part, expected, rtol=0, atol=0)
    else:
        torch.testing.assert_close(torch.cat(parts, dim), expected, rtol=0, atol=0)


def rule_of_any_table(name, config):
    return init_rule("embedding.word.weight" if name == "head.weight" else name, config)


def test_a_parameter_without_split_is_an_error_where_splits_are_given():
    fill = ParameterInitializer(CONFIG, seed=3, splits={})
    with pytest.raises(KeyError, match=r"final_norm\.bias"):
        fill("final_norm.bias", 0, torch.empty(4))
