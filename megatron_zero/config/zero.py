"""ZeroConfig and OffloadOptimizerConfig: the ZeRO stage and where the optimizer's state rests (DeepSpeed's names)."""

from __future__ import annotations

from dataclasses import dataclass, field

from .fields import knob


@dataclass(frozen=True, slots=True)
class OffloadOptimizerConfig:
    device: str = knob(
        "none",
        json="zero_optimization.offload_optimizer.device",
        kind="str",
        choices=("none", "cpu"),
        auto=False,
        help="where the optimizer's state rests beside the GPU: none or cpu (nvme comes later)",
    )
    pin_memory: bool = knob(
        True,
        json="zero_optimization.offload_optimizer.pin_memory",
        kind="bool",
        help="page-locked buffers for what crosses the link (no effect without a GPU)",
    )
    ratio: float = knob(
        1.0,
        json="zero_optimization.offload_optimizer.ratio",
        kind="float",
        auto=False,
        help="share of this rank's optimizer elements that are not on the GPU; exact to the element",
    )
    step_policy: str = knob(
        "sync",
        json="zero_optimization.offload_optimizer.step_policy",
        kind="str",
        choices=("sync",),
        help="when the host's share may start; all policies give the same bits",
    )
    cpu_optimizer: bool = knob(
        False,
        flag="--cpu-optimizer",
        aliases=("--optimizer-cpu-offload",),
        kind="bool",
        help="optimizer on the host: with no offload_optimizer block, device cpu and ratio 1",
    )


@dataclass(frozen=True, slots=True)
class ZeroConfig:
    stage: int = knob(
        0,
        flag="--zero-stage",
        json="zero_optimization.stage",
        kind="int",
        choices=(0, 1, 2, 3),
        auto=False,
        help="0 none, 1 optimizer states, 2 + gradients, 3 + weights are sharded over data parallel",
    )
    sub_group_size: int = knob(
        1_000_000_000,
        json="zero_optimization.sub_group_size",
        kind="int",
        help="elements per optimizer tile; never changes the result nor the ratio",
    )
    offload_optimizer: OffloadOptimizerConfig = field(default_factory=OffloadOptimizerConfig)
    prescale_gradients: bool = knob(
        False,
        json="prescale_gradients",
        kind="bool",
        choices=(False,),
        help="divide before the reduction; only false is built (averaging in fp32 needs no prescale)",
    )
    deepspeed: bool = knob(False, flag="--deepspeed", kind="bool", help="read the JSON named by --deepspeed_config")
    deepspeed_config: str | None = knob(
        None,
        flag="--deepspeed_config",
        aliases=("--deepspeed-config", "--ds-config"),
        kind="str",
        help="path of the DeepSpeed-style JSON file",
    )
