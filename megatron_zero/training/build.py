"""Config + mesh -> Trainer. Every object of a run is made here, in visible order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import torch
from torch import Tensor

from megatron_zero.checkpoint.folder import complete_iterations, latest_iteration
from megatron_zero.checkpoint.lock import FolderLock
from megatron_zero.checkpoint.manifest import MANIFEST
from megatron_zero.config.derive import DerivedSizes
from megatron_zero.config.fields import ConfigError
from megatron_zero.config.load import LoadedConfig, format_provenance
from megatron_zero.config.model import LEARNED, ROTARY
from megatron_zero.config.tree import RunConfig
from megatron_zero.data.datasets import Dataset, DataSets, SplitRequest, build_datasets
from megatron_zero.data.document_masks import DocumentRules
from megatron_zero.data.loader import BatchLoader, MicroBatch
from megatron_zero.data.sample_walk import ShuffledEpochs
from megatron_zero.data.splits import SPLIT_NAMES
from megatron_zero.data.tokenizer import Tokenizer, build_tokenizer
from megatron_zero.distributed.collectives import all_gather_object, broadcast_object, raise_together
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.distributed.launch import LaunchEnvironment
from megatron_zero.distributed.rng import RngStreams
from megatron_zero.distributed.turns import run_in_turns
from megatron_zero.model.gpt import GPTStage, no_weight_decay
from megatron_zero.model.initialization import VOCABULARY_TABLES, ParameterInitializer
from megatron_zero.model.recompute import SavedInputs, plan_recompute
from megatron_zero.offload.optimizer import AdamHyperparameters, OffloadedAdam
from megatron_zero.offload.placement import TwinFlowPlan, plan_twin_flow
from megatron_zero.optim.adam import StateSlice
from megatron_zero.optim.lr_schedule import LrSchedule
from megatron_zero.optim.subgroup import Span, plan_subgroups
from megatron_zero.pipeline.runner import ScheduleRunner
from megatron_zero.tensor_parallel.grads import sum_replicated_
from megatron_zero.tensor_parallel.group import TensorParallel
from megatron_zero.tensor_parallel.splits import TensorSplit
from megatron_zero.zero.engine import ZeroEngine

from .checkpointing import CheckpointParts, load_training
from .exit import RunEnd
from .reporting import Reporter
from .state import TrainState
from .train_step import StepParts
from .trainer import EvalPlan, Intervals, Trainer, TrainerParts

Result = TypeVar("Result")

FILL_CHUNK_NUMEL: Final = 1 << 24  # bounds the device memory that filling host masters takes, to 64 MiB


def build_trainer(loaded: LoadedConfig, context: ParallelContext, env: LaunchEnvironment) -> Trainer:
    """The Trainer of a run, resumed from --load where that holds a checkpoint. Every rank calls it.

    Whatever is wrong (files, sizes, a checkpoint of another model) is raised on every rank, before the first step and
    before anything is written; only then are output folders made.
    """
    config = loaded.config
    started = time.perf_counter()
    tokenizer, sizes = together(context, "reading the tokenizer", lambda: _tokenizer_and_sizes(loaded, env))
    _check_mesh(sizes, context)
    reporter = Reporter(loaded, sizes, context, started=started)
    reporter.sizes()
    datasets = read_data(config, tokenizer, sizes, context, env, reporter)

    streams = RngStreams.seeded(config.train.seed, device=context.device, dp=context.dp, tp=context.tp)
    stage, engine = build_engine(config, sizes, context, streams)
    splits = stage.tensor_splits()
    fill = build_initializer(config, sizes, splits)
    optimizer = build_optimizer(config, engine, fill, context, num_threads=host_threads(env))
    lr_schedule = LrSchedule(
        max_lr=_given(config.adam.lr),
        min_lr=config.schedule.min_lr,
        warmup_tokens=sizes.run.lr_warmup_tokens,
        decay_tokens=sizes.run.lr_decay_tokens,
        style=config.schedule.lr_decay_style,
    )
    reporter.placement(engine, optimizer)

    state = TrainState()
    checkpoint = CheckpointParts(
        context=context,
        streams=streams,
        engine=engine,
        optimizer=optimizer,
        lr_schedule=lr_schedule,
        override_schedule=config.schedule.override_opt_param_scheduler,
        identity=_identity(config, tokenizer),
        settings=tuple(format_provenance(loaded).splitlines()),
        watched=_watched(config, sizes, datasets.train),
        table_rows=dict.fromkeys(VOCABULARY_TABLES, sizes.vocab_size),
        splits=splits,
    )
    resume(config, context, checkpoint, state, reporter)
    train, valid, test = (
        None if dataset is None else build_loader(dataset, config, tokenizer, sizes, context) for dataset in datasets.all()
    )
    assert train is not None
    end = RunEnd(
        train_iterations=config.train.train_iters,
        train_samples=config.train.train_samples,
        train_tokens=config.train.train_tokens,
        exit_interval=config.train.exit_interval,
        batch_schedule=sizes.batch_schedule,
    )
    if end.completion(state) is None:
        # Data of another tokenizer, or too little of it, shows here on all ranks, before anything is written.
        together(context, "reading the first samples", lambda: train.next_microbatches(state.consumed_samples, 1))
    save_root = Path(config.checkpoint.save) if config.checkpoint.save is not None else None
    lock = together(
        context,
        "taking the checkpoint folder",
        lambda: FolderLock(save_root) if save_root is not None and context.world.is_first else None,
    )
    together(context, "opening the logs", lambda: reporter.open_logs(state))
    timers = reporter.timers
    runner = ScheduleRunner[MicroBatch](
        forward=forward_of(stage), after_backward=engine.finish_micro_batch, timers=timers
    )
    step = StepParts(
        context=context,
        batch_schedule=sizes.batch_schedule,
        loader=train,
        runner=runner,
        engine=engine,
        optimizer=optimizer,
        lr_schedule=lr_schedule,
        clip_grad=config.adam.clip_grad,
        seq_length=_given(config.model.seq_length),
        timers=timers,
        wants_exit=deadline(config.train.exit_duration_in_mins, started=started),
    )
    parts = TrainerParts(
        context=context,
        stage=stage,
        step=step,
        checkpoint=checkpoint,
        validation=EvalPlan(valid, config.evaluation.eval_iters, sizes.num_microbatches),
        test=EvalPlan(test, config.evaluation.eval_iters, sizes.num_microbatches),
        end=end,
        intervals=Intervals(
            evaluate=config.evaluation.eval_interval if config.evaluation.eval_iters > 0 else None,
            save=config.checkpoint.save_interval,
        ),
        save_root=save_root,
        lock=lock,
        max_consecutive_skips=config.train.max_consecutive_skips,
        reporter=reporter,
    )
    return Trainer(parts, state)


def build_loader(
    dataset: Dataset, config: RunConfig, tokenizer: Tokenizer, sizes: DerivedSizes, context: ParallelContext
) -> BatchLoader:
    """This rank's loader. Evaluations read in order and start again at the end, whatever training does, so that two of
    them can be compared."""
    data, trains = config.data, dataset.name == "train"
    cyclic = trains and data.dataloader_type == "cyclic"
    rules = DocumentRules(
        tokenizer.eod,
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=data.reset_attention_mask,
        eod_mask_loss=data.eod_mask_loss,
    )
    return BatchLoader(
        dataset,
        micro_batch_size=sizes.micro_batch_size,
        dp_rank=context.dp.rank,
        dp_size=context.dp.size,
        device=context.device,
        num_workers=data.num_workers,
        wrap=not trains or cyclic or data.repeated_dataloader,
        walk=ShuffledEpochs(len(dataset), seed=config.train.seed) if cyclic else None,
        documents=rules if rules.change_anything else None,
    )


def together(context: ParallelContext, what: str, work: Callable[[], Result]) -> Result:
    """work() on every rank, or the first failing rank's error on every rank."""
    error: Exception | None = None
    result: Result | None = None
    try:
        result = work()
    except Exception as raised:  # raised again below, on every rank: nobody may be left waiting for this one
        error = raised
    raise_together(error, axis=context.world, what=what)
    return result  # type: ignore[return-value]  # None only if work returned None


