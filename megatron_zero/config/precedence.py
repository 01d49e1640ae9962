"""DATA and one loop: what happens when the command line and the JSON both name a quantity (json.md section 1).

merge() takes both readings and gives one value with one source per field. Precision and the optimizer's device take
more than a winner; they have a function each.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from .given import Given, Reading
from .values import show


class Rule(enum.Enum):
    ERROR = "both given and different stops the run"
    CLI = "the command line wins, with a warning"
    JSON = "the JSON wins, with a warning"


@dataclass(frozen=True, slots=True)
class Row:
    path: str
    rule: Rule
    why: str


ROWS: Final = (
    Row("batch.micro_batch_size", Rule.ERROR, "the loader and the accumulation count must agree"),
    Row("batch.global_batch_size", Rule.CLI, "the run's batch is the command line's, as upstream sets it each step"),
    Row("zero.stage", Rule.ERROR, "the model is built for one stage"),
    Row("adam.clip_grad", Rule.JSON, "the engine clips, and it is configured by the JSON"),
    Row("adam.lr", Rule.CLI, "upstream always hands its own optimizer over"),
    Row("adam.adam_beta1", Rule.CLI, "upstream always hands its own optimizer over"),
    Row("adam.adam_beta2", Rule.CLI, "upstream always hands its own optimizer over"),
    Row("adam.adam_eps", Rule.CLI, "upstream always hands its own optimizer over"),
    Row("adam.weight_decay", Rule.CLI, "upstream always hands its own optimizer over"),
    Row("recompute.distribute_saved_activations", Rule.CLI, "a switch is only ever turned on there"),
    Row("recompute.checkpoint_in_cpu", Rule.CLI, "a switch is only ever turned on there"),
    Row("precision.hysteresis", Rule.JSON, "an fp16 block in the JSON owns the loss scale"),
)
SPECIAL: Final = ("precision.bf16", "precision.fp16")

DEVICE: Final = "zero.offload_optimizer.device"
RATIO: Final = "zero.offload_optimizer.ratio"
CPU_OPTIMIZER: Final = "zero.offload_optimizer.cpu_optimizer"


@dataclass(slots=True)
class Merged:
    """values: field path -> Given, for every field that either side gave or that follows from what they gave."""

    values: dict[str, Given] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def merge(cli: Reading, json: Reading) -> Merged:
    """One value per field from both sides, with every override as a warning and every clash as a problem."""
    merged = Merged(values={**json.given, **cli.given})
    for row in ROWS:
        if row.path in cli.given and row.path in json.given:
            _decide(row, cli.given[row.path], json.given[row.path], merged)
    _decide_precision(cli.given, json.given, merged)
    _place_optimizer(merged)
    return merged


def _decide(row: Row, cli: Given, json: Given, merged: Merged) -> None:
    winner, loser = (json, cli) if row.rule is Rule.JSON else (cli, json)
    merged.values[row.path] = winner
    if cli.value == json.value:
        return
    name = row.path.split(".")[-1]
    if row.rule is Rule.ERROR:
        merged.problems.append(
            f"{name}: {cli.source} says {show(cli.value)} and {json.source} says {show(json.value)};"
            f" {row.why}: make them equal or give one"
        )
    else:
        merged.warnings.append(
            f"{name} = {show(winner.value)} from {winner.source}; overrides {show(loser.value)} from {loser.source}"
        )


def _decide_precision(cli: Mapping[str, Given], json: Mapping[str, Given], merged: Merged) -> None:
    """Fill precision.bf16 and precision.fp16: the JSON block that is on wins, else the command line's flag.

    Both on, on either side, is a problem; so is a JSON that says false for exactly what the flag asks and true for
    nothing. fp16 itself is a problem until it is built.
    """
    asked = [path for path in SPECIAL if path in cli]
    on_in_json = [path for path in SPECIAL if path in json and json[path].value]
    for side, paths in ((cli, asked), (json, on_in_json)):
        if len(paths) == 2:
            sources = " and ".join(side[path].source for path in paths)
            merged.problems.append(f"bf16 and fp16 are both on ({sources}): leave one")
            return
    if on_in_json:
        winner = json[on_in_json[0]]
        for path in asked:
            if path != on_in_json[0]:
                merged.warnings.append(
                    f"{on_in_json[0].split('.')[1]} is on from {winner.source}; overrides {cli[path].source}"
                )
                merged.values[path] = Given(False, winner.source)
        merged.values[on_in_json[0]] = winner
    elif asked and asked[0] in json:
        merged.problems.append(
            f"{cli[asked[0]].source} asks for what {json[asked[0]].source} turns off, and no other precision is on:"
            f' set it to true there, or to "auto", or drop the flag'
        )
        return
    if merged.values.get("precision.fp16", Given(False, "")).value:
        source = merged.values["precision.fp16"].source
        merged.problems.append(f"fp16 (from {source}): fp16 training is not built yet: use bf16")


def _place_optimizer(merged: Merged) -> None:
    """Settle the optimizer's device, which the JSON decides and --cpu-optimizer can only ask for."""
    flag = merged.values.get(CPU_OPTIMIZER)
    device = merged.values.get(DEVICE)
    ratio = merged.values.get(RATIO)
    if flag is not None and device is None:
        merged.values[DEVICE] = Given("cpu", f"derived: {flag.source}")
        share = f"ratio {show(ratio.value)} from {ratio.source}" if ratio else "ratio 1"
        merged.notes.append(f"{flag.source} without offload_optimizer.device: device cpu, {share}")
    elif flag is not None and device is not None and device.value == "none":
        merged.problems.append(
            f"{flag.source} asks for the optimizer on the host, {device.source} says device none:"
            ' set "device": "cpu" or drop the flag'
        )
    elif device is not None and device.value != "none" and flag is None:
        merged.notes.append(f"the optimizer is offloaded to {device.value} by {device.source}, without --cpu-optimizer")
    elif ratio is not None and device is None:
        merged.problems.append(
            f"offload_optimizer.ratio {show(ratio.value)} ({ratio.source}) has no offload_optimizer.device beside it:"
            ' add "device": "cpu" or remove the ratio'
        )
    elif ratio is not None and device is not None and device.value == "none":
        merged.notes.append(f"offload_optimizer.ratio ({ratio.source}) has no effect: the device is none")
