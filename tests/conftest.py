"""Fixtures of all tests, and the end-of-session lines on what was not run."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

NO_SHARED = "MZ_SHARED is unset: set it to the folder that holds data/goldens to run this test"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of reference data (MZ_SHARED). Skips when the variable is unset; fails when it names no folder."""
    value = os.environ.get("MZ_SHARED")
    if not value:
        pytest.skip(NO_SHARED)
    folder = Path(value)
    if not (folder / "data").is_dir():
        pytest.fail(f"MZ_SHARED={value} has no folder 'data' in it")
    return folder


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says how many tests had no reference data, and which parts of tests/run.sh failed earlier (MZ_FAILED_PARTS)."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NO_SHARED in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} tests were skipped because MZ_SHARED is unset")
    failed_parts = os.environ.get("MZ_FAILED_PARTS", "")
    if failed_parts:
        terminalreporter.write_line(f"FAILED before pytest: {failed_parts}; see its output above", red=True)


def pytest_configure() -> None:
    """Tests that send signals work in a job that was started to ignore them (nohup, a shell's background job), too:
    programs started from here inherit what is ignored, and a shell cannot trap it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
