"""Memory of this process, of its container and of the machine, each said to be what it is.

A machine-wide figure is easily taken for one's own. Here a process's own figures come from the kernel's account of that
process, bytes by tier are asked of those who hold them, and a machine-wide figure carries that label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import psutil
import torch

GIB: Final = 1 << 30
PROC: Final = Path("/proc")
CGROUP: Final = Path("/sys/fs/cgroup")
UNLIMITED: Final = 1 << 62  # cgroup v1 says "no limit" as 2^63 rounded down to pages


@dataclass(frozen=True, slots=True)
class OwnerBytes:
    """Bytes that one owner holds, by tier. pinned: the page-locked part of host, counted in host too."""

    device: int = 0
    host: int = 0
    nvme: int = 0
    pinned: int = 0

    def __add__(self, other: OwnerBytes) -> OwnerBytes:
        return OwnerBytes(
            self.device + other.device, self.host + other.host, self.nvme + other.nvme, self.pinned + other.pinned
        )

    def tiers(self) -> dict[str, int]:
        """{"device", "host", "nvme"}: the tier_bytes of a StepRecord."""
        return {"device": self.device, "host": self.host, "nvme": self.nvme}


class ByteOwner(Protocol):
    """Whoever keeps state in some tier: optimizer, parameter store, buffer pool."""

    def owned_bytes(self) -> OwnerBytes: ...


def sum_owned(owners: Sequence[ByteOwner]) -> OwnerBytes:
    return sum((owner.owned_bytes() for owner in owners), OwnerBytes())


def process_rss_bytes() -> int:
    """Bytes of this process that are in RAM now, pages shared with others included."""
    return int(psutil.Process().memory_info().rss)


def process_pss_bytes(proc: Path = PROC) -> int | None:
    """Like RSS, but a page shared by n processes counts 1/n; None where the kernel does not say (smaps_rollup).

    The kernel walks the page tables for it: milliseconds per GiB, so ask for it now and then, not every step.
    """
    try:
        lines = (proc / "self" / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, PermissionError):
        return None
    for line in lines:
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None


def container_limit_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """The lowest memory limit of the control groups that this process is in (v1 or v2); None = none.

    Inside a container its own group is usually mounted as the root, so groups that are not there are passed over.
    """
    limits = [limit for folder, name, _ in _memory_groups(proc, cgroup) if (limit := _read_limit(folder / name))]
    return min(limits, default=None)


def available_bytes(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """What this process may still take: the machine's available memory, or what a container's limit leaves if less."""
    left = [int(psutil.virtual_memory().available)]
    for folder, limit_name, usage_name in _memory_groups(proc, cgroup):
        limit, usage = _read_limit(folder / limit_name), _read_limit(folder / usage_name)
        if limit is not None and usage is not None:
            left.append(max(0, limit - usage))
    return min(left)


def _memory_groups(proc: Path, cgroup: Path) -> list[tuple[Path, str, str]]:
    """(folder, name of its limit file, name of its usage file) of each group from this process's own up to the root."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except (FileNotFoundError, PermissionError):
        return []
    groups = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = cgroup, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = cgroup / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        own = root / path.lstrip("/")
        groups += [(folder, *names) for folder in (own, *own.parents) if folder == root or root in folder.parents]
    return groups


def _read_limit(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except (FileNotFoundError, PermissionError, NotADirectoryError):
        return None
    return int(text) if text.isdigit() and int(text) < UNLIMITED else None


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Bytes of one rank at one moment. device_*: of torch's caching allocator, 0 on the CPU; max: since the last reset.

    pss, container_limit: None where there is none. available: see available_bytes.
    machine_*: of the whole machine, everybody's processes, never of this job.
    """

    device_allocated: int
    device_max_allocated: int
    device_reserved: int
    device_max_reserved: int
    rss: int
    pss: int | None
    owned: OwnerBytes
    container_limit: int | None
    available: int
    machine_used: int
    machine_percent: float


def device_allocated_bytes(device: torch.device) -> int:
    """Bytes of live tensors on a CUDA device, by torch's allocator; 0 on the CPU, which keeps no such count."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def measure_memory(device: torch.device, *, owned: OwnerBytes, reset_peak: bool = False) -> MemoryReport:
    """This rank's figures now. reset_peak: begin the device's peaks anew, so that the next are of one phase."""
    on_cuda = device.type == "cuda"
    machine = psutil.virtual_memory()
    report = MemoryReport(
        device_allocated=device_allocated_bytes(device),
        device_max_allocated=torch.cuda.max_memory_allocated(device) if on_cuda else 0,
        device_reserved=torch.cuda.memory_reserved(device) if on_cuda else 0,
        device_max_reserved=torch.cuda.max_memory_reserved(device) if on_cuda else 0,
        rss=process_rss_bytes(),
        pss=process_pss_bytes(),
        owned=owned,
        container_limit=container_limit_bytes(),
        available=available_bytes(),
        machine_used=int(machine.used),
        machine_percent=float(machine.percent),
    )
    if reset_peak and on_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    return report


def format_memory(phase: str, ranks: Sequence[MemoryReport], *, rank: int = 0) -> tuple[str, str, str, str]:
    """The four memory lines for the log: phase, device, machine, processes.

    ranks: reports of all ranks (the caller gathers them).   rank: whose device line is shown; the fourth line gives
    [min, max] over ranks. The first three keep DeepSpeed's shape, where GB means 2^30 bytes; new fields at the end.
    """
    own = ranks[rank]
    device = (
        f"MA {own.device_allocated / GIB:.2f} GB         Max_MA {own.device_max_allocated / GIB:.2f} GB         "
        f"CA {own.device_reserved / GIB:.2f} GB         Max_CA {own.device_max_reserved / GIB:.0f} GB "
    )
    machine = (
        f"CPU Virtual Memory:  used = {own.machine_used / GIB:.2f} GB, percent = {own.machine_percent:.1f}%, "
        f"scope = whole machine, all processes"
    )
    spans: dict[str, list[int | None]] = {
        "RSS": [report.rss for report in ranks],
        "PSS": [report.pss for report in ranks],
        "held device": [report.owned.device for report in ranks],
        "held host": [report.owned.host for report in ranks],
        "pinned": [report.owned.pinned for report in ranks],
        "NVMe": [report.owned.nvme for report in ranks],
        "container limit": [report.container_limit for report in ranks],
        "available": [report.available for report in ranks],
    }
    processes = "Process memory by rank [min, max] GB:  " + ", ".join(
        f"{name} = {_span(values)}" for name, values in spans.items()
    )
    return phase, device, machine, processes


def _span(values: Sequence[int | None]) -> str:
    known = [value for value in values if value is not None]
    return f"[{min(known) / GIB:.2f}, {max(known) / GIB:.2f}]" if known else "none"
