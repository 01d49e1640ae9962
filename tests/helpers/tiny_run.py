"""F1 and F2 of the checks: a corpus of 200 documents and a run of six fp32 steps, through the real entry points."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megatron_zero.config.load import load_run_config
from megatron_zero.data.indexed_dataset import IndexedDatasetWriter
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.distributed.launch import LaunchEnvironment
from megatron_zero.training.build import build_trainer
from megatron_zero.training.determinism import determinism
from megatron_zero.training.trainer import Trainer

VOCABULARY = 50  # F1's word numbers; NullTokenizer adds the end-of-document id


def write_corpus(folder: Path, *, documents: int = 200) -> Path:
    """F1 as token ids: document i holds (7 i + j) mod 50 for j = 0..19, and the end of document. The .bin/.idx prefix."""
    prefix = folder / "c200_text_document"
    with IndexedDatasetWriter(prefix, vocab_size=VOCABULARY + 1) as writer:
        for i in range(documents):
            writer.add_document([[(7 * i + j) % VOCABULARY for j in range(20)] + [VOCABULARY]])
    return prefix


def write_json(path: Path, *, stage: int, ratio: float | None = None, **more: Any) -> Path:
    """A DeepSpeed-style JSON: the stage, an offload block if a ratio is given, and top-level keys of your own."""
    zero: dict[str, Any] = {"stage": stage, **more.pop("zero_optimization", {})}
    if ratio is not None:
        zero["offload_optimizer"] = {"device": "cpu", "ratio": ratio}
    path.write_text(json.dumps({"zero_optimization": zero, **more}))
    return path


def tiny_arguments(prefix: Path, config: Path | None, **overrides: Any) -> list[str]:
    """F2's command line. overrides: flag name without dashes -> value; True is a bare switch, None leaves a flag out."""
    flags: dict[str, Any] = {
        "num-layers": 2,
        "hidden-size": 64,
        "num-attention-heads": 4,
        "seq-length": 32,
        "max-position-embeddings": 32,
        "micro-batch-size": 2,
        "global-batch-size": 8,
        "attention-dropout": 0.0,
        "hidden-dropout": 0.0,
        "lr": 1e-3,
        "lr-decay-style": "constant",
        "weight-decay": 0.1,
        "clip-grad": 1.0,
        "seed": 1234,
        "train-iters": 6,
        "tokenizer-type": "NullTokenizer",
        "vocab-size": VOCABULARY,
        "make-vocab-size-divisible-by": 8,
        "data-path": prefix,
        "split": "90,10,0",
        "eval-iters": 0,
        "log-interval": 1,
        "num-workers": 0,
        "distributed-backend": "gloo",
        "deterministic-mode": True,
    }
    if config is not None:
        flags["deepspeed"] = True
        flags["deepspeed_config"] = config
    flags.update({name.replace("_", "-"): value for name, value in overrides.items()})
    words: list[str] = []
    for name, value in flags.items():
        if value is None or value is False:
            continue
        words.append(f"--{name}")
        if value is not True:
            words.extend(str(item) for item in (value if isinstance(value, (list, tuple)) else [value]))
    return words


@dataclass(frozen=True)
class RunResult:
    """losses, norms, rates: one per step.   weights: whole parameters by name.   state: [key/name, start, values]."""

    losses: list[float]
    norms: list[float]
    rates: list[float]
    weights: Mapping[str, torch.Tensor]
    state: Sequence[tuple[str, int, torch.Tensor]]
    tier_bytes: Mapping[str, int]
    ratio_realised: float
    pinned_bytes: int


def run_tiny(ctx: ParallelContext, argv: Sequence[str]) -> RunResult:
    """Train in this process (one of ctx.world.size ranks) and return what it did."""
    env = LaunchEnvironment(ctx.world.rank, ctx.world.size, ctx.world.rank, ctx.world.size, "127.0.0.1", 29500)
    loaded = load_run_config(argv)
    with determinism(loaded.config.train.deterministic_mode), build_trainer(loaded, ctx, env) as trainer:
        return result_of(trainer)


def result_of(trainer: Trainer) -> RunResult:
    """Run a built trainer to its end."""
    reports: list[Any] = []
    reporter_step = trainer.parts.reporter.step

    def record(report: Any, *args: Any, **kwargs: Any) -> None:
        reports.append(report)
        reporter_step(report, *args, **kwargs)

    trainer.parts.reporter.step = record  # type: ignore[method-assign]
    trainer.run()
    engine, optimizer = trainer.parts.step.engine, trainer.parts.step.optimizer
    with engine.summon_full_parameters() as parameters:
        weights = {name: p.detach().to("cpu", copy=True) for name, p in parameters.items()}
    return RunResult(
        losses=[r.loss for r in reports],
        norms=[r.grad_norm for r in reports],
        rates=[r.learning_rate for r in reports],
        weights=weights,
        state=sorted(
            ((f"{s.key}/{s.name}", s.start, s.data.detach().to("cpu", copy=True)) for s in optimizer.state_slices()),
            key=lambda item: item[:2],
        ),
        tier_bytes=optimizer.tier_bytes,
        ratio_realised=optimizer.plan.ratio_realised,
        pinned_bytes=optimizer.pool.pinned_bytes,
    )


def initial_weights(ctx: ParallelContext, argv: Sequence[str]) -> dict[str, torch.Tensor]:
    """Whole parameters by name as a run would start with them."""
    env = LaunchEnvironment(ctx.world.rank, ctx.world.size, ctx.world.rank, ctx.world.size, "127.0.0.1", 29500)
    with (
        build_trainer(load_run_config(argv), ctx, env) as trainer,
        trainer.parts.step.engine.summon_full_parameters() as parameters,
    ):
        return {name: p.detach().to("cpu", copy=True) for name, p in parameters.items()}
