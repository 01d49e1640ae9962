"""Walks through a data set: pure functions of the position; every epoch holds every sample once (H56, H57)."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from megatron_zero.data.sample_walk import ShuffledEpochs, epoch_permutation, in_order


def walk_of(kind, num_samples):
    return in_order(num_samples) if kind == "single" else ShuffledEpochs(num_samples, seed=1234)


@pytest.mark.parametrize("kind", ["single", "cyclic"])
@pytest.mark.parametrize("num_samples", [1, 2, 20, 21])
def test_each_epoch_holds_every_sample_once(kind, num_samples):
    walk = walk_of(kind, num_samples)
    for epoch in range(4):
        ids = [walk(epoch * num_samples + place) for place in range(num_samples)]
        assert sorted(ids) == list(range(num_samples))


@pytest.mark.parametrize("kind", ["single", "cyclic"])
def test_a_walk_may_begin_anywhere(kind):
    """H57: what comes at a position does not depend on what was asked before."""
    straight = [walk_of(kind, 20)(position) for position in range(80)]
    assert [walk_of(kind, 20)(position) for position in range(79, -1, -1)] == straight[::-1]
    jumping = walk_of(kind, 20)
    for position in np.random.RandomState(0).randint(0, 80, size=200).tolist():
        assert jumping(position) == straight[position]


def test_epochs_and_seeds_differ():
    orders = [tuple(epoch_permutation(50, seed=seed, epoch=epoch).tolist()) for seed in (1, 2) for epoch in (0, 1, 2)]
    assert len(set(orders)) == 6


def test_permutation_is_numpys():
    expected = np.arange(1000, dtype=np.uint32)
    np.random.RandomState([7, 3]).shuffle(expected)
    np.testing.assert_array_equal(epoch_permutation(1000, seed=7, epoch=3), expected)


def test_threads_may_share_a_walk():
    walk = ShuffledEpochs(10, seed=5)
    alone = ShuffledEpochs(10, seed=5)
    positions = np.random.RandomState(0).randint(0, 200, size=2000).tolist()
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(walk, positions)) == [alone(position) for position in positions]
