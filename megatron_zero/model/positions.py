"""Rotary positions: queries and keys are turned by angles that grow with the position (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from megatron_zero.config.model import ModelConfig


@dataclass(frozen=True, slots=True)
class Rotary:
    """cos, sin: [1 or micro_batch, seq, 1, rotary_dim] fp32, the two halves of the last dim equal."""

    cos: Tensor
    sin: Tensor

    def turn(self, x: Tensor) -> Tensor:
        """x: [micro_batch, seq, heads, head_dim]; its first rotary_dim channels turned, channel i with i + rotary_dim / 2.

        Computed in fp32 at least: cos and sin rounded to bf16 would turn by angles that are off by up to 1/256.
        """
        width = self.cos.shape[-1]
        turned = x[..., :width].to(torch.promote_types(x.dtype, torch.float32))
        first, second = turned.chunk(2, dim=-1)
        turned = (turned * self.cos + torch.cat((-second, first), dim=-1) * self.sin).to(x.dtype)
        return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), dim=-1)


def rotary(config: ModelConfig, seq: int, position_ids: Tensor | None, *, device: torch.device) -> Rotary:
    """position_ids: [micro_batch, seq] int64; None: from 0. Frequency i is theta^(-2 i / rotary_dim)."""
    width = config.rotary_dim
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
    frequencies = 1.0 / config.rotary_position_embeddings_theta**exponents
    positions = torch.arange(seq, device=device)[None] if position_ids is None else position_ids
    angles = positions.float()[..., None] * frequencies
    angles = torch.cat((angles, angles), dim=-1)[:, :, None]
    return Rotary(angles.cos(), angles.sin())
