"""Answers setup_env.sh's questions about one interpreter, this one, and its packages. Standard library only.

Changes nothing, except that `finish` writes a stamp: what was installed, and from which state of the checkout. A stamp
that no longer fits means that setup_env.sh has work to do.

    missing             one line for each thing that is missing: "venv:", "headers:" or "system:" and words, or
                        "package:", the requirement, ":" and words
    torch               succeeds if a supported torch is installed and no other one is asked for
    build-requirements  what pyproject.toml needs for building, one requirement a line
    broken              requirements of packages whose installation was interrupted
    ready               succeeds if nothing has to be done
    finish              checks what was installed; writes the stamp, or says what is wrong and fails
    untested            a line for each version that this project is not run on by its developers
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import importlib.metadata
import json
import re
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

TESTED_TORCH = ("2.11", "2.13")
TESTED_PYTHON = ("3.11", "3.12")
EXTENSIONS = ("_C_adam", "_C_dataset")
# Missing in an environment that is only used, not made, they cost a part of tests/run.sh, or speed, or one kind of
# input; who meets that is told.
OPTIONAL = ("ruff", "mypy", "megatron-core", "tokenizers", "transformers>=4.46", "tiktoken>=0.9", "zstandard>=0.18")


@dataclass(frozen=True)
class Stamp:
    """What a finished set-up leaves behind."""

    key: str
    extras: tuple[str, ...]
    requirement: str


def toml_list(text: str, key: str) -> list[str]:
    """The list of strings `key = [...]` of a TOML text. Python 3.10 has no TOML reader; such a list is Python too."""
    match = re.search(rf"^{re.escape(key)} = (\[[^\]]*\])", text, flags=re.MULTILINE)
    if match is None:
        raise SystemExit(f"pyproject.toml has no list '{key}'")
    return list(ast.literal_eval(match.group(1)))


def release(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 13, 0) of "2.13.0+cpu"."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def problem_of(requirement: str) -> str | None:
    """Why an installed package does not meet "name>=1,<2" (only these operators), or None."""
    name, bounds = re.fullmatch(r"([A-Za-z0-9_.-]+)(.*)", requirement).groups()
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return f"{name} is not installed"
    for operator, bound in re.findall(r"(>=|<)([0-9.]+)", bounds):
        if (release(version) >= release(bound)) != (operator == ">="):
            return f"{name} is {version}; needed: {name}{bounds}"
    return None


def requirements(root: Path, extras: tuple[str, ...]) -> list[str]:
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    wanted = toml_list(text, "dependencies")
    for extra in extras:
        wanted += toml_list(text, extra)
    return wanted


def build_requirements(root: Path) -> list[str]:
    return toml_list((root / "pyproject.toml").read_text(encoding="utf-8"), "requires")


def torch_requirement(root: Path) -> str:
    return next(wanted for wanted in requirements(root, ()) if wanted.startswith("torch"))


def missing(root: Path, extras: tuple[str, ...], *, given: bool) -> list[str]:
    """Everything that this interpreter lacks. given: its packages are used as they are, not installed."""
    lines = []
    makes_venv = not given and Path(sys.prefix) != root / ".venv"
    if makes_venv and not (importable("venv") and importable("ensurepip")):
        lines.append(f"venv:the modules venv and ensurepip of {sys.executable}")
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        lines.append(f"headers:the Python headers ({header} does not exist)")
    if given:
        if not importable("pip"):
            lines.append(f"system:pip (to get it: {sys.executable} -m ensurepip)")
        marker = Path(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
        if sys.prefix == sys.base_prefix and marker.is_file():
            lines.append(
                f"system:an environment that pip may change: {sys.executable} belongs to the system "
                f"(to get one: {sys.executable} -m venv --system-site-packages FOLDER)"
            )
        wanted = [r for r in requirements(root, extras) + build_requirements(root) if r not in OPTIONAL]
        lines += [f"package:{r}:{problem}" for r in wanted if (problem := problem_of(r)) is not None]
    return lines


def importable(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def broken() -> list[str]:
    """pip writes a package's RECORD last, so one without it was not finished."""
    found = importlib.metadata.distributions()
    return [f"{d.metadata['Name']}=={d.version}" for d in found if d.metadata["Name"] and d.read_text("RECORD") is None]


