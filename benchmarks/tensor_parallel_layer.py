"""Microseconds of a linear layer, forward and backward, on one GPU: torch's, ours over one rank, Megatron-core's.

    python benchmarks/tensor_parallel_layer.py                       # 2.7B's and 6.7B's layers, 4096 tokens, bf16
    python benchmarks/tensor_parallel_layer.py --tokens 16384 --rounds 50

Rounds of all rows are interleaved in one process; medians of CUDA events, and of the host's time to queue the work. The
kernel lists of one forward and backward are compared with the plain layer's, name by name. Core's rows need megatron-core,
and are left out without.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path[0] = str(Path(__file__).resolve().parents[1])  # this checkout, whatever is installed

from megatron_zero.tensor_parallel.group import TensorParallel  # noqa: E402
from megatron_zero.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear  # noqa: E402

SHAPES = {"2.7B fc1": (2560, 10240), "2.7B fc2": (10240, 2560), "6.7B qkv": (4096, 12288), "6.7B dense": (4096, 4096)}


@dataclass
class Row:
    name: str
    layer: nn.Module
    forward: Callable[[Tensor], Tensor]


class PlainRow(nn.Module):
    """x W + b with W [in, out]: what a row-parallel layer of one rank is."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.empty(out_features))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


def core_layer(in_features: int, out_features: int) -> nn.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from megatron.core import parallel_state
            from megatron.core.model_parallel_config import ModelParallelConfig
            from megatron.core.tensor_parallel import ColumnParallelLinear as CoreColumn
            from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

            if not torch.distributed.is_initialized():
                torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:29531", rank=0, world_size=1)
                parallel_state.initialize_model_parallel()
                model_parallel_cuda_manual_seed(1)
            config = ModelParallelConfig(params_dtype=torch.bfloat16, gradient_accumulation_fusion=False)
            return CoreColumn(
                in_features, out_features, config=config, init_method=nn.init.xavier_normal_, bias=True, gather_output=False
            )
    except Exception as error:  # of any kind: the peer's row is left out, and the reason is shown
        print(f"megatron-core's row is left out: {type(error).__name__}: {error}")
        return None


def rows_of(in_features: int, out_features: int) -> list[Row]:
    tp = TensorParallel.single()
    layers: list[tuple[str, nn.Module]] = [
        ("plain: nn.Linear", nn.Linear(in_features, out_features)),
        ("ours: ColumnParallelLinear", ColumnParallelLinear(in_features, out_features, bias=True, tp=tp)),
        ("plain: addmm, W [in, out]", PlainRow(in_features, out_features)),
        ("ours: RowParallelLinear", RowParallelLinear(in_features, out_features, bias=True, tp=tp)),
    ]
    rows = []
    for name, layer in layers:
        layer.to("cuda", torch.bfloat16)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.02)
        rows.append(Row(name, layer, layer))
    core = core_layer(in_features, out_features)
    if core is not None:
        core.to("cuda", torch.bfloat16)
        rows.append(Row("core: ColumnParallelLinear", core, lambda x, layer=core: layer(x)[0]))
    return rows


def step(row: Row, x: Tensor, grad: Tensor) -> None:
    for parameter in row.layer.parameters():
        parameter.grad = None
    x.grad = None
    row.forward(x).backward(grad)


def kernels(row: Row, x: Tensor, grad: Tensor) -> list[str]:
    """Names of what runs on the GPU in one forward and backward, in order."""
    step(row, x, grad)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        step(row, x, grad)
        torch.cuda.synchronize()
    events: list[Any] = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return [event.name for event in sorted(events, key=lambda event: event.time_range.start)]


def measure(rows: list[Row], x: Tensor, grad: Tensor, rounds: int) -> dict[str, tuple[float, float]]:
    """Row -> (device, host) medians in microseconds."""
    device: dict[str, list[float]] = {row.name: [] for row in rows}
    host: dict[str, list[float]] = {row.name: [] for row in rows}
    for index in range(rounds + 3):
        for row in rows:
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            begin.record()
            started = time.perf_counter()
            step(row, x, grad)
            queued = time.perf_counter() - started
            end.record()
            end.synchronize()
            if index >= 3:
                device[row.name].append(begin.elapsed_time(end) * 1e3)
                host[row.name].append(queued * 1e6)
    return {row.name: (statistics.median(device[row.name]), statistics.median(host[row.name])) for row in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {options.tokens} tokens, {options.rounds} rounds")
    print(f"{'':12} {'':28} {'device us':>10} {'/ plain':>8} {'host us':>8}  kernels")
    for shape, (in_features, out_features) in SHAPES.items():
        rows = rows_of(in_features, out_features)
        x = torch.randn(options.tokens, in_features, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        grad = torch.randn(options.tokens, out_features, device="cuda", dtype=torch.bfloat16)
        times = measure(rows, x, grad, options.rounds)
        plain_time, plain_kernels = 0.0, []
        for row in rows:
            names = kernels(row, x, grad)
            if row.name.startswith("plain"):
                plain_time, plain_kernels = times[row.name][0], names
            same = "the same" if names == plain_kernels else f"{len(names)} instead of {len(plain_kernels)}"
            device, host = times[row.name]
            print(f"{shape:12} {row.name:28} {device:10.1f} {device / plain_time:8.3f} {host:8.1f}  {same}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