def forward_of(stage: GPTStage) -> Callable[[MicroBatch], Tensor]:
    """Micro-batch -> mean loss, as the schedule's runner wants it."""

    def forward(batch: MicroBatch) -> Tensor:
        loss: Tensor = stage(
            batch.tokens,
            position_ids=batch.position_ids,
            document_ids=batch.document_ids,
            labels=batch.labels,
            loss_mask=batch.loss_mask,
        )
        return loss

    return forward


def build_engine(
    config: RunConfig, sizes: DerivedSizes, context: ParallelContext, streams: RngStreams
) -> tuple[GPTStage, ZeroEngine]:
    """The model, born on meta, and the engine that materialises and shards it as the ZeRO stage says."""
    assert config.model.num_layers is not None
    tp = TensorParallel(
        context.tp,
        sequence_parallel=config.parallel.sequence_parallel and context.tp.size > 1,
        overlap=config.parallel.async_tensor_model_parallel_allreduce,
    )
    with torch.device("meta"):
        stage = GPTStage(
            config.model,
            vocab_size=sizes.vocab_size,
            padded_vocab_size=sizes.padded_vocab_size,
            tp=tp,
            plan=plan_recompute(config.recompute, num_layers=config.model.num_layers),
            saved=SavedInputs(
                context.tp,
                partition=config.recompute.distribute_saved_activations,
                on_cpu=config.recompute.checkpoint_in_cpu,
            ),
            streams=streams,
        )
    splits = stage.tensor_splits()
    engine = ZeroEngine(
        stage,
        stage.gather_units(),
        stage=config.zero.stage,
        dp=context.dp,
        dtype=torch.bfloat16 if config.precision.bf16 else torch.float32,
        device=context.device,
        init=build_initializer(config, sizes, splits),
        replicated=frozenset(name for name, split in splits.items() if split.replicated),
        shard_reduction=partial(sum_replicated_, tp=tp),
    )
    return stage, engine


