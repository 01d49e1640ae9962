"""How parameters are divided over tensor parallel, as plans: no tensor is read and nothing travels.

*Logical* is the parameter of the whole model, *local* this rank's part. A part is described by runs: stretches of
consecutive elements of the flattened logical parameter, which is all that initialisation, ZeRO shards and checkpoints
need to know of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from megatron_zero.config.fields import ConfigError


@dataclass(frozen=True, slots=True)
class Run:
    """Elements [start, start + numel) of the flattened logical parameter."""

    start: int
    numel: int


@dataclass(frozen=True, slots=True)
class TensorSplit:
    """A parameter cut into `size` equal parts along `dim`, seen from `rank`; dim None: whole on every rank.

    shape: logical. Raises ValueError for a dim that the shape has not, or a rank outside of the size.
    """

    shape: tuple[int, ...]
    dim: int | None
    rank: int
    size: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is not in [0, size {self.size})")
        if self.dim is not None and not 0 <= self.dim < len(self.shape):
            raise ValueError(
                f"dim {self.dim} is not a dim of shape {self.shape}: one of 0 to {len(self.shape) - 1}, or None"
            )

    @property
    def replicated(self) -> bool:
        """Whether every rank holds the whole parameter."""
        return self.dim is None

    @property
    def local_shape(self) -> tuple[int, ...]:
        """This rank's shape. Raises ConfigError (a ValueError) when dim does not divide by size."""
        if self.dim is None:
            return self.shape
        whole = self.shape[self.dim]
        if whole % self.size != 0:
            raise ConfigError(
                f"dim {self.dim} of a parameter of shape {self.shape} is {whole}, which does not divide by the "
                f"tensor-parallel size {self.size}; {nearest_multiples(whole, self.size)}"
            )
        return (*self.shape[: self.dim], whole // self.size, *self.shape[self.dim + 1 :])

    def runs(self, start: int, numel: int) -> Iterator[Run]:
        """The logical places of the local flat elements [start, start + numel), in local order; none for no elements.

        Adjacent ones are merged, so a part that is contiguous in the logical parameter gives a single run. Raises
        ValueError (by the first next()) for elements that the local part has not.
        """
        local_numel = math.prod(self.local_shape)
        if start < 0 or numel < 0 or start + numel > local_numel:
            raise ValueError(
                f"elements [{start}, {start + numel}) are not within the {local_numel} of the local shape {self.local_shape}"
            )
        if self.dim is None or self.size == 1:
            block = stride = local_numel  # one block, whole
        else:
            # Local elements lie in blocks of `block`, a logical one of `stride` around each.
            block, stride = math.prod(self.local_shape[self.dim :]), math.prod(self.shape[self.dim :])
        stop = start + numel
        while start < stop:
            index, offset = divmod(start, block)
            taken = min(block - offset, stop - start)
            yield Run(index * stride + (self.rank * block if stride > block else 0) + offset, taken)
            start += taken


def nearest_multiples(value: int, size: int) -> str:
    """The way out of an error about a value that does not divide by size."""
    below, above = value // size * size, -(-value // size) * size
    return f"nearest valid: {below} or {above}" if below > 0 else f"nearest valid: {above}"


def collect_splits(module: nn.Module) -> dict[str, TensorSplit]:
    """named_parameters() name -> its split, for every parameter, in that order.

    A module declares its own parameters in an attribute `splits: dict[str, TensorSplit]`, by attribute name; a
    parameter that is not declared is replicated (dim None, rank 0 of 1). A parameter that two modules share appears once,
    as the first declares it. Raises ValueError when a declared name is no parameter of its module, or has another shape.
    """
    found = {}
    for prefix, part in module.named_modules():
        own = dict(part.named_parameters(recurse=False))
        declared: dict[str, TensorSplit] = getattr(part, "splits", {})
        if unknown := sorted(declared.keys() - own.keys()):
            raise ValueError(
                f"module {prefix or 'itself'} declares splits of {unknown}, but its parameters are {sorted(own)}"
            )
        for attribute, parameter in own.items():
            shape, name = tuple(parameter.shape), f"{prefix}.{attribute}" if prefix else attribute
            split = declared.get(attribute, TensorSplit(shape, None, 0, 1))
            if split.local_shape != shape:
                raise ValueError(f"parameter {name} has shape {shape}, but {split} has local shape {split.local_shape}")
            found[name] = split
    return {name: found[name] for name, _ in module.named_parameters()}
