"""Meta module -> ZeroUnits with initialised shards, one unit at a time (peak = one unit), following the policy alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from megatron_zero.distributed.context import ParallelAxis

from .sharding import lay_out_unit
from .unit import ZeroUnit


class ParamInit(Protocol):
    """Fills a slice of a parameter, so that a rank computes only what it owns."""

    def __call__(self, name: str, start: int, out: Tensor) -> None:
        """Write elements [start, start + out.numel()) of the flattened parameter `name`, as the module of this rank
        holds it (under tensor parallelism its own part), into out (1-D fp32)."""


@dataclass(frozen=True, slots=True)
class UnitSpec:
    """What is gathered together: a name, the modules whose forward needs it, and its parameter names."""

    name: str
    modules: tuple[nn.Module, ...]
    parameter_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Owner:
    """One place where a module holds a parameter (a tied weight has several)."""

    module: nn.Module
    attribute: str


def unit_specs(module: nn.Module, groups: Iterable[tuple[str, Sequence[nn.Module]]]) -> tuple[UnitSpec, ...]:
    """UnitSpecs of (unit name, modules) groups, parameters in the module's order.

    Raises ValueError naming every parameter that is in no unit or in more than one.
    """
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    specs = []
    claimed: dict[str, str] = {}
    for unit_name, modules in groups:
        members: dict[str, None] = {}
        for owner in modules:
            for parameter in owner.parameters():
                members[names[id(parameter)]] = None
        for member in members:
            if member in claimed:
                raise ValueError(f"parameter {member} is in unit {claimed[member]} and in unit {unit_name}")
            claimed[member] = unit_name
        specs.append(UnitSpec(unit_name, tuple(modules), tuple(members)))
    unclaimed = sorted(set(names.values()) - set(claimed))
    if unclaimed:
        raise ValueError(f"parameters in no unit: {', '.join(unclaimed)}")
    return tuple(specs)


def materialize_units(
    module: nn.Module,
    specs: Sequence[UnitSpec],
    *,
    shard_axis: ParallelAxis,
    replicated: frozenset[str],
    stays_whole: bool,
    dtype: torch.dtype,
    device: torch.device,
    init: ParamInit,
) -> tuple[ZeroUnit, ...]:
    """Replace every (meta) parameter of the module by a view into its unit's flat buffer, and fill what is needed.

    Sharded units are filled slice by slice for this rank only; whole units are filled completely: the initialiser is
    a function of (name, element), so every rank computes the same values and nothing is broadcast.
    Raises ValueError naming what is in `replicated` and is no parameter.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    unknown = sorted(replicated - set(shapes))
    if unknown:
        raise ValueError(f"replicated, but no parameters of the module: {', '.join(unknown)}")
    owners: dict[str, list[_Owner]] = {}
    canonical = {id(parameter): name for name, parameter in module.named_parameters()}
    for submodule in module.modules():
        for attribute, parameter in submodule.named_parameters(recurse=False, remove_duplicate=False):
            owners.setdefault(canonical[id(parameter)], []).append(_Owner(submodule, attribute))
    units = []
    for spec in specs:
        layout = lay_out_unit(
            spec.name,
            [(name, shapes[name]) for name in spec.parameter_names],
            num_shards=shard_axis.size,
            replicated=replicated,
        )
        unit = ZeroUnit(layout, axis=shard_axis, dtype=dtype, device=device, stays_whole=stays_whole)
        if stays_whole:
            for member in layout.members:
                _fill(unit.full[member.start : member.stop], member.name, 0, init)
        else:
            for span in layout.owned_spans(shard_axis.rank):
                stop = span.shard_start + span.numel
                _fill(unit.shard[span.shard_start : stop], span.name, span.member_start, init)
        for name, parameter in unit.parameters.items():
            for owner in owners[name]:
                owner.module.register_parameter(owner.attribute, parameter)
        units.append(unit)
    return tuple(units)


def _fill(target: Tensor, name: str, start: int, init: ParamInit) -> None:
    values = torch.empty(target.numel(), dtype=torch.float32, device=target.device)
    init(name, start, values)
    with torch.no_grad():
        target.copy_(values)
