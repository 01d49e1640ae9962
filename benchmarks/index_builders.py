"""Seconds and memory to build the indices of a data set: ours, Megatron-core's helpers, numpy, and the floor.

    python benchmarks/index_builders.py                                  # 10^8 documents, 10^11 tokens: about 9 GB
    python benchmarks/index_builders.py --documents 1000000 --repeats 9

Document lengths are exponential with the given mean. The floor is a compiled loop that gathers every length through the
shuffled order and writes the output (sample_index_floor.cpp). Repeats of all rows are interleaved in one process;
medians. All rows take one core, but for ours that say otherwise. Peak memory is read in a process per row: growth of the
resident set beyond the inputs, over the size of the output. Rows whose package is missing say so.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from megatron_zero.data.sample_index import SampleOrder, plan_epochs
from megatron_zero.ops.dataset_index import build_sample_index, build_sample_index_reference, builder_threads, shuffle_

HERE = Path(__file__).resolve().parent
SEED = 1234
FLOOR, CORE = "floor: gather and write", "megatron-core: build_sample_idx_int32"
OURS, ONE_THREAD = "ours: build_sample_index", "ours: build_sample_index, one thread"


@dataclass(frozen=True)
class Inputs:
    """sizes, documents: [n] int32.   tokens: sum of sizes."""

    sizes: np.ndarray
    documents: np.ndarray
    tokens: int
    seq_length: int

    @property
    def num_rows(self) -> int:
        return (self.tokens - 1) // self.seq_length + 1


def make_inputs(documents: int, mean_length: int, seq_length: int, *, shuffled: bool = True) -> Inputs:
    sizes = np.maximum(1, np.random.default_rng(SEED).exponential(mean_length, documents)).astype(np.int32)
    order = np.arange(documents, dtype=np.int32)
    if shuffled:
        shuffle_(order, np.random.RandomState(SEED))
    return Inputs(sizes, order, int(sizes.sum(dtype=np.int64)), seq_length)


def compiled_floor(folder: Path) -> Callable[[Inputs], np.ndarray]:
    library = folder / "floor.so"
    compiler = os.environ.get("CXX", "g++").split()
    subprocess.run([*compiler, "-O3", "-shared", "-fPIC", str(HERE / "sample_index_floor.cpp"), "-o", library], check=True)
    function = ctypes.CDLL(str(library)).gather_and_write
    function.restype = ctypes.c_int64

    def run(inputs: Inputs) -> np.ndarray:
        out = np.empty((inputs.num_rows, 2), dtype=np.int32)
        function(
            ctypes.c_void_p(inputs.sizes.ctypes.data),
            ctypes.c_void_p(inputs.documents.ctypes.data),
            ctypes.c_int64(len(inputs.documents)),
            ctypes.c_void_p(out.ctypes.data),
            ctypes.c_int64(out.size),
        )
        return out

    return run


def core_helpers() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("megatron.core.datasets.helpers_cpp")


def ours(inputs: Inputs) -> np.ndarray:
    return build_sample_index(inputs.sizes, inputs.documents, seq_length=inputs.seq_length, num_rows=inputs.num_rows)


def one_thread(inputs: Inputs) -> np.ndarray:
    return build_sample_index(
        inputs.sizes, inputs.documents, seq_length=inputs.seq_length, num_rows=inputs.num_rows, num_threads=1
    )


def core(inputs: Inputs) -> np.ndarray:
    found: np.ndarray = core_helpers().build_sample_idx_int32(
        inputs.sizes, inputs.documents, inputs.seq_length, 1, inputs.tokens, True, 1
    )
    return found


def numpy_reference(inputs: Inputs) -> np.ndarray:
    return build_sample_index_reference(
        inputs.sizes, inputs.documents, seq_length=inputs.seq_length, num_rows=inputs.num_rows
    )


def our_shuffle(inputs: Inputs) -> np.ndarray:
    order = np.arange(len(inputs.sizes), dtype=np.int32)
    shuffle_(order, np.random.RandomState(SEED))
    return order


def numpy_shuffle(inputs: Inputs) -> np.ndarray:
    order = np.arange(len(inputs.sizes), dtype=np.int32)
    np.random.RandomState(SEED).shuffle(order)
    return order


def our_order(inputs: Inputs) -> SampleOrder:
    plan = plan_epochs(tokens_per_epoch=inputs.tokens, num_samples=None, seq_length=inputs.seq_length)
    return SampleOrder.of(inputs.sizes, range(len(inputs.sizes)), plan, seq_length=inputs.seq_length, seed=SEED)


def core_order(inputs: Inputs) -> tuple[np.ndarray, ...]:
    """The same three indices by the calls that Megatron-core's GPTDataset makes."""
    random = np.random.RandomState(SEED)
    documents = np.arange(len(inputs.sizes), dtype=np.int32)
    random.shuffle(documents)
    samples = core_helpers().build_sample_idx_int32(inputs.sizes, documents, inputs.seq_length, 1, inputs.tokens, True, 1)
    order = np.arange(len(samples) - 1, dtype=np.uint32)
    random.shuffle(order)
    return documents, samples, order


