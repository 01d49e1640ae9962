"""Counter-based initial values: f(seed, parameter name, element index), the same bits on every device and for any cut.

[Note: bits that do not depend on the device]
A normal value is made of 64-bit integer operations (a splitmix64-style hash of key + index) and of fp64 additions,
multiplications and divisions, each a separate torch operation: IEEE 754 rounds every one of them the same way on a CPU
and on a GPU, and nothing is fused. log() is not among them (libraries differ), and neither is sqrt(): torch takes the
CPU's from MKL, whose last bit is wrong for one value in 80. The tails of the inverse normal use a logarithm made of
frexp and a series, and Newton's square root.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from megatron_zero.config.model import ModelConfig
from megatron_zero.tensor_parallel.splits import TensorSplit

VOCABULARY_TABLES: Final = ("embedding.word.weight", "head.weight")  # a row a token; padded rows at the end
CHUNK_NUMEL: Final = 1 << 20  # bounds the fp64 temporaries

# The start is off by at most 0.95 at 0.69 (unused there) and 0.26 in the tails, 2.6 to 37; each step squares and halves it.
NEWTON_STEPS: Final = 6

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX1: Final = 0xBF58476D1CE4E5B9
_MIX2: Final = 0x94D049BB133111EB
_LN2: Final = 0.6931471805599453

# Wichura's algorithm AS 241 (1988), PPND16: numerators and denominators from the highest power down.
_CENTRE_NUM: Final = (
    2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4, 4.5921953931549871457e4,
    1.3731693765509461125e4, 1.9715909503065514427e3, 1.3314166789178437745e2, 3.3871328727963666080e0,
)  # fmt: skip
_CENTRE_DEN: Final = (
    5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4, 2.1213794301586595867e4,
    5.3941960214247511077e3, 6.8718700749205790830e2, 4.2313330701600911252e1, 1.0,
)  # fmt: skip
_MIDDLE_NUM: Final = (
    7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258e0,
    3.64784832476320460504e0, 5.76949722146069140550e0, 4.63033784615654529590e0, 1.42343711074968357734e0,
)  # fmt: skip
_MIDDLE_DEN: Final = (
    1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
    6.89767334985100004550e-1, 1.67638483018380384940e0, 2.05319162663775882187e0, 1.0,
)  # fmt: skip
_FAR_NUM: Final = (
    2.01033439929228813265e-7, 2.71155556874348757815e-5, 1.24266094738807843860e-3, 2.65321895265761230930e-2,
    2.96560571828504891230e-1, 1.78482653991729133580e0, 5.46378491116411436990e0, 6.65790464350110377720e0,
)  # fmt: skip
_FAR_DEN: Final = (
    2.04426310338993978564e-15, 1.42151175831644588870e-7, 1.84631831751005468180e-5, 7.86869131145613259100e-4,
    1.48753612908506148525e-2, 1.36929880922735805310e-1, 5.99832206555887937690e-1, 1.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class InitRule:
    """value = mean + std * normal; std 0 gives a constant."""

    mean: float
    std: float


def init_rule(name: str, config: ModelConfig) -> InitRule:
    """GPT-2's rule for a parameter name: normal weights, output projections scaled by 1/sqrt(2 layers) (Radford et al.
    2019), zero biases, unit norm gains. Raises ValueError for a name that is not a GPT parameter."""
    module, _, kind = name.rpartition(".")
    part = module.rpartition(".")[2]
    if kind == "bias":
        return InitRule(0.0, 0.0)
    if kind == "weight":
        if part.endswith("norm"):
            return InitRule(0.0 if config.apply_layernorm_1p else 1.0, 0.0)
        if part in ("word", "position", "qkv", "fc1", "head"):
            return InitRule(0.0, config.init_method_std)
        if part in ("dense", "fc2"):
            assert config.num_layers is not None
            return InitRule(0.0, config.init_method_std / math.sqrt(2.0 * config.num_layers))
    raise ValueError(f"no initialisation rule for parameter {name}")


class ParameterInitializer:
    """Fills slices of parameters by name; see [Note: bits that do not depend on the device].

    vocab_size: rows of the vocabulary tables beyond are padding, and 0. Their gradients are 0, too, so they stay so, and
    a checkpoint can leave them out. None: there is no padding.
    splits: by parameter name, how this rank's part lies in the logical parameter, whose elements have the same bits for
    every tensor-parallel size. None: every parameter is whole.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        seed: int,
        vocab_size: int | None = None,
        splits: Mapping[str, TensorSplit] | None = None,
    ) -> None:
        self._config = config
        self._seed = seed
        self._vocab_size = vocab_size
        self._splits = splits

    def __call__(self, name: str, start: int, out: Tensor) -> None:
        """Write elements [start, start + out.numel()) of the flattened parameter `name`, as this rank holds it, into out
        (1-D fp32, any device). Raises KeyError for a parameter that is not among the splits."""
        if self._splits is None:
            self._fill(name, start, out)
            return
        filled = 0
        for run in self._splits[name].runs(start, out.numel()):
            self._fill(name, run.start, out[filled : filled + run.numel])
            filled += run.numel

    def _fill(self, name: str, start: int, out: Tensor) -> None:
        """Logical elements [start, start + out.numel())."""
        rule = init_rule(name, self._config)
        if rule.std == 0.0:
            out.fill_(rule.mean)
            return
        key = parameter_key(self._seed, name)
        for first in range(0, out.numel(), CHUNK_NUMEL):
            part = out[first : first + CHUNK_NUMEL]
            part.copy_(standard_normal(key, start + first, part.numel(), device=out.device) * rule.std + rule.mean)
        if name in VOCABULARY_TABLES and self._vocab_size is not None:
            assert self._config.hidden_size is not None
            out[max(self._vocab_size * self._config.hidden_size - start, 0) :] = 0.0


