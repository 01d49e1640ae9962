"""Learning rates equal the peers' curves."""

import json

import numpy as np
import pytest

from megatron_zero.optim.lr_schedule import LrSchedule


def test_documented_list_with_warm_up():
    """H36: the first step of a warm-up has rate 0; the rate logged is the one used."""
    schedule = LrSchedule(max_lr=1e-3, min_lr=0.0, warmup_tokens=20, decay_tokens=100, style="constant")
    assert [schedule.at(tokens) for tokens in (0, 10, 20, 30)] == [0.0, 5e-4, 1e-3, 1e-3]


def test_ends_of_the_cosine():
    schedule = LrSchedule(max_lr=1e-3, min_lr=1e-4, warmup_tokens=0, decay_tokens=100, style="cosine")
    assert schedule.at(0) == 1e-3
    assert schedule.at(50) == pytest.approx(5.5e-4, rel=1e-12)
    assert schedule.at(100) == pytest.approx(1e-4, rel=1e-12)
    assert schedule.at(101) == 1e-4


def test_a_warm_up_as_long_as_the_decay_ends_at_the_peak():
    schedule = LrSchedule(max_lr=1.0, min_lr=0.1, warmup_tokens=10, decay_tokens=10, style="linear")
    assert [schedule.at(tokens) for tokens in (5, 10, 11)] == [0.5, 1.0, 0.1]


def test_unknown_style_raises():
    with pytest.raises(ValueError, match="'wsd'"):
        LrSchedule(max_lr=1.0, min_lr=0.0, warmup_tokens=0, decay_tokens=10, style="wsd").at(5)


def test_curves_equal_the_goldens(shared_dir):
    goldens = np.load(shared_dir / "data/goldens/schedule/lr_wd.npz")
    cases = json.loads(str(goldens["params"]))
    compared = 0
    for name, case in cases.items():
        if case.get("style") not in ("constant", "linear", "cosine") or case.get("init_lr", 0.0) != 0.0:
            continue
        expected = goldens[f"{name}_lr"]
        if f"{name}_num_tokens" in goldens.files:
            if case["warm_tokens"] is None:
                continue  # warm-up counted in steps, decay in tokens: not a function of tokens alone
            consumed = goldens[f"{name}_num_tokens"]
            warm, decay = case["warm_tokens"], case["decay_tokens"]
        else:
            consumed = np.arange(len(expected)) * case["inc"]
            warm, decay = case["warm"], case["decay"]
        schedule = LrSchedule(
            max_lr=case["max_lr"], min_lr=case["min_lr"], warmup_tokens=warm, decay_tokens=decay, style=case["style"]
        )
        ours = [schedule.at(int(tokens)) for tokens in consumed]
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-15, err_msg=name)
        compared += 1
    assert compared >= 5
