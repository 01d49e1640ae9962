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
) -> int:
    """FLOPs that forward and backward need for `samples` sequences, whatever is recomputed: what MFU is measured by.

    3 x (layers + logits), as backward costs twice forward. Per token, forward; hidden h, inner width f, sequence s:
        layer:   8 h^2 (qkv 6, dense 2) + 4 h f (MLP) + 4 s h (scores and context)   = 24 h^2 + 4 s h where f = 4 h
        logits:  2 h V
    Narayanan et al. 2021, appendix (arXiv:2104.04473), less its recomputation; "model FLOPs" after Korthikanti et al.
    2022 (arXiv:2205.05198). seq_length and samples are those of this step, which a curriculum or ramp-up changes.
    """
    layers, logits = _forward_flops(
        num_layers=num_layers,
        hidden_size=hidden_size,
        seq_length=seq_length,
        padded_vocab_size=padded_vocab_size,
        samples=samples,
        ffn_hidden_size=ffn_hidden_size,
    )
    return 3 * (layers + logits)


def hardware_flops_per_step(
    *,
    num_layers: int,
    hidden_size: int,
    seq_length: int,
    padded_vocab_size: int,
    samples: int,
    recompute: bool,
    ffn_hidden_size: int | None = None,
) -> int:
    """FLOPs that are carried out: with full recompute (True) the layers' forward runs twice, the logits' once."""
    layers, logits = _forward_flops(
        num_layers=num_layers,
        hidden_size=hidden_size,
        seq_length=seq_length,
        padded_vocab_size=padded_vocab_size,
        samples=samples,
        ffn_hidden_size=ffn_hidden_size,
    )
    return (4 if recompute else 3) * layers + 3 * logits


def _forward_flops(
    *,
    num_layers: int,
    hidden_size: int,
    seq_length: int,
    padded_vocab_size: int,
    samples: int,
    ffn_hidden_size: int | None,
) -> tuple[int, int]:
    """(all layers, logits) of one forward over samples x seq_length tokens."""
    ffn = 4 * hidden_size if ffn_hidden_size is None else ffn_hidden_size
    layer = 8 * hidden_size**2 + 4 * hidden_size * ffn + 4 * seq_length * hidden_size
    tokens = samples * seq_length
    return tokens * num_layers * layer, tokens * 2 * hidden_size * padded_vocab_size


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
