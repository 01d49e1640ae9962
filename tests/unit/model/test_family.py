"""Norms, activations, rotary positions and grouped queries against plain formulas; Llama against transformers."""

import sys
import types

import pytest
import torch
import torch.nn.functional as F
from helpers.model_weights import from_core, from_llama, from_neox, put

from megatron_zero.config.fields import ConfigError
from megatron_zero.config.model import ModelConfig
from megatron_zero.distributed.context import ParallelAxis
from megatron_zero.distributed.rng import RngStreams
from megatron_zero.model.attention import Rows, SelfAttention, attention_reference, document_mask
from megatron_zero.model.gpt import GPTStage, no_weight_decay
from megatron_zero.model.initialization import init_rule
from megatron_zero.model.mlp import ACTIVATIONS
from megatron_zero.model.norm import build_norm
from megatron_zero.model.positions import rotary
from megatron_zero.tensor_parallel.group import TensorParallel

LLAMA = {
    "use_rotary_position_embeddings": True,
    "normalization": "RMSNorm",
    "swiglu": True,
    "add_bias_linear": False,
    "untie_embeddings_and_output_weights": True,
    "num_key_value_heads": 2,
}


def config(**more):
    return ModelConfig(
        **{
            "num_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 4,
            "seq_length": 32,
            "max_position_embeddings": 32,
            "attention_dropout": 0.0,
            "hidden_dropout": 0.0,
            **more,
        }
    )


# ---- pieces


def test_rmsnorm_is_its_formula():
    torch.manual_seed(0)
    norm = build_norm(config(normalization="rmsnorm", layernorm_epsilon=1e-3)).double()
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(5, 64, dtype=torch.float64)
    wanted = x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight
    torch.testing.assert_close(norm(x), wanted, rtol=1e-12, atol=1e-12)
    assert [name for name, _ in norm.named_parameters()] == ["weight"]


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_a_gain_stored_from_one_is_the_same_norm(kind):
    torch.manual_seed(0)
    plain = build_norm(config(normalization=kind))
    shifted = build_norm(config(normalization=kind, apply_layernorm_1p=True))
    for name, parameter in plain.named_parameters():
        torch.nn.init.normal_(parameter)
        dict(shifted.named_parameters())[name].data.copy_(parameter.data - (1.0 if name == "weight" else 0.0))
    x = torch.randn(5, 64)
    torch.testing.assert_close(shifted(x), plain(x), rtol=1e-5, atol=1e-6)
    assert init_rule("final_norm.weight", config(apply_layernorm_1p=True)).mean == 0.0
    assert init_rule("final_norm.weight", config()).mean == 1.0


