"""The lines people's parsers read, in Megatron-DeepSpeed's shape: text in, nothing printed.

Fields keep their names, order and number formats; a field that is not known is left out; new ones stand at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .metrics import IterationSummary, perplexity


def format_iteration_line(summary: IterationSummary) -> str:
    """` iteration        5/     100 | consumed samples: ... | ... | lm loss: 3.696275E+00 | ... |`

    A loss that is zero, negative or NaN stays in the line (Megatron-DeepSpeed drops it).
    """
    last = summary.last
    fields: tuple[str | None, ...] = (
        f" iteration {last.iteration:8d}/{last.total_iterations:8d}",
        f"consumed samples: {last.consumed_samples:12d}",
        f"consumed tokens: {last.consumed_tokens:12d}",
        f"elapsed time per iteration (ms): {summary.elapsed_ms:.1f}",
        f"learning rate: {last.learning_rate:.3E}",
        f"global batch size: {last.global_batch_size:5d}",
        f"lm loss: {summary.lm_loss:.6E}",
        f"loss scale: {last.loss_scale:.1f}",
        None if last.grad_norm is None else f"grad norm: {last.grad_norm:.3f}",
        f"actual seqlen: {last.seq_length:5d}",
        f"number of skipped iterations: {summary.num_skipped:3d}",
        f"number of nan iterations: {summary.num_nan:3d}",
        f"samples per second: {summary.samples_per_second:.3f}",
        f"tokens per gpu per second (tgs): {summary.tokens_per_second_per_gpu:.3f}",
        f"TFLOPs: {_tflops(summary.tflops_per_gpu)}",
        None if summary.mfu is None else f"MFU: {100 * summary.mfu:.2f}%",
    )
    return " | ".join(field for field in fields if field is not None) + " |"


def _tflops(value: float) -> str:
    """Two decimals as upstream; below 1 three significant digits, so that a tiny model does not read 0.00."""
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def format_validation(where: str, lm_loss: float) -> str:
    """The box of three lines. where: "iteration 100", "the end of training for test data"."""
    line = f" validation loss at {where} | lm loss value: {lm_loss:.6E} | lm loss PPL: {perplexity(lm_loss):.6E} | "
    dashes = "-" * (len(line) + 1)
    return f"{dashes}\n{line}\n{dashes}"


def format_engine_line(
    *, step: int, skipped: int, learning_rates: Sequence[float], betas: Sequence[tuple[float, float]]
) -> str:
    """`step=5, skipped=0, lr=[...], mom=[(0.9, 0.999), ...]`: one entry a parameter group, skipped in all."""
    return f"step={step}, skipped={skipped}, lr={list(learning_rates)}, mom={list(betas)}"


def format_timers(timers_ms: Mapping[str, float], *, rank: int | None = None) -> str:
    """`time (ms) | forward: 31.64 | backward: 55.22`; with rank the engine's form, which begins `rank=0 time (ms)`."""
    head = "time (ms)" if rank is None else f"rank={rank} time (ms)"
    return " | ".join([head, *(f"{name}: {ms:.2f}" for name, ms in timers_ms.items())])


def format_timer_spans(ranks: Sequence[Mapping[str, float]]) -> str:
    """Megatron's block with (min, max) over ranks for every timer; a rank that lacks a timer does not count for it."""
    names = dict.fromkeys(name for timers_ms in ranks for name in timers_ms)
    lines = ["(min, max) time across ranks (ms):"]
    for name in names:
        values = [timers_ms[name] for timers_ms in ranks if name in timers_ms]
        lines.append(f"    {(name + ' ').ljust(48, '.')}: ({min(values):.2f}, {max(values):.2f})")
    return "\n".join(lines)
