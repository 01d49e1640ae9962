"""H1: bytes by tier follow the ratio, for any sub_group_size: a slope, not a step."""

import pytest
from helpers.tiny_run import run_tiny, tiny_arguments, write_json

from megatron_zero.distributed.context import ParallelContext

RATIOS = [i / 10 for i in range(11)]


def shares(tmp_path, corpus, size, **flags):
    results = []
    for ratio in RATIOS:
        config = write_json(
            tmp_path / f"{ratio}_{size}.json",
            stage=3,
            ratio=ratio,
            zero_optimization={"sub_group_size": size},
            bf16={"enabled": flags.get("bf16", False)},
        )
        results.append(run_tiny(ParallelContext.single_process(), tiny_arguments(corpus, config, **flags)))
    return results


@pytest.mark.parametrize("size", [10**9, 1000])
def test_host_share_follows_the_ratio(tmp_path, corpus, size):
    results = shares(tmp_path, corpus, size, **{"train-iters": 1, "bf16": True})
    numel = sum(w.numel() for w in results[0].weights.values())
    host = [result.tier_bytes["host"] for result in results]
    for ratio, result in zip(RATIOS, results, strict=True):
        tiers = result.tier_bytes
        assert tiers["device"] + tiers["host"] == 12 * numel and tiers["nvme"] == 0
        assert abs(tiers["host"] / (12 * numel) - ratio) <= min(0.02, 1024 / numel)
        assert tiers["host"] == 12 * round(result.ratio_realised * numel)
        assert 4 * sum(values.numel() for _, _, values in result.state) == tiers["device"] + tiers["host"]
    assert host == sorted(set(host)) and host[0] == 0 and host[-1] == 12 * numel


def test_shares_do_not_depend_on_sub_group_size(tmp_path, corpus):
    flags = {"train-iters": 1}
    few, many = (shares(tmp_path, corpus, size, **flags) for size in (10**9, 1000))
    assert [r.tier_bytes for r in few] == [r.tier_bytes for r in many]


def test_losses_do_not_depend_on_the_ratio(tmp_path, corpus):
    losses = [result.losses for result in shares(tmp_path, corpus, 10**9)]
    assert all(each == losses[0] for each in losses)