def status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def peak_over_output(row: str, documents: int, mean_length: int, seq_length: int, folder: str) -> float:
    """Peak growth of the resident set during one build, over the bytes of its output; in a process of its own."""
    inputs = make_inputs(documents, mean_length, seq_length)
    build = {FLOOR: compiled_floor(Path(folder)), OURS: ours, CORE: core}[row]
    build(make_inputs(1000, mean_length, seq_length))  # imports and first allocations
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
    before = status_bytes("VmRSS:")
    out = build(inputs)
    return (status_bytes("VmHWM:") - before) / out.nbytes


def timed_rows(folder: Path) -> dict[str, Callable[[Inputs], Any]]:
    rows: dict[str, Callable[[Inputs], Any]] = {
        FLOOR: compiled_floor(folder),
        OURS: ours,
        ONE_THREAD: one_thread,
        CORE: core,
    }
    rows["numpy reference"] = numpy_reference
    rows["ours: shuffle_"] = our_shuffle
    rows["numpy: RandomState.shuffle"] = numpy_shuffle
    rows["ours: all three indices"] = our_order
    rows["megatron-core: all three indices"] = core_order
    try:
        core_helpers()
    except ImportError as error:
        print(f"megatron-core is not installed, its rows are left out: {error}")
        rows = {name: build for name, build in rows.items() if "megatron-core" not in name}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--documents", type=int, default=10**8)
    parser.add_argument("--mean-length", type=int, default=1000)
    parser.add_argument("--seq-length", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    inputs = make_inputs(options.documents, options.mean_length, options.seq_length)
    print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores; Python {platform.python_version()}, "
        f"numpy {np.__version__}"
    )
    print(
        f"{options.documents} documents, {inputs.tokens} tokens, sequence length {options.seq_length}, "
        f"{inputs.num_rows} rows; median of {options.repeats}; {OURS}: {builder_threads(options.documents)} threads"
    )
    with tempfile.TemporaryDirectory() as folder:
        rows = timed_rows(Path(folder))
        seconds: dict[str, list[float]] = {name: [] for name in rows}
        if CORE in rows:
            np.testing.assert_array_equal(ours(inputs), core(inputs))
        np.testing.assert_array_equal(our_shuffle(inputs), numpy_shuffle(inputs))
        for _ in range(options.repeats):
            for name, build in rows.items():
                started = time.perf_counter()
                build(inputs)
                seconds[name].append(time.perf_counter() - started)
        arguments = (options.documents, options.mean_length, options.seq_length, folder)
        del inputs
        memory = {}
        for name in (FLOOR, OURS, CORE):
            if name in rows:
                with get_context("spawn").Pool(1) as pool:
                    memory[name] = pool.apply(peak_over_output, (name, *arguments))
    floor = statistics.median(seconds[FLOOR])
    print(f"\n{'':38} {'seconds':>8} {'min':>8} {'/ floor':>8} {'peak memory / output':>22}")
    for name, times in seconds.items():
        median = statistics.median(times)
        peak = f"{memory[name]:.2f}" if name in memory else ""
        print(f"{name:38} {median:8.3f} {min(times):8.3f} {median / floor:8.2f} {peak:>22}")


if __name__ == "__main__":
    sys.exit(main())
