"""The grid of layouts: every cell trains like one process at stage 0 (F2, F3, F4 of the checks), gradients elementwise.

A cell is a value; `all_cells()` is the full product, `pairwise_cover()` a subset in which any two values of any two
properties that can meet do meet. tests/end_to_end/test_layout_grid.py runs the cover, tests/run_layout_grid.py all.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from helpers.tiny_run import result_of, tiny_arguments, write_json
from torch import Tensor

from megatron_zero.config.load import load_run_config
from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.distributed.launch import LaunchEnvironment
from megatron_zero.training.build import build_trainer
from megatron_zero.training.determinism import determinism
from megatron_zero.training.trainer import Trainer

LOSS_RTOL, NORM_RTOL = 1e-5, 1e-4  # F4, up to six steps in fp32
GRAD_RTOL, GRAD_ATOL = 1e-5, 2e-6  # the second as a share of the tensor's largest gradient
GLOBAL_BATCH: Final = 8
MOST_PROCESSES: Final = 8

FAMILIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "gpt": {},
    "llama": {
        "num-attention-heads": 8,
        "num-key-value-heads": 4,
        "use-rotary-position-embeddings": True,
        "no-position-embedding": True,
        "normalization": "rmsnorm",
        "swiglu": True,
        "disable-bias-linear": True,
        "untie-embeddings-and-output-weights": True,
    },
}
RECOMPUTE: Final[Mapping[str, Mapping[str, Any]]] = {
    "none": {},
    "uniform": {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 2},
    "block": {"recompute-granularity": "full", "recompute-method": "block", "recompute-num-layers": 1},
    "selective": {"recompute-granularity": "selective"},
}


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """ratio: None at stage 0, which has no offload.   accumulation: micro-batches a rank takes in a step."""

    tp: int
    dp: int
    stage: int
    ratio: float | None
    sequence_parallel: bool
    recompute: str
    accumulation: int
    family: str

    @property
    def world_size(self) -> int:
        return self.tp * self.dp

    @property
    def is_possible(self) -> bool:
        return (
            self.world_size <= MOST_PROCESSES
            and (self.ratio is None) == (self.stage == 0)
            and (self.tp > 1 or not self.sequence_parallel)
        )

    def parallel(self) -> ParallelConfig:
        return ParallelConfig(tensor_model_parallel_size=self.tp)

    def arguments(self, corpus: Path, config: Path, **more: Any) -> list[str]:
        """The command line, and its JSON written to `config`."""
        write_json(config, stage=self.stage, ratio=self.ratio)
        return tiny_arguments(
            corpus,
            config,
            **{
                "tensor-model-parallel-size": self.tp,
                "sequence-parallel": self.sequence_parallel,
                "micro-batch-size": GLOBAL_BATCH // (self.dp * self.accumulation),
                "global-batch-size": GLOBAL_BATCH,
                **FAMILIES[self.family],
                **RECOMPUTE[self.recompute],
                **more,
            },
        )

    def __str__(self) -> str:
        return "-".join(
            [
                f"tp{self.tp}",
                f"dp{self.dp}",
                f"zero{self.stage}",
                f"ratio{self.ratio}",
                "sp" if self.sequence_parallel else "nosp",
                self.recompute,
                f"acc{self.accumulation}",
                self.family,
            ]
        )


VALUES: Final[Mapping[str, tuple[Any, ...]]] = {
    "tp": (1, 2, 4),
    "dp": (1, 2, 4),
    "stage": (0, 1, 2, 3),
    "ratio": (None, 0.0, 0.3, 1.0),
    "sequence_parallel": (False, True),
    "recompute": tuple(RECOMPUTE),
    "accumulation": (1, 2),
    "family": tuple(FAMILIES),
}


def all_cells() -> tuple[Cell, ...]:
    """The full product, without what cannot be, smallest worlds first."""
    cells = (Cell(**dict(zip(VALUES, values, strict=True))) for values in itertools.product(*VALUES.values()))
    return tuple(sorted((cell for cell in cells if cell.is_possible), key=lambda cell: (cell.world_size, cell)))


def pairwise_cover(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """A greedy subset of the cells with every pair of values that any of them has. The same one every time."""
    pairs = {cell: frozenset(_pairs(cell)) for cell in cells}
    missing = set().union(*pairs.values())
    chosen = []
    while missing:
        best = max(cells, key=lambda cell: len(pairs[cell] & missing))
        chosen.append(best)
        missing -= pairs[best]
    return tuple(sorted(chosen, key=lambda cell: (cell.world_size, cell)))


def _pairs(cell: Cell) -> Iterator[tuple[tuple[str, Any], tuple[str, Any]]]:
    named = [(field.name, getattr(cell, field.name)) for field in dataclasses.fields(cell)]
    yield from itertools.combinations(named, 2)


@dataclass(frozen=True)
class Outcome:
    """Of one rank: losses and norms of every step; the gradients of the first: (name, first logical element, values)."""

    losses: list[float]
    norms: list[float]
    gradients: list[tuple[str, int, Tensor]]
    shapes: Mapping[str, tuple[int, ...]]


def run_cell(ctx: ParallelContext, argv: Sequence[str]) -> Outcome:
    """Train in this process, one of ctx.world.size ranks."""
    env = LaunchEnvironment(ctx.world.rank, ctx.world.size, ctx.world.rank, ctx.world.size, "127.0.0.1", 29500)
    loaded = load_run_config(argv)
    with determinism(loaded.config.train.deterministic_mode), build_trainer(loaded, ctx, env) as trainer:
        gradients: list[tuple[str, int, Tensor]] = []
        engine = trainer.parts.step.engine
        finish_backward = engine.finish_backward

        def record() -> None:
            finish_backward()
            if not gradients:
                gradients.extend(owned_gradients(trainer))

        engine.finish_backward = record  # type: ignore[method-assign]
        result = result_of(trainer)
        shapes = {name: split.shape for name, split in trainer.parts.stage.tensor_splits().items()}
    return Outcome(result.losses, result.norms, gradients, shapes)


def owned_gradients(trainer: Trainer) -> Iterator[tuple[str, int, Tensor]]:
    """What this rank holds of every logical gradient."""
    engine, splits = trainer.parts.step.engine, trainer.parts.stage.tensor_splits()
    for layout, shard in zip(engine.layouts, engine.grad_shards, strict=True):
        for span in layout.owned_spans(engine.shard_axis.rank):
            place = span.shard_start
            for run in splits[span.name].runs(span.member_start, span.numel):
                yield span.name, run.start, shard[place : place + run.numel].clone()
                place += run.numel


def assemble(outcomes: Sequence[Outcome]) -> dict[str, Tensor]:
    """Logical gradients put together from all ranks, flat. Elements that several ranks hold must have the same bits."""
    whole: dict[str, Tensor] = {}
    filled: dict[str, Tensor] = {}
    for outcome in outcomes:
        for name, start, values in outcome.gradients:
            numel = torch.Size(outcome.shapes[name]).numel()
            target = whole.setdefault(name, torch.zeros(numel))[start : start + len(values)]
            known = filled.setdefault(name, torch.zeros(numel, dtype=torch.bool))[start : start + len(values)]
            assert torch.equal(target[known], values[known]), f"copies of the gradient of {name} differ"
            target.copy_(values)
            known.fill_(True)
    for name, known in filled.items():
        assert bool(known.all()), f"no rank holds all of the gradient of {name}"
    return whole


def check_outcomes(outcomes: Sequence[Outcome], reference: Outcome) -> None:
    """AssertionError naming what differs. reference: of one process at stage 0."""
    for rank, outcome in enumerate(outcomes):
        assert outcome.losses == outcomes[0].losses, f"losses of rank {rank} and rank 0 differ"
        assert outcome.norms == outcomes[0].norms, f"norms of rank {rank} and rank 0 differ"
    for what, rtol in (("losses", LOSS_RTOL), ("norms", NORM_RTOL)):
        found, wanted = (torch.tensor(getattr(one, what), dtype=torch.float64) for one in (outcomes[0], reference))
        torch.testing.assert_close(found, wanted, rtol=rtol, atol=0, msg=lambda text, what=what: f"{what}: {text}")
    wanted_gradients = assemble([reference])
    found_gradients = assemble(outcomes)
    assert found_gradients.keys() == wanted_gradients.keys()
    for name, found in found_gradients.items():
        wanted = wanted_gradients[name]
        # The vocabulary is padded to a multiple of the tensor-parallel size: what one has more is padding.
        common = min(len(found), len(wanted))
        assert not found[common:].any() and not wanted[common:].any(), f"{name}: padding has a gradient"
        torch.testing.assert_close(
            found[:common],
            wanted[:common],
            rtol=GRAD_RTOL,
            atol=GRAD_ATOL * float(wanted.abs().max()),
            msg=lambda text, name=name: f"gradient of {name}: {text}",
        )
