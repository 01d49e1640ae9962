"""Whether the test-only package megatron-core is there, and one of its scripts in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def run_megatron_core(script: str, *arguments: str, folder: Path) -> None:
    """Run a script of this folder in `folder`; skips where the package is not installed. Its imports take seconds."""
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.core") is None:
        pytest.skip("the package megatron-core, a peer, is not installed (the extra `test` brings it)")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / script), *arguments],
        cwd=folder,
        timeout=110,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
