"""One step over two tiers is one step, bit for bit, wherever the boundary lies."""

import pytest
import torch

from megatron_zero.offload.optimizer import AdamHyperparameters, OffloadedAdam
from megatron_zero.offload.placement import Tier, plan_twin_flow
from megatron_zero.optim.subgroup import Span, plan_subgroups

CPU = torch.device("cpu")
SHARDS = (3072, 1024, 2048)  # with padding behind and between members
UNITS = (
    [(Span("a.weight", (50, 50), 0, 0, 2500), True), (Span("a.bias", (50,), 0, 2560, 50), False)],
    [(Span("b.weight", (30, 40), 200, 0, 1000), True)],  # a part: this rank owns elements 200 to 1199
    [(Span("c.norm", (1,), 0, 0, 1), False), (Span("c.weight", (1999,), 0, 64, 1900), True)],
)


def build(ratio, *, sub_group_size=10**9, dtype=torch.bfloat16, num_threads=1):
    weights = [torch.zeros(n, dtype=dtype) for n in SHARDS]
    optimizer = OffloadedAdam(
        plan_twin_flow(plan_subgroups(UNITS, sub_group_size=sub_group_size), ratio=ratio),
        weight_shards=weights,
        hyperparameters=AdamHyperparameters(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1),
        device=CPU,
        pin_memory=True,
        num_threads=num_threads,
    )
    for piece in optimizer.state_slices():
        if piece.key == "master":
            index = torch.arange(piece.start, piece.start + piece.data.numel(), dtype=torch.float64)
            piece.data.copy_(torch.cos(index * 1.3 + len(piece.name)))
    return optimizer, weights


def grads(step):
    generator = torch.Generator().manual_seed(step)
    shards = [torch.randn(n, generator=generator) * 10.0 ** (step % 3 - 2) for n in SHARDS]
    for shard, unit in zip(shards, UNITS, strict=True):
        owned = torch.zeros(shard.numel(), dtype=torch.bool)
        for span, _ in unit:
            owned[span.shard_start : span.shard_start + span.numel] = True
        shard[~owned] = 0.0
    return shards


def after_steps(ratio, steps=20, **options):
    optimizer, weights = build(ratio, **options)
    for step in range(steps):
        optimizer.step(grads(step), lr=1e-3, grad_scale=0.37)
    state = {}
    for piece in optimizer.state_slices():
        for offset, value in enumerate(piece.data.view(torch.int32).tolist()):
            state[piece.key, piece.name, piece.start + offset] = value
    return [w.clone() for w in weights], state


@pytest.fixture(scope="module")
def all_on_device():
    return after_steps(0.0)


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("sub_group_size", [777, 10**9])
def test_weights_and_moments_do_not_depend_on_the_ratio(all_on_device, ratio, sub_group_size):
    weights, state = after_steps(ratio, sub_group_size=sub_group_size, num_threads=2)
    expected_weights, expected_state = all_on_device
    for ours, theirs in zip(weights, expected_weights, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert state == expected_state


def test_padding_is_never_written(all_on_device):
    for weight, unit in zip(all_on_device[0], UNITS, strict=True):
        padding = torch.ones(weight.numel(), dtype=torch.bool)
        for span, _ in unit:
            padding[span.shard_start : span.shard_start + span.numel] = False
        assert not weight[padding].any()


def test_weight_decay_acts_on_decaying_parameters_alone():
    optimizer, weights = build(0.5, dtype=torch.float32)
    before = {(p.name, p.start): p.data.clone() for p in optimizer.state_slices() if p.key == "master"}
    optimizer.step([torch.zeros(n) for n in SHARDS], lr=0.5, grad_scale=1.0)
    factor = torch.tensor(1.0 - 0.5 * 0.1, dtype=torch.float32)
    for piece in optimizer.state_slices():
        if piece.key == "master":
            old = before[piece.name, piece.start]
            expected = old * factor if piece.name.endswith("weight") else old
            torch.testing.assert_close(piece.data, expected, rtol=0, atol=0)
    del weights


def test_tier_bytes_are_those_of_the_tensors():
    for ratio in (0.0, 0.3, 1.0):
        optimizer, _ = build(ratio)
        numel = 2500 + 50 + 1000 + 1 + 1900
        assert optimizer.tier_bytes == {
            "device": 12 * optimizer.plan.numel(Tier.DEVICE),
            "host": 12 * optimizer.plan.numel(Tier.HOST),
            "nvme": 0,
        }
        assert optimizer.tier_bytes["device"] + optimizer.tier_bytes["host"] == 12 * numel


def test_write_weights_rounds_the_masters():
    optimizer, weights = build(0.4)
    optimizer.write_weights()
    for piece in optimizer.state_slices():
        if piece.key != "master":
            continue
        for weight, unit in zip(weights, UNITS, strict=True):
            for span, _ in unit:
                if span.name == piece.name:
                    start = span.shard_start + piece.start - span.member_start
                    assert torch.equal(weight[start : start + piece.data.numel()], piece.data.bfloat16())


def test_ratio_0_takes_no_host_memory():
    optimizer, _ = build(0.0)
    assert optimizer.tier_bytes["host"] == 0
    assert optimizer.pool.pinned_bytes == optimizer.pool.pageable_bytes == 0
