"""What is odd about the data of a run, and still may be meant: a line each, from what is cheap to know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ..config.data import DataConfig
from .gpt_dataset import TokenSource

SEQUENCES_LOOKED_AT: Final = 100


def document_flags(config: DataConfig) -> tuple[str, ...]:
    """The flags given that do something only where end-of-document ids are."""
    flags = {
        "--reset-position-ids": config.reset_position_ids,
        "--reset-attention-mask": config.reset_attention_mask,
        "--eod-mask-loss": config.eod_mask_loss,
    }
    return tuple(flag for flag, is_given in flags.items() if is_given)


def lack_of_ends(source: TokenSource, *, eod: int, flags: Sequence[str]) -> str | None:
    """A line where flags that need ends of documents meet data whose first sequences neither begin nor end with one."""
    looked_at = range(min(SEQUENCES_LOOKED_AT, len(source)))
    if not flags or len(looked_at) == 0 or any(_holds_end(source, sequence, eod) for sequence in looked_at):
        return None
    return (
        f"{', '.join(flags)}: none of the first {len(looked_at)} documents in {source.prefix} begins or ends with the "
        f"tokenizer's end-of-document id {eod}: made without --append-eod, or with another tokenizer? Without such ids "
        "nothing is reset or masked"
    )


def repeated_data(sources: Sequence[TokenSource], fingerprints: Sequence[str], *, flag: str) -> Iterator[str]:
    """A line for each source of a blend that is the same as an earlier one: equal lengths, first and last sequence."""
    seen: dict[tuple[object, ...], str] = {}
    for source, fingerprint in zip(sources, fingerprints, strict=True):
        if len(source) == 0:
            continue
        key = fingerprint, source.get(0).tobytes(), source.get(len(source) - 1).tobytes()
        if key in seen:
            both = f"{seen[key]} twice" if seen[key] == source.prefix else f"{seen[key]} and {source.prefix}, equal data"
            yield f"{flag} names {both}: each of its documents is in the blend more than once"
        seen.setdefault(key, source.prefix)


def _holds_end(source: TokenSource, sequence: int, eod: int) -> bool:
    size = int(source.sizes[sequence])
    return size > 0 and eod in (int(source.get(sequence, 0, 1)[0]), int(source.get(sequence, size - 1, 1)[0]))
