"""Command line -> LaunchOptions. Pure: nothing here looks at the machine.

Written by hand rather than with argparse, whose REMAINDER drops a `--` among the script's own arguments.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from megatron_zero.config.fields import ConfigError

from .flags import FLAGS, LauncherFlag


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The words before the script, by canonical flag name (a switch holds ""), and the rest as it was typed."""

    given: Mapping[str, str]
    script: str | None
    script_args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What the user asks of the launcher. num_processes: None = one per visible GPU. include/exclude: slot names."""

    script: str
    script_args: tuple[str, ...]
    num_processes: int | None
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    master_addr: str
    master_port: int | None
    as_module: bool
    no_python: bool
    dry_run: bool
    quiet: bool


def split_command_line(argv: Sequence[str]) -> CommandLine:
    """Launcher flags up to the first other word, which is the script; what follows it is never looked at.

    `--flag value` and `--flag=value`; the last of a repeated flag wins; `--` ends the flags.
    Raises ConfigError for an unknown flag (with the nearest name) and a flag without its value.
    """
    given: dict[str, str] = {}
    position = 0
    while position < len(argv):
        word = argv[position]
        if word == "--":
            position += 1
            break
        if not word.startswith("-") or word == "-":
            break
        position += 1
        spelling, equals, value = word.partition("=")
        flag = _find(spelling)
        if flag.metavar is None:
            if equals:
                raise ConfigError(f"{spelling} is a switch and takes no value; got {word!r}")
        elif not equals:
            if position == len(argv):
                raise ConfigError(f"{spelling} needs a value ({flag.metavar}) and nothing follows it")
            value = argv[position]
            position += 1
        given[flag.name] = value
    rest = tuple(argv[position:])
    return CommandLine(given, rest[0] if rest else None, rest[1:])


def read_options(line: CommandLine) -> LaunchOptions:
    """Check the launcher flags and type them. Raises ConfigError; every refused flag is named in one message."""
    _reject_refused(line.given)
    if line.script is None:
        raise ConfigError("no script: usage is `mz launch [launcher flags] script.py [script arguments]`")
    given = line.given
    selectors = [name for name in ("--num_gpus", "--include", "--exclude") if name in given]
    if len(selectors) > 1 and "--num_gpus" in selectors and given["--num_gpus"] == "-1":
        selectors.remove("--num_gpus")
    if len(selectors) > 1:
        raise ConfigError(f"{' and '.join(selectors)} both choose the GPUs; give one of them")
    if "--module" in given and "--no_python" in given:
        raise ConfigError("--module and --no_python exclude each other: a module is run by python")
    port = _integer(given, "--master_port", default=0, lowest=1, highest=65535)
    processes = _integer(given, "--num_gpus", default=-1, lowest=-1, highest=1 << 16)
    if processes == 0:
        raise ConfigError("--num_gpus 0 starts nothing; give 1 or more, or -1 for every visible GPU")
    return LaunchOptions(
        script=line.script,
        script_args=line.script_args,
        num_processes=None if processes == -1 else processes,
        include=_slots(given, "--include"),
        exclude=_slots(given, "--exclude"),
        master_addr=given.get("--master_addr") or "127.0.0.1",
        master_port=port or None,
        as_module="--module" in given,
        no_python="--no_python" in given,
        dry_run="--dry-run" in given,
        quiet="--quiet" in given,
    )


def _same(spelling: str) -> str:
    return spelling.replace("_", "-")


def _find(spelling: str) -> LauncherFlag:
    known = {_same(name): flag for flag in FLAGS for name in flag.names}
    flag = known.get(_same(spelling))
    if flag is None:
        near = difflib.get_close_matches(_same(spelling), known, n=1)
        hint = f"; did you mean {known[near[0]].name}?" if near else "; `mz launch --help` lists them"
        raise ConfigError(
            f"unknown launcher flag {spelling}{hint} (flags of the training script go after the script's name)"
        )
    return flag


def _reject_refused(given: Mapping[str, str]) -> None:
    by_name = {flag.name: flag for flag in FLAGS}
    faults = []
    for name, value in given.items():
        flag = by_name[name]
        if flag.refusal is not None and value not in flag.allowed:
            faults.append(f"{name}{' ' + value if flag.metavar else ''} {flag.refusal}")
    if faults:
        raise ConfigError("\n".join(faults))


def _integer(given: Mapping[str, str], name: str, *, default: int, lowest: int, highest: int) -> int:
    text = given.get(name)
    if text is None:
        return default
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{name} {text!r} is not a whole number") from None
    if not lowest <= value <= highest:
        raise ConfigError(f"{name} {value} is out of range: {lowest} to {highest}")
    return value


def _slots(given: Mapping[str, str], name: str) -> tuple[str, ...]:
    """Slot names of "localhost:0,1". The host part is needed, as upstream, since "0,1" could be a host name."""
    text = given.get(name, "")
    if not text:
        return ()
    host, colon, slots = text.partition(":")
    if "@" in text or host not in ("localhost", "127.0.0.1"):
        raise ConfigError(f"{name} {text!r}: other hosts are not built yet; write localhost:SLOT,SLOT")
    names = tuple(slot.strip() for slot in slots.split(","))
    if not colon or not all(names):
        raise ConfigError(f"{name} {text!r} names no slot; write localhost:SLOT,SLOT, for example localhost:0,1")
    if len(set(names)) != len(names):
        raise ConfigError(f"{name} {text!r} names a slot twice")
    return names
