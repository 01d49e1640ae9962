"""Dropout of hidden states, from the stream that fits what a rank holds of them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from megatron_zero.distributed.rng import RngStreams


def hidden_dropout(x: Tensor, p: float, *, training: bool, divided: bool, streams: RngStreams) -> Tensor:
    """x: [tokens, hidden].   divided: each tensor-parallel rank holds other tokens (sequence parallel), so it draws numbers
    of its own; otherwise all hold the same ones and must drop the same."""
    if p == 0.0 or not training:
        return x
    if divided:
        with streams.tensor_parallel():
            return F.dropout(x, p)
    return F.dropout(x, p)
