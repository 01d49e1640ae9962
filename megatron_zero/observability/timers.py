"""Named spans of time: host clock on the CPU, device events on CUDA, and the same names in the profiler.

A span does not synchronise: it records events on the current stream, and elapsed_ms waits once for all of them. Totals
are in milliseconds per name; nested and repeated spans of one name add up.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

MAX_PENDING: Final = 256  # event pairs kept before finished ones are folded into their totals


class Timers:
    """The timers of one rank. level: spans of a higher level are labels for the profiler only (--timing-log-level)."""

    def __init__(self, device: torch.device, level: int) -> None:
        self.level = level
        self._on_cuda = device.type == "cuda"
        self._total_ms: dict[str, float] = {}
        self._pending: deque[tuple[str, torch.cuda.Event, torch.cuda.Event]] = deque()
        self._free: list[torch.cuda.Event] = []

    @contextmanager
    def span(self, name: str, level: int = 1) -> Iterator[None]:
        """Time the block under name (if level <= self.level) and label it for record_function and NVTX.

        On CUDA the time is that of the stream that is current at entry and at exit. A block that raises is counted too.
        """
        with torch.profiler.record_function(name):
            if self._on_cuda:
                torch.cuda.nvtx.range_push(name)
            try:
                if level > self.level:
                    yield
                elif self._on_cuda:
                    with self._device_span(name):
                        yield
                else:
                    with self._host_span(name):
                        yield
            finally:
                if self._on_cuda:
                    torch.cuda.nvtx.range_pop()

    def elapsed_ms(self, *, reset: bool = True) -> dict[str, float]:
        """Name -> total ms since the last reset, in the order in which names first appeared. Waits for pending events.

        With reset the totals begin anew. Spans that are open now are counted later, when they close.
        """
        while self._pending:
            self._pending[0][2].synchronize()
            self._fold_first()
        totals = dict(self._total_ms)
        if reset:
            self._total_ms.clear()
        return totals

    @contextmanager
    def _host_span(self, name: str) -> Iterator[None]:
        self._total_ms.setdefault(name, 0.0)
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            self._add(name, (time.perf_counter_ns() - start) / 1e6)

    @contextmanager
    def _device_span(self, name: str) -> Iterator[None]:
        self._total_ms.setdefault(name, 0.0)
        start = self._event()
        start.record()
        try:
            yield
        finally:
            stop = self._event()
            stop.record()
            self._pending.append((name, start, stop))
            while len(self._pending) > MAX_PENDING and self._pending[0][2].query():
                self._fold_first()

    def _event(self) -> torch.cuda.Event:
        if self._free:
            return self._free.pop()
        return torch.cuda.Event(enable_timing=True)

    def _fold_first(self) -> None:
        """Add the oldest pair, which must be finished, to its total; its events are used again."""
        name, start, stop = self._pending.popleft()
        self._add(name, start.elapsed_time(stop))
        self._free += [start, stop]

    def _add(self, name: str, ms: float) -> None:
        self._total_ms[name] = self._total_ms.get(name, 0.0) + ms