def checkout_key(root: Path) -> str:
    """Digest of all that an installation is made from: build files, C++ sources, interpreter, place."""
    digest = hashlib.sha256()
    sources = sorted(path for path in (root / "csrc").glob("*/*") if path.suffix in (".h", ".cpp"))
    for path in (root / "pyproject.toml", root / "setup.py", *sources):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(content)}\n".encode() + content)
    digest.update(f"{sys.version} {sys.prefix} {root}".encode())
    return digest.hexdigest()


def stamp_path(root: Path, *, given: bool) -> Path:
    if given:
        return root / "build" / f"setup_{hashlib.sha256(sys.prefix.encode()).hexdigest()[:16]}.json"
    return Path(sys.prefix) / "mz_setup.json"


def read_stamp(path: Path) -> Stamp | None:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return Stamp(fields["key"], tuple(fields["extras"]), fields["requirement"])
    except (OSError, ValueError, KeyError):
        return None


def write_stamp(path: Path, stamp: Stamp) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(stamp.__dict__), encoding="utf-8")
    temporary.replace(path)


def installation_problem(root: Path) -> str | None:
    """What is wrong with the installed package, or None: torch in range, the package from this checkout, extensions."""
    problem = problem_of(torch_requirement(root))
    if problem is not None:
        return problem
    try:
        importlib.metadata.version("megatron_zero")
        package = importlib.import_module("megatron_zero")
        for extension in EXTENSIONS:
            importlib.import_module(f"megatron_zero.{extension}")
    except ImportError as error:  # PackageNotFoundError too
        return f"megatron_zero is not usable: {error}"
    if Path(package.__file__).resolve().parent.parent != root:
        return f"megatron_zero is installed from another folder, {Path(package.__file__).parent}"
    return None


def torch_is_kept(root: Path, requirement: str, stamp: Stamp | None) -> bool:
    """An explicit requirement is met only by the installation that was made with it."""
    asked_before = stamp.requirement if stamp is not None else ""
    return problem_of(torch_requirement(root)) is None and requirement in ("", asked_before)


def untested() -> list[str]:
    versions = {"torch": importlib.metadata.version("torch"), "Python": sys.version.split()[0]}
    tested = {"torch": TESTED_TORCH, "Python": TESTED_PYTHON}
    return [
        f"setup: {name} {version} is untested (tested: {', '.join(tested[name])})"
        for name, version in versions.items()
        if ".".join(map(str, release(version)[:2])) not in tested[name]
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("question")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--extras", default="")
    parser.add_argument("--requirement", default="")
    parser.add_argument("--given", action="store_true")
    options = parser.parse_args()
    extras = tuple(extra for extra in options.extras.split(",") if extra)
    path = stamp_path(options.root, given=options.given)
    stamp = read_stamp(path)
    if options.question == "missing":
        lines = missing(options.root, extras, given=options.given)
    elif options.question == "build-requirements":
        lines = build_requirements(options.root)
    elif options.question == "broken":
        lines = broken()
    elif options.question == "untested":
        lines = untested()
    elif options.question == "torch":
        return 0 if torch_is_kept(options.root, options.requirement, stamp) else 1
    elif options.question == "ready":
        fits = stamp is not None and stamp.key == checkout_key(options.root) and set(extras) <= set(stamp.extras)
        kept = options.given or torch_is_kept(options.root, options.requirement, stamp)
        return 0 if fits and kept and installation_problem(options.root) is None else 1
    elif options.question == "finish":
        problem = installation_problem(options.root)
        if problem is not None:
            print(problem)
            return 1
        asked = options.requirement or (stamp.requirement if stamp is not None else "")
        write_stamp(path, Stamp(checkout_key(options.root), extras, asked))
        lines = []
    else:
        parser.error(f"unknown question '{options.question}'")
    print("\n".join(lines), end="\n" if lines else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
