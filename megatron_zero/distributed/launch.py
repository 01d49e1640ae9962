"""How this process was launched: the only reader of RANK and its relatives, and the owner of the process group.

Understands torchrun (RANK, WORLD_SIZE, LOCAL_RANK, ...), Slurm steps (srun) and Open MPI; nothing set means one process.
Refuses to know: what the ranks do with each other (context.py).
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from megatron_zero.config.fields import ConfigError

DEFAULT_PORT = 29500


@dataclass(frozen=True, slots=True)
class LaunchEnvironment:
    """This process among all: rank of world_size in the run, local_rank of local_world_size on this node.

    master_addr, master_port: where rank 0 is met.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str
    master_port: int


def read_launch_environment(
    environ: Mapping[str, str] | None = None, *, local_rank: int | None = None
) -> LaunchEnvironment:
    """The launcher's variables as one value; environ defaults to os.environ.

    local_rank: the --local_rank flag, used only where the environment has no LOCAL_RANK. Raises ConfigError that names
    the variable when the set is incomplete or its numbers contradict each other.
    """
    variables = os.environ if environ is None else environ
    if "RANK" in variables or "WORLD_SIZE" in variables:
        found = _from_torchrun(variables, local_rank)
    elif "SLURM_PROCID" in variables and "SLURM_STEP_NUM_TASKS" in variables:
        # A batch script itself has SLURM_PROCID=0 but no step: only processes that srun started belong to a group.
        found = _from_slurm(variables)
    elif "OMPI_COMM_WORLD_RANK" in variables:
        found = _from_open_mpi(variables)
    else:
        if local_rank not in (None, 0):
            raise ConfigError(
                f"--local_rank {local_rank} was given, but RANK and WORLD_SIZE are not set; "
                "start with torchrun or `mz launch`, which set them"
            )
        found = LaunchEnvironment(0, 1, 0, 1, "127.0.0.1", DEFAULT_PORT)
    return _checked(found)


def _integer(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = variables.get(name)
    if text is None:
        if default is None:
            raise ConfigError(f"environment variable {name} is not set although the rest of the launcher's set is")
        return default
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"environment variable {name}={text!r} is not a whole number") from None


def _from_torchrun(variables: Mapping[str, str], local_rank: int | None) -> LaunchEnvironment:
    rank, world_size = _integer(variables, "RANK"), _integer(variables, "WORLD_SIZE")
    alone = world_size == 1
    address = variables.get("MASTER_ADDR", "127.0.0.1" if alone else None)
    if address is None:
        raise ConfigError(
            f"RANK={rank} and WORLD_SIZE={world_size} are set but MASTER_ADDR is not; start with torchrun"
        )
    on_one_node = alone or address in ("127.0.0.1", "localhost")
    return LaunchEnvironment(
        rank=rank,
        world_size=world_size,
        local_rank=_integer(variables, "LOCAL_RANK", local_rank if local_rank is not None else (0 if alone else None)),
        local_world_size=_integer(variables, "LOCAL_WORLD_SIZE", world_size if on_one_node else None),
        master_addr=address,
        master_port=_integer(variables, "MASTER_PORT", DEFAULT_PORT if alone else None),
    )


def _from_slurm(variables: Mapping[str, str]) -> LaunchEnvironment:
    world_size, node = _integer(variables, "SLURM_STEP_NUM_TASKS"), _integer(variables, "SLURM_NODEID", 0)
    per_node = _expand_tasks_per_node(variables.get("SLURM_STEP_TASKS_PER_NODE", str(world_size)))
    if node >= len(per_node):
        raise ConfigError(f"SLURM_NODEID={node} is beyond SLURM_STEP_TASKS_PER_NODE, which lists {len(per_node)} nodes")
    return LaunchEnvironment(
        rank=_integer(variables, "SLURM_PROCID"),
        world_size=world_size,
        local_rank=_integer(variables, "SLURM_LOCALID"),
        local_world_size=per_node[node],
        master_addr=variables.get("MASTER_ADDR") or _first_host(variables.get("SLURM_STEP_NODELIST", "127.0.0.1")),
        # Two jobs may share a node: the port follows the job id, which every rank knows.
        master_port=_integer(variables, "MASTER_PORT", 20000 + _integer(variables, "SLURM_JOB_ID", 0) % 20000),
    )


