"""`mz SUBCOMMAND ...`: finds the subcommand and hands it its words unread."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

USAGE: Final = """\
usage: mz SUBCOMMAND ...

  launch         start a training script: mz launch [launcher flags] pretrain_gpt.py [flags]
  check-config   read a JSON with its flags, or a template with its script, before any GPU is touched

Not built yet: report, bench-io, plan, convert, generate, inspect, dashboard."""
NOT_BUILT: Final = ("report", "bench-io", "plan", "convert", "generate", "inspect", "dashboard")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code; 2 for a subcommand that does not exist."""
    words = list(sys.argv[1:] if argv is None else argv)
    name, rest = (words[0], words[1:]) if words else ("", [])
    # Imported here: each subcommand pays for its own imports only, and check-config stays free of torch.
    if name == "launch":
        from megatron_zero.launcher.main import main as launch

        return launch(rest)
    if name == "check-config":
        from .check_config import main as check_config

        return check_config(rest)
    if name in ("-h", "--help"):
        print(USAGE)
        return 0
    if name in NOT_BUILT:
        print(f"mz {name}: not built yet", file=sys.stderr)
    else:
        print(f"mz: unknown subcommand {name!r}\n{USAGE}" if name else USAGE, file=sys.stderr)
    return 2
