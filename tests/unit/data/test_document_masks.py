"""Masks and positions of packed documents equal the reference, and Megatron's rules at every edge (H34)."""

import warnings
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from megatron_zero.data.document_masks import DocumentMasks, DocumentRules, document_masks, document_masks_reference

EOD = 9
ALL = DocumentRules(EOD, reset_position_ids=True, reset_attention_mask=True, eod_mask_loss=True)


def assert_same(ours, theirs):
    for name in ("loss_mask", "position_ids", "document_ids"):
        one, other = getattr(ours, name), getattr(theirs, name)
        assert (one is None) == (other is None), name
        if one is not None:
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other, err_msg=name)


def test_end_tokens_in_positions_5_and_20():
    """H34: the loss counts there by default; positions begin again right after; token 6 sees nothing before 6."""
    tokens = np.ones((1, 32), dtype=np.int64)
    tokens[0, [5, 20]] = EOD
    assert document_masks(tokens, DocumentRules(EOD)) == DocumentMasks()
    masks = document_masks(tokens, ALL)
    assert np.flatnonzero(masks.loss_mask[0] == 0).tolist() == [5, 20]
    assert masks.position_ids[0].tolist() == [*range(6), *range(15), *range(11)]
    assert masks.document_ids[0].tolist() == [0] * 6 + [1] * 15 + [2] * 11


@pytest.mark.parametrize(
    "tokens,positions,documents",
    [
        ([1, 2, 3], [0, 1, 2], [0, 0, 0]),
        ([9, 2, 3], [0, 0, 1], [0, 1, 1]),
        ([1, 2, 9], [0, 1, 2], [0, 0, 0]),
        ([9, 9, 9], [0, 0, 0], [0, 1, 2]),
        ([9], [0], [0]),
    ],
)
def test_edges(tokens, positions, documents):
    masks = document_masks(np.array([tokens]), ALL)
    assert masks.position_ids.tolist() == [positions]
    assert masks.document_ids.tolist() == [documents]
    assert masks.loss_mask.tolist() == [[float(token != EOD) for token in tokens]]


@pytest.mark.parametrize("switches", list(product([False, True], repeat=3)))
@pytest.mark.parametrize("density", [0.0, 0.05, 0.5, 1.0])
def test_masks_equal_the_reference(switches, density):
    random = np.random.RandomState(int(density * 100))
    tokens = np.where(random.uniform(size=(7, 40)) < density, EOD, random.randint(0, 9, size=(7, 40)))
    positions, attention, loss = switches
    rules = replace(ALL, reset_position_ids=positions, reset_attention_mask=attention, eod_mask_loss=loss)
    assert_same(document_masks(tokens, rules), document_masks_reference(tokens, rules))


def test_end_token_of_another_tokenizer_ends_nothing():
    masks = document_masks(np.full((2, 4), EOD), replace(ALL, eod=EOD + 1))
    assert masks.position_ids.tolist() == [[0, 1, 2, 3]] * 2
    assert masks.loss_mask.min() == 1.0


@pytest.fixture(scope="module")
def peer():
    """Megatron-core's module of this; its import warns of packages that it would like."""
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        core = pytest.importorskip(
            "megatron.core.datasets.gpt_dataset", reason="the package megatron-core, a peer, is not installed"
        )
    return lambda tokens: core._get_ltor_masks_and_position_ids(torch.from_numpy(tokens), EOD, True, True, True, True)


@pytest.mark.parametrize("ends", [0.0, 0.1, 0.6, 1.0])
def test_masks_are_those_of_megatron_core(peer, ends):
    """Its attention mask is true where nothing is seen; ours: the same document, and not later."""
    random = np.random.RandomState(7)
    for seq in (1, 2, 33):
        tokens = np.where(random.uniform(size=(3, seq)) < ends, EOD, random.randint(0, EOD, size=(3, seq)))
        masks = document_masks(tokens, ALL)
        for row in range(3):
            hidden, loss, positions = peer(tokens[row])
            documents = masks.document_ids[row]
            seen = (documents[:, None] == documents[None, :]) & np.tri(seq, dtype=bool)
            np.testing.assert_array_equal(seen, ~hidden[0].numpy())
            np.testing.assert_array_equal(masks.loss_mask[row], loss.numpy())
            np.testing.assert_array_equal(masks.position_ids[row], positions.numpy())