def build_initializer(config: RunConfig, sizes: DerivedSizes, splits: Mapping[str, TensorSplit]) -> ParameterInitializer:
    """First values of weights and masters."""
    return ParameterInitializer(config.model, seed=config.train.seed, vocab_size=sizes.vocab_size, splits=splits)


def plan_placement(config: RunConfig, engine: ZeroEngine) -> TwinFlowPlan:
    """Sub-groups of what this rank owns, and their tiers."""
    offload = config.zero.offload_optimizer
    units = [
        [
            (
                Span(span.name, span.shape, span.member_start, span.shard_start, span.numel),
                not no_weight_decay(span.name, span.shape),
            )
            for span in layout.owned_spans(engine.shard_axis.rank)
        ]
        for layout in engine.layouts
    ]
    subgroups = plan_subgroups(units, sub_group_size=config.zero.sub_group_size)
    return plan_twin_flow(subgroups, ratio=offload.ratio if offload.device == "cpu" else 0.0)


def build_optimizer(
    config: RunConfig, engine: ZeroEngine, fill: ParameterInitializer, context: ParallelContext, *, num_threads: int
) -> OffloadedAdam:
    """Adam over the placed sub-groups, masters filled from the same initialiser as the weights (in full fp32)."""
    optimizer = OffloadedAdam(
        plan_placement(config, engine),
        weight_shards=engine.weight_shards,
        hyperparameters=AdamHyperparameters(
            beta1=config.adam.adam_beta1,
            beta2=config.adam.adam_beta2,
            eps=config.adam.adam_eps,
            weight_decay=config.adam.weight_decay,
        ),
        device=context.device,
        pin_memory=config.zero.offload_optimizer.pin_memory,
        num_threads=num_threads,
    )
    for piece in optimizer.state_slices():
        if piece.key == "master":
            _fill_master(piece, fill, context.device)
    return optimizer


