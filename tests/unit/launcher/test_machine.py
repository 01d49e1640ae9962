"""What the launcher finds out about the machine: GPUs, cores, ports."""

import socket
from pathlib import Path

import pytest

from megatron_zero.config.fields import ConfigError
from megatron_zero.launcher import machine
from megatron_zero.launcher.machine import check_meeting_place, cpu_quota, installed_gpus, usable_cores, visible_slots


@pytest.mark.parametrize(
    ("listed", "installed", "slots"),
    [
        (None, 0, ()),
        (None, 3, ("0", "1", "2")),
        ("2,3", 4, ("2", "3")),
        (" 3 , 1 ", 4, ("3", "1")),
        ("", 4, ()),
        ("-1", 4, ()),
        ("1,-1,2", 4, ("1",)),
        ("GPU-8932f937,GPU-12", 4, ("GPU-8932f937", "GPU-12")),
        ("0,1", 0, ()),
    ],
)
def test_visible_slots_follow_cuda(listed: str | None, installed: int, slots: tuple[str, ...]) -> None:
    environ = {} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}
    assert visible_slots(environ, installed=installed) == slots


@pytest.mark.parametrize(
    ("listed", "pattern"),
    [("0,4", r"names GPU 4, but this machine has 4, from 0"), ("1,1", "names a GPU twice")],
)
def test_contradictory_cuda_visible_devices_is_told(listed: str, pattern: str) -> None:
    with pytest.raises(ConfigError, match=pattern):
        visible_slots({"CUDA_VISIBLE_DEVICES": listed}, installed=4)


def fake_nvidia_smi(folder: Path, *, code: int) -> None:
    program = folder / "nvidia-smi"
    # Indented lines are slices of a partitioned GPU: not GPUs of their own.
    listing = "GPU 0: NVIDIA X (UUID: GPU-a)\\n  MIG 1g.10gb Device 0: (UUID: MIG-b)\\nGPU 1: NVIDIA X (UUID: GPU-c)\\n"
    program.write_text(f"#!/bin/sh\nprintf '{listing}'\nexit {code}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(("code", "count"), [(0, 2), (9, 0)])
def test_installed_gpus_are_those_nvidia_smi_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, count: int
) -> None:
    fake_nvidia_smi(tmp_path, code=code)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(machine, "_torch_is_cpu_only", lambda: False)
    assert installed_gpus() == count


def test_torch_without_cuda_uses_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, code=0)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0+cpu")
    assert installed_gpus() == 0


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "200000 100000\n"}, 2.0),
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3.0),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_cpu_quota_reads_both_versions(tmp_path: Path, files: dict[str, str], cores: float | None) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cpu_quota(tmp_path) == cores


def test_there_is_at_least_one_core() -> None:
    assert usable_cores() >= 1


def test_a_local_address_is_accepted() -> None:
    check_meeting_place("127.0.0.1", None)


def test_port_in_use_is_told() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--master_port {port} is in use on 127.0.0.1; leave the flag out"):
            check_meeting_place("127.0.0.1", port)
    check_meeting_place("127.0.0.1", port)


def test_address_of_another_machine_is_told() -> None:
    # 192.0.2.0/24 is reserved for documentation: no machine has it.
    with pytest.raises(ConfigError, match=r"'192\.0\.2\.1' is not an address of this machine"):
        check_meeting_place("192.0.2.1", None)
