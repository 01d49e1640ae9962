"""TensorBoardWriter: a step's scalars under Megatron-DeepSpeed's tags, and ours under offload/ and throughput/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from megatron_zero.config.fields import ConfigError

from .event_files import VS_SAMPLES, VS_TOKENS, ResumePoint, drop_later_events
from .metrics import StepRecord, perplexity


class TensorBoardWriter:
    """Event files of one run in log_dir; only the logging rank makes one. A context manager.

    queue_size: pending events before the writing thread is waited for.
    resume: where the run goes on from; scalars past it, of a run that was killed, are taken back (see event_files).
    say: is told of what was taken back.
    log_timers, log_batch_size, log_validation_ppl: the flags --log-*-to-tensorboard.
    Raises ConfigError if the folder cannot be made. A failed write in the background is raised by a later call.
    """

    def __init__(
        self,
        log_dir: str | Path,
        *,
        queue_size: int,
        resume: ResumePoint,
        log_timers: bool = False,
        log_batch_size: bool = False,
        log_validation_ppl: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        # Imported here: it takes a second, and one rank of many needs it.
        from torch.utils.tensorboard import SummaryWriter

        self.log_dir = Path(log_dir)
        self._log_timers = log_timers
        self._log_batch_size = log_batch_size
        self._log_validation_ppl = log_validation_ppl
        try:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            if resume.iteration > 0:
                drop_later_events(self.log_dir, resume, say)
            self._writer = SummaryWriter(str(self.log_dir), max_queue=queue_size)
        except (FileExistsError, NotADirectoryError, PermissionError) as error:
            raise ConfigError(
                f"--tensorboard-dir {self.log_dir} cannot be written ({error.strerror}: {error.filename}); "
                "name a folder that can be written"
            ) from error

    def __enter__(self) -> TensorBoardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def step(self, record: StepRecord) -> None:
        """All scalars of one step. iteration-time is in seconds and {timer}-time in ms, as upstream has them."""
        iteration, samples, tokens = record.iteration, record.consumed_samples, record.consumed_tokens
        self._scalar("steps-vs-samples/y=steps,x=samples", iteration, samples)
        self._scalar("steps-vs-samples/y=samples,x=steps", samples, iteration)
        self._scalar("steps-vs-tokens/y=steps,x=tokens", iteration, tokens)
        self._scalar("steps-vs-tokens/y=tokens,x=steps", tokens, iteration)
        self._three_axes("learning-rate/learning-rate", record.learning_rate, record)
        self._three_axes("lm-loss-training/lm loss", record.lm_loss, record)
        self._three_axes("loss-scale/loss-scale", record.loss_scale, record)
        if record.grad_norm is not None:
            self._three_axes("grad-norm/grad-norm", record.grad_norm, record)
        if self._log_batch_size:
            self._three_axes("batch-size/batch-size", record.global_batch_size, record)
        if self._log_timers:
            self._three_axes("iteration-time/iteration-time", record.elapsed_ms / 1000, record)
            for name, ms in record.timers_ms.items():
                self._scalar(f"{name}-time", ms, iteration)
        self._throughput(record)
        self._offload(record)

    def validation(self, record: StepRecord, lm_loss: float, *, split: str = "validation") -> None:
        """Loss (and perplexity) of one evaluation after the step of `record`. split: "validation" or "test"."""
        self._three_axes(f"lm-loss-validation/lm loss {split}", lm_loss, record)
        if self._log_validation_ppl:
            self._three_axes(f"lm-loss-validation/lm loss {split} ppl", perplexity(lm_loss), record)

    def text(self, tag: str, text: str) -> None:
        """Text shown beside the scalars (the run's settings). What UTF-8 cannot spell, a path of other bytes, is escaped."""
        self._writer.add_text(tag, text.encode(errors="backslashreplace").decode())

    def flush(self) -> None:
        """Everything so far is with the operating system when this returns. Raises what the writing thread met."""
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()

    def _throughput(self, record: StepRecord) -> None:
        seconds = record.elapsed_ms / 1000
        samples_per_second = record.global_batch_size / seconds
        values = {
            "iteration-time": seconds,
            "elapsed_ms_per_iteration": record.elapsed_ms,
            "samples_per_sec": samples_per_second,
            "tokens_per_sec": samples_per_second * record.seq_length,
            "tokens_per_gpu_per_sec": record.tokens_per_second_per_gpu,
            "tflops": record.tflops_per_gpu,
            "mfu": record.mfu,
        }
        for name, value in values.items():
            if value is not None:
                self._scalar(f"throughput/{name}", value, record.iteration)

    def _offload(self, record: StepRecord) -> None:
        values = {
            "ratio_requested": record.ratio_asked,
            "ratio_achieved": record.ratio_realised,
            "gpu_bytes": record.tier_bytes["device"],
            "cpu_bytes": record.tier_bytes["host"],
            "nvme_bytes": record.tier_bytes["nvme"],
            "pinned_bytes": record.pinned_bytes,
            "rss_bytes": record.host_rss_bytes,
            "pss_bytes": record.host_pss_bytes,
        }
        for name, value in values.items():
            if value is not None:
                self._scalar(f"offload/{name}", value, record.iteration)

    def _three_axes(self, tag: str, value: float, record: StepRecord) -> None:
        self._scalar(tag, value, record.iteration)
        self._scalar(tag + VS_SAMPLES, value, record.consumed_samples)
        self._scalar(tag + VS_TOKENS, value, record.consumed_tokens)

    def _scalar(self, tag: str, value: float, step: int) -> None:
        self._writer.add_scalar(tag, value, step)
