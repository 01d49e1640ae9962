"""Module hooks that tell the engine when a unit's weights are needed. Four one-line bodies; no arithmetic here.

[Note: hook order]
  forward enters a module   -> before_forward(unit)   acquire
  forward leaves it         -> after_forward(unit)    release unless its backward has begun, and hook its outputs
  gradient of an output     -> before_backward(unit)  acquire, before anything inside the module runs backward
  gradient of a parameter   -> on_gradient(unit)      count; the last one reduces and releases
Non-reentrant recompute may sit inside the module, where it fires nothing, or around several modules of several units.
Then their forward hooks fire once more inside the backward of the last one: units whose backward has not begun are
released again, the one whose backward has begun is not; and after_forward may stay away, because recompute stops at the
last tensor it needs. The reentrant form is not for use here: it fires after_forward just before backward.
A unit is done in backward when its gradients have all been counted, not when a module says so: a full backward hook of
a module whose input needs no gradient fires too early.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .materialize import UnitSpec
from .unit import ZeroUnit


class HookTarget(Protocol):
    def before_forward(self, unit: ZeroUnit) -> None: ...
    def after_forward(self, unit: ZeroUnit) -> None: ...
    def before_backward(self, unit: ZeroUnit) -> None: ...
    def on_gradient(self, unit: ZeroUnit, name: str, parameter: nn.Parameter) -> None: ...


def install_hooks(
    units: Sequence[ZeroUnit], specs: Sequence[UnitSpec], target: HookTarget
) -> tuple[RemovableHandle, ...]:
    """Hook every unit's modules and parameters; the handles remove them."""
    handles: list[RemovableHandle] = []
    for unit, spec in zip(units, specs, strict=True):
        for module in spec.modules:
            handles.append(module.register_forward_pre_hook(_before_forward(target, unit)))
            handles.append(module.register_forward_hook(_after_forward(target, unit)))
        for name, parameter in unit.parameters.items():
            handles.append(parameter.register_post_accumulate_grad_hook(_on_gradient(target, unit, name)))
    return tuple(handles)


def _before_forward(target: HookTarget, unit: ZeroUnit) -> Any:
    return lambda module, inputs: target.before_forward(unit)


def _after_forward(target: HookTarget, unit: ZeroUnit) -> Any:
    def hook(module: nn.Module, inputs: Any, outputs: Any) -> None:
        target.after_forward(unit)
        for output in _tensors(outputs):
            if output.requires_grad:
                output.register_hook(lambda grad: target.before_backward(unit))

    return hook


def _on_gradient(target: HookTarget, unit: ZeroUnit, name: str) -> Any:
    return lambda parameter: target.on_gradient(unit, name, parameter)


def _tensors(outputs: Any) -> Iterator[Tensor]:
    if isinstance(outputs, Tensor):
        yield outputs
    elif isinstance(outputs, (tuple, list)):
        for item in outputs:
            yield from _tensors(item)
    elif isinstance(outputs, dict):
        yield from _tensors(tuple(outputs.values()))
