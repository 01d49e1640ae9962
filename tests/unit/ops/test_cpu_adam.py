"""AdamW: the C++ kernel against its plain-torch reference (bit for bit), torch.optim.AdamW, and the goldens."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from megatron_zero.ops.cpu_adam import (
    AdamScalars,
    adamw_step_,
    adamw_step_reference_,
    select_simd_level,
    simd_level,
)

SIZES = (1, 7, 8, 15, 16, 17, 1023, 1024, 4099)
LEVELS = tuple(sorted({"baseline", simd_level()}))
GRAD_SIZES = {"normal": 1e-3, "denormal": 1e-22}  # 1e-22 squared is below 2^-126: exp_avg_sq is flushed
FULL_AVX512 = ("avx512f", "avx512bw", "avx512vl", "avx512dq")


@dataclass
class AdamState:
    """The tensors of one flat range."""

    master: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    working: Tensor | None

    @staticmethod
    def start(numel: int, *, working: torch.dtype | None, seed: int) -> AdamState:
        master = torch.randn(numel, generator=torch.Generator().manual_seed(seed)) * 0.02
        copy = None if working is None else torch.zeros(numel, dtype=working)
        return AdamState(master, torch.zeros(numel), torch.zeros(numel), copy)

    def clone(self) -> AdamState:
        copy = None if self.working is None else self.working.clone()
        return AdamState(self.master.clone(), self.exp_avg.clone(), self.exp_avg_sq.clone(), copy)

    def tensors(self) -> list[Tensor]:
        return [t for t in (self.master, self.exp_avg, self.exp_avg_sq, self.working) if t is not None]


def scalars_of(step: int, *, grad_scale: float = 0.37, weight_decay: float = 0.1) -> AdamScalars:
    return AdamScalars.of(
        step=step, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=weight_decay, grad_scale=grad_scale
    )


def gradients(numel: int, *, size: float, dtype: torch.dtype, steps: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield (torch.randn(numel, generator=generator) * size).to(dtype)


def kernel(
    state: AdamState, grad: Tensor, scalars: AdamScalars, *, simd: str | None = None, num_threads: int = 1
) -> None:
    ranges = (state.master, state.exp_avg, state.exp_avg_sq, grad, state.working)
    adamw_step_(*ranges, scalars=scalars, simd=simd, num_threads=num_threads)


def reference(state: AdamState, grad: Tensor, scalars: AdamScalars) -> None:
    adamw_step_reference_(state.master, state.exp_avg, state.exp_avg_sq, grad, state.working, scalars=scalars)


def bits(tensor: Tensor) -> Tensor:
    return tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def assert_bit_equal(ours: AdamState, expected: AdamState) -> None:
    """Also tells -0 from 0, which a comparison of values would not."""
    for mine, theirs in zip(ours.tensors(), expected.tensors(), strict=True):
        torch.testing.assert_close(bits(mine), bits(theirs), rtol=0, atol=0)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("data", GRAD_SIZES)
@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("numel", [*SIZES, 100_003])
def test_kernel_equals_reference_bit_for_bit(numel: int, grad_dtype: torch.dtype, data: str, level: str) -> None:
    for working in (torch.bfloat16, torch.float16, torch.float32, None) if numel < 2000 else (torch.bfloat16,):
        ours = AdamState.start(numel, working=working, seed=numel)
        expected = ours.clone()
        grads = gradients(numel, size=GRAD_SIZES[data], dtype=grad_dtype, steps=20, seed=7)
        for step, grad in enumerate(grads, start=1):
            kernel(ours, grad, scalars_of(step), simd=level)
            reference(expected, grad, scalars_of(step))
        assert_bit_equal(ours, expected)


@pytest.mark.parametrize("level", LEVELS)
def test_denormal_moments_become_zero_and_normal_ones_stay(level: str) -> None:
    # From zero moments with grad_scale 1: m = fp32(0.1) * g, here just below or just above 2^-126.
    one_minus_beta1 = scalars_of(1).one_minus_beta1
    edge = 2.0**-126 / one_minus_beta1
    grad = torch.tensor([edge * 0.999, edge * 1.001, -edge * 0.999, -edge * 1.001, 0.0, -0.0])
    state = AdamState.start(6, working=None, seed=1)
    kernel(state, grad, scalars_of(1, grad_scale=1.0), simd=level)
    assert (state.exp_avg == 0).tolist() == [True, False, True, False, True, True]
    assert not torch.signbit(state.exp_avg[[0, 2]]).any()
    assert (state.exp_avg_sq == 0).all()


def test_result_ignores_the_threads_flush_mode() -> None:
    grads = list(gradients(1023, size=3e-19, dtype=torch.float32, steps=5, seed=3))  # g * g is denormal, v is not zero
    plain = AdamState.start(1023, working=torch.bfloat16, seed=1)
    flushing = plain.clone()
    for step, grad in enumerate(grads, start=1):
        kernel(plain, grad, scalars_of(step))
    if not torch.set_flush_denormal(True):
        pytest.skip("torch cannot switch flushing on this processor")
    try:
        for step, grad in enumerate(grads, start=1):
            kernel(flushing, grad, scalars_of(step))
        still_flushing = (torch.tensor(1e-40) * 1.0).item() == 0.0
    finally:
        torch.set_flush_denormal(False)
    assert still_flushing
    assert_bit_equal(flushing, plain)


@pytest.mark.parametrize("num_threads", [2, 3, 8])
@pytest.mark.parametrize("numel", [4099, (1 << 16) - 1, (1 << 17) + 5, 400_003])
def test_result_does_not_depend_on_threads(numel: int, num_threads: int) -> None:
    one = AdamState.start(numel, working=torch.bfloat16, seed=2)
    many = one.clone()
    for step, grad in enumerate(gradients(numel, size=1e-3, dtype=torch.bfloat16, steps=2, seed=4), start=1):
        kernel(one, grad, scalars_of(step))
        kernel(many, grad, scalars_of(step), num_threads=num_threads)
    assert_bit_equal(many, one)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("start", "stop"), [(1, 2), (1, 18), (3, 1020), (5, 4099)])
def test_slice_at_odd_offset_equals_whole_and_leaves_the_rest_alone(start: int, stop: int, level: str) -> None:
    whole = AdamState.start(4101, working=torch.bfloat16, seed=5)
    before = whole.clone()
    part = whole.clone()
    grad = next(gradients(4101, size=1e-3, dtype=torch.bfloat16, steps=1, seed=6))
    kernel(whole, grad, scalars_of(1), simd=level)
    cut = slice(start, stop)
    kernel(AdamState(*(t[cut] for t in part.tensors())), grad[cut], scalars_of(1), simd=level)
    for updated, ours, old in zip(whole.tensors(), part.tensors(), before.tensors(), strict=True):
        expected = old.clone()
        expected[cut] = updated[cut]
        torch.testing.assert_close(bits(ours), bits(expected), rtol=0, atol=0)


def test_reference_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = AdamState.start(1023, working=torch.bfloat16, seed=5)
    chunked = whole.clone()
    grad = next(gradients(1023, size=1e-3, dtype=torch.bfloat16, steps=1, seed=6))
    reference(whole, grad, scalars_of(1))
    monkeypatch.setattr("megatron_zero.ops.cpu_adam.REFERENCE_CHUNK_NUMEL", 100)
    reference(chunked, grad, scalars_of(1))
    assert_bit_equal(chunked, whole)


@pytest.mark.parametrize("working", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("level", LEVELS)
def test_working_copy_rounds_like_torch(level: str, working: torch.dtype) -> None:
    """With lr 0 and no decay master stays as it is, so the working copy is a pure conversion.

    Inputs: every finite value of the narrow type, and the floats at, just below and just above the tie after it.
    """
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(working)
    exact = every[every.isfinite()].float()
    tails = torch.tensor([0, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001], dtype=torch.int32)
    master = (exact.view(torch.int32)[:, None] | tails).view(torch.float32).flatten()
    largest = torch.tensor([65519.996, 65520.0, 1e38, -1e38, 3.4e38, math.inf, -math.inf])
    smallest = torch.tensor([2.0**-25, 2.0**-25 * 1.0001, -(2.0**-25), 3 * 2.0**-25, 1e-40, -1e-45])
    master = torch.cat([master, largest, smallest])
    zero = torch.zeros_like(master)
    state = AdamState(master.clone(), zero.clone(), zero.clone(), zero.to(working))
    constants = AdamScalars.of(step=1, lr=0.0, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.0, grad_scale=1.0)
    kernel(state, zero, constants, simd=level)
    torch.testing.assert_close(bits(state.master), bits(master), rtol=0, atol=0)
    torch.testing.assert_close(bits(state.working), bits(master.to(working)), rtol=0, atol=0)


@pytest.mark.parametrize("level", LEVELS)
def test_nan_gradient_stays_in_its_element(level: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        state = AdamState.start(33, working=dtype, seed=1)
        grad = torch.full((33,), 1e-3, dtype=dtype)
        grad[5] = math.nan
        kernel(state, grad, scalars_of(1), simd=level)
        for tensor in state.tensors():
            assert tensor.isnan().nonzero().flatten().tolist() == [5]


@pytest.mark.parametrize("numel", SIZES)
def test_agrees_with_torch_adamw(numel: int) -> None:
    """H10: within 2e-6, which leaves room for torch's fused multiply-add and its inexact square root."""
    state = AdamState.start(numel, working=None, seed=numel)
    parameter = torch.nn.Parameter(state.master.clone())
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False)
    for step, grad in enumerate(gradients(numel, size=1.0, dtype=torch.float32, steps=20, seed=8), start=1):
        kernel(state, grad, scalars_of(step, grad_scale=1.0))
        parameter.grad = grad
        optimizer.step()
    torch.testing.assert_close(state.master, parameter.detach(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("case", ["adamw_default", "adamw_gpt"])
def test_equals_goldens(shared_dir, case: str) -> None:
    """Against float64: 5e-6 absolute at every step (torch's own fp32 is within 2.7e-6)."""
    with np.load(shared_dir / "data/goldens/optimizer/adam.npz") as file:
        params = json.loads(str(file["params"]))[case]
        golden = {key: torch.from_numpy(file[f"{case}_{key}"]) for key in ("init", "grads", "lr", "params_f64")}
        moments = [torch.from_numpy(file[f"{case}_{key}"]) for key in ("exp_avg_f64", "exp_avg_sq_f64")]
    numel = golden["init"].numel()
    state = AdamState(golden["init"].clone(), torch.zeros(numel), torch.zeros(numel), None)
    beta1, beta2 = params["betas"]
    for step, (grad, lr, expected) in enumerate(
        zip(golden["grads"], golden["lr"], golden["params_f64"], strict=True), start=1
    ):
        constants = AdamScalars.of(
            step=step, lr=lr.item(), beta1=beta1, beta2=beta2, eps=params["eps"], weight_decay=params["wd"],
            grad_scale=1.0,
        )  # fmt: skip
        kernel(state, grad, constants)
        torch.testing.assert_close(state.master.double(), expected, rtol=0, atol=5e-6)
    torch.testing.assert_close([state.exp_avg.double(), state.exp_avg_sq.double()], moments, rtol=1e-5, atol=5e-6)


def test_empty_range_is_allowed() -> None:
    state = AdamState.start(0, working=torch.bfloat16, seed=1)
    kernel(state, torch.zeros(0), scalars_of(1))
    reference(state, torch.zeros(0), scalars_of(1))


@pytest.mark.parametrize("step_function", [adamw_step_, adamw_step_reference_])
@pytest.mark.parametrize(
    ("argument", "bad", "error", "message"),
    [
        ("master", torch.zeros(8, dtype=torch.float64), TypeError, "master is torch.float64"),
        ("grad", torch.zeros(8, dtype=torch.int32), TypeError, "grad is torch.int32"),
        ("grad", torch.zeros(7), ValueError, "grad has 7 elements, master has 8"),
        ("exp_avg", torch.zeros(1), ValueError, "exp_avg has 1 elements, master has 8"),
        ("exp_avg_sq", torch.zeros(16)[::2], ValueError, "exp_avg_sq .*contiguous"),
        ("grad", torch.zeros(2, 4), ValueError, r"grad has shape \[2, 4\]"),
        ("working", torch.zeros(9, dtype=torch.bfloat16), ValueError, "working has 9 elements, master has 8"),
    ],
)
def test_bad_argument_raises_by_name_and_changes_nothing(step_function, argument, bad, error, message) -> None:
    arguments = {name: torch.ones(8) for name in ("master", "exp_avg", "exp_avg_sq", "grad", "working")}
    arguments[argument] = bad
    before = {name: tensor.clone() for name, tensor in arguments.items()}
    with pytest.raises(error, match=message):
        step_function(**arguments, scalars=scalars_of(1))
    for name, tensor in arguments.items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_half_precision_moment_is_refused() -> None:
    state = AdamState(torch.ones(8), torch.ones(8, dtype=torch.bfloat16), torch.ones(8), None)
    with pytest.raises(ValueError, match="exp_avg: buffer format 'H', expected 'f'"):
        kernel(state, torch.ones(8), scalars_of(1))
    with pytest.raises(TypeError, match=r"exp_avg is torch\.bfloat16; allowed: torch\.float32"):
        reference(state, torch.ones(8), scalars_of(1))


def test_overlapping_ranges_are_refused() -> None:
    memory = torch.ones(20)
    with pytest.raises(ValueError, match="master and exp_avg overlap in memory"):
        adamw_step_(memory[:8], memory[7:15], torch.ones(8), torch.ones(8), None, scalars=scalars_of(1))
    with pytest.raises(ValueError, match="master and working overlap in memory"):
        adamw_step_(memory[:8], torch.ones(8), torch.ones(8), torch.ones(8), memory[:8], scalars=scalars_of(1))
    # Touching is not overlapping.
    adamw_step_(memory[:8], memory[8:16], torch.ones(8), torch.ones(8), None, scalars=scalars_of(1))


def test_thread_count_below_one_is_refused() -> None:
    state = AdamState.start(8, working=None, seed=1)
    with pytest.raises(ValueError, match="num_threads is 0"):
        kernel(state, torch.ones(8), scalars_of(1), num_threads=0)


def test_unknown_simd_level_is_refused() -> None:
    state = AdamState.start(8, working=None, seed=1)
    with pytest.raises(ValueError, match="'avx9000' is not one of baseline, avx512"):
        kernel(state, torch.ones(8), scalars_of(1), simd="avx9000")


@pytest.mark.parametrize(
    ("features", "level"),
    [
        (FULL_AVX512, "avx512"),
        ((*FULL_AVX512, "avx512_vnni", "amx_tile"), "avx512"),
        *((tuple(f for f in FULL_AVX512 if f != missing), "baseline") for missing in FULL_AVX512),
        (("avx2", "fma"), "baseline"),
        (("sse2",), "baseline"),
        (("asimd", "sve"), "baseline"),
        ((), "baseline"),
    ],
)
def test_level_follows_features(features: tuple[str, ...], level: str) -> None:
    """H9: fake feature lists; the vendor is not among the inputs."""
    assert select_simd_level(features) == level


def test_constants_are_rounded_once() -> None:
    scalars = AdamScalars.of(step=3, lr=3e-4, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, grad_scale=0.5)
    expected = {
        "beta1": 0.9,
        "one_minus_beta1": 1 - 0.9,
        "beta2": 0.95,
        "one_minus_beta2": 1 - 0.95,
        "sqrt_bias_correction2": math.sqrt(1 - 0.95**3),
        "eps": 1e-8,
        "decay": 1 - 3e-4 * 0.1,
        "step_size": 3e-4 / (1 - 0.9**3),
        "grad_scale": 0.5,
    }
    for name, value in expected.items():
        assert getattr(scalars, name) == float(np.float32(value)), name


@pytest.mark.parametrize(
    ("change", "message"),
    [({"step": 0}, "counted from 1"), ({"beta1": 1.0}, "beta1 is 1.0"), ({"beta2": -0.1}, "beta2 is -0.1")],
)
def test_impossible_constants_are_refused(change: dict[str, float], message: str) -> None:
    values = {"step": 1, "lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "grad_scale": 1.0}
    with pytest.raises(ValueError, match=message):
        AdamScalars.of(**{**values, **change})
