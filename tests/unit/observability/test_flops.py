"""FLOPs by formula against numbers worked out by hand, and the table of peaks."""

from __future__ import annotations

import pytest
import torch

from megatron_zero.observability.flops import hardware_flops_per_step, model_flops_per_step, peak_flops

TINY = {"num_layers": 2, "hidden_size": 64, "seq_length": 32, "samples": 4}


def test_model_flops_of_layers_and_logits() -> None:
    """H49: layers with full attention, and logits with the padded vocabulary."""
    assert model_flops_per_step(**TINY, padded_vocab_size=0) == 81_788_928
    assert model_flops_per_step(**TINY, padded_vocab_size=50304) == 81_788_928 + 2_472_542_208 == 2_554_331_136


def test_full_recompute_repeats_the_layers_only() -> None:
    """H49: hardware FLOPs with full recompute."""
    assert hardware_flops_per_step(**TINY, padded_vocab_size=50304, recomputed_layers=2) == 2_581_594_112
    assert hardware_flops_per_step(**TINY, padded_vocab_size=50304, recomputed_layers=0) == 2_554_331_136


def test_shorter_sequences_are_counted_as_such() -> None:
    """H49: at curriculum sequence 8 the number is that of 8: 3 x (24 h^2 + 4 s h a layer, 2 h V) a token."""
    tokens = 4 * 8
    expected = 3 * tokens * (2 * (24 * 64**2 + 4 * 8 * 64) + 2 * 64 * 50304)
    assert model_flops_per_step(**{**TINY, "seq_length": 8}, padded_vocab_size=50304) == expected


def test_inner_width_other_than_four_hidden() -> None:
    assert model_flops_per_step(**TINY, padded_vocab_size=64, ffn_hidden_size=256) == model_flops_per_step(
        **TINY, padded_vocab_size=64
    )
    more = model_flops_per_step(**TINY, padded_vocab_size=64, ffn_hidden_size=257)
    assert more - model_flops_per_step(**TINY, padded_vocab_size=64) == 3 * 128 * 2 * 4 * 64


def test_llama_style_layers_by_hand() -> None:
    """hidden 64, 4 heads of 16, 2 key heads, gated width 128, seq 32, one layer, one sequence."""
    per_token = 2 * 64 * (64 + 2 * 32) + 2 * 64 * 64 + 3 * 2 * 64 * 128 + 4 * 32 * 64
    found = model_flops_per_step(
        num_layers=1,
        hidden_size=64,
        seq_length=32,
        padded_vocab_size=0,
        samples=1,
        ffn_hidden_size=128,
        attention_width=64,
        key_value_width=32,
        gated=True,
    )
    assert found == 3 * 32 * per_token


@pytest.mark.parametrize(
    "name, dtype, flops",
    [
        ("NVIDIA H200", torch.bfloat16, 989e12),
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989e12),
        ("NVIDIA H100 PCIe", torch.bfloat16, 756e12),
        ("NVIDIA A100-SXM4-80GB", torch.float16, 312e12),
        ("NVIDIA A100 80GB PCIe", torch.float32, 19.5e12),
        ("Tesla V100-SXM2-32GB", torch.float16, 125e12),
        ("Tesla V100-SXM2-32GB", torch.bfloat16, None),
        ("Tesla V100-PCIE-16GB", torch.float16, 112e12),
        ("NVIDIA L40S", torch.bfloat16, 362e12),
        ("NVIDIA L4", torch.bfloat16, 121e12),
        ("NVIDIA A10G", torch.bfloat16, None),
        ("NVIDIA H200", torch.int8, None),
        ("cpu", torch.float32, None),
        ("", torch.bfloat16, None),
    ],
)
def test_peak_by_device_name_and_dtype(name: str, dtype: torch.dtype, flops: float | None) -> None:
    assert peak_flops(name, dtype) == flops