def _from_open_mpi(variables: Mapping[str, str]) -> LaunchEnvironment:
    world_size = _integer(variables, "OMPI_COMM_WORLD_SIZE")
    local_world_size = _integer(variables, "OMPI_COMM_WORLD_LOCAL_SIZE")
    address = variables.get("MASTER_ADDR", "127.0.0.1" if local_world_size == world_size else None)
    if address is None:
        raise ConfigError(
            f"mpirun started {world_size} processes, {local_world_size} of them here, and MASTER_ADDR is not set; "
            "pass -x MASTER_ADDR=<host of rank 0>"
        )
    return LaunchEnvironment(
        rank=_integer(variables, "OMPI_COMM_WORLD_RANK"),
        world_size=world_size,
        local_rank=_integer(variables, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_world_size=local_world_size,
        master_addr=address,
        master_port=_integer(variables, "MASTER_PORT", DEFAULT_PORT),
    )


def _expand_tasks_per_node(text: str) -> list[int]:
    """Slurm's "4(x2),3" -> [4, 4, 3]."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ConfigError(f"SLURM_STEP_TASKS_PER_NODE={text!r} is not of the form 4(x2),3")
        counts.extend([int(match.group(1))] * int(match.group(2) or 1))
    return counts


def _first_host(text: str) -> str:
    """The first host of Slurm's "gpu[03-05,9],login1" -> "gpu03"."""
    match = re.match(r"([^,\[]*)(?:\[([^\],-]+)[^\]]*\]([^,\[]*))?", text)
    assert match is not None  # every part may be empty
    return match.group(1) + (match.group(2) or "") + (match.group(3) or "")


def _checked(env: LaunchEnvironment) -> LaunchEnvironment:
    if not 0 <= env.rank < env.world_size:
        raise ConfigError(f"rank {env.rank} is not in [0, {env.world_size}), the world size that the launcher set")
    if not 0 <= env.local_rank < env.local_world_size <= env.world_size:
        raise ConfigError(
            f"local rank {env.local_rank} of {env.local_world_size} on this node does not fit a world of "
            f"{env.world_size}; check LOCAL_RANK and LOCAL_WORLD_SIZE"
        )
    if not 0 < env.master_port < 65536:
        raise ConfigError(f"MASTER_PORT={env.master_port} is not a port; use 1 to 65535")
    return env


def choose_device(
    env: LaunchEnvironment, backend: str | None, *, num_gpus: int | None = None
) -> tuple[torch.device, str]:
    """This rank's device and its backend: ("cuda:<local rank>", "nccl") or ("cpu", "gloo").

    backend: --distributed-backend. None = nccl if there are GPUs. gloo = a run on the CPU, also where there are GPUs.
    num_gpus: GPUs that this process sees; None = ask torch. Raises ConfigError for nccl without GPUs and for more local
    ranks than GPUs. Touches no device.
    """
    visible = torch.cuda.device_count() if num_gpus is None else num_gpus
    if backend not in (None, "nccl", "gloo"):
        raise ConfigError(f"--distributed-backend {backend} is not known; use nccl or gloo")
    if backend == "gloo" or (backend is None and visible == 0):
        return torch.device("cpu"), "gloo"
    if visible == 0:
        raise ConfigError(
            "--distributed-backend nccl needs GPUs and torch sees none; use --distributed-backend gloo for a run on the "
            "CPU, or install a CUDA build of torch and check CUDA_VISIBLE_DEVICES"
        )
    if env.local_world_size > visible:
        raise ConfigError(
            f"{env.local_world_size} processes on this node but this one sees {visible} GPU(s), and each needs its own; "
            f"start at most {visible} per node, show every process all GPUs (CUDA_VISIBLE_DEVICES, srun's --gpus-per-task), "
            "or use --distributed-backend gloo for a run on the CPU"
        )
    return torch.device("cuda", env.local_rank), "nccl"


@contextmanager
def process_group(env: LaunchEnvironment, *, backend: str, device: torch.device, timeout: timedelta) -> Iterator[None]:
    """The run's process group while the body runs; gone afterwards, however the body ends.

    timeout: of the meeting and of each collective. Makes device current if it is a GPU. A world of one process gets no
    group at all. If the body raises, collectives that wait for other ranks are abandoned rather than waited for.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if env.world_size == 1:
        yield
        return
    try:
        dist.init_process_group(
            backend,
            init_method=f"tcp://{_bracketed(env.master_addr)}:{env.master_port}",
            rank=env.rank,
            world_size=env.world_size,
            timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        raise ConfigError(
            f"rank {env.rank} of {env.world_size} did not meet the others at MASTER_ADDR {env.master_addr}, MASTER_PORT "
            f"{env.master_port} within --distributed-timeout-minutes {timeout.total_seconds() / 60:g}: "
            f"{str(error).splitlines()[0]}; are all {env.world_size} ranks started, and is that port open to this one?"
        ) from error
    try:
        yield
    except BaseException:
        _abandon(backend)
        raise
    dist.destroy_process_group()


def _bracketed(address: str) -> str:
    """An IPv6 address in a URL stands in brackets."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def _abandon(backend: str) -> None:
    """Drop the group without waiting for peers that may never answer.

    NCCL's ordinary shutdown waits for kernels already queued, and those wait for the peers; its abort does not. gloo has
    no queue on a device: its shutdown closes the connections, which makes the peers fail at once instead of at the
    time-out.
    """
    if not dist.is_initialized():
        return
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    if backend == "nccl" and abort is not None:
        abort()
    else:
        dist.destroy_process_group()


def end_group_threads() -> None:
    """Free every process group that nothing uses any more. Call it last, after process_group and outside of it.

    A gloo group's threads drop their last work item, and the Python tensors in it, a little after the collective that
    made it. If the interpreter shuts down meanwhile, that thread cannot take the GIL and the process aborts although
    the run was fine. A group ends its threads when it is freed, which reference cycles would put off until shutdown.
    """
    gc.collect()


def request_deterministic_cublas() -> None:
    """Give cuBLAS the fixed workspace without which its sums may change order; before the first CUDA matrix product.

    A value that the user has set stays.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
