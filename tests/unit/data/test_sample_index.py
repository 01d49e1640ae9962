"""The three indices equal a token-by-token reference, and those that Megatron-core itself made."""

import json

import numpy as np
import pytest

from megatron_zero.data.sample_index import (
    EpochPlan,
    SampleOrder,
    build_document_index,
    build_shuffle_index,
    plan_epochs,
)

GOLDENS = (
    "p01_one_epoch_exact",
    "p02_corpus_969_30_1",
    "p03_corpus_98_2_0",
    "p04_multi_epoch_separate",
    "p05_multi_epoch_joint",
    "p06_short_docs",
    "p07_docs_shorter_than_seq",
    "p08_exact_multiple",
    "p09_one_doc",
    "p10_seq_multiple_plus1",
)


@pytest.mark.parametrize(
    "tokens,samples,seq_length,expected",
    [
        (33, None, 32, EpochPlan(1, 1, 0, False)),
        (32, None, 32, EpochPlan(1, 0, 0, False)),  # the last label is missing
        (32, 1, 32, EpochPlan(2, 1, 0, False)),
        (65 * 16, 16, 64, EpochPlan(1, 16, 0, False)),
        (65 * 16, 17, 64, EpochPlan(2, 32, 16, True)),  # 1 sample of 16 is below 80%
        (65 * 16, 27, 64, EpochPlan(2, 32, 16, True)),  # 11 < int(0.8 x 16) = 12
        (65 * 16, 28, 64, EpochPlan(2, 32, 16, False)),  # 12 is not
        (50, 100, 32, EpochPlan(65, 101, 99, False)),
        (1, 3, 5, EpochPlan(16, 3, 2, False)),  # fewer tokens than a sample
    ],
)
def test_epochs_and_the_rule_of_the_last_one(tokens, samples, seq_length, expected):
    assert plan_epochs(tokens_per_epoch=tokens, num_samples=samples, seq_length=seq_length) == expected


@pytest.mark.parametrize("tokens", range(1, 40))
def test_epochs_are_enough_and_not_one_more(tokens):
    for samples in range(1, 30):
        plan = plan_epochs(tokens_per_epoch=tokens, num_samples=samples, seq_length=7)
        assert plan.num_samples >= samples
        assert plan.num_epochs == 1 or ((plan.num_epochs - 1) * tokens - 1) // 7 < samples
        assert 0 <= plan.samples_before_last <= samples


def test_separate_last_epoch_stays_last():
    plan = EpochPlan(num_epochs=3, num_samples=30, samples_before_last=20, separate_last=True)
    document_index = build_document_index(range(10), plan, np.random.RandomState(3))
    shuffle_index = build_shuffle_index(plan, np.random.RandomState(3))
    assert sorted(document_index[:20].tolist()) == sorted([*range(10), *range(10)])
    assert sorted(document_index[20:].tolist()) == list(range(10))
    assert sorted(shuffle_index[:20].tolist()) == list(range(20))
    assert sorted(shuffle_index[20:].tolist()) == list(range(20, 30))


def test_ids_beyond_int32_are_int64():
    plan = EpochPlan(num_epochs=2, num_samples=4, samples_before_last=0, separate_last=False)
    wide = range(2**31 + 5, 2**31 + 9)
    index = build_document_index(wide, plan, np.random.RandomState(1))
    assert index.dtype == np.int64
    assert sorted(index.tolist()) == sorted([*wide, *wide])
    assert build_document_index(range(2**31 - 5, 2**31 - 1), plan, np.random.RandomState(1)).dtype == np.int32


@pytest.mark.parametrize("name", GOLDENS)
def test_indices_equal_those_of_megatron_core(shared_dir, name):
    goldens = np.load(shared_dir / f"data/goldens/dataset/{name}.npz")
    params = json.loads(str(goldens["params"]))
    ranges = goldens["split_document_ranges"].tolist()
    for split, (first, last), wanted in zip(("train", "valid", "test"), ranges, params["num_samples"], strict=True):
        if f"{split}_document_index" not in goldens:
            continue
        sizes, seq_length = goldens["sizes"], params["seq_length"]
        plan = plan_epochs(tokens_per_epoch=int(sizes[first:last].sum()), num_samples=wanted, seq_length=seq_length)
        order = SampleOrder.of(sizes, range(first, last), plan, seq_length=seq_length, seed=params["seed"])
        ours = {"document": order.document_index, "sample": order.sample_index, "shuffle": order.shuffle_index}
        for kind, index in ours.items():
            theirs = goldens[f"{split}_{kind}_index"]
            assert index.dtype == theirs.dtype
            np.testing.assert_array_equal(index, theirs)
