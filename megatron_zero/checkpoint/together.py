"""A block that may fail on some ranks only: it ends the same way on all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from megatron_zero.distributed.collectives import raise_together
from megatron_zero.distributed.context import ParallelAxis


@contextmanager
def together(axis: ParallelAxis, what: str) -> Iterator[None]:
    """Run the block, then wait for all ranks; raises on every rank if it raised on any (see raise_together).

    No collective may be called inside: a rank that has failed would not join it. Interrupts and exits pass through.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:  # any kind: a rank that left alone would leave the others waiting until the time-out
        error = caught
    raise_together(error, axis=axis, what=what)