def test_activations_are_their_formulas():
    x = torch.linspace(-4, 4, 100, dtype=torch.float64)
    erf = x * 0.5 * (1 + torch.erf(x / 2**0.5))
    tanh = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    torch.testing.assert_close(ACTIVATIONS["gelu_erf"](x), erf, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ACTIVATIONS["gelu_tanh"](x), tanh, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ACTIVATIONS["squared_relu"](x), torch.where(x > 0, x * x, 0.0), rtol=0, atol=0)
    gate, up = x[:50], x[50:]
    torch.testing.assert_close(
        ACTIVATIONS["swiglu"](x), gate / (1 + torch.exp(-gate)) * up, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("percent", [1.0, 0.25])
@pytest.mark.parametrize("given", [False, True])
def test_rotary_turns_pairs_by_position_times_frequency(percent, given):
    made = config(use_rotary_position_embeddings=True, rotary_percent=percent, rotary_position_embeddings_theta=100.0)
    width = int(16 * percent)
    positions = torch.tensor([[0, 1, 2, 7, 3], [5, 6, 0, 1, 2]]) if given else torch.arange(5).expand(2, 5)
    x = torch.randn(2, 5, 3, 16, generator=torch.Generator().manual_seed(0))
    found = rotary(made, 5, positions if given else None, device=torch.device("cpu")).turn(x)
    pairs = torch.complex(x[..., : width // 2].double(), x[..., width // 2 : width].double())
    frequencies = 100.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    turned = pairs * torch.exp(1j * positions[:, :, None, None] * frequencies)
    wanted = torch.cat([turned.real, turned.imag, x[..., width:].double()], -1)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_grouped_attention_equals_the_slow_form(groups, masked):
    torch.manual_seed(0)
    attention = SelfAttention(
        config(num_key_value_heads=groups, kv_channels=24),
        tp=TensorParallel.single(),
        streams=RngStreams.plain(),
    ).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x = torch.randn(2 * 32, 64, dtype=torch.float64)
    mask = document_mask(torch.arange(32).div(10, rounding_mode="floor").expand(2, 32)) if masked else None
    heads = attention.qkv(x).view(2, 32, groups, 4 // groups + 2, 24)
    q = heads[:, :, :, :-2].reshape(2, 32, 4, 24).transpose(1, 2)
    k, v = heads[:, :, :, -2].transpose(1, 2), heads[:, :, :, -1].transpose(1, 2)
    expected = attention.dense(attention_reference(q, k, v, mask).transpose(1, 2).reshape(64, 96))
    torch.testing.assert_close(attention(x, Rows(2, 32, mask)), expected, rtol=1e-12, atol=1e-12)


def test_rotary_of_fp64_and_bf16_keeps_the_dtype():
    made = config(use_rotary_position_embeddings=True)
    turns = rotary(made, 32, None, device=torch.device("cpu"))
    x = torch.randn(2, 32, 4, 16, generator=torch.Generator().manual_seed(0))
    double = turns.turn(x.double())
    torch.testing.assert_close(double, turns.turn(x).double(), rtol=1e-5, atol=1e-6)
    assert not torch.equal(double, double.float().double())  # not rounded on the way
    half = turns.turn(x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, turns.turn(x.bfloat16().float()).bfloat16())  # rounded once, at the end


@pytest.mark.parametrize("heads,groups", [(4, 3), (4, 8)])
def test_groups_that_do_not_divide_the_heads_are_named(heads, groups):
    with pytest.raises(ConfigError, match=f"{heads} query heads in {groups} groups"):
        SelfAttention(
            config(num_attention_heads=heads, num_key_value_heads=groups),
            tp=TensorParallel.single(),
            streams=RngStreams.plain(),
        )


def test_two_groups_over_four_ranks_are_named():
    """The rows of qkv would divide: 2 groups x (2 + 2) heads."""
    axis = ParallelAxis("tp", 4, 0, None, (0, 1, 2, 3))
    with pytest.raises(ConfigError, match="over a tensor-parallel size of 4"):
        SelfAttention(config(num_key_value_heads=2), tp=TensorParallel(axis), streams=RngStreams.plain())


# ---- names and rules


def test_names_of_a_llama_style_model():
    stage = GPTStage(config(**LLAMA), vocab_size=50, padded_vocab_size=64)
    layer = ("input_norm", "attention.qkv", "attention.dense", "post_attention_norm", "mlp.fc1", "mlp.fc2")
    expected = {"embedding.word.weight", "final_norm.weight", "head.weight"}
    expected |= {f"layers.{i}.{name}.weight" for i in range(2) for name in layer}
    assert {name for name, _ in stage.named_parameters()} == expected
    assert dict(stage.named_parameters())["layers.0.mlp.fc1.weight"].shape == (2, 128, 64)
    held = [id(p) for _, modules in stage.gather_units() for m in modules for p in m.parameters()]
    assert sorted(held) == sorted(id(p) for p in stage.parameters())
    for name in expected:
        init_rule(name, config(**LLAMA))


def test_decay_leaves_the_two_dimensional_bias_alone():
    stage = GPTStage(config(swiglu=True), vocab_size=50, padded_vocab_size=64)
    bias = dict(stage.named_parameters())["layers.0.mlp.fc1.bias"]
    assert bias.shape == (2, 128)
    assert no_weight_decay("layers.0.mlp.fc1.bias", tuple(bias.shape))


# ---- apex


def test_apex_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="--fused-norm-kernels apex"):
        build_norm(config(fused_norm_kernels="apex"))


@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_apex_kernels_are_called_with_gain_shape_and_epsilon(monkeypatch, kind):
    """The interface alone: NVIDIA's kernels need a GPU."""
    module = types.ModuleType("apex.normalization.fused_layer_norm")
    module.fused_layer_norm_affine = lambda x, weight, bias, shape, eps: F.layer_norm(x, shape, weight, bias, eps)
    module.fused_rms_norm_affine = lambda x, weight, shape, eps: F.rms_norm(x, shape, weight, eps)
    for name in ("apex", "apex.normalization", "fused_layer_norm_cuda"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    fused = build_norm(config(normalization=kind, fused_norm_kernels="apex"))
    plain = build_norm(config(normalization=kind))
    for name, parameter in plain.named_parameters():
        torch.nn.init.normal_(parameter)
        dict(fused.named_parameters())[name].data.copy_(parameter.data)
    x = torch.randn(5, 64)
    torch.testing.assert_close(fused(x), plain(x), rtol=0, atol=0)


def test_apex_without_its_extension_is_named(monkeypatch):
    """apex built without --cuda_ext imports, and fails at the first forward."""
    for name in ("apex", "apex.normalization", "apex.normalization.fused_layer_norm"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    with pytest.raises(ConfigError, match="fused_layer_norm_cuda"):
        build_norm(config(fused_norm_kernels="apex"))


# ---- peers


@pytest.mark.parametrize(
    "file,more",
    [
        ("megatron_gpt_learned.npz", {"bias_gelu_fusion": False}),
        ("megatron_gpt_rope_swiglu_rms.npz", {**LLAMA, "ffn_hidden_size": 96}),
    ],
)
def test_megatron_core_has_the_same_logits_loss_and_gradients(shared_dir, file, more):
    import numpy as np

    golden = np.load(shared_dir / "data/goldens/model" / file)
    made = config(**more)
    padded = 256 + 8
    stage = GPTStage(made, vocab_size=256, padded_vocab_size=padded)
    put(stage, from_core({k[2:]: torch.from_numpy(golden[k]) for k in golden.files if k.startswith("w:")}, made))
    tokens, labels = (torch.from_numpy(golden[key]) for key in ("input_ids", "labels"))
    torch.testing.assert_close(stage(tokens), torch.from_numpy(golden["logits_f32"]), rtol=0, atol=1e-5)
    loss = stage(tokens, labels=labels)
    assert abs(loss.item() - float(golden["loss_mean_f32"])) <= 1e-5
    loss.backward()
    wanted = from_core({k[5:]: torch.from_numpy(golden[k]) for k in golden.files if k.startswith("grad:")}, made)
    assert_gradients(stage, wanted)


@pytest.mark.parametrize("groups", [4, 2])
def test_transformers_llama_has_the_same_logits_and_gradients(groups):
    transformers = pytest.importorskip("transformers", reason="the peer is transformers' Llama")
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=200,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=groups,
            max_position_embeddings=32,
            rms_norm_eps=1e-5,
            tie_word_embeddings=False,
            attn_implementation="eager",
            initializer_range=0.1,
        )
    )
    made = config(**{**LLAMA, "num_key_value_heads": groups})
    stage = GPTStage(made, vocab_size=200, padded_vocab_size=256)
    put(stage, from_llama({name: p.detach() for name, p in theirs.named_parameters()}, made))
    tokens = torch.randint(0, 200, (2, 32), generator=torch.Generator().manual_seed(1))
    labels = tokens.roll(-1, 1)
    logits = theirs(tokens).logits
    torch.testing.assert_close(stage(tokens), logits, rtol=1e-5, atol=1e-5)
    F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    stage(tokens, labels=labels).backward()
    assert_gradients(stage, from_llama({name: p.grad for name, p in theirs.named_parameters()}, made))


def test_transformers_neox_with_a_quarter_rotated_has_the_same_logits_and_gradients():
    """Rotary positions on 4 of 16 channels, LayerNorm, biases, the erf form of GELU, an untied head."""
    transformers = pytest.importorskip("transformers", reason="the peer is transformers' GPT-NeoX")
    torch.manual_seed(0)
    theirs = transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            vocab_size=200,
            hidden_size=64,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=32,
            rotary_pct=0.25,
            layer_norm_eps=1e-5,
            use_parallel_residual=False,
            hidden_act="gelu",
            attn_implementation="eager",
            initializer_range=0.1,
        )
    )
    for name, parameter in theirs.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter, mean=float("norm.weight" in name), std=0.1)
    made = config(
        use_rotary_position_embeddings=True,
        rotary_percent=0.25,
        bias_gelu_fusion=False,
        untie_embeddings_and_output_weights=True,
    )
    stage = GPTStage(made, vocab_size=200, padded_vocab_size=256)
    put(stage, from_neox({name: p.detach() for name, p in theirs.named_parameters()}, made))
    tokens = torch.randint(0, 200, (2, 32), generator=torch.Generator().manual_seed(1))
    labels = tokens.roll(-1, 1)
    logits = theirs(tokens).logits
    torch.testing.assert_close(stage(tokens), logits, rtol=1e-5, atol=1e-5)
    F.cross_entropy(logits.flatten(0, 1), labels.flatten()).backward()
    stage(tokens, labels=labels).backward()
    assert_gradients(stage, from_neox({name: p.grad for name, p in theirs.named_parameters()}, made))


def assert_gradients(stage, wanted):
    """1e-5 of the largest; rows of vocabulary padding exactly 0."""
    parameters = dict(stage.named_parameters())
    assert parameters.keys() == wanted.keys()
    for name, expected in wanted.items():
        found = parameters[name].grad
        assert not found[len(expected) :].any(), f"padding of {name}"
        torch.testing.assert_close(
            found[: len(expected)], expected, rtol=0, atol=1e-5 * float(expected.abs().max()), msg=name
        )
