"""Batch, run length, recompute, evaluation and logging sections."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import knob


@dataclass(frozen=True, slots=True)
class BatchConfig:
    micro_batch_size: int | None = knob(
        None,
        flag="--micro-batch-size",
        json="train_micro_batch_size_per_gpu",
        kind="int",
        help="samples per forward per data-parallel rank",
    )
    global_batch_size: int | None = knob(
        None,
        flag="--global-batch-size",
        json="train_batch_size",
        kind="int",
        help="samples per optimizer step over the whole run; unset = micro batch x data-parallel size",
    )
    gradient_accumulation_steps: int | None = knob(
        None, json="gradient_accumulation_steps", kind="int", help="micro-batches per optimizer step"
    )
    rampup_batch_size: tuple[int, ...] = knob(
        (),
        flag="--rampup-batch-size",
        kind="ints",
        help="START INCREMENT SAMPLES: grow the global batch from START by INCREMENT over SAMPLES samples",
    )


@dataclass(frozen=True, slots=True)
class TrainConfig:
    train_iters: int | None = knob(None, flag="--train-iters", kind="int", help="optimizer steps in total")
    train_samples: int | None = knob(
        None, flag="--train-samples", kind="int", help="samples in total; also sizes the sample index"
    )
    train_tokens: int | None = knob(
        None, flag="--train-tokens", kind="int", help="stop once this many tokens are consumed"
    )
    exit_interval: int | None = knob(
        None, flag="--exit-interval", kind="int", help="save and exit when the iteration is a multiple of this"
    )
    exit_duration_in_mins: float | None = knob(
        None, flag="--exit-duration-in-mins", kind="float", help="save and exit after this many minutes"
    )
    seed: int = knob(1234, flag="--seed", kind="int", help="seed of initialisation, dropout and data order")
    deterministic_mode: bool = knob(
        False,
        flag="--deterministic-mode",
        kind="bool",
        help="deterministic algorithms and attention backward: two runs are bit-equal on a GPU too",
    )
    max_consecutive_skips: int = knob(
        100,
        flag="--max-consecutive-skips",
        kind="int",
        help="exit non-zero after this many skipped steps in a row (non-finite gradients)",
    )


@dataclass(frozen=True, slots=True)
class RecomputeConfig:
    """What is run again in backward instead of kept. `granularity` and `method` are what the flags mean together."""

    recompute_granularity: str | None = knob(
        None,
        flag="--recompute-granularity",
        kind="str",
        choices=("full", "selective"),
        help="full: whole layers; selective: the attention core, softmax(q k^T) v; unset: nothing",
    )
    recompute_method: str | None = knob(
        None,
        flag="--recompute-method",
        aliases=("--activations-checkpoint-method",),
        kind="str",
        choices=("uniform", "block"),
        help="of full: uniform (default) keeps the input of every --recompute-num-layers layers; block recomputes the"
        " first that many layers of a stage",
    )
    recompute_num_layers: int = knob(
        1,
        flag="--recompute-num-layers",
        aliases=("--checkpoint-num-layers",),
        kind="int",
        help="layers of a unit (uniform), or recomputed layers of a stage (block)",
    )
    recompute_activations: bool = knob(
        False, flag="--recompute-activations", kind="bool", help="--recompute-granularity selective"
    )
    checkpoint_activations: bool = knob(
        False, flag="--checkpoint-activations", kind="bool", help="--recompute-granularity full"
    )
    deepspeed_activation_checkpointing: bool = knob(
        False,
        flag="--deepspeed-activation-checkpointing",
        kind="bool",
        help="the engine-side name of the same switch; either turns full recompute on, both do it once",
    )
    distribute_saved_activations: bool = knob(
        False,
        flag="--distribute-saved-activations",
        aliases=("--distribute-checkpointed-activations", "--partition-activations"),
        json="activation_checkpointing.partition_activations",
        kind="bool",
        help="each tensor-parallel rank keeps its part of the kept inputs and gathers them in backward",
    )
    checkpoint_in_cpu: bool = knob(
        False,
        flag="--checkpoint-in-cpu",
        json="activation_checkpointing.cpu_checkpointing",
        kind="bool",
        help="kept inputs wait in host memory",
    )

    @property
    def full(self) -> bool:
        """Whether whole layers run again in backward."""
        return self.granularity == "full"

    @property
    def granularity(self) -> str | None:
        """ "full", "selective" or None."""
        if self.recompute_granularity is not None:
            return self.recompute_granularity
        if self.checkpoint_activations or self.deepspeed_activation_checkpointing or self.recompute_method is not None:
            return "full"
        return "selective" if self.recompute_activations else None

    @property
    def method(self) -> str:
        """Of full recompute."""
        return self.recompute_method or "uniform"


@dataclass(frozen=True, slots=True)
class EvalConfig:
    eval_iters: int = knob(100, flag="--eval-iters", kind="int", help="global batches per evaluation; 0 = none")
    eval_interval: int = knob(1000, flag="--eval-interval", kind="int", help="iterations between evaluations")


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    log_interval: int = knob(100, flag="--log-interval", kind="int", help="iterations between log lines")
    steps_per_print: int | None = knob(
        None,
        json="steps_per_print",
        kind="int",
        help="steps between the engine's `step=..., skipped=..., lr=...` lines",
    )
    wall_clock_breakdown: bool = knob(
        False, json="wall_clock_breakdown", kind="bool", help="print forward, backward and step times"
    )
    tensorboard_dir: str | None = knob(None, flag="--tensorboard-dir", kind="str", help="event directory")
    tensorboard_queue_size: int = knob(
        1000, flag="--tensorboard-queue-size", kind="int", help="pending events before a flush"
    )
    log_timers_to_tensorboard: bool = knob(
        False, flag="--log-timers-to-tensorboard", kind="bool", help="also write timers as scalars"
    )
    log_batch_size_to_tensorboard: bool = knob(
        False, flag="--log-batch-size-to-tensorboard", kind="bool", help="write the current global batch size"
    )
    log_validation_ppl_to_tensorboard: bool = knob(
        False, flag="--log-validation-ppl-to-tensorboard", kind="bool", help="write validation perplexity too"
    )
    timing_log_level: int = knob(
        0,
        flag="--timing-log-level",
        kind="int",
        choices=(0, 1, 2),
        help="0: iteration time only; 1: once-per-step timers; 2: per-micro-batch timers",
    )
    log_jsonl: str | None = knob(
        None, flag="--log-jsonl", kind="str", help="file that gets one JSON object a step; continued on resume"
    )
