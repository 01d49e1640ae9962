"""Figures of this process, its container and the machine, each under its own name."""

from __future__ import annotations

import dataclasses
import mmap
from pathlib import Path

import pytest
import torch

from megatron_zero.observability.memory import (
    MemoryReport,
    OwnerBytes,
    available_bytes,
    container_limit_bytes,
    device_allocated_bytes,
    format_memory,
    measure_memory,
    process_pss_bytes,
    process_rss_bytes,
    sum_owned,
)

GIB = 1 << 30
CPU = torch.device("cpu")
REPORT = MemoryReport(
    device_allocated=int(5.65 * GIB),
    device_max_allocated=6 * GIB,
    device_reserved=7 * GIB,
    device_max_reserved=int(7.6 * GIB),
    rss=2 * GIB,
    pss=GIB,
    owned=OwnerBytes(device=GIB, host=3 * GIB, nvme=0, pinned=GIB // 2),
    container_limit=4 * GIB,
    available=3 * GIB,
    machine_used=int(34.79 * GIB),
    machine_percent=18.6,
)


class Owner:
    def __init__(self, **held: int) -> None:
        self._held = OwnerBytes(**held)

    def owned_bytes(self) -> OwnerBytes:
        return self._held


def fake_groups(root: Path, lines: str, files: dict[str, str]) -> tuple[Path, Path]:
    """(proc, cgroup) folders with /proc/self/cgroup and the given files below the cgroup mount."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(lines)
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root / "proc", root / "cgroup"


@pytest.mark.parametrize(
    "lines, files, limit",
    [
        ("0::/job\n", {"job/memory.max": f"{4 * GIB}\n", "memory.max": "max\n"}, 4 * GIB),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": f"{2 * GIB}\n"}, 2 * GIB),
        ("0::/a/b\n", {"a/b/memory.max": f"{3 * GIB}", "a/memory.max": f"{2 * GIB}\n"}, 2 * GIB),
        ("0::/\n", {"memory.max": f"{GIB}\n"}, GIB),
        ("0::/seen/only/outside\n", {"memory.max": f"{GIB}\n"}, GIB),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("4:memory:/job\n", {"memory/job/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        ("4:cpu,memory:/x\n0::/\n", {"memory/memory.limit_in_bytes": f"{GIB}\n"}, GIB),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("3:cpuset:/\n", {"memory/memory.limit_in_bytes": f"{GIB}\n"}, None),
        ("", {}, None),
    ],
)
def test_container_limit_is_the_lowest_on_the_way_up(
    tmp_path: Path, lines: str, files: dict[str, str], limit: int | None
) -> None:
    assert container_limit_bytes(*fake_groups(tmp_path, lines, files)) == limit


def test_no_proc_means_no_limit(tmp_path: Path) -> None:
    assert container_limit_bytes(tmp_path / "absent", tmp_path / "absent") is None


@pytest.mark.parametrize(
    "lines, files",
    [
        ("0::/job\n", {"job/memory.max": "1000\n", "job/memory.current": "400\n"}),
        ("4:memory:/\n", {"memory/memory.limit_in_bytes": "1000", "memory/memory.usage_in_bytes": "400"}),
    ],
)
def test_available_is_what_the_container_leaves(tmp_path: Path, lines: str, files: dict[str, str]) -> None:
    """H4: inside a limited container the available figure is not the machine's."""
    assert available_bytes(*fake_groups(tmp_path, lines, files)) == 600


def test_available_is_never_negative(tmp_path: Path) -> None:
    files = {"memory.max": "1000\n", "memory.current": "1400\n"}
    assert available_bytes(*fake_groups(tmp_path, "0::/\n", files)) == 0


def test_process_figures_follow_what_this_process_touches() -> None:
    """H4: the process's own figures."""
    numel = 64 << 20
    # Pages of its own: an allocator may hand out memory that an earlier test has touched already.
    with mmap.mmap(-1, numel) as pages:
        rss, pss = process_rss_bytes(), process_pss_bytes()
        for start in range(0, numel, mmap.PAGESIZE):
            pages[start] = 1
        grown_rss, grown_pss = process_rss_bytes(), process_pss_bytes()
    assert grown_rss - rss > 0.9 * numel
    assert pss is not None
    assert grown_pss is not None
    assert grown_pss - pss > 0.9 * numel
    assert grown_pss <= grown_rss


def test_pss_is_none_where_the_kernel_does_not_say(tmp_path: Path) -> None:
    assert process_pss_bytes(tmp_path) is None


def test_owned_bytes_add_up_by_tier() -> None:
    total = sum_owned([Owner(device=1, host=10), Owner(host=5, pinned=5), Owner(nvme=7)])
    assert total == OwnerBytes(device=1, host=15, nvme=7, pinned=5)
    assert total.tiers() == {"device": 1, "host": 15, "nvme": 7}
    assert sum_owned([]) == OwnerBytes()


def test_cpu_device_has_no_allocator_figures() -> None:
    report = measure_memory(CPU, owned=OwnerBytes(host=5))
    assert device_allocated_bytes(CPU) == 0
    assert (report.device_allocated, report.device_max_reserved) == (0, 0)
    assert report.owned.host == 5
    assert 0 < report.rss < report.machine_used + report.rss


def test_memory_lines_keep_the_shape_and_label_the_machine() -> None:
    """H4: the machine-wide figure is labelled; the process line is by rank."""
    other = dataclasses.replace(REPORT, rss=3 * GIB, pss=None, container_limit=None)
    phase, device, machine, processes = format_memory("Before creating fp16 partitions", [REPORT, other])
    assert phase == "Before creating fp16 partitions"
    assert device == "MA 5.65 GB         Max_MA 6.00 GB         CA 7.00 GB         Max_CA 8 GB "
    assert machine == ("CPU Virtual Memory:  used = 34.79 GB, percent = 18.6%, scope = whole machine, all processes")
    assert processes == (
        "Process memory by rank [min, max] GB:  RSS = [2.00, 3.00], PSS = [1.00, 1.00], held device = [1.00, 1.00], "
        "held host = [3.00, 3.00], pinned = [0.50, 0.50], NVMe = [0.00, 0.00], container limit = [4.00, 4.00], "
        "available = [3.00, 3.00]"
    )


def test_figure_that_no_rank_knows_is_said_to_be_none() -> None:
    report = dataclasses.replace(REPORT, container_limit=None)
    assert "container limit = none" in format_memory("phase", [report])[3]
