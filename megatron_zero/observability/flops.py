"""FLOPs of one optimizer step by formula, and the peak that a device is rated for.

A multiply-add counts 2. Attention is counted in full, not halved for causality, as Megatron does, so figures compare
with published ones. Embedding look-up, norms, GELU, softmax and the optimizer are not counted.
"""

from __future__ import annotations

from typing import Final

import torch


def model_flops_per_step(
    *,
    num_layers: int,
    hidden_size: int,
    seq_length: int,
    padded_vocab_size: int,
    samples: int,
    ffn_hidden_size: int | None = None,
    attention_width: int | None = None,
    key_value_width: int | None = None,
    gated: bool = False,
) -> int:
    """FLOPs that forward and backward need for `samples` sequences, whatever is recomputed: what MFU is measured by.

    3 x (layers + logits), as backward costs twice forward. Per token, forward; hidden h, query heads a wide together, key
    heads k, inner width f, sequence s, m = 3 matrices in a gated MLP (SwiGLU) and 2 otherwise:
        layer:   2 h (a + 2 k) (qkv) + 2 a h (dense) + 2 m h f (MLP) + 4 s a (scores and context)
                 = 24 h^2 + 4 s h where a = k = h, m = 2 and f = 4 h
        logits:  2 h V
    Unset widths: a = h, k = a, f = 4 h. Narayanan et al. 2021, appendix (arXiv:2104.04473), less its recomputation; "model
    FLOPs" after Korthikanti et al. 2022 (arXiv:2205.05198). seq_length and samples are those of this step, which a
    curriculum or ramp-up changes.
    """
    a = hidden_size if attention_width is None else attention_width
    k = a if key_value_width is None else key_value_width
    f = 4 * hidden_size if ffn_hidden_size is None else ffn_hidden_size
    matrices = 3 if gated else 2
    layer = 2 * hidden_size * (2 * a + 2 * k) + 2 * matrices * hidden_size * f + 4 * seq_length * a
    tokens = samples * seq_length
    return 3 * tokens * (num_layers * layer + 2 * hidden_size * padded_vocab_size)


def hardware_flops_per_step(
    *,
    num_layers: int,
    hidden_size: int,
    seq_length: int,
    padded_vocab_size: int,
    samples: int,
    recomputed_layers: int,
    ffn_hidden_size: int | None = None,
    attention_width: int | None = None,
    key_value_width: int | None = None,
    gated: bool = False,
) -> int:
    """FLOPs that are carried out where `recomputed_layers` run forward twice: a third of theirs on top."""
    layers = (num_layers, recomputed_layers)
    vocabularies = (padded_vocab_size, 0)
    model, again = (
        model_flops_per_step(
            num_layers=count,
            hidden_size=hidden_size,
            seq_length=seq_length,
            padded_vocab_size=vocabulary,
            samples=samples,
            ffn_hidden_size=ffn_hidden_size,
            attention_width=attention_width,
            key_value_width=key_value_width,
            gated=gated,
        )
        for count, vocabulary in zip(layers, vocabularies, strict=True)
    )
    return model + again // 3


HALF: Final = (torch.bfloat16, torch.float16)
FP16: Final = (torch.float16,)
FP32: Final = (torch.float32,)

# (words that must all be in the device's name, dtypes, FLOP/s): vendors' dense figures. The first row that fits counts,
# so the particular model stands before the family. 16 bit: matrix units; fp32: without TF32, which is torch's default.
PEAKS: Final[tuple[tuple[tuple[str, ...], tuple[torch.dtype, ...], float], ...]] = (
    (("B200",), HALF, 2250e12),
    (("H200", "NVL"), HALF, 835e12),
    (("H200",), HALF, 989e12),
    (("H200",), FP32, 67e12),
    (("GH200",), HALF, 989e12),
    (("H100", "PCIe"), HALF, 756e12),
    (("H100", "PCIe"), FP32, 51e12),
    (("H100", "NVL"), HALF, 835e12),
    (("H100",), HALF, 989e12),
    (("H100",), FP32, 67e12),
    (("H800", "PCIe"), HALF, 756e12),
    (("H800",), HALF, 989e12),
    (("H20",), HALF, 148e12),
    (("A100",), HALF, 312e12),
    (("A100",), FP32, 19.5e12),
    (("A800",), HALF, 312e12),
    (("A30",), HALF, 165e12),
    (("A40",), HALF, 149.7e12),
    (("A10",), HALF, 125e12),
    (("L40S",), HALF, 362e12),
    (("L40",), HALF, 181e12),
    (("L4",), HALF, 121e12),
    (("V100", "PCIE"), FP16, 112e12),
    (("V100S",), FP16, 130e12),
    (("V100",), FP16, 125e12),
    (("V100",), FP32, 15.7e12),
    (("T4",), FP16, 65e12),
)


def peak_flops(device_name: str, dtype: torch.dtype) -> float | None:
    """The rated FLOP/s of one device for matrices of dtype, None where it is not known (CPUs, devices not listed).

    device_name: as torch.cuda.get_device_name gives it ("NVIDIA H100 80GB HBM3"). Model names match as whole words, so
    an "L4" row does not claim an "L40S".
    """
    name = device_name.upper().replace("-", " ")
    words = frozenset(name.split())
    for needed, dtypes, flops in PEAKS:
        if dtype in dtypes and all(word.upper() in words for word in needed):
            return flops
    return None
