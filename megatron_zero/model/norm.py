"""Layer normalisation and its root-mean-square form."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from megatron_zero.config.fields import ConfigError
from megatron_zero.config.model import ModelConfig

LayerNormKernel = Callable[[Tensor, Tensor, Tensor, tuple[int, ...], float], Tensor]
RMSNormKernel = Callable[[Tensor, Tensor, tuple[int, ...], float], Tensor]


class LayerNorm(nn.Module):
    """Normalise the last dim, then gain and bias (Ba et al. 2016, arXiv:1607.06450). [..., hidden] -> same.

    from_one: the weight holds the gain's offset from 1 (--apply-layernorm-1p).
    """

    def __init__(
        self, hidden_size: int, *, eps: float, from_one: bool = False, kernel: LayerNormKernel | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))
        self._eps, self._from_one, self._kernel = eps, from_one, kernel

    def forward(self, x: Tensor) -> Tensor:
        gain = self.weight + 1.0 if self._from_one else self.weight
        shape = tuple(gain.shape)
        if self._kernel is not None:
            return self._kernel(x, gain, self.bias, shape, self._eps)
        return F.layer_norm(x, shape, gain, self.bias, self._eps)


class RMSNorm(nn.Module):
    """Divide the last dim by its root mean square, then gain (Zhang and Sennrich 2019, arXiv:1910.07467). [..., hidden] ->
    same.

    from_one: as in LayerNorm.
    """

    def __init__(self, hidden_size: int, *, eps: float, from_one: bool = False, kernel: RMSNormKernel | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size))
        self._eps, self._from_one, self._kernel = eps, from_one, kernel

    def forward(self, x: Tensor) -> Tensor:
        gain = self.weight + 1.0 if self._from_one else self.weight
        shape = tuple(gain.shape)
        if self._kernel is not None:
            return self._kernel(x, gain, shape, self._eps)
        return F.rms_norm(x, shape, gain, self._eps)


def build_norm(config: ModelConfig) -> nn.Module:
    """The norm that the config names, over hidden_size. Raises ConfigError when its kernels are not there."""
    assert config.hidden_size is not None
    eps, from_one = config.layernorm_epsilon, config.apply_layernorm_1p
    apex = _apex_kernels() if config.fused_norm_kernels == "apex" else None
    if config.is_rmsnorm:
        return RMSNorm(config.hidden_size, eps=eps, from_one=from_one, kernel=None if apex is None else apex[1])
    return LayerNorm(config.hidden_size, eps=eps, from_one=from_one, kernel=None if apex is None else apex[0])


def _apex_kernels() -> tuple[LayerNormKernel, RMSNormKernel]:
    """NVIDIA's, if importable. The package index has another project of that name, so it is never a dependency."""
    try:
        importlib.import_module("fused_layer_norm_cuda")  # apex itself asks for its extension at the first forward only
        module = importlib.import_module("apex.normalization.fused_layer_norm")
        return module.fused_layer_norm_affine, module.fused_rms_norm_affine
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"--fused-norm-kernels apex: NVIDIA's apex cannot be imported here ({error}); build it from its repository"
            " (the package index has another project of that name), or leave the flag out"
        ) from error
