"""What this machine offers: GPUs, cores, a port. Everything that asks the system; the decisions are in plan.py.

`python -m megatron_zero.launcher.machine` prints the number of visible GPUs (shell scripts use it).
"""

from __future__ import annotations

import errno
import importlib.metadata
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from megatron_zero.config.fields import ConfigError


def installed_gpus() -> int:
    """NVIDIA GPUs of this machine, by `nvidia-smi -L`, or by the device files where that program is missing.

    0 where torch was built without CUDA (known from its version, not by importing it): it could not use them.
    """
    if _torch_is_cpu_only():
        return 0
    if shutil.which("nvidia-smi") is None:
        return sum(1 for node in Path("/dev").glob("nvidia[0-9]*") if node.name[len("nvidia") :].isdigit())
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        raise ConfigError(
            "`nvidia-smi -L` gave no answer in 60 s; give --num_gpus after the driver is mended"
        ) from None
    if listing.returncode != 0:
        return 0  # the program without a driver, as in many container images
    return sum(1 for line in listing.stdout.splitlines() if line.startswith("GPU "))


def visible_slots(environ: Mapping[str, str], *, installed: int) -> tuple[str, ...]:
    """Names of the GPUs that CUDA would use, in its order: CUDA_VISIBLE_DEVICES, or "0", "1", ... when unset.

    As in CUDA, "" and "-1" hide every GPU and a "-1" ends the list. Raises ConfigError for a number beyond the
    machine's GPUs or a GPU named twice, where CUDA would quietly use fewer.
    """
    listed = environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None or installed == 0:
        return tuple(str(index) for index in range(installed))
    names = [name.strip() for name in listed.split(",")]
    if "-1" in names:
        names = names[: names.index("-1")]
    names = [name for name in names if name]
    beyond = [name for name in names if name.isdigit() and int(name) >= installed]
    if beyond:
        raise ConfigError(
            f"CUDA_VISIBLE_DEVICES={listed} names GPU {beyond[0]}, but this machine has {installed}, from 0"
        )
    if len(set(names)) != len(names):
        raise ConfigError(f"CUDA_VISIBLE_DEVICES={listed} names a GPU twice")
    return tuple(names)


def usable_cores() -> int:
    """Cores this process may use: the affinity mask, cut to the container's CPU quota; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(Path("/sys/fs/cgroup"))
    return max(1, min(cores, int(quota))) if quota is not None else cores


def cpu_quota(cgroup: Path) -> float | None:
    """Cores granted by the control group at `cgroup` (version 2, then version 1); None = no limit is set."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu" / "cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None  # "max" in version 2, "-1" in version 1
    return int(quota) / int(period)


def check_meeting_place(address: str, asked: int | None) -> None:
    """ConfigError when the asked port is taken, or when `address` is not one of this machine's. asked: None = any."""
    try:
        family = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As the server that follows will: a port that merely lingers from an earlier run counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((address, asked or 0))
    except socket.gaierror as error:
        raise ConfigError(f"--master_addr {address!r} cannot be resolved: {error.strerror}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"--master_port {asked} is in use on {address}; leave the flag out and a free port is taken"
            ) from None
        if error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(
                f"--master_addr {address!r} is not an address of this machine, and other hosts are not built yet; "
                "leave the flag out"
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ConfigError(f"--master_port {asked} may not be used by this user; take one above 1023") from None
        raise


def _torch_is_cpu_only() -> bool:
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return False
    return re.search(r"\+cpu\b", version) is not None


if __name__ == "__main__":
    try:
        print(len(visible_slots(os.environ, installed=installed_gpus())))
    except ConfigError as fault:
        sys.exit(str(fault))
