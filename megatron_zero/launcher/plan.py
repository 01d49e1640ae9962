"""LaunchOptions and what the machine offers -> LaunchPlan: the command and environment of torchrun. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from megatron_zero.config.fields import ConfigError

from .options import LaunchOptions


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """command: argv of torchrun. environment: variables added to the caller's. notes: what was chosen, for the user."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    notes: tuple[str, ...]

    def shell_line(self) -> str:
        """The command as one line that a shell can run."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*settings, shlex.join(self.command)])


def choose_slots(visible: tuple[str, ...], *, include: tuple[str, ...], exclude: tuple[str, ...]) -> tuple[str, ...]:
    """The visible slots that --include names, or that --exclude leaves, in visible order."""
    if not (include or exclude):
        return visible
    name = "--include" if include else "--exclude"
    for slot in include or exclude:
        if slot not in visible:
            valid = "slots: " + ", ".join(visible) if visible else "no GPU is visible"
            raise ConfigError(f"{name} localhost:{slot}: there is no such slot; {valid}")
    chosen = tuple(slot for slot in visible if (slot in include if include else slot not in exclude))
    if not chosen:
        raise ConfigError(f"--exclude localhost:{','.join(exclude)} leaves no GPU of {', '.join(visible)}")
    return chosen


def plan_launch(
    options: LaunchOptions,
    *,
    visible: tuple[str, ...],
    cores: int,
    port: int | None,
    environ: Mapping[str, str],
    python: str,
) -> LaunchPlan:
    """One torchrun that starts `num_processes` ranks of the script on this machine.

    visible: slots from machine.visible_slots. environ: the caller's environment, read only.
    port: where the ranks meet; None = torchrun binds a free one itself, so two launches at once cannot choose the same.
    Raises ConfigError when more GPUs are asked than are visible, or a slot does not exist.
    """
    slots = choose_slots(visible, include=options.include, exclude=options.exclude)
    count = options.num_processes or max(1, len(slots))
    if slots and count > len(slots):
        raise ConfigError(
            f"--num_gpus {count}, but {len(slots)} GPU{'s are' if len(slots) > 1 else ' is'} visible "
            f"({', '.join(slots)}); give {len(slots)} or -1, or hide the GPUs (CUDA_VISIBLE_DEVICES=) to run on the CPU"
        )
    environment: dict[str, str] = {}
    where = f"on GPU {', '.join(slots[:count])}" if slots else "on the CPU (no GPU is visible)"
    notes = [f"{count} process{'es' if count > 1 else ''} {where}, meeting at {options.master_addr}:{port or 'a free port'}"]
    if options.include or options.exclude:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(slots)
    if "OMP_NUM_THREADS" not in environ:
        threads = max(1, cores // count)
        environment["OMP_NUM_THREADS"] = str(threads)
        notes.append(f"OMP_NUM_THREADS={threads} ({cores} cores / {count}; set it yourself to change it)")
    kind = ("--module",) if options.as_module else ("--no_python",) if options.no_python else ()
    meeting = (
        ("--rdzv_backend", "c10d", "--rdzv_endpoint", f"{options.master_addr}:0", "--local_addr", options.master_addr)
        if port is None
        else ("--master_addr", options.master_addr, "--master_port", str(port))
    )
    command = (
        *(python, "-m", "torch.distributed.run"),
        *("--nnodes", "1", "--nproc_per_node", str(count)),
        *meeting,
        *kind,
        options.script,
        *options.script_args,
    )
    return LaunchPlan(command, environment, tuple(notes))
