"""Reporter: what a run says, to the log, TensorBoard and the JSONL file. Makes no decision."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from megatron_zero.checkpoint.save import SaveReport
from megatron_zero.config.derive import DerivedSizes
from megatron_zero.config.load import LoadedConfig, format_arguments, format_provenance
from megatron_zero.data.datasets import DataSets
from megatron_zero.distributed.collectives import all_gather_object
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.observability.event_files import ResumePoint
from megatron_zero.observability.flops import model_flops_per_step, peak_flops
from megatron_zero.observability.jsonl import JsonlLog
from megatron_zero.observability.logging import make_logger
from megatron_zero.observability.memory import (
    OwnerBytes,
    device_allocated_bytes,
    format_memory,
    measure_memory,
    process_pss_bytes,
    process_rss_bytes,
)
from megatron_zero.observability.metrics import StepRecord
from megatron_zero.observability.sinks import Metrics
from megatron_zero.observability.tensorboard_writer import TensorBoardWriter
from megatron_zero.observability.timers import Timers
from megatron_zero.offload.optimizer import OffloadedAdam
from megatron_zero.ops.cpu_adam import simd_level
from megatron_zero.zero.engine import ZeroEngine

from .state import EvaluationRead, StepReport, TrainState


class Reporter:
    """One per rank; only the last rank speaks, as in Megatron. started: time.perf_counter() at the start of the run.

    Call order: sizes(), placement(), resumed() or fresh_start(), open_logs(); then step() and the others.
    """

    def __init__(
        self, loaded: LoadedConfig, sizes: DerivedSizes, context: ParallelContext, *, started: float
    ) -> None:
        config = loaded.config
        self._loaded = loaded
        self._config = config
        self._sizes = sizes
        self._context = context
        self._started = started
        self.logger = make_logger(rank=context.world.rank, is_logging_rank=context.world.is_last)
        level = max(config.logging.timing_log_level, 2 if config.logging.wall_clock_breakdown else 0)
        self.timers = Timers(context.device, level)
        self._metrics: Metrics | None = None
        self._optimizer: OffloadedAdam | None = None
        self._engine: ZeroEngine | None = None
        self._last: StepRecord | None = None
        dtype = torch.bfloat16 if config.precision.bf16 else torch.float32
        on_cuda = context.device.type == "cuda"
        self._peak = peak_flops(torch.cuda.get_device_name(context.device), dtype) if on_cuda else None

    # -- before the first step ------------------------------------------------------------------------------------

    def sizes(self) -> None:
        """Settings with their sources, sizes of the mesh, the vocabulary and the run, and all warnings, once."""
        sizes, say = self._sizes, self.logger.plain
        say(
            f"using world size: {sizes.world_size}, data-parallel-size: {sizes.dp}, sequence-parallel size: 1, "
            f"tensor-model-parallel size: {sizes.tp}, pipeline-model-parallel size: {sizes.pp} "
        )
        say(format_arguments(self._loaded))
        say("settings that were given, with their source:")
        say("\n".join(line for line in format_provenance(self._loaded).splitlines() if not line.endswith("[default]")))
        for note in self._loaded.notes:
            self.logger.info(note)
        for warning in (*self._loaded.warnings, *sizes.warnings):
            self.logger.warning(warning)
        say(
            f" > padded vocab (size: {sizes.vocab_size}) with {sizes.padded_vocab_size - sizes.vocab_size} dummy tokens "
            f"(new size: {sizes.padded_vocab_size})"
        )
        say(f"setting training iterations to {sizes.run.train_iterations}")
        train, valid, test = sizes.run.num_samples
        say(" > datasets target sizes (minimum size):")
        say(f"    train:      {train}\n    validation: {valid}\n    test:       {test}")

    def data(self, datasets: DataSets, notes: Sequence[str]) -> None:
        """What each split reads, and what any rank noted while it made the data sets. Every rank calls it."""
        gathered = all_gather_object(tuple(notes), axis=self._context.world)
        for note in dict.fromkeys(note for notes_of_rank in gathered for note in notes_of_rank):
            self.logger.warning(note)
        for note in datasets.notes:
            self.logger.warning(note)
        for line in datasets.describe():
            self.logger.plain(f"    {line}")

    def placement(self, engine: ZeroEngine, optimizer: OffloadedAdam) -> None:
        """Parameters of each model-parallel rank, sub-groups and bytes by tier, ratio asked and got, and the memory lines.
        Every rank calls it."""
        self._optimizer, self._engine = optimizer, engine
        context = self._context
        numel = sum(layout.parameter_numel for layout in engine.layouts)
        for tp, pp, count in sorted(all_gather_object((context.tp.rank, context.pp.rank, numel), axis=context.model)):
            self.logger.plain(f" > number of parameters on (tensor, pipeline) model parallel rank ({tp}, {pp}): {count}")
        subgroups = {tier.value: len(groups) for tier, groups in optimizer.subgroups.items()}
        tiers = optimizer.tier_bytes
        self.logger.info(
            f"optimizer state initialized: ratio asked {optimizer.plan.ratio_asked:g}, realised "
            f"{optimizer.plan.ratio_realised:.6f}; bytes on this rank: device {tiers['device']}, host {tiers['host']}, "
            f"nvme {tiers['nvme']}; sub-groups: {subgroups}; CPU Adam: {simd_level()}"
        )
        if optimizer.pool.refused_bytes:
            self.logger.warning_all(
                f"the driver refused to page-lock {optimizer.pool.refused_bytes} bytes (see `ulimit -l`): copies of "
                "these are slower, results are the same"
            )
        self._memory("After initializing ZeRO optimizer", engine, optimizer)

    def fresh_start(self, root: Path) -> None:
        """--load holds no checkpoint yet."""
        self.logger.plain(f"no checkpoint in {root}: starting from the beginning")

    def resumed(self, root: Path, state: TrainState, notes: Sequence[str]) -> None:
        """notes: what a resume could not take over."""
        for note in notes:
            self.logger.warning(note)
        self.logger.plain(
            f"  successfully loaded checkpoint from {root} at iteration {state.iteration} "
            f"(consumed samples {state.consumed_samples}, tokens {state.consumed_tokens})"
        )

    def open_logs(self, state: TrainState) -> None:
        """Make the output files, on the rank that speaks. Raises ConfigError for a path that cannot be written."""
        logging, betas = self._config.logging, (self._config.adam.adam_beta1, self._config.adam.adam_beta2)
        tensorboard: TensorBoardWriter | None = None
        jsonl: JsonlLog | None = None
        speaks = self._context.world.is_last
        if speaks and logging.tensorboard_dir is not None:
            tensorboard = TensorBoardWriter(
                logging.tensorboard_dir,
                queue_size=logging.tensorboard_queue_size,
                resume=ResumePoint(state.iteration, state.consumed_samples, state.consumed_tokens),
                log_timers=logging.log_timers_to_tensorboard,
                log_batch_size=logging.log_batch_size_to_tensorboard,
                log_validation_ppl=logging.log_validation_ppl_to_tensorboard,
                say=self.logger.plain,
            )
            tensorboard.text("config", "    " + format_provenance(self._loaded).replace("\n", "\n    "))
        if speaks and logging.log_jsonl is not None:
            jsonl = JsonlLog(logging.log_jsonl, state.iteration, say=self.logger.plain)
        self._metrics = Metrics(
            self.logger,
            log_interval=logging.log_interval,
            tensorboard=tensorboard,
            jsonl=jsonl,
            steps_per_print=logging.steps_per_print,
            betas=(betas, betas),
            num_skipped=state.skipped_iterations,
        )
        self._say_time("before the start of training step")

    # -- during the run -----------------------------------------------------------------------------------------------

    def step(self, report: StepReport, state: TrainState, *, elapsed_ms: float) -> None:
        """Record one step; prints the iteration line when it is due."""
        model, optimizer, world = self._config.model, self._optimizer, self._sizes.world_size
        assert optimizer is not None and self._metrics is not None
        assert model.num_layers is not None and model.hidden_size is not None and model.seq_length is not None
        assert model.num_attention_heads is not None
        seconds = elapsed_ms / 1000.0
        flops = model_flops_per_step(
            num_layers=model.num_layers,
            hidden_size=model.hidden_size,
            seq_length=model.seq_length,
            padded_vocab_size=self._sizes.padded_vocab_size,
            samples=report.global_batch_size,
            ffn_hidden_size=model.mlp_width,
            attention_width=model.num_attention_heads * model.head_dim,
            key_value_width=model.num_groups * model.head_dim,
            gated=model.swiglu,
        )
        flops_per_second = flops / seconds / world
        offloads = self._config.zero.offload_optimizer.device != "none"
        self._last = StepRecord(
            iteration=state.iteration,
            consumed_samples=state.consumed_samples,
            consumed_tokens=state.consumed_tokens,
            lm_loss=report.loss,
            grad_norm=report.grad_norm,
            learning_rate=report.learning_rate,
            loss_scale=1.0,
            skipped=report.skipped,
            elapsed_ms=elapsed_ms,
            tokens_per_second_per_gpu=report.global_batch_size * model.seq_length / seconds / world,
            tflops_per_gpu=flops_per_second / 1e12,
            mfu=flops_per_second / self._peak if self._peak is not None else None,
            device_bytes=self._device_bytes(),
            host_rss_bytes=process_rss_bytes(),
            pinned_bytes=optimizer.pool.pinned_bytes,
            tier_bytes=optimizer.tier_bytes,
            ratio_asked=optimizer.plan.ratio_asked if offloads else None,
            ratio_realised=optimizer.plan.ratio_realised if offloads else None,
            total_iterations=self._sizes.run.train_iterations,
            global_batch_size=report.global_batch_size,
            seq_length=model.seq_length,
            world_size=world,
            timers_ms=self.timers.elapsed_ms(),
            # The kernel walks all mappings for this one, so only for the steps that are printed.
            host_pss_bytes=process_pss_bytes() if state.iteration % self._config.logging.log_interval == 0 else None,
        )
        self._metrics.step(self._last)

    def evaluation(self, loss: float, state: TrainState, *, split: str, read: EvaluationRead, seconds: float) -> None:
        """The box of an evaluation, its scalars (not if no step was made since the start), and what was read."""
        self.logger.info(f"{split} read {read}, in {seconds:.1f} s")
        if self._metrics is None or self._last is None:
            self.logger.plain(f" {split} loss at iteration {state.iteration} | lm loss value: {loss:.6E} | ")
            return
        where = f"iteration {state.iteration}" if split == "validation" else f"iteration {state.iteration} for {split} data"
        self._metrics.validation(self._last, loss, where=where, split=split)

    def saving(self, iteration: int, root: Path) -> None:
        self.logger.plain(f"saving checkpoint at iteration {iteration:7d} to {root}")

    def not_saving(self, state: TrainState) -> None:
        self.logger.warning(
            f"no checkpoint at iteration {state.iteration}: the last {state.consecutive_skips} steps were skipped because "
            "gradients were not finite; the latest checkpoint stays the one before"
        )

    def saved(self, iteration: int, root: Path, done: SaveReport) -> None:
        for note in self._notes_of_first_rank(done.notes):
            self.logger.info(note)
        self.logger.plain(f"  successfully saved checkpoint at iteration {iteration:7d} to {root}")
        gigabytes = done.bytes / 1e9
        rate = gigabytes / done.seconds if done.seconds > 0 else 0.0
        self.logger.plain(
            f"Checkpoint Save GB: {gigabytes:.3f}, GB/Sec: {rate:.2f}, Latency(second): {done.seconds:.3f}"
        )

    def ended(self, reason: str) -> None:
        """The last iteration line, if steps were not told yet, and why the run ends."""
        if self._metrics is not None:
            self._metrics.print_window()
        self.logger.plain(f"training ends: {reason}")
        self._say_time("after training is done")

    def close(self) -> None:
        """Close the files; may be called twice."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None

    def _memory(self, phase: str, engine: ZeroEngine, optimizer: OffloadedAdam) -> None:
        tiers = optimizer.tier_bytes
        owned = OwnerBytes(
            device=tiers["device"] + sum(engine.device_bytes.values()),
            host=tiers["host"] + optimizer.pool.pinned_bytes + optimizer.pool.pageable_bytes,
            nvme=tiers["nvme"],
            pinned=optimizer.pool.pinned_bytes,
        )
        report = measure_memory(self._context.device, owned=owned)
        ranks = all_gather_object(report, axis=self._context.world)
        for line in format_memory(phase, ranks, rank=self._context.world.rank):
            self.logger.info(line)

    def _device_bytes(self) -> int:
        """Live bytes on the device: the allocator's count on a GPU; on a CPU what the owners hold there."""
        if self._context.device.type == "cuda":
            return device_allocated_bytes(self._context.device)
        assert self._engine is not None and self._optimizer is not None
        return sum(self._engine.device_bytes.values()) + self._optimizer.tier_bytes["device"]

    def _notes_of_first_rank(self, notes: Sequence[str]) -> Sequence[str]:
        gathered: list[Any] = all_gather_object(tuple(notes), axis=self._context.world)
        return tuple(gathered[0])

    def _say_time(self, what: str) -> None:
        seconds = time.perf_counter() - self._started
        self.logger.plain(f"[{what}] datetime: {datetime.now():%Y-%m-%d %H:%M:%S} ({seconds:.1f} s since the start)")
