"""ParallelConfig: widths of the mesh axes and how the processes meet (the data-parallel size is derived)."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import knob


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    tensor_model_parallel_size: int = knob(
        1, flag="--tensor-model-parallel-size", kind="int", help="tensor-parallel width"
    )
    pipeline_model_parallel_size: int = knob(
        1, flag="--pipeline-model-parallel-size", kind="int", help="pipeline-parallel width"
    )
    sequence_parallel: bool = knob(
        False,
        flag="--sequence-parallel",
        kind="bool",
        help="norms, dropout and residuals divided over tensor parallel by tokens",
    )
    async_tensor_model_parallel_allreduce: bool = knob(
        True,
        flag="--no-async-tensor-model-parallel-allreduce",
        kind="bool",
        switch=False,
        help="sums over tensor parallel are not overlapped with the weight gradient",
    )
    no_pipeline_parallel: bool = knob(
        False,
        flag="--no-pipeline-parallel",
        kind="bool",
        help="the pipeline size must be 1 (upstream needs this for ZeRO-2/3; here it only states it)",
    )
    distributed_backend: str | None = knob(
        None,
        flag="--distributed-backend",
        kind="str",
        choices=("nccl", "gloo"),
        help="nccl or gloo; unset = nccl with GPUs, gloo without",
    )
    distributed_timeout_minutes: float = knob(
        10.0, flag="--distributed-timeout-minutes", kind="float", help="time-out of a collective; fractions allowed"
    )
    local_rank: int | None = knob(
        None,
        flag="--local_rank",
        aliases=("--local-rank",),
        kind="int",
        help="rank on the node as launchers pass it; the environment's LOCAL_RANK wins",
    )