def _fill_master(piece: StateSlice, fill: ParameterInitializer, device: torch.device) -> None:
    # Computed on the device wherever the master rests: the bits are the same, and a GPU is a hundred times faster.
    for start in range(0, piece.data.numel(), FILL_CHUNK_NUMEL):
        target = piece.data[start : start + FILL_CHUNK_NUMEL]
        values = torch.empty(target.numel(), dtype=torch.float32, device=device)
        fill(piece.name, piece.start + start, values)
        target.copy_(values)


def resume(
    config: RunConfig, context: ParallelContext, checkpoint: CheckpointParts, state: TrainState, reporter: Reporter
) -> None:
    """Load the newest checkpoint of --load, if there is one; a folder that does not exist yet is a fresh start."""
    if config.checkpoint.load is None:
        return
    root = Path(config.checkpoint.load)
    # Rank 0 decides for all: two ranks that read the pointer themselves may see two answers.
    found = together(
        context, "reading the checkpoint", lambda: latest_iteration(root) if context.world.is_first else None
    )
    iteration = broadcast_object(found, axis=context.world)
    if iteration is None:
        together(context, "reading the checkpoint", lambda: _check_nothing_is_there(root))
        reporter.fresh_start(root)
        return
    notes = load_training(root, iteration, checkpoint, state)
    reporter.resumed(root, state, notes)


def _check_nothing_is_there(root: Path) -> None:
    """Only what is not there yet may start afresh: not a file, not one checkpoint's own folder, not complete checkpoints."""
    if root.exists() and not root.is_dir():
        raise ConfigError(f"--load {root} is not a folder: name the folder that --save wrote")
    if (root / MANIFEST).exists():
        raise ConfigError(f"--load {root} is one checkpoint: name the folder it lies in, {root.absolute().parent}")
    complete = complete_iterations(root) if root.is_dir() else ()
    if complete:
        raise ConfigError(
            f"--load {root} holds checkpoints (iterations {', '.join(map(str, complete))}) but no "
            f"latest_checkpointed_iteration.txt that says which is the latest: write the number, "
            f"`echo {complete[-1]} > {root}/latest_checkpointed_iteration.txt`, or name an empty folder"
        )


def deadline(minutes: float | None, *, started: float) -> Callable[[], bool]:
    """Whether this rank's wall clock has passed the limit, counted from `started` (time.perf_counter)."""
    if minutes is None:
        return lambda: False
    return lambda: time.perf_counter() - started > minutes * 60.0


