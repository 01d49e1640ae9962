"""Nothing is global: no `global`, no mutable module or class value, one reader of the environment, one of the rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MUTABLE_CALLS = ("list", "dict", "set", "defaultdict", "deque", "OrderedDict", "Counter", "bytearray")
READ_ONLY_CALLS = ("MappingProxyType", "frozenset", "tuple")


def source_files() -> list[Path]:
    return sorted((ROOT / "megatron_zero").rglob("*.py"))


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def assignments(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr | None, ast.expr]]:
    """(name, annotation, value) of each assignment of a module or class body."""
    for node in body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        yield name.id, None, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.annotation, node.value
        elif isinstance(node, ast.AugAssign):
            yield ast.unparse(node.target), None, node.value


def is_mutable(value: ast.expr, annotation: ast.expr | None) -> bool:
    """Whether the value is a container that can change; a dict typed Final[Mapping[...]] counts as read-only."""
    if isinstance(value, (ast.Dict, ast.DictComp)):
        return annotation is None or not re.match(r"(Final\[)?Mapping\[", ast.unparse(annotation))
    if isinstance(value, (ast.List, ast.ListComp, ast.Set, ast.SetComp)):
        return True
    return isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in MUTABLE_CALLS


def is_constant_name(name: str, value: ast.expr) -> bool:
    """UPPER_CASE, a dunder, a logger, a type variable or a type alias."""
    is_type = re.fullmatch(r"_?[A-Z]\w*", name) is not None and isinstance(
        value, (ast.Call, ast.Subscript, ast.Name, ast.Attribute, ast.BinOp)
    )
    return re.fullmatch(r"_?[A-Z][A-Z0-9_]*|__\w+__|_?logger", name) is not None or is_type


def complaints(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield f"{node.lineno}: global {', '.join(node.names)}"
        if isinstance(node, ast.ClassDef):
            for name, annotation, value in assignments(node.body):
                if is_mutable(value, annotation):
                    yield f"{value.lineno}: class value {node.name}.{name} is mutable"
    for name, annotation, value in assignments(tree.body):
        if is_mutable(value, annotation):
            yield f"{value.lineno}: module value {name} is mutable"
        elif not is_constant_name(name, value):
            yield f"{value.lineno}: module value {name} is not an UPPER_CASE constant"


def attribute_uses(tree: ast.Module, names: tuple[str, ...]) -> Iterator[str]:
    """Lines that use `something.name`, or import the name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in names:
            yield f"{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.lineno}: import {alias.name}" for alias in node.names if alias.name in names)


def by_path(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", source_files(), ids=by_path)
def test_no_mutable_value_outlives_a_call(path: Path) -> None:
    assert list(complaints(parse(path))) == []


@pytest.mark.parametrize("path", source_files(), ids=by_path)
def test_the_environment_is_read_in_launch_and_launcher_only(path: Path) -> None:
    if by_path(path) == "megatron_zero/distributed/launch.py" or "launcher" in path.parts:
        return
    assert list(attribute_uses(parse(path), ("environ", "environb", "getenv", "putenv", "unsetenv"))) == []


@pytest.mark.parametrize("path", source_files(), ids=by_path)
def test_the_global_rank_is_asked_in_distributed_only(path: Path) -> None:
    if "distributed" in path.parts:
        return
    assert list(attribute_uses(parse(path), ("get_rank", "get_world_size"))) == []


@pytest.mark.parametrize(
    "source, fine",
    [
        ("A = (1, 2)", True),
        ("A: Final[Mapping[str, int]] = {'a': 1}", True),
        ("A = MappingProxyType({'a': 1})", True),
        ("Item = TypeVar('Item')", True),
        ("Shape = tuple[int, ...]", True),
        ("logger = make()", True),
        ("__version__ = '1'", True),
        ("A = {'a': 1}", False),
        ("A = [1]", False),
        ("A = defaultdict(list)", False),
        ("a = 1", False),
        ("def f():\n    global a\n    a = 1", False),
        ("class C:\n    cache = {}", False),
        ("class C:\n    size: int = 3", True),
    ],
)
def test_the_rule_itself_tells_right_from_wrong(source: str, fine: bool) -> None:
    assert (list(complaints(ast.parse(source))) == []) is fine
