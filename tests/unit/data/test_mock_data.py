"""Made-up documents are those of Megatron-core's mock set, and behave as an indexed set does."""

import numpy as np
import pytest

from megatron_zero.data.mock_data import NUM_DOCUMENTS, MockTokens


def test_a_document_counts_up_and_ends():
    mock = MockTokens(vocab_size=50, eod=49)
    document = int(np.argmax(mock.sizes > 120))
    tokens = mock.get(document)
    assert len(tokens) == mock.sizes[document]
    assert tokens[:4].tolist() == [1, 2, 3, 4]
    assert tokens[48:52].tolist() == [49, 0, 1, 2]
    assert tokens[-1] == 49


def test_a_part_is_a_part_of_the_whole():
    mock = MockTokens(vocab_size=50, eod=49)
    for document in (0, 1, NUM_DOCUMENTS - 1):
        whole = mock.get(document)
        size = len(whole)
        for offset in (0, size // 2, size - 1, size):
            for stop in (offset, (offset + size) // 2, size):
                np.testing.assert_array_equal(mock.get(document, offset, stop - offset), whole[offset:stop])
        with pytest.raises(IndexError, match="mock data"):
            mock.get(document, 0, size + 1)


def test_all_ids_lie_in_the_vocabulary():
    mock = MockTokens(vocab_size=7, eod=6)
    for document in range(50):
        tokens = mock.get(document)
        assert 0 <= tokens.min() <= tokens.max() < 7


def test_fingerprint_follows_what_the_tokens_follow():
    prints = {MockTokens(vocab_size=v, eod=e).fingerprint() for v, e in ((50, 49), (50, 48), (51, 49))}
    assert len(prints) == 3
