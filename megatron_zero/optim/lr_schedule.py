"""Learning rate as a pure function of consumed tokens (Megatron's shapes)."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LrSchedule:
    """Linear warm-up from 0 to max_lr over warmup_tokens, then decay to min_lr at decay_tokens, then min_lr.

    style: "constant", "linear" or "cosine".   tokens count those consumed *before* the step that uses the rate, so the
    first step of a warm-up has rate 0, as in Megatron.
    """

    max_lr: float
    min_lr: float
    warmup_tokens: int
    decay_tokens: int
    style: str

    def at(self, consumed_tokens: int) -> float:
        """The learning rate of a step that starts after consumed_tokens."""
        if self.warmup_tokens > 0 and consumed_tokens <= self.warmup_tokens:
            return self.max_lr * float(consumed_tokens) / float(self.warmup_tokens)
        if self.style == "constant":
            return self.max_lr
        if consumed_tokens > self.decay_tokens:
            return self.min_lr
        decay_length = self.decay_tokens - self.warmup_tokens
        progress = float(consumed_tokens - self.warmup_tokens) / float(decay_length) if decay_length > 0 else 1.0
        delta = self.max_lr - self.min_lr
        if self.style == "linear":
            return self.min_lr + (1.0 - progress) * delta
        if self.style == "cosine":
            return self.min_lr + 0.5 * (math.cos(math.pi * progress) + 1.0) * delta
        raise ValueError(f"learning-rate style {self.style!r}: constant, linear or cosine")
