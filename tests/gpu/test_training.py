"""F2 on a GPU: ratios, sub-groups, recompute and stages are bit-equal; the CPU's losses are near; a resume is exact."""

import pytest
import torch
from helpers.tiny_run import run_tiny, tiny_arguments, write_corpus, write_json

from megatron_zero.distributed.context import ParallelContext

pytestmark = pytest.mark.gpu
ITERATIONS = 20


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


def run(device, tmp_path, corpus, *, bf16, ratio=None, stage=3, size=10**9, **flags):
    config = write_json(
        tmp_path / f"{len(list(tmp_path.iterdir()))}.json",
        stage=stage,
        ratio=ratio,
        zero_optimization={"sub_group_size": size},
        bf16={"enabled": bf16},
    )
    flags = {"train-iters": ITERATIONS, "bf16": bf16, **flags}
    return run_tiny(ParallelContext.single_process(device), tiny_arguments(corpus, config, **flags))


def assert_bit_equal(one, other):
    assert one.losses == other.losses and one.norms == other.norms
    for name in one.weights:
        torch.testing.assert_close(one.weights[name], other.weights[name], rtol=0, atol=0, msg=name)
    assert cut_free(one) == cut_free(other)


def cut_free(result):
    """Masters and moments as bits by (key, element), however they were cut."""
    values = {}
    for key, start, piece in result.state:
        for offset, bits in enumerate(piece.view(torch.int32).tolist()):
            values[key, start + offset] = bits
    return values


@pytest.mark.parametrize("bf16", [True, False], ids=["bf16", "fp32"])
def test_ratios_are_bit_equal(cuda, tmp_path, corpus, bf16):
    """H3: host shards by the host kernel, device shards by the device's, with the clip active."""
    clip = {"clip-grad": 0.5}
    base = run(cuda, tmp_path, corpus, bf16=bf16, **clip)
    assert any(norm > 0.5 for norm in base.norms)
    for ratio, size in [(0.0, 10**9), (0.3, 1000), (0.5, 10**9), (1.0, 10**9), (1.0, 777)]:
        result = run(cuda, tmp_path, corpus, bf16=bf16, ratio=ratio, size=size, **clip)
        assert abs(result.ratio_realised - ratio) < 0.001
        assert_bit_equal(result, base)


def test_stages_and_recompute_are_bit_equal(cuda, tmp_path, corpus):
    base = run(cuda, tmp_path, corpus, bf16=True, stage=0)
    for stage in (1, 2, 3):
        assert_bit_equal(run(cuda, tmp_path, corpus, bf16=True, stage=stage, ratio=0.5), base)
    assert_bit_equal(run(cuda, tmp_path, corpus, bf16=True, stage=0, **{"checkpoint-activations": True}), base)


def test_dropout_with_recompute_is_bit_equal(cuda, tmp_path, corpus):
    """H42 on a GPU."""
    dropout = {"attention-dropout": 0.1, "hidden-dropout": 0.1}
    plain = run(cuda, tmp_path, corpus, bf16=True, **dropout)
    assert_bit_equal(run(cuda, tmp_path, corpus, bf16=True, **dropout, **{"checkpoint-activations": True}), plain)


def test_losses_are_near_the_cpus(cuda, tmp_path, corpus):
    for bf16, tolerance in [(False, 1e-4), (True, 0.02)]:
        on_gpu = run(cuda, tmp_path, corpus, bf16=bf16, ratio=0.5)
        on_cpu = run("cpu", tmp_path, corpus, bf16=bf16, ratio=0.5)
        for ours, theirs in zip(on_gpu.losses, on_cpu.losses, strict=True):
            assert abs(ours - theirs) <= tolerance * theirs


def test_pinned_bytes_are_exact_and_ratio_0_pins_nothing(cuda, tmp_path, corpus):
    """fp32 gradients and bf16 weights cross the link: 6 bytes an offloaded element, none at ratio 0."""
    for ratio in (0.0, 0.5):
        result = run(cuda, tmp_path, corpus, bf16=True, ratio=ratio, **{"train-iters": 1})
        assert result.pinned_bytes == result.tier_bytes["host"] // 12 * 6


def test_a_resume_is_exact(cuda, tmp_path, corpus):
    """Dropout on: generators, moments and weights come back bit by bit."""
    flags = {"attention-dropout": 0.1, "hidden-dropout": 0.1, "bf16": True, "ratio": 0.5}
    straight = run(cuda, tmp_path, corpus, **flags)
    folder = tmp_path / "checkpoint"
    common = {**flags, "save": folder, "load": folder, "save-interval": 100}
    first = run(cuda, tmp_path, corpus, **common, **{"exit-interval": 7})
    second = run(cuda, tmp_path, corpus, **common)
    assert len(first.losses) == 7 and first.losses + second.losses == straight.losses
    assert cut_free(second) == cut_free(straight)
