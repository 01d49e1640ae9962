"""Every rule about the merged configuration that needs no world size: small functions, all run, one ConfigError.

A rule takes a Subject and returns nothing, or raises ConfigError naming the setting as the user wrote it.
Rules that need the data-parallel size are in derive.py; clashes between command line and JSON in precedence.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from .data import missing_for_tokenizer, unused_by_tokenizer
from .data_paths import check_data_paths, named_prefixes
from .derive import check_rampup, nearest_multiples
from .fields import ConfigError, Knob, collect, raise_all
from .model import LEARNED, ROTARY, ModelConfig
from .tree import RunConfig, walk_knobs
from .values import show, split_shares


@dataclass(frozen=True, slots=True)
class Subject:
    """The configuration under test and where its values come from."""

    config: RunConfig
    sources: Mapping[str, str]
    knobs: Mapping[str, Knob]

    def get(self, path: str) -> Any:
        return attrgetter(path)(self.config)

    def name(self, path: str) -> str:
        """The flag, or the JSON key where no flag exists or the JSON gave the value."""
        knob = self.knobs[path]
        from_json = ":" in self.sources.get(path, "") and not self.sources[path].startswith("derived")
        name = knob.json if knob.flag is None or (from_json and knob.json) else knob.flag
        assert name is not None, f"{path} has neither flag nor key"
        return name

    def say(self, path: str) -> str:
        """Name and value, with the line of the file where it comes from one: "gradient_clipping -1 (ds.json:4)"."""
        source = self.sources.get(path, "")
        origin = f" ({source})" if ":" in source else ""
        return f"{self.name(path)} {show(self.get(path))}{origin}"

    def reject(self, path: str, rule: str) -> ConfigError:
        return ConfigError(f"{self.say(path)}: {rule}")


Rule = Callable[[Subject], None]

AT_LEAST_ONE: Final = (
    "model.num_layers",
    "model.hidden_size",
    "model.num_attention_heads",
    "model.ffn_hidden_size",
    "model.num_key_value_heads",
    "model.num_query_groups",
    "model.kv_channels",
    "model.seq_length",
    "model.max_position_embeddings",
    "model.make_vocab_size_divisible_by",
    "parallel.tensor_model_parallel_size",
    "parallel.pipeline_model_parallel_size",
    "batch.micro_batch_size",
    "batch.global_batch_size",
    "batch.gradient_accumulation_steps",
    "train.train_iters",
    "train.train_samples",
    "train.train_tokens",
    "train.exit_interval",
    "recompute.recompute_num_layers",
    "train.max_consecutive_skips",
    "evaluation.eval_interval",
    "logging.log_interval",
    "logging.steps_per_print",
    "logging.tensorboard_queue_size",
    "schedule.lr_decay_tokens",
    "precision.hysteresis",
    "precision.loss_scale_window",
    "zero.sub_group_size",
    "tokenizer.vocab_size",
    "checkpoint.save_interval",
)
ABOVE_ZERO: Final = (
    "model.rotary_position_embeddings_theta",
    "model.layernorm_epsilon",
    "model.init_method_std",
    "parallel.distributed_timeout_minutes",
    "train.exit_duration_in_mins",
    "adam.adam_eps",
)
AT_LEAST_ZERO: Final = (
    "train.seed",
    "evaluation.eval_iters",
    "adam.lr",
    "adam.weight_decay",
    "adam.clip_grad",
    "schedule.min_lr",
    "schedule.lr_warmup_tokens",
    "precision.loss_scale",
    "precision.min_loss_scale",
    "precision.initial_scale_power",
    "data.num_workers",
)
# The optimizer computes in fp32: a value that fp32 turns into 0 or infinity would train something else.
IN_FP32: Final = (
    "model.layernorm_epsilon",
    "model.init_method_std",
    "adam.lr",
    "adam.adam_eps",
    "adam.weight_decay",
    "adam.clip_grad",
    "schedule.min_lr",
)
PREFIXES: Final = ("data.data_path", "data.train_data_path", "data.valid_data_path", "data.test_data_path")
MOST_WORKERS: Final = 256  # each holds batches ahead
MINUTES_PER_YEAR: Final = 525_600
FP32_SMALLEST_NORMAL: Final = 2.0**-126
FP32_LARGEST: Final = (2.0 - 2.0**-23) * 2.0**127
BELOW_ONE: Final = ("model.attention_dropout", "model.hidden_dropout", "adam.adam_beta1", "adam.adam_beta2")
REQUIRED: Final = (
    "model.num_layers",
    "model.hidden_size",
    "model.num_attention_heads",
    "model.seq_length",
    "model.max_position_embeddings",
    "adam.lr",
)


def validate(config: RunConfig, sources: Mapping[str, str]) -> None:
    """Raise one ConfigError with the message of every broken rule."""
    subject = Subject(config, sources, dict(walk_knobs()))
    raise_all(collect([partial(rule, subject) for rule in all_rules()]))


def warnings(config: RunConfig) -> Iterator[str]:
    """Legal settings that do less than they seem to."""
    if config.checkpoint.save_interval is not None and config.checkpoint.save is None:
        yield "--save-interval without --save: no checkpoint is written"
    if config.checkpoint.save is None and (config.train.exit_interval or config.train.exit_duration_in_mins):
        yield "--exit-interval or --exit-duration-in-mins without --save: the run exits without a checkpoint"
    yield from unused_by_tokenizer(config.tokenizer).values()
    yield from _shape_warnings(config.model)
    if config.parallel.sequence_parallel and config.parallel.tensor_model_parallel_size == 1:
        yield "--sequence-parallel has no effect with --tensor-model-parallel-size 1: there is nothing to divide"
    recompute = config.recompute
    if (recompute.distribute_saved_activations or recompute.checkpoint_in_cpu) and not recompute.full:
        yield (
            "--distribute-saved-activations and --checkpoint-in-cpu move what full recompute keeps, and none is on: they"
            " have no effect; add --recompute-granularity full"
        )


def _shape_warnings(model: ModelConfig) -> Iterator[str]:
    if model.num_query_groups != 1 and not model.group_query_attention:
        yield f"--num-query-groups {model.num_query_groups} has no effect without --group-query-attention"
    default = ModelConfig()
    for field, flag in (
        ("rotary_percent", "--rotary-percent"),
        ("rotary_position_embeddings_theta", "--rotary-position-embeddings-theta"),
    ):
        if model.positions != ROTARY and getattr(model, field) != getattr(default, field):
            yield f"{flag} {getattr(model, field)} has no effect without --use-rotary-position-embeddings"
    if not model.bias_gelu_fusion and not model.activation.startswith("gelu"):
        yield f"--no-bias-gelu-fusion has no effect: the activation is {model.activation}, not GELU"
    if not model.add_bias_linear and model.activation == "gelu_tanh" and not model.openai_gelu:
        yield (
            "--disable-bias-linear with GELU: it is the tanh form here, as with biases; Megatron takes the erf form where"
            " there are none: add --no-bias-gelu-fusion for that, or --openai-gelu to say that tanh is meant"
        )


def all_rules() -> list[Rule]:
    """Number ranges, required settings, then the named rules below."""
    rules: list[Rule] = [partial(required, path=path) for path in REQUIRED]
    rules += [partial(at_least, path=path, least=1) for path in AT_LEAST_ONE]
    rules += [partial(at_least, path=path, least=0) for path in AT_LEAST_ZERO]
    rules += [partial(above_zero, path=path) for path in ABOVE_ZERO]
    rules += [partial(zero_to_below_one, path=path) for path in BELOW_ONE]
    rules += [partial(fits_fp32, path=path) for path in IN_FP32]
    rules += [
        heads_divide_hidden,
        sequence_fits_positions,
        workers_are_few,
        recompute_flags_agree,
        recompute_units_are_layers,
        saved_activations_are_divided_once,
        a_batch_size_is_given,
        the_run_has_a_length,
        iterations_exclude_samples,
        rampup_reaches_the_final_batch,
        rampup_is_sample_based,
        groups_divide_heads,
        one_activation,
        swiglu_has_a_width,
        positions_agree,
        rotary_part_is_whole_pairs,
        tensor_parallel_divides_the_model,
        pipeline_is_one,
        offload_needs_a_stage,
        ratio_is_a_share,
        seed_fits_every_generator,
        timeout_fits_a_clock,
        deepspeed_and_its_json_come_together,
        min_lr_is_not_above_lr,
        warmup_is_below_decay,
        save_needs_an_interval,
        the_data_is_named_once,
        split_cuts_something,
        tokenizer_has_its_files,
        split_leaves_training_data,
        paths_are_not_empty,
        no_path_serves_twice,
        partial(can_be_a_folder, path="checkpoint.save"),
        partial(can_be_a_folder, path="logging.tensorboard_dir"),
        partial(can_be_a_folder, path="data.data_cache_path"),
        jsonl_can_be_a_file,
    ]
    return rules


def required(subject: Subject, *, path: str) -> None:
    if subject.get(path) is None:
        raise ConfigError(f"{subject.name(path)} is required ({subject.knobs[path].help})")


def at_least(subject: Subject, *, path: str, least: int) -> None:
    value = subject.get(path)
    if value is not None and value < least:
        raise subject.reject(path, f"must be at least {least}")


def above_zero(subject: Subject, *, path: str) -> None:
    value = subject.get(path)
    if value is not None and value <= 0:
        raise subject.reject(path, "must be above 0")


def zero_to_below_one(subject: Subject, *, path: str) -> None:
    if not 0 <= subject.get(path) < 1:
        raise subject.reject(path, "must be at least 0 and below 1")


def fits_fp32(subject: Subject, *, path: str) -> None:
    value = subject.get(path)
    if value is not None and value != 0 and not FP32_SMALLEST_NORMAL <= abs(value) <= FP32_LARGEST:
        raise subject.reject(
            path, f"must be 0 or, in size, between {FP32_SMALLEST_NORMAL:.3e} and {FP32_LARGEST:.3e}: the range of fp32"
        )


def heads_divide_hidden(subject: Subject) -> None:
    model = subject.config.model
    hidden, heads = model.hidden_size, model.num_attention_heads
    if model.kv_channels is None and hidden and heads and heads > 0 and hidden % heads:
        raise ConfigError(
            f"{subject.say('model.hidden_size')} is not a multiple of {subject.say('model.num_attention_heads')};"
            f" nearest valid --hidden-size: {max(hidden // heads, 1) * heads} or {(hidden // heads + 1) * heads};"
            " or give the width of a head with --kv-channels"
        )


def sequence_fits_positions(subject: Subject) -> None:
    length, rows = subject.config.model.seq_length, subject.config.model.max_position_embeddings
    if subject.config.model.positions == LEARNED and length is not None and rows is not None and length > rows:
        raise ConfigError(
            f"{subject.say('model.seq_length')} is above {subject.say('model.max_position_embeddings')}:"
            f" the position table needs a row for each position"
        )


def workers_are_few(subject: Subject) -> None:
    if subject.config.data.num_workers > MOST_WORKERS:
        raise subject.reject("data.num_workers", f"at most {MOST_WORKERS} threads; a few keep up with any step")


def recompute_flags_agree(subject: Subject) -> None:
    """Megatron lets --recompute-activations win over the others silently."""
    recompute = subject.config.recompute
    wanted: dict[str, list[str]] = {"full": [], "selective": []}
    if recompute.recompute_granularity is not None:
        wanted[recompute.recompute_granularity].append(subject.say("recompute.recompute_granularity"))
    if recompute.recompute_activations:
        wanted["selective"].append(subject.name("recompute.recompute_activations"))
    for path in ("checkpoint_activations", "deepspeed_activation_checkpointing"):
        if getattr(recompute, path):
            wanted["full"].append(subject.name(f"recompute.{path}"))
    if recompute.recompute_method is not None:
        wanted["full"].append(subject.say("recompute.recompute_method"))
    if wanted["full"] and wanted["selective"]:
        raise ConfigError(
            f"{' and '.join(wanted['full'])} recompute whole layers, {' and '.join(wanted['selective'])} the attention core"
            " only: give one kind; a whole layer contains its attention core"
        )


def saved_activations_are_divided_once(subject: Subject) -> None:
    config = subject.config
    if config.recompute.distribute_saved_activations and config.parallel.sequence_parallel:
        raise ConfigError(
            f"{subject.name('recompute.distribute_saved_activations')} beside --sequence-parallel: what is kept is divided"
            " over tensor parallel already; leave it out"
        )


def recompute_units_are_layers(subject: Subject) -> None:
    recompute, layers = subject.config.recompute, subject.config.model.num_layers
    if layers and recompute.recompute_num_layers > layers > 0:
        raise subject.reject("recompute.recompute_num_layers", f"is above {subject.say('model.num_layers')}")
    if recompute.recompute_num_layers != 1 and not recompute.full:
        raise subject.reject(
            "recompute.recompute_num_layers",
            "says how many layers full recompute takes together, but none is on: add --recompute-granularity full",
        )


def a_batch_size_is_given(subject: Subject) -> None:
    batch = subject.config.batch
    if batch.micro_batch_size is None and batch.global_batch_size is None:
        raise ConfigError("--micro-batch-size is required (or --global-batch-size, or the JSON's batch keys)")


def the_run_has_a_length(subject: Subject) -> None:
    train = subject.config.train
    if train.train_iters is None and train.train_samples is None and train.train_tokens is None:
        raise ConfigError("the run has no length: give --train-iters, --train-samples or --train-tokens")


def iterations_exclude_samples(subject: Subject) -> None:
    train = subject.config.train
    if train.train_iters is not None and train.train_samples is not None:
        raise ConfigError(
            f"{subject.say('train.train_iters')} and {subject.say('train.train_samples')} exclude each other: give one"
        )


def rampup_reaches_the_final_batch(subject: Subject) -> None:
    batch = subject.config.batch
    if not batch.rampup_batch_size:
        return
    if batch.global_batch_size is None:
        raise subject.reject("batch.rampup_batch_size", "needs --global-batch-size, the size to grow to")
    check_rampup(batch.rampup_batch_size, batch.global_batch_size)


def rampup_is_sample_based(subject: Subject) -> None:
    train = subject.config.train
    if subject.config.batch.rampup_batch_size and train.train_iters is not None:
        raise subject.reject(
            "batch.rampup_batch_size",
            f"needs a run counted in samples or tokens: use --train-samples or --train-tokens in place of"
            f" {subject.say('train.train_iters')}",
        )


def tensor_parallel_divides_the_model(subject: Subject) -> None:
    """What is cut by columns and rows must divide; the vocabulary is padded so that it does."""
    model, size = subject.config.model, subject.config.parallel.tensor_model_parallel_size
    if size <= 1 or not model.num_attention_heads or not model.hidden_size:
        return
    cut = {
        "query heads (--num-attention-heads)": model.num_attention_heads,
        "key and value heads (--num-key-value-heads)": model.num_groups,
        "the MLP's inner width (--ffn-hidden-size)": model.mlp_width,
    }
    for what, value in cut.items():
        if value % size:
            raise ConfigError(
                f"{subject.say('parallel.tensor_model_parallel_size')} does not divide {what}, {value};"
                f" nearest valid: {nearest_multiples(value, size)}"
            )


def groups_divide_heads(subject: Subject) -> None:
    model = subject.config.model
    heads = model.num_attention_heads
    if not heads or heads < 0:
        return
    if (
        model.num_key_value_heads is not None
        and model.group_query_attention
        and subject.sources.get("model.num_query_groups", "default") != "default"
        and model.num_key_value_heads != model.num_query_groups
    ):
        raise ConfigError(
            f"{subject.say('model.num_key_value_heads')} and {subject.say('model.num_query_groups')} with"
            " --group-query-attention say the same thing differently: give one"
        )
    groups = model.num_groups
    if groups >= 1 and heads % groups:
        fits = [str(number) for number in range(1, heads + 1) if heads % number == 0]
        raise ConfigError(
            f"{subject.say('model.num_attention_heads')} is not a multiple of the {groups} key and value heads"
            f" (--num-key-value-heads, or --num-query-groups); what fits: {', '.join(fits)}"
        )


def one_activation(subject: Subject) -> None:
    """Megatron takes the first of several silently, and not the same one in every version."""
    asked = [
        subject.name(f"model.{field}")
        for field in ("swiglu", "squared_relu", "openai_gelu")
        if getattr(subject.config.model, field)
    ]
    if len(asked) > 1:
        raise ConfigError(f"{' and '.join(asked)} are {len(asked)} activations of the MLP: give one")


def positions_agree(subject: Subject) -> None:
    """Megatron-DeepSpeed's flags and Megatron-core's name the same choice."""
    model = subject.config.model
    kind = model.position_embedding_type
    if kind is None:
        return
    if model.use_rotary_position_embeddings and kind != ROTARY:
        raise ConfigError(
            f"--use-rotary-position-embeddings and {subject.say('model.position_embedding_type')} disagree: give one"
        )
    if not model.add_position_embedding and kind == LEARNED:
        raise ConfigError(
            f"--no-position-embedding and {subject.say('model.position_embedding_type')} disagree: give one"
        )


def rotary_part_is_whole_pairs(subject: Subject) -> None:
    model = subject.config.model
    if model.positions != ROTARY or not model.hidden_size or not model.num_attention_heads:
        return
    if not 0.0 < model.rotary_percent <= 1.0:
        raise subject.reject("model.rotary_percent", "must be above 0 and at most 1")
    if model.rotary_dim < 2 or model.rotary_dim % 2:
        raise ConfigError(
            f"{subject.say('model.rotary_percent')} of a head of {model.head_dim} channels is {model.rotary_dim}, and they"
            " turn in pairs: it must be even and at least 2"
        )


def swiglu_has_a_width(subject: Subject) -> None:
    model = subject.config.model
    if model.swiglu and model.hidden_size and model.hidden_size > 0 and model.mlp_width == 0:
        raise ConfigError(
            f"--swiglu with {subject.say('model.hidden_size')} has no default inner width (8/3 of it, rounded down to a"
            " multiple of 64): give --ffn-hidden-size"
        )


def pipeline_is_one(subject: Subject) -> None:
    parallel = subject.config.parallel
    if parallel.pipeline_model_parallel_size <= 1:
        return
    if parallel.no_pipeline_parallel:
        raise subject.reject("parallel.pipeline_model_parallel_size", "contradicts --no-pipeline-parallel: use 1")
    raise subject.reject(
        "parallel.pipeline_model_parallel_size",
        "pipeline parallelism is not built yet: use 1 (PP_SIZE=1 in the scripts)",
    )


def offload_needs_a_stage(subject: Subject) -> None:
    zero = subject.config.zero
    if zero.stage == 0 and zero.offload_optimizer.device != "none":
        source = subject.sources.get("zero.offload_optimizer.device", "default")
        raise ConfigError(
            f"the optimizer is to be offloaded to {zero.offload_optimizer.device} ({source}) at ZeRO stage 0, which has"
            " no shard to offload: set zero_optimization.stage (or --zero-stage) to 1, 2 or 3"
        )


def ratio_is_a_share(subject: Subject) -> None:
    path = "zero.offload_optimizer.ratio"
    if not 0 <= subject.get(path) <= 1:
        raise subject.reject(path, "must be from 0 (all on the GPU) to 1 (all on the host)")


def seed_fits_every_generator(subject: Subject) -> None:
    if subject.config.train.seed >= 2**32:
        raise subject.reject("train.seed", "must be below 2**32, the range of the data order's generator")


def deepspeed_and_its_json_come_together(subject: Subject) -> None:
    zero = subject.config.zero
    if zero.deepspeed and zero.deepspeed_config is None:
        raise ConfigError("--deepspeed needs --deepspeed_config FILE, the JSON to read")
    if zero.deepspeed_config is not None and not zero.deepspeed:
        raise subject.reject("zero.deepspeed_config", "is only read with --deepspeed (as upstream): add --deepspeed")


def min_lr_is_not_above_lr(subject: Subject) -> None:
    peak, floor = subject.config.adam.lr, subject.config.schedule.min_lr
    if peak is not None and 0 <= peak < floor:
        raise ConfigError(f"{subject.say('schedule.min_lr')} is above {subject.say('adam.lr')}: the floor is no floor")


def warmup_is_below_decay(subject: Subject) -> None:
    warmup, decay = subject.config.schedule.lr_warmup_tokens, subject.config.schedule.lr_decay_tokens
    if warmup is not None and decay is not None and warmup >= decay:
        raise ConfigError(
            f"{subject.say('schedule.lr_warmup_tokens')} is not below {subject.say('schedule.lr_decay_tokens')}:"
            " the decay length includes the warm-up; shorten the warm-up or lengthen the decay"
        )


def save_needs_an_interval(subject: Subject) -> None:
    checkpoint = subject.config.checkpoint
    if checkpoint.save is not None and checkpoint.save_interval is None:
        raise subject.reject("checkpoint.save", "needs --save-interval N, the iterations between checkpoints")


def the_data_is_named_once(subject: Subject) -> None:
    check_data_paths(subject.config.data)


def split_cuts_something(subject: Subject) -> None:
    if subject.config.data.train_data_path and subject.sources.get("data.split", "default") != "default":
        raise subject.reject(
            "data.split", "has no effect beside --train-data-path, which is not cut: leave one of the two out"
        )


def tokenizer_has_its_files(subject: Subject) -> None:
    if missing := missing_for_tokenizer(subject.config.tokenizer):
        raise ConfigError(missing)


def split_leaves_training_data(subject: Subject) -> None:
    if split_shares(subject.config.data.split)[0] == 0:
        raise subject.reject("data.split", "leaves no documents to train on")


def _paths(config: RunConfig) -> list[tuple[str, str, bool]]:
    """(field path, path as given, whether this run writes it) of everything that names a file or folder."""
    named = [
        ("zero.deepspeed_config", config.zero.deepspeed_config, False),
        ("tokenizer.tokenizer_model", config.tokenizer.tokenizer_model, False),
        ("tokenizer.vocab_file", config.tokenizer.vocab_file, False),
        ("tokenizer.merge_file", config.tokenizer.merge_file, False),
        ("data.data_args_path", config.data.data_args_path, False),
        ("data.data_cache_path", config.data.data_cache_path, True),
        ("checkpoint.load", config.checkpoint.load, False),
        ("checkpoint.save", config.checkpoint.save, True),
        ("logging.tensorboard_dir", config.logging.tensorboard_dir, True),
        ("logging.log_jsonl", config.logging.log_jsonl, True),
    ]
    given = [(path, value, writes) for path, value, writes in named if value is not None]
    for path, words in (
        ("data.data_path", config.data.data_path),
        ("data.train_data_path", config.data.train_data_path),
        ("data.valid_data_path", config.data.valid_data_path),
        ("data.test_data_path", config.data.test_data_path),
    ):
        given += [(path, prefix, False) for prefix in named_prefixes(words)]
    return given


def timeout_fits_a_clock(subject: Subject) -> None:
    if subject.config.parallel.distributed_timeout_minutes > MINUTES_PER_YEAR:
        raise subject.reject("parallel.distributed_timeout_minutes", f"must be at most {MINUTES_PER_YEAR}, a year")


def paths_are_not_empty(subject: Subject) -> None:
    for path, value, _ in _paths(subject.config):
        if not value.strip():
            raise subject.reject(path, "must not be empty (an unset shell variable?): leave the flag out or name a path")


def no_path_serves_twice(subject: Subject) -> None:
    """What is written is neither read nor written under another flag. Folders of folders may be shared: --load, --save
    and --tensorboard-dir keep to names of their own."""
    places: dict[str, str] = {}
    for path, value, writes in sorted(_paths(subject.config), key=lambda item: item[2]):
        if path == "checkpoint.load":
            continue
        files = [f"{value}.bin", f"{value}.idx"] if path in PREFIXES else [value]
        for real in map(os.path.realpath, files):
            other = places.setdefault(real, path)
            if writes and other != path and {path, other} != {"checkpoint.save", "logging.tensorboard_dir"}:
                raise subject.reject(path, f"is what {subject.name(other)} names, too: name another")


def can_be_a_folder(subject: Subject, *, path: str) -> None:
    """The path is a folder, or can be made below one. Nothing is created."""
    value = subject.get(path)
    if value is None:
        return
    obstacle = _obstacle(Path(value))
    if obstacle is not None:
        raise subject.reject(path, f"cannot be written: {obstacle}")


def jsonl_can_be_a_file(subject: Subject) -> None:
    value = subject.config.logging.log_jsonl
    if value is None:
        return
    target = Path(value)
    if target.is_dir():
        raise subject.reject("logging.log_jsonl", "is a folder: name a file")
    obstacle = _obstacle(target if target.exists() and not target.is_file() else target.absolute().parent)
    if obstacle is not None:
        raise subject.reject("logging.log_jsonl", f"cannot be written: {obstacle}")


def _obstacle(folder: Path) -> str | None:
    """Why `folder` can neither be used nor made, or None. Looks at the nearest ancestor that exists."""
    for ancestor in (folder.absolute(), *folder.absolute().parents):
        try:
            if not os.path.lexists(ancestor):
                continue
            if not ancestor.is_dir():
                return f"{ancestor} is not a folder"
            if not os.access(ancestor, os.W_OK | os.X_OK):
                return f"{ancestor} is not writable"
            return None
        except OSError as error:
            return f"{ancestor}: {error.strerror}"
    return None
