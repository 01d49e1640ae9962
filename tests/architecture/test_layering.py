"""Who may import whom: the table of architecture.md 2.2, read from the source by ast, so nothing is imported.

A row names what a package may use besides itself: packages or modules of megatron_zero, then libraries. The standard
library and config.fields (ConfigError) are open to all. Changing a row is meant to be visible in a diff.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "megatron_zero"
EVERYTHING = "*"

MAY_IMPORT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "": (),  # megatron_zero/__init__.py
        # row 0
        "config": (),
        "ops": ("_C_adam", "_C_dataset"),
        # row 1
        "observability": (),
        "distributed": ("config.parallel",),
        # row 2
        "storage": ("ops", "observability"),
        "tensor_parallel": ("distributed",),
        "pipeline": ("distributed", "observability"),
        "data": ("ops", "distributed", "config.data", "config.data_paths", "config.values"),
        "sequence_parallel": ("distributed", "config"),
        "moe": ("distributed", "tensor_parallel", "config"),
        # row 3
        "model": ("tensor_parallel", "sequence_parallel", "moe", "distributed", "config.model", "config.training"),
        "optim": ("distributed", "ops", "config.optimizer"),
        # row 4
        "zero": ("distributed", "storage", "observability", "config.zero"),
        "offload": ("optim", "storage", "ops", "observability", "config.zero"),
        "planner": ("config",),
        # row 5
        "checkpoint": ("distributed",),
        "launcher": (),
        # row 6
        "training": (
            "config",
            "ops",
            "observability",
            "distributed",
            "storage",
            "tensor_parallel",
            "pipeline",
            "data",
            "sequence_parallel",
            "moe",
            "model",
            "optim",
            "zero",
            "offload",
            "planner",
            "checkpoint",
        ),
        # row 7
        "commands": (EVERYTHING,),
    }
)
LIBRARIES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "": (),
        "config": (),
        "launcher": (),
        "planner": (),
        "commands": (),
        "ops": ("numpy", "torch"),
        "observability": ("torch", "tensorboard", "psutil"),
        "data": ("numpy", "torch", "sentencepiece", "tiktoken", "tqdm", "transformers", "zstandard"),
        "checkpoint": ("numpy", "torch"),
    }
)
DEFAULT_LIBRARIES = ("torch",)


def source_files() -> list[Path]:
    return sorted((ROOT / PACKAGE).rglob("*.py"))


def module_of(path: Path) -> tuple[str, ...]:
    """("zero", "engine") for megatron_zero/zero/engine.py; __init__ is its package."""
    parts = path.relative_to(ROOT / PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports_of(tree: ast.AST, module: tuple[str, ...], *, is_package: bool) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of every import, also those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = (PACKAGE, *module) if is_package else (PACKAGE, *module[:-1])
                base = ".".join((*here[: len(here) - node.level + 1], *filter(None, [node.module])))
            # `from package import module` names the module, `from module import name` the module itself.
            is_folder = (ROOT / base.replace(".", "/")).is_dir()
            yield from ((node.lineno, f"{base}.{alias.name}" if is_folder else base) for alias in node.names)


def complaint(package: str, name: str) -> str | None:
    """Why a file of `package` may not import `name`, or None."""
    top, _, rest = name.partition(".")
    if top != PACKAGE:
        allowed = LIBRARIES.get(package, DEFAULT_LIBRARIES)
        return None if top in sys.stdlib_module_names or top in allowed else f"library {top} is not in its row"
    if rest == "config.fields" or rest.startswith("config.fields.") or rest.split(".")[0] == package:
        return None
    row = MAY_IMPORT[package]
    if EVERYTHING in row or any(rest == entry or rest.startswith(entry + ".") for entry in row):
        return None
    return f"{name} is not in its row"


def test_every_package_has_a_row() -> None:
    packages = {module_of(path)[0] for path in source_files() if len(module_of(path)) > 0}
    assert packages <= set(MAY_IMPORT)


def test_rows_name_only_rows() -> None:
    for package, row in MAY_IMPORT.items():
        named = {entry.split(".")[0] for entry in row} - {EVERYTHING, "_C_adam", "_C_dataset"}
        assert named <= set(MAY_IMPORT) - {package}


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_what_its_row_names(path: Path) -> None:
    module = module_of(path)
    package = module[0] if module else ""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {said}"
        for line, name in imports_of(tree, module, is_package=path.name == "__init__.py")
        if (said := complaint(package, name)) is not None
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "package, name, fine",
    [
        ("zero", "megatron_zero.model.gpt", False),
        ("zero", "megatron_zero.optim.adam", False),
        ("zero", "megatron_zero.config.model", False),
        ("zero", "megatron_zero.config.zero", True),
        ("zero", "megatron_zero.config.fields", True),
        ("pipeline", "megatron_zero.zero.engine", False),
        ("config", "torch", False),
        ("launcher", "megatron_zero.distributed.launch", False),
        ("optim", "torch.nn", True),
        ("training", "megatron_zero.launcher", False),
        ("commands", "megatron_zero.launcher", True),
    ],
)
def test_the_rule_itself_tells_right_from_wrong(package: str, name: str, fine: bool) -> None:
    assert (complaint(package, name) is None) is fine


def test_relative_imports_are_resolved() -> None:
    tree = ast.parse("from .fields import A\nfrom ..optim import adam\nfrom .. import model\nimport torch.nn as nn\n")
    found = [name for _, name in imports_of(tree, ("zero", "engine"), is_package=False)]
    assert found == ["megatron_zero.zero.fields", "megatron_zero.optim.adam", "megatron_zero.model", "torch.nn"]
