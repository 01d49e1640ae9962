"""The launcher's flags as data: what acts, what is refused, and which of its values mean "one machine" all the same.

The names are those of DeepSpeed's launcher, so that an old script runs with one word changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LATER: Final = "is not built yet: this release starts processes on this machine only"


@dataclass(frozen=True, slots=True)
class LauncherFlag:
    """One flag.

    names: spellings, the canonical one first. Dashes and underscores inside a long name are interchangeable.
    metavar: name of its value, None for a switch.
    help: one line of the help page.
    refusal: None where the flag acts; otherwise the sentence that follows its name, with what to do instead.
    allowed: values that are accepted although others are refused (they ask for what is built).
    """

    names: tuple[str, ...]
    metavar: str | None
    help: str
    refusal: str | None = None
    allowed: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.names[0]


def _several_hosts(*names: str, metavar: str | None, help: str, allowed: tuple[str, ...] = ()) -> LauncherFlag:
    return LauncherFlag(names, metavar, help, LATER, allowed)


def _never(name: str, *, metavar: str | None, instead: str) -> LauncherFlag:
    return LauncherFlag((name,), metavar, "refused", f"is not supported: {instead}")


FLAGS: Final[tuple[LauncherFlag, ...]] = (
    LauncherFlag(("--help", "-h"), None, "this page"),
    LauncherFlag(
        ("--num_gpus", "--num_accelerators"),
        "N",
        "processes to start, one per GPU; -1 = every visible GPU. Without a GPU: N processes on the CPU (-1 = one)",
    ),
    LauncherFlag(("--include", "-i"), "localhost:0,1", "use only these GPUs"),
    LauncherFlag(("--exclude", "-e"), "localhost:0,1", "use every visible GPU but these"),
    LauncherFlag(("--master_addr",), "ADDRESS", "address of this machine where the processes meet (127.0.0.1)"),
    LauncherFlag(("--master_port",), "PORT", "port where they meet; unset = a free one"),
    LauncherFlag(("--module",), None, "the script is a module name, run as `python -m`"),
    LauncherFlag(("--no_python",), None, "the script is a program, run without python"),
    LauncherFlag(("--no_local_rank",), None, "no effect: LOCAL_RANK is in the environment, never on the command line"),
    LauncherFlag(("--dry-run",), None, "print the command and start nothing"),
    LauncherFlag(("--quiet", "-q"), None, "do not print what was chosen"),
    _several_hosts("--num_nodes", metavar="N", help="machines; only 1 is built", allowed=("1", "-1")),
    _several_hosts("--node_rank", metavar="N", help="rank of this machine; only 0 is built", allowed=("0", "-1")),
    _several_hosts("--launcher", metavar="NAME", help="only local is built", allowed=("local",)),
    _several_hosts("--hostfile", "-H", metavar="FILE", help="planned"),
    _several_hosts("--force_multi", metavar=None, help="planned"),
    _several_hosts("--launcher_args", metavar="ARGS", help="planned"),
    _several_hosts("--ssh_port", metavar="PORT", help="planned"),
    _several_hosts("--no_ssh", metavar=None, help="planned"),
    _several_hosts("--no_ssh_check", metavar=None, help="planned"),
    LauncherFlag(
        ("--save_pid",), None, "planned", "is not built yet; in a shell, `mz launch ... & echo $!` gives the pid"
    ),
    LauncherFlag(
        ("--enable_each_rank_log",), "DIR", "planned", "is not built yet; all ranks write to this terminal's output"
    ),
    LauncherFlag(("--bind_cores_to_rank",), None, "planned", "is not built yet; use `taskset -c CORES mz launch ...`"),
    LauncherFlag(("--bind_core_list",), "LIST", "planned", "is not built yet; use `taskset -c CORES mz launch ...`"),
    LauncherFlag(("--log_level",), "LEVEL", "planned", "is not built yet; --quiet drops the launcher's own lines"),
    LauncherFlag(
        ("--install-shim",), "DIR", "planned", "is not built yet; write `mz launch` where the script says `deepspeed`"
    ),
    _never("--autotuning", metavar="MODE", instead="set the batch sizes by hand"),
    _never("--elastic_training", metavar=None, instead="start again from the last checkpoint"),
    _never("--min_elastic_nodes", metavar="N", instead="start again from the last checkpoint"),
    _never("--max_elastic_nodes", metavar="N", instead="start again from the last checkpoint"),
    _never("--venv_script", metavar="FILE", instead="activate the environment before `mz launch`"),
    _never("--nproc_per_node", metavar="N", instead="it is torchrun's name, here it is --num_gpus"),
    _never("--nnodes", metavar="N", instead="it is torchrun's name, here it is --num_nodes"),
)


def help_text() -> str:
    """The help page: flags that act, then the names that are known and refused."""
    lines = ["usage: mz launch [launcher flags] script.py [script arguments]", "", "launcher flags:"]
    for flag in FLAGS:
        if flag.refusal is None or flag.allowed:
            spelling = ", ".join(flag.names) + (f" {flag.metavar}" if flag.metavar else "")
            lines.append(f"  {spelling}\n        {flag.help}")
    refused = [flag.name for flag in FLAGS if flag.refusal is not None and not flag.allowed]
    lines += ["", "known and refused: " + " ".join(refused), ""]
    lines += [
        "Arguments after the script go to it untouched. The exit code is torchrun's: 0 when every rank ended well."
    ]
    return "\n".join(lines)