def parameter_key(seed: int, name: str) -> int:
    """64-bit key of one parameter's stream."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little")


def standard_normal(key: int, start: int, numel: int, *, device: torch.device) -> Tensor:
    """[numel] fp64: values start .. start + numel of the key's normal stream."""
    counter = torch.arange(start, start + numel, dtype=torch.int64, device=device)
    bits = _mix(_mix(counter * _signed(_GOLDEN) + _signed(key)) + _signed(_GOLDEN))
    uniform = (_shift_right(bits, 12).double() + 0.5) * 2.0**-52  # exact; in (0, 1), never 0 or 1
    return _inverse_normal(uniform)


def _signed(value: int) -> int:
    """A 64-bit pattern as the int64 that holds it; int64 arithmetic then wraps around as unsigned would."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Logical shift; torch's own is arithmetic."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    value = (value ^ _shift_right(value, 30)) * _signed(_MIX1)
    value = (value ^ _shift_right(value, 27)) * _signed(_MIX2)
    return value ^ _shift_right(value, 31)


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    total = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x
        total = total + coefficient
    return total


def _log(x: Tensor) -> Tensor:
    """Natural logarithm of positive normal numbers, to about 1e-15: ln m + e ln 2 with m in [sqrt(1/2), sqrt(2))."""
    mantissa, exponent = torch.frexp(x)
    low = mantissa < math.sqrt(0.5)
    mantissa = torch.where(low, mantissa * 2.0, mantissa)
    exponent = torch.where(low, exponent - 1, exponent).double()
    ratio = (mantissa - 1.0) / (mantissa + 1.0)  # ln m = 2 atanh(ratio), |ratio| < 0.172
    square = ratio * ratio
    series = _polynomial(tuple(1.0 / k for k in range(23, 0, -2)), square)
    return exponent * _LN2 + ratio * series * 2.0


def _sqrt(x: Tensor) -> Tensor:
    """Square root of x in [0.69, 37], the range of -ln p here, to about 1e-16: Newton from the tangent at 9."""
    root = x * (1.0 / 6.0) + 1.5  # a tensor divided by a number is a product with 1/number on a GPU, not on a CPU
    for _ in range(NEWTON_STEPS):
        root = (root + x / root) * 0.5
    return root


def _inverse_normal(p: Tensor) -> Tensor:
    q = p - 0.5
    centre = 0.180625 - q * q
    inner = q * _polynomial(_CENTRE_NUM, centre) / _polynomial(_CENTRE_DEN, centre)
    root = _sqrt(-_log(torch.minimum(p, 1.0 - p)))
    middle, far = root - 1.6, root - 5.0
    near_tail = _polynomial(_MIDDLE_NUM, middle) / _polynomial(_MIDDLE_DEN, middle)
    far_tail = _polynomial(_FAR_NUM, far) / _polynomial(_FAR_DEN, far)
    tail = torch.where(root <= 5.0, near_tail, far_tail)
    return torch.where(q.abs() <= 0.425, inner, torch.where(q < 0.0, -tail, tail))
