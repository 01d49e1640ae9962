"""`mz launch`: parse, look at the machine, plan, run torchrun."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from megatron_zero.config.fields import ConfigError

from .flags import help_text
from .machine import check_meeting_place, installed_gpus, usable_cores, visible_slots
from .options import LaunchOptions, read_options, split_command_line
from .plan import LaunchPlan, plan_launch
from .supervise import Supervisor

USER_ERROR = 2
DEFAULT_HOSTFILE = Path("/job/hostfile")


def main(argv: Sequence[str]) -> int:
    """Run `mz launch ARGV...`; the exit code: torchrun's, 2 for a fault of the command line, 128 + n for signal n."""
    try:
        line = split_command_line(argv)
        if "--help" in line.given:
            print(help_text())
            return 0
        options = read_options(line)
        check_script(options)
        plan = _plan(options, os.environ)
    except ConfigError as fault:
        for message in str(fault).splitlines():
            print(f"mz launch: {message}", file=sys.stderr)
        return USER_ERROR
    if options.dry_run:
        print(plan.shell_line())
        return 0
    if not options.quiet:
        for note in plan.notes:
            print(f"mz launch: {note}", file=sys.stderr, flush=True)
    return Supervisor().run(plan.command, {**os.environ, **plan.environment})


def check_script(options: LaunchOptions) -> None:
    """ConfigError unless the script (or, with --no_python, the program) is there. A module is python's to find."""
    if options.as_module:
        return
    if options.no_python:
        if shutil.which(options.script) is None:
            raise ConfigError(f"program {options.script!r} is not on PATH, or is not executable")
        return
    path = Path(options.script)
    if not path.exists():
        raise ConfigError(f"script {options.script!r} does not exist (looked in {Path.cwd()})")
    if path.is_dir():
        raise ConfigError(f"script {options.script!r} is a folder; name the file to run")


def _plan(options: LaunchOptions, environ: Mapping[str, str]) -> LaunchPlan:
    visible = visible_slots(environ, installed=installed_gpus())
    check_meeting_place(options.master_addr, options.master_port)
    plan = plan_launch(
        options,
        visible=visible,
        cores=usable_cores(),
        port=options.master_port,
        environ=environ,
        python=sys.executable,
    )
    if not DEFAULT_HOSTFILE.exists():
        return plan
    unread = f"{DEFAULT_HOSTFILE} exists and is not read: other hosts are not built yet"
    return LaunchPlan(plan.command, plan.environment, (*plan.notes, unread))