def host_threads(env: LaunchEnvironment) -> int:
    """Threads of the CPU kernel: this process's share of the cores it may run on."""
    return max(1, len(os.sched_getaffinity(0)) // env.local_world_size)


def _check_mesh(sizes: DerivedSizes, context: ParallelContext) -> None:
    """The mesh is made before the configuration is read to its end; a caller may have made another one."""
    wanted, found = (sizes.tp, sizes.pp, sizes.dp), (context.tp.size, context.pp.size, context.dp.size)
    if wanted != found:
        raise ValueError(f"(tensor, pipeline, data) parallel sizes are {wanted} by the configuration, {found} in the mesh")


def _tokenizer_and_sizes(loaded: LoadedConfig, env: LaunchEnvironment) -> tuple[Tokenizer, DerivedSizes]:
    tokenizer = build_tokenizer(loaded.config.tokenizer)
    return tokenizer, DerivedSizes.of(loaded.config, world_size=env.world_size, vocab_size=tokenizer.vocab_size)


def read_data(
    config: RunConfig,
    tokenizer: Tokenizer,
    sizes: DerivedSizes,
    context: ParallelContext,
    env: LaunchEnvironment,
    reporter: Reporter,
) -> DataSets:
    """The data sets, on every rank. Index files that are missing are made by rank 0, then, where its folder is not the
    same, by the first rank of each other node; the rest find them."""
    train, valid, test = sizes.run.num_samples
    notes: list[str] = []

    def build() -> DataSets:
        return build_datasets(
            config.data,
            # Nothing was promised for a test split: without documents the run ends without that evaluation.
            (SplitRequest(train), SplitRequest(valid), SplitRequest(test, optional=True)),
            seq_length=_given(config.model.seq_length),
            seed=config.train.seed,
            vocab_size=tokenizer.vocab_size,
            eod=tokenizer.eod,
            tell=notes.append,
        )

    turn = 0 if context.world.is_first else 1 if env.local_rank == 0 else 2
    datasets = run_in_turns(
        build, turn=turn, num_turns=3, axis=context.world, device=context.device, what="reading the data"
    )
    _check_same_data(datasets, context)
    reporter.data(datasets, notes)
    return datasets


def _check_same_data(datasets: DataSets, context: ParallelContext) -> None:
    """A node with a stale copy of the data would train on other samples than the rest, and nothing else would show it."""
    prints = tuple(None if dataset is None else dataset.fingerprint for dataset in datasets.all())
    every = all_gather_object(prints, axis=context.world)
    for rank, found in enumerate(every):
        different = [name for name, one, first in zip(SPLIT_NAMES, found, every[0], strict=True) if one != first]
        if different:
            raise ConfigError(
                f"rank {rank} reads other {' and '.join(different)} data than rank 0 under the same name: lengths of"
                " documents, the size of .bin or the part that --split gives differ; copy the same .bin and .idx to every"
                " node"
            )


def _watched(config: RunConfig, sizes: DerivedSizes, train: Dataset | None) -> dict[str, object]:
    """What may differ between a checkpoint and the run that loads it, but not in silence; by flag."""
    assert train is not None
    return {
        # Any of these gives another order of samples, so "sample n" is not the one it would have been.
        "--seed": config.train.seed,
        "--seq-length": config.model.seq_length,
        "--split": config.data.split,
        "--dataloader-type": config.data.dataloader_type,
        "the training data (fingerprint)": train.fingerprint,
        "training samples laid out (--train-samples, --train-iters)": sizes.run.num_samples[0],
        # These change what a step does.
        "--bf16 (or bf16.enabled)": config.precision.bf16,
        "--adam-beta1": config.adam.adam_beta1,
        "--adam-beta2": config.adam.adam_beta2,
        "--adam-eps": config.adam.adam_eps,
        "--weight-decay": config.adam.weight_decay,
        "--clip-grad": config.adam.clip_grad,
        "--attention-dropout": config.model.attention_dropout,
        "--hidden-dropout": config.model.hidden_dropout,
        "--global-batch-size": sizes.global_batch_size,
        "--reset-position-ids": config.data.reset_position_ids,
        "--reset-attention-mask": config.data.reset_attention_mask,
        "--eod-mask-loss": config.data.eod_mask_loss,
    }


def _identity(config: RunConfig, tokenizer: Tokenizer) -> dict[str, object]:
    """What must not differ between a checkpoint and the run that loads it, by flag."""
    model = config.model
    is_rotary = model.positions == ROTARY
    return {
        "--num-layers": model.num_layers,
        "--hidden-size": model.hidden_size,
        "--num-attention-heads": model.num_attention_heads,
        "--num-key-value-heads": model.num_groups,
        "--kv-channels": model.head_dim,
        "--ffn-hidden-size": model.mlp_width,
        "--position-embedding-type": model.positions,
        # Each only where positions are of that kind: elsewhere it has no effect.
        "--max-position-embeddings": model.max_position_embeddings if model.positions == LEARNED else None,
        "--rotary-position-embeddings-theta": model.rotary_position_embeddings_theta if is_rotary else None,
        "--rotary-percent": model.rotary_percent if is_rotary else None,
        "--normalization": model.normalization,
        "--apply-layernorm-1p": model.apply_layernorm_1p,
        "--layernorm-epsilon": model.layernorm_epsilon,
        "the MLP's activation": model.activation,
        "biases (--disable-bias-linear)": model.add_bias_linear,
        "--untie-embeddings-and-output-weights": model.untie_embeddings_and_output_weights,
        "vocabulary size": tokenizer.vocab_size,
    }


def _given(value: Result | None) -> Result:
    assert value is not None, "validate.py refuses a run without this field"
    return value
