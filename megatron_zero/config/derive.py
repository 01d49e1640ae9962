"""Numbers that follow from the configuration and the world: sizes, the batch schedule, the length of the run.

Pure and frozen: computed once, kept apart from RunConfig, which holds only the user's words.
Units: a *sample* is one sequence of seq_length tokens; *consumed* counts samples since the start of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from .fields import ConfigError
from .training import BatchConfig, TrainConfig
from .tree import RunConfig

MOST_FACTORISATIONS: Final = 12  # that an error lists


def data_parallel_size(*, world_size: int, tp: int, pp: int) -> int:
    """world / (tp * pp). ConfigError with the factorisations that fit when it is not whole.

    Asked before process groups are made, by every rank alike: all raise, and nobody is left waiting.
    """
    if tp < 1 or pp < 1:
        raise ConfigError(
            f"--tensor-model-parallel-size {tp} and --pipeline-model-parallel-size {pp} must both be at least 1"
        )
    if world_size % (tp * pp) == 0:
        return world_size // (tp * pp)
    below = world_size // (tp * pp) * (tp * pp)
    worlds = f"{below} or {below + tp * pp}" if below else f"{tp * pp}"
    raise ConfigError(
        f"--tensor-model-parallel-size {tp} x --pipeline-model-parallel-size {pp} = {tp * pp} does not divide the world"
        f" size {world_size} (the number of processes); start {worlds} processes, or use sizes that fit {world_size}"
        f" (tensor x pipeline x data): {_factorisations(world_size, tp=tp, pp=pp)}"
    )


def _factorisations(world_size: int, *, tp: int, pp: int) -> str:
    """tensor x pipeline x data = world as text: all, or where that is long those that keep one of the two sizes."""
    every = [(t, p) for t in _divisors(world_size) for p in _divisors(world_size // t)]
    shown = every
    if len(every) > MOST_FACTORISATIONS:
        kept = [pair for pair in every if pair[0] == tp or pair[1] == pp]
        shown = (kept or [(t, 1) for t in _divisors(world_size)])[:MOST_FACTORISATIONS]
    text = ", ".join(f"{t} x {p} x {world_size // (t * p)}" for t, p in shown)
    return text if len(shown) == len(every) else f"{text}, and {len(every) - len(shown)} more"


def padded_vocab_size(vocab_size: int, *, divisible_by: int, tp: int) -> int:
    """vocab_size rounded up to a multiple of divisible_by * tp (--make-vocab-size-divisible-by)."""
    multiple = divisible_by * tp
    return -(-vocab_size // multiple) * multiple


@dataclass(frozen=True, slots=True)
class BatchSizes:
    """train = micro * accumulation * dp, all whole and at least 1."""

    micro: int
    train: int
    accumulation: int

    @staticmethod
    def solve(*, train: int | None, micro: int | None, accumulation: int | None, dp: int) -> BatchSizes:
        """Fill in what was not given (json.md section 1); ConfigError shows the equation with its numbers.

        Two given: the third follows. Only train: accumulation 1. Only micro: accumulation 1, train micro * dp.
        """
        if micro is None and train is None:
            raise ConfigError("no batch size is given: set --micro-batch-size (and --global-batch-size)")
        if train is None:
            assert micro is not None
            accumulation = accumulation or 1
            return BatchSizes(micro, micro * accumulation * dp, accumulation)
        if micro is None:
            accumulation = accumulation or 1
            _check_multiple(train, accumulation * dp, f"accumulation {accumulation} x data-parallel size {dp}")
            return BatchSizes(train // (accumulation * dp), train, accumulation)
        _check_multiple(train, micro * dp, f"micro batch {micro} x data-parallel size {dp}")
        if accumulation is not None and train != micro * accumulation * dp:
            raise ConfigError(
                f"global batch {train} is not micro batch {micro} x accumulation {accumulation} x data-parallel size"
                f" {dp} = {micro * accumulation * dp}; with this micro batch valid are"
                f" {nearest_multiples(train, micro * dp)}, with accumulation = global batch / {micro * dp}"
            )
        return BatchSizes(micro, train, train // (micro * dp))


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """The global batch as a function of consumed samples: from `start` in steps of `increment` to `final`.

    Each of the (final - start) / increment sizes lasts ramp_samples / count samples. The boundaries are exact fractions
    (integers here), so no rounding of a float can move one.
    granule: micro batch x data-parallel size, which divides every size of the ramp.
    """

    start: int
    increment: int
    ramp_samples: int
    final: int
    granule: int

    @staticmethod
    def of(rampup: tuple[int, ...], *, final: int, granule: int) -> BatchSchedule:
        """The schedule of --rampup-batch-size (none: constant). ConfigError names every size that does not divide."""
        if not rampup:
            return BatchSchedule(final, 0, 0, final, granule)
        check_rampup(rampup, final)
        start, increment, samples = rampup
        sizes = range(start, final + 1, increment)
        wrong = [str(size) for size in sizes if size % granule]
        if wrong:
            raise ConfigError(
                f"--rampup-batch-size {start} {increment} {samples}: the global batch sizes {', '.join(wrong[:8])}"
                f"{', ...' if len(wrong) > 8 else ''} are not multiples of micro batch x data-parallel size ="
                f" {granule}; start and increment must be"
            )
        return BatchSchedule(start, increment, samples, final, granule)

    @property
    def num_increments(self) -> int:
        return (self.final - self.start) // self.increment if self.increment else 0

    def global_batch_size(self, consumed_samples: int) -> int:
        """Samples of the step that begins when this many are consumed. At ramp_samples the last size is reached."""
        if self.num_increments == 0 or consumed_samples > self.ramp_samples:
            return self.final
        return self.start + consumed_samples * self.num_increments // self.ramp_samples * self.increment

    def num_microbatches(self, consumed_samples: int) -> int:
        """Micro-batches per data-parallel rank in that step."""
        return self.global_batch_size(consumed_samples) // self.granule

    def samples_after(self, iterations: int) -> int:
        """Samples consumed by this many steps."""
        consumed = 0
        for size, steps in self._phases():
            taken = iterations if steps is None else min(iterations, steps)
            consumed += taken * size
            iterations -= taken
            if iterations == 0:
                break
        return consumed

    def iterations_within(self, samples: int) -> int:
        """The most steps that consume no more than `samples`."""
        iterations = consumed = 0
        for size, steps in self._phases():
            room = (samples - consumed) // size
            taken = room if steps is None else min(room, steps)
            iterations += taken
            consumed += taken * size
            if taken != steps:
                break
        return iterations

    def iterations_to_reach(self, samples: int) -> int:
        """The fewest steps that consume at least `samples`."""
        iterations = self.iterations_within(samples)
        return iterations if self.samples_after(iterations) >= samples else iterations + 1

    def _phases(self) -> Iterator[tuple[int, int | None]]:
        """(global batch, steps of that size) in order; the last one lasts for ever (None)."""
        consumed = 0
        while self.global_batch_size(consumed) != self.final:
            size = self.global_batch_size(consumed)
            reached = (size - self.start) // self.increment
            boundary = -(-(reached + 1) * self.ramp_samples // self.num_increments)
            steps = -(-(boundary - consumed) // size)
            yield size, steps
            consumed += steps * size
        yield self.final, None


def check_rampup(rampup: tuple[int, ...], final: int) -> None:
    """ConfigError unless START INCREMENT SAMPLES leads from START to the final batch in whole increments."""
    shown = "--rampup-batch-size " + " ".join(str(word) for word in rampup)
    if len(rampup) != 3:
        raise ConfigError(f"{shown}: takes three numbers: START INCREMENT SAMPLES")
    start, increment, samples = rampup
    if start < 1 or increment < 1 or samples < 1:
        raise ConfigError(f"{shown}: the three numbers must be at least 1")
    if start > final or (final - start) % increment:
        raise ConfigError(
            f"{shown}: {start} plus steps of {increment} does not reach the global batch {final}:"
            f" {final} - {start} = {final - start} must be a multiple of {increment}, not negative"
        )


@dataclass(frozen=True, slots=True)
class RunLength:
    """How long the run and its learning-rate schedule are.

    train_iterations: optimizer steps of the whole run.  samples: consumed by them.  tokens: samples * seq_length.
    num_samples: how many to ask of the (train, valid, test) data sets.
    lr_warmup_tokens, lr_decay_tokens: the schedule's lengths; an unset decay is the whole run.
    """

    train_iterations: int
    samples: int
    tokens: int
    num_samples: tuple[int, int, int]
    lr_warmup_tokens: int
    lr_decay_tokens: int

    @staticmethod
    def of(config: RunConfig, *, schedule: BatchSchedule) -> RunLength:
        """The first of --train-iters, --train-samples and --train-tokens ends the run.

        Tokens end it at the first step that reaches them; iterations or samples size the data sets, so the data order
        does not depend on where tokens end the run. ConfigError when not even one step fits, or when the warm-up is
        not below the decay length.
        """
        train, seq_length = config.train, config.model.seq_length
        assert seq_length is not None, "validate() requires --seq-length"
        sized_iterations = _sized_iterations(train, schedule, seq_length)
        iterations = sized_iterations
        if train.train_tokens is not None:
            iterations = min(iterations, schedule.iterations_to_reach(-(-train.train_tokens // seq_length)))
        if iterations < 1:
            raise ConfigError(
                f"--train-samples {train.train_samples} is less than the first global batch"
                f" {schedule.global_batch_size(0)}: not one step fits"
            )
        train_samples = train.train_samples or schedule.samples_after(sized_iterations)
        evaluations = sized_iterations // config.evaluation.eval_interval + 1
        per_evaluation = config.evaluation.eval_iters * schedule.final
        samples = schedule.samples_after(iterations)
        warmup = config.schedule.lr_warmup_tokens or 0
        decay = config.schedule.lr_decay_tokens or samples * seq_length
        if warmup >= decay:
            raise ConfigError(
                f"--lr-warmup-tokens {warmup} is not below the decay length {decay}"
                " (--lr-decay-tokens; unset: the whole run): shorten the warm-up"
            )
        num_samples = (train_samples, evaluations * per_evaluation, per_evaluation)
        return RunLength(iterations, samples, samples * seq_length, num_samples, warmup, decay)


def _sized_iterations(train: TrainConfig, schedule: BatchSchedule, seq_length: int) -> int:
    """Steps by the limit that sizes the data: iterations, else samples, else tokens."""
    if train.train_iters is not None:
        return train.train_iters
    if train.train_samples is not None:
        return schedule.iterations_within(train.train_samples)
    if train.train_tokens is not None:
        return schedule.iterations_to_reach(-(-train.train_tokens // seq_length))
    raise ConfigError("the run has no length: give --train-iters, --train-samples or --train-tokens")


@dataclass(frozen=True, slots=True)
class DerivedSizes:
    """Everything that follows from RunConfig, the world size and the vocabulary, with warnings to print once.

    global_batch_size and num_microbatches are those of the end of the ramp; during it ask batch_schedule.
    """

    world_size: int
    tp: int
    pp: int
    dp: int
    micro_batch_size: int
    global_batch_size: int
    num_microbatches: int
    vocab_size: int
    padded_vocab_size: int
    batch_schedule: BatchSchedule
    run: RunLength
    warnings: tuple[str, ...]

    @staticmethod
    def of(config: RunConfig, *, world_size: int, vocab_size: int) -> DerivedSizes:
        """Raises ConfigError when the configuration does not fit this world."""
        tp, pp = config.parallel.tensor_model_parallel_size, config.parallel.pipeline_model_parallel_size
        dp = data_parallel_size(world_size=world_size, tp=tp, pp=pp)
        sizes, schedule = plan_batches(config.batch, dp=dp)
        _check_tokens_divide(config, micro_batch=sizes.micro, tp=tp)
        run = RunLength.of(config, schedule=schedule)
        return DerivedSizes(
            world_size=world_size,
            tp=tp,
            pp=pp,
            dp=dp,
            micro_batch_size=sizes.micro,
            global_batch_size=sizes.train,
            num_microbatches=sizes.accumulation,
            vocab_size=vocab_size,
            padded_vocab_size=padded_vocab_size(
                vocab_size, divisible_by=config.model.make_vocab_size_divisible_by, tp=tp
            ),
            batch_schedule=schedule,
            run=run,
            warnings=tuple(_length_warnings(config, run)),
        )


def _check_tokens_divide(config: RunConfig, *, micro_batch: int, tp: int) -> None:
    """What is divided over tensor parallel by tokens must have as many on every rank."""
    recompute = config.recompute
    flags = [
        flag
        for flag, is_on in (
            ("--sequence-parallel", config.parallel.sequence_parallel),
            ("--distribute-saved-activations", recompute.distribute_saved_activations and recompute.full),
        )
        if is_on
    ]
    assert config.model.seq_length is not None, "validate() requires --seq-length"
    if flags and micro_batch * config.model.seq_length % tp:
        raise ConfigError(
            f"{' and '.join(flags)}: micro batch {micro_batch} x --seq-length {config.model.seq_length} ="
            f" {micro_batch * config.model.seq_length} tokens do not divide by --tensor-model-parallel-size {tp};"
            f" nearest valid --seq-length for any micro batch: {nearest_multiples(config.model.seq_length, tp)}"
        )


def _length_warnings(config: RunConfig, run: RunLength) -> Iterator[str]:
    """What a user would not expect of this run's length."""
    samples = config.train.train_samples
    if samples is not None and config.train.train_tokens is None and run.samples < samples:
        yield (
            f"the last {samples - run.samples} of --train-samples {samples} fill no global batch and are not trained on"
        )
    wanted, warmup, lr = config.train.train_tokens, run.lr_warmup_tokens, config.adam.lr
    if wanted is not None and run.tokens < wanted:
        yield (
            f"the run ends after {run.tokens} tokens, before --train-tokens {wanted}:"
            " --train-samples or --train-iters ends it first"
        )
    if warmup > run.tokens and lr is not None:
        yield (
            f"the run ends after {run.tokens} tokens, inside the warm-up of --lr-warmup-tokens {warmup}:"
            f" the learning rate reaches {lr * run.tokens / warmup:.3E} of --lr {lr:.3E}"
        )


def plan_batches(batch: BatchConfig, *, dp: int) -> tuple[BatchSizes, BatchSchedule]:
    """The three batch numbers and the schedule over consumed samples, for this data-parallel size."""
    sizes = BatchSizes.solve(
        train=batch.global_batch_size,
        micro=batch.micro_batch_size,
        accumulation=batch.gradient_accumulation_steps,
        dp=dp,
    )
    return sizes, BatchSchedule.of(batch.rampup_batch_size, final=sizes.train, granule=sizes.micro * dp)


def _check_multiple(train: int, unit: int, equation: str) -> None:
    if train % unit or train < unit:
        raise ConfigError(
            f"global batch {train} is not a multiple of {equation} = {unit}"
            f" (--global-batch-size / train_batch_size); nearest valid: {nearest_multiples(train, unit)}"
        )


def nearest_multiples(value: int, unit: int) -> str:
    """The multiples of unit around value, as text; the lower one only where it is at least one unit."""
    lower = value // unit * unit
    return f"{lower} or {lower + unit}" if lower else f"{lower + unit}"


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]
