"""Several .bin/.idx pairs put one after the other into one: what preprocessing their texts together would have made.

.bin is copied in blocks and .idx is made anew, so time is that of copying, and memory does not grow with .bin.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..config.fields import ConfigError
from .index_format import CHUNK, TokenDtype, bin_path, idx_path
from .indexed_dataset import IndexedDataset, IndexedDatasetWriter, open_prefix
from .publish_pair import missing_index


@dataclass(frozen=True, slots=True)
class MergePlan:
    """datasets: open, and checked whole.   dtype: holds the values of all of them.   found: pairs by folder."""

    datasets: tuple[IndexedDataset, ...]
    dtype: TokenDtype
    found: Mapping[str, tuple[str, ...]]

    def widening_text(self) -> str:
        """Which types become a wider one, or ""."""
        narrower = sorted({dataset.dtype.name for dataset in self.datasets if dataset.dtype != self.dtype})
        if not narrower:
            return ""
        return f"element types differ: {' and '.join(narrower)} become {self.dtype.name}, without loss"

    def folder_lines(self) -> Iterator[str]:
        """The pairs that a folder stands for."""
        for folder, prefixes in self.found.items():
            names = ", ".join(Path(prefix).name for prefix in prefixes)
            yield f"--input {folder}: {len(prefixes)} pair{'s' if len(prefixes) > 1 else ''}: {names}"

    def repeat_lines(self) -> Iterator[str]:
        """Each input whose content an earlier one has, byte for byte. Reads .bin where .idx and sizes are equal."""
        first_ones: dict[str, list[IndexedDataset]] = {}
        for dataset in self.datasets:
            alike = first_ones.setdefault(dataset.fingerprint(), [])
            equal = next((other for other in alike if len(dataset) > 0 and _same_elements(dataset, other)), None)
            if equal is None:
                alike.append(dataset)
            else:
                yield f"{dataset.prefix} holds what {equal.prefix} holds: each of its documents comes more than once"


def plan_merge(inputs: Sequence[str], *, output: str) -> MergePlan:
    """inputs: prefixes, and folders of which all pairs are taken by name. Every pair is opened, once, and so checked.

    Errors: ConfigError for a file without its partner, a pair named twice, types that have no common one, an output
    that is an input; those of open_prefix.
    """
    found = {name: _pairs_in(name) for name in inputs if Path(name).is_dir()}
    prefixes = tuple(prefix for name in inputs for prefix in found.get(name, (name,)))
    for prefix in prefixes:
        if prefix.endswith((".bin", ".idx")) and not bin_path(prefix).exists() and Path(prefix).exists():
            raise ConfigError(f"--input {prefix}: is a file; give the prefix, {prefix[:-4]}")
    datasets = tuple(open_prefix(prefix, flag="--input") for prefix in prefixes)
    _check_different(datasets, output)
    return MergePlan(datasets, common_dtype([dataset.dtype for dataset in datasets]), found)


def merge(plan: MergePlan, writer: IndexedDatasetWriter) -> None:
    for dataset in plan.datasets:
        writer.add_dataset(dataset)


def common_dtype(dtypes: Sequence[TokenDtype]) -> TokenDtype:
    """The smallest type that holds every value of all. Errors: ConfigError where whole numbers meet floating point."""
    if len({dtype.kind == "f" for dtype in dtypes}) > 1:
        names = ", ".join(sorted({dtype.name for dtype in dtypes}))
        raise ConfigError(f"--input: element types {names}; whole numbers and floating point are not merged")
    common: TokenDtype = np.result_type(*dtypes)
    return common


def _same_elements(one: IndexedDataset, other: IndexedDataset) -> bool:
    size = CHUNK * one.dtype.itemsize
    return all(np.array_equal(a, b) for a, b in zip(one.blocks(size), other.blocks(size), strict=True))


def _pairs_in(folder: str) -> tuple[str, ...]:
    names = {path.name for path in Path(folder).iterdir() if path.suffix in (".bin", ".idx")}
    stems = sorted({name[:-4] for name in names})
    for stem in stems:
        prefix = Path(folder) / stem
        if fault := missing_index(bin_path(prefix), idx_path(prefix)):
            raise ConfigError(f"--input {folder}: {fault}")
        for suffix in (".bin", ".idx"):
            if stem + suffix not in names:
                raise ConfigError(
                    f"--input {folder}: {stem}{suffix} is missing beside {stem}.{'idx' if suffix == '.bin' else 'bin'}"
                )
    if not stems:
        raise ConfigError(f"--input {folder}: no .bin and .idx in this folder")
    return tuple(str(Path(folder) / stem) for stem in stems)


def _check_different(datasets: Sequence[IndexedDataset], output: str) -> None:
    seen: dict[tuple[int, int], str] = {}
    for dataset in datasets:
        for path in (dataset.bin_path, dataset.idx_path):
            status = os.stat(path)
            key = status.st_dev, status.st_ino
            if key in seen:
                raise ConfigError(f"--input {path}: is the same file as {seen[key]}, so its documents would come twice")
            seen[key] = str(path)
    for path in (bin_path(output), idx_path(output)):
        if path.exists() and (path.stat().st_dev, path.stat().st_ino) in seen:
            raise ConfigError(f"--output-prefix: {path} would replace an input; choose another prefix")
