"""setup_env.sh and setup_probe.py: what is missing is named at once, before anything changes. Nothing is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "examples" / "scripts"
TOOLS = ("bash", "dirname", "mktemp", "rm", "mkdir", "awk", "df", "ls")


@pytest.fixture(scope="module")
def probe() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_probe", SCRIPTS / "setup_probe.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass
class Checkout:
    """A copy of what setup_env.sh reads, in a folder with a space in its name, and a PATH with basic tools alone."""

    root: Path
    path: Path

    def add_tool(self, name: str, script: str) -> Path:
        tool = self.path / name
        tool.write_text(f"#!{shutil.which('bash')}\n{script}\n")
        tool.chmod(0o755)
        return tool

    def add_python(self, name: str = "python3") -> None:
        self.add_tool(name, f'exec "{sys.executable}" "$@"')

    def run(self, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": str(self.path), "TMPDIR": str(self.root), **variables}
        command = ["bash", str(self.root / "examples/scripts/setup_env.sh")]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    def contents(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.name != "__pycache__"}


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root, path = tmp_path / "my checkout", tmp_path / "bin"
    path.mkdir()
    (root / "csrc").mkdir(parents=True)
    shutil.copytree(SCRIPTS, root / "examples/scripts", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, root / name)
    for tool in TOOLS:
        os.symlink(shutil.which(tool), path / tool)
    return Checkout(root, path)


def test_everything_missing_is_named_at_once_and_nothing_changes(checkout: Checkout) -> None:
    checkout.add_tool("python3", "echo 3.8")
    before = checkout.contents()
    result = checkout.run(MZ_MIN_FREE_GIB="1000000000")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "Python 3.10 to 3.13 on PATH (python3 is 3.8;" in result.stderr
    assert "a C++17 compiler (tried: g++ c++ clang++)" in result.stderr
    assert "1000000000 GiB needed" in result.stderr
    assert "apt-get install python3 python3-venv python3-dev g++" in result.stderr
    assert checkout.contents() == before


def test_missing_compiler_alone_is_named_with_packages(checkout: Checkout) -> None:
    checkout.add_python()
    result = checkout.run(MZ_MIN_FREE_GIB="0")
    assert result.returncode == 1
    assert "a C++17 compiler (tried: g++ c++ clang++)" in result.stderr
    assert "dnf install gcc-c++" in result.stderr
    assert "on PATH" not in result.stderr
    assert not (checkout.root / ".venv").exists()


def test_compiler_that_cannot_do_cpp17_does_not_count(checkout: Checkout) -> None:
    checkout.add_python()
    checkout.add_tool("g++", "exit 1")
    assert "a C++17 compiler" in checkout.run(MZ_MIN_FREE_GIB="0").stderr


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"PYTHON": "/absent/python"}, "PYTHON=/absent/python is not an interpreter that can be run"),
        ({"PYTHON": "old"}, "PYTHON=old is Python 3.9; 3.10 to 3.13 are supported"),
        ({"PYTHON": "new"}, "PYTHON=new is Python 3.14; 3.10 to 3.13 are supported"),
        ({"PYTHON": "old", "MZ_TORCH_REQUIREMENT": "torch==2.12.0"}, "MZ_TORCH_REQUIREMENT is for .venv"),
        ({"MZ_MIN_FREE_GIB": "4.5"}, "MZ_MIN_FREE_GIB=4.5 is not a whole number"),
    ],
)
def test_bad_setting_is_refused_by_name(checkout: Checkout, variables: dict[str, str], message: str) -> None:
    checkout.add_tool("old", "echo 3.9")
    checkout.add_tool("new", "echo 3.14")
    result = checkout.run(**variables)
    assert result.returncode == 1
    assert message in result.stderr


def test_sourcing_fails_with_a_status_and_leaves_the_shell_as_it_was(checkout: Checkout) -> None:
    script = 'before=$-; source "$1" || status=$?; printf "%s %s" "${status}" "$([[ $- == "${before}" ]] && echo same)"'
    setup = checkout.root / "examples/scripts/setup_env.sh"
    result = subprocess.run(
        ["bash", "-c", script, "caller", str(setup)],
        env={"PATH": str(checkout.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout == "1 same"


@pytest.mark.parametrize(
    ("requirement", "version", "problem"),
    [
        ("torch>=2.11,<2.16", "2.11.0", None),
        ("torch>=2.11,<2.16", "2.15.1+cu130", None),
        ("torch>=2.11,<2.16", "2.9.1", "torch is 2.9.1; needed: torch>=2.11,<2.16"),
        ("torch>=2.11,<2.16", "2.16.0", "torch is 2.16.0; needed: torch>=2.11,<2.16"),
        ("torch", "1.0", None),
        ("torch", None, "torch is not installed"),
    ],
)
def test_requirement_bounds(probe: ModuleType, monkeypatch, requirement: str, version: str | None, problem) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise probe.importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(probe.importlib.metadata, "version", installed)
    assert probe.problem_of(requirement) == problem


def test_requirements_are_read_from_pyproject(probe: ModuleType) -> None:
    assert probe.torch_requirement(ROOT) == "torch>=2.11,<2.16"
    assert "pytest-timeout" in probe.requirements(ROOT, ("test",))
    assert "pytest-timeout" not in probe.requirements(ROOT, ())
    assert any(requirement.startswith("pybind11") for requirement in probe.build_requirements(ROOT))


def test_packages_that_may_be_missing_are_written_as_in_pyproject(probe: ModuleType) -> None:
    """They are left out of the list of what is needed by their text, bounds and all."""
    assert set(probe.OPTIONAL) <= set(probe.requirements(ROOT, ("hf", "test")))


def test_key_follows_sources(probe: ModuleType, checkout: Checkout) -> None:
    source = checkout.root / "csrc/adam/adam.h"
    source.parent.mkdir()
    source.write_text("int a;")
    first = probe.checkout_key(checkout.root)
    assert probe.checkout_key(checkout.root) == first
    source.write_text("int b;")
    assert probe.checkout_key(checkout.root) != first


def test_stamp_survives_a_round_trip_and_damage_reads_as_none(probe: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "stamp.json"
    stamp = probe.Stamp("key", ("test",), "torch==2.12.0")
    probe.write_stamp(path, stamp)
    assert probe.read_stamp(path) == stamp
    path.write_text(path.read_text()[:10])
    assert probe.read_stamp(path) is None
    assert probe.read_stamp(tmp_path / "absent.json") is None


@pytest.mark.parametrize(("asked", "kept"), [("", True), ("torch==2.12.0", True), ("torch==2.11.0", False)])
def test_installed_torch_is_kept_unless_another_is_asked_for(
    probe: ModuleType, monkeypatch: pytest.MonkeyPatch, asked: str, kept: bool
) -> None:
    monkeypatch.setattr(probe.importlib.metadata, "version", lambda name: "2.12.0")
    assert probe.torch_is_kept(ROOT, asked, probe.Stamp("key", (), "torch==2.12.0")) is kept
