"""RunConfig: the root of the typed tree, one field per section. Never edited after it is made."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .data import CheckpointConfig, DataConfig, TokenizerConfig
from .fields import Knob, knobs
from .model import ModelConfig
from .optimizer import AdamConfig, LrScheduleConfig, PrecisionConfig
from .parallel import ParallelConfig
from .training import BatchConfig, EvalConfig, LoggingConfig, RecomputeConfig, TrainConfig
from .zero import ZeroConfig


@dataclass(frozen=True, slots=True)
class RunConfig:
    model: ModelConfig = field(default_factory=ModelConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    recompute: RecomputeConfig = field(default_factory=RecomputeConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    adam: AdamConfig = field(default_factory=AdamConfig)
    schedule: LrScheduleConfig = field(default_factory=LrScheduleConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    zero: ZeroConfig = field(default_factory=ZeroConfig)
    data: DataConfig = field(default_factory=DataConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def as_dict(self) -> dict[str, Any]:
        """Nested plain dict (JSON-able)."""
        return dataclasses.asdict(self)


def walk_knobs(section: Any = RunConfig, prefix: str = "") -> Iterator[tuple[str, Knob]]:
    """(dotted field path, Knob) of every knob below a section class or instance, in declaration order."""
    instance = section() if isinstance(section, type) else section
    for name, record in knobs(instance).items():
        yield prefix + name, record
    for f in dataclasses.fields(instance):
        value = getattr(instance, f.name)
        if dataclasses.is_dataclass(value):
            yield from walk_knobs(value, f"{prefix}{f.name}.")


def replace_path(section: Any, path: str, value: Any) -> Any:
    """A copy of the tree with the field at a dotted path replaced."""
    head, _, rest = path.partition(".")
    new = replace_path(getattr(section, head), rest, value) if rest else value
    return dataclasses.replace(section, **{head: new})
