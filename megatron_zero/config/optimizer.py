"""Adam, learning-rate schedule and precision sections."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import knob


@dataclass(frozen=True, slots=True)
class AdamConfig:
    type: str = knob(
        "AdamW",
        json="optimizer.type",
        kind="str",
        choices=("Adam", "AdamW", "adam", "adamw"),
        auto=False,
        help="both mean decoupled weight decay (AdamW), as DeepSpeed's default adam_w_mode does",
    )
    lr: float | None = knob(None, flag="--lr", json="optimizer.params.lr", kind="float", help="peak learning rate")
    adam_beta1: float = knob(
        0.9, flag="--adam-beta1", json="optimizer.params.betas[0]", kind="float", help="decay of the first moment"
    )
    adam_beta2: float = knob(
        0.999, flag="--adam-beta2", json="optimizer.params.betas[1]", kind="float", help="decay of the second moment"
    )
    adam_eps: float = knob(
        1e-8, flag="--adam-eps", json="optimizer.params.eps", kind="float", help="floor of Adam's denominator"
    )
    weight_decay: float = knob(
        0.01, flag="--weight-decay", json="optimizer.params.weight_decay", kind="float", help="decoupled weight decay"
    )
    clip_grad: float = knob(
        1.0,
        flag="--clip-grad",
        json="gradient_clipping",
        kind="float",
        help="global L2 norm at which gradients are clipped; 0 = off",
    )


@dataclass(frozen=True, slots=True)
class LrScheduleConfig:
    lr_decay_style: str = knob(
        "linear",
        flag="--lr-decay-style",
        kind="str",
        choices=("constant", "linear", "cosine"),
        help="shape of the decay",
    )
    lr_decay_tokens: int | None = knob(
        None, flag="--lr-decay-tokens", kind="int", help="decay length in tokens; unset = the whole run"
    )
    lr_warmup_tokens: int | None = knob(None, flag="--lr-warmup-tokens", kind="int", help="warm-up in tokens")
    min_lr: float = knob(0.0, flag="--min-lr", kind="float", help="floor of the learning rate")
    override_opt_param_scheduler: bool = knob(
        False,
        flag="--override-opt_param-scheduler",
        aliases=("--override-opt-param-scheduler",),
        kind="bool",
        help="on resume take the schedule from the command line, not from the checkpoint",
    )


@dataclass(frozen=True, slots=True)
class PrecisionConfig:
    bf16: bool = knob(
        False,
        flag="--bf16",
        json="bf16.enabled",
        json_aliases=("bfloat16.enabled",),
        kind="bool",
        help="bfloat16 weights and activations, fp32 master weights and gradient accumulation",
    )
    fp16: bool = knob(False, flag="--fp16", json="fp16.enabled", kind="bool", help="half precision with a loss scale")
    hysteresis: int = knob(
        2, flag="--hysteresis", json="fp16.hysteresis", kind="int", help="fp16: overflows before the scale is halved"
    )
    loss_scale: float = knob(0.0, json="fp16.loss_scale", kind="float", help="fp16: static scale; 0 = dynamic")
    loss_scale_window: int = knob(
        1000, json="fp16.loss_scale_window", kind="int", help="fp16: good steps before the scale doubles"
    )
    min_loss_scale: float = knob(1.0, json="fp16.min_loss_scale", kind="float", help="fp16: lowest dynamic scale")
    initial_scale_power: int = knob(
        16, json="fp16.initial_scale_power", kind="int", help="fp16: the first scale is 2 to this power"
    )
