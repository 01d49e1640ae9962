"""Named spans on the host clock."""

from __future__ import annotations

import time

import pytest
import torch

from megatron_zero.observability.timers import Timers

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list holding the time in ns, read by the timers."""
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    return now


def test_spans_of_one_name_add_up_in_order_of_appearance(clock: list[int]) -> None:
    timers = Timers(CPU, level=1)
    for ms in (2, 3):
        with timers.span("forward"):
            clock[0] += ms * 1_000_000
        with timers.span("backward"):
            clock[0] += 10 * ms * 1_000_000
    totals = timers.elapsed_ms()
    assert totals == {"forward": 5.0, "backward": 50.0}
    assert list(totals) == ["forward", "backward"]


def test_nested_spans_each_count_their_own_time(clock: list[int]) -> None:
    timers = Timers(CPU, level=2)
    with timers.span("outer"):
        clock[0] += 1_000_000
        with timers.span("inner", level=2):
            clock[0] += 4_000_000
    assert timers.elapsed_ms() == {"outer": 5.0, "inner": 4.0}


def test_reset_begins_anew_and_peeking_does_not(clock: list[int]) -> None:
    timers = Timers(CPU, level=1)
    with timers.span("step"):
        clock[0] += 1_000_000
    assert timers.elapsed_ms(reset=False) == {"step": 1.0}
    assert timers.elapsed_ms() == {"step": 1.0}
    assert timers.elapsed_ms() == {}


def test_span_above_the_level_is_not_timed(clock: list[int]) -> None:
    timers = Timers(CPU, level=1)
    with timers.span("micro", level=2):
        clock[0] += 1_000_000
    assert timers.elapsed_ms() == {}


def test_span_that_raises_is_counted_and_closed(clock: list[int]) -> None:
    timers = Timers(CPU, level=1)
    with pytest.raises(KeyError), timers.span("step"):
        clock[0] += 1_000_000
        raise KeyError
    assert timers.elapsed_ms() == {"step": 1.0}


def test_open_span_is_counted_when_it_closes(clock: list[int]) -> None:
    timers = Timers(CPU, level=1)
    with timers.span("step"):
        clock[0] += 1_000_000
        assert timers.elapsed_ms() == {"step": 0.0}
    assert timers.elapsed_ms() == {"step": 1.0}


@pytest.mark.parametrize("level", [0, 1])
def test_profiler_sees_the_span_name_whatever_the_level(level: int) -> None:
    timers = Timers(CPU, level=level)
    # acc_events: without it torch 2.11 warns at every start that it keeps one cycle only.
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True)
    with profiler as profile, timers.span("my span"):
        torch.zeros(1)
    assert "my span" in {event.name for event in profile.events()}
