"""argv -> LoadedConfig: command line, JSON, precedence, validation; and the two ways to print the result.

Everything here needs no world size, no torch and no device: `mz check-config` runs the same function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from .cli import read_command_line
from .ds_json import load_ds_config
from .fields import ConfigError, Knob, raise_all
from .given import Given, Reading
from .precedence import Merged, merge
from .tree import RunConfig, replace_path, walk_knobs
from .validate import validate, warnings
from .values import show


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """config: the merged tree.  sources: field path -> "--flag", "file.json:line", "derived: why" or "default".

    notes: what was accepted without effect or settled quietly.  warnings: overrides, and settings that do nothing.
    """

    config: RunConfig
    sources: Mapping[str, str]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def load_run_config(argv: Sequence[str]) -> LoadedConfig:
    """Read the command line and the JSON it names, merge and validate them.

    Raises one ConfigError: first with all that is wrong in the words of either side, then with every broken rule.
    """
    cli = read_command_line(argv)
    json = _read_json(cli.given)
    merged = merge(cli, json)
    raise_all([*cli.problems, *json.problems, *merged.problems])
    config, sources = build_tree(merged)
    validate(config, sources)
    return LoadedConfig(
        config, sources, (*cli.notes, *json.notes, *merged.notes), (*merged.warnings, *warnings(config))
    )


def build_tree(merged: Merged) -> tuple[RunConfig, dict[str, str]]:
    """The tree of defaults with the merged values in it, and the source of every field."""
    config = RunConfig()
    sources = {path: "default" for path, _ in walk_knobs()}
    for path, given in merged.values.items():
        config = replace_path(config, path, given.value)
        sources[path] = given.source
    return config, sources


def format_provenance(loaded: LoadedConfig) -> str:
    """One line a field, in tree order: `zero.offload_optimizer.ratio = 0.3  [ds_config_gpt.json:12]`."""
    return "\n".join(f"{path} = {show(value)}  [{loaded.sources[path]}]" for path, _, value in _values(loaded.config))


def format_arguments(loaded: LoadedConfig) -> str:
    """Megatron's argument dump: `  name ...... value`, dots up to 48 columns, sorted without case."""
    lines = []
    for path, knob, value in _values(loaded.config):
        name = knob.flag.lstrip("-").replace("-", "_") if knob.flag else (knob.json or path)
        shown = list(value) if isinstance(value, tuple) else value
        lines.append(f"  {name} {'.' * max(48 - len(name), 0)} {shown}")
    body = "\n".join(sorted(lines, key=str.lower))
    return f"{' arguments ':-^59}\n{body}\n{' end of arguments ':-^59}"


def _values(config: RunConfig) -> Iterator[tuple[str, Knob, Any]]:
    for path, knob in walk_knobs(config):
        yield path, knob, attrgetter(path)(config)


def _read_json(given: Mapping[str, Given]) -> Reading:
    """The JSON's side; empty without --deepspeed (validate() then tells of a --deepspeed_config nobody reads)."""
    if "zero.deepspeed" not in given or "zero.deepspeed_config" not in given:
        return Reading({})
    try:
        return load_ds_config(given["zero.deepspeed_config"].value)
    except ConfigError as error:
        return Reading({}, problems=(str(error),))
