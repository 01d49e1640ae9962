"""Micro-batches: the same whoever reads them, resumable, and every error reaches the step."""

import threading
from itertools import chain

import numpy as np
import pytest
import torch

from megatron_zero.config.fields import ConfigError
from megatron_zero.data.loader import BatchLoader

SEQ = 5


class Counting:
    """Sample i is i * 100 + [0 .. SEQ]."""

    name = "train"

    def __init__(self, num_samples, broken=()):
        self._num_samples, self._broken = num_samples, broken

    def __len__(self):
        return self._num_samples

    def __getitem__(self, index):
        assert 0 <= index < self._num_samples
        if index in self._broken:
            raise OSError(5, f"sample {index} cannot be read")
        return index * 100 + np.arange(SEQ + 1)


def loader_of(dataset, **changes):
    arguments = {
        "micro_batch_size": 2,
        "dp_rank": 0,
        "dp_size": 1,
        "device": torch.device("cpu"),
        "num_workers": 0,
        "wrap": False,
    } | changes
    return BatchLoader(dataset, **arguments)


def ids(batches):
    return [index for batch in batches for index in batch.sample_ids]


def test_labels_follow_tokens_and_all_count():
    with loader_of(Counting(8)) as loader:
        (batch,) = loader.next_microbatches(4, 1)
    expected = torch.stack([torch.arange(SEQ + 1) + 400, torch.arange(SEQ + 1) + 500])
    torch.testing.assert_close(batch.tokens, expected[:, :-1], rtol=0, atol=0)
    torch.testing.assert_close(batch.labels, expected[:, 1:], rtol=0, atol=0)
    torch.testing.assert_close(batch.loss_mask, torch.ones(2, SEQ), rtol=0, atol=0)
    assert batch.tokens.dtype == batch.labels.dtype == torch.int64
    assert batch.tokens.is_contiguous()
    assert batch.labels.is_contiguous()
    assert batch.sample_ids == (4, 5)


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_any_number_of_workers_gives_the_same_batches(num_workers):
    """H56, last part; the number of micro-batches grows on the way, as in a batch ramp-up."""
    consumed, seen = 0, []
    with loader_of(Counting(100), num_workers=num_workers, dp_rank=1, dp_size=2) as loader:
        for num_microbatches in (1, 1, 2, 3, 5, 5):
            batches = loader.next_microbatches(consumed, num_microbatches)
            assert all(batch.tokens[0, 0] == batch.sample_ids[0] * 100 for batch in batches)
            seen += ids(batches)
            consumed += num_microbatches * loader.round_size
    assert seen == [start + i for start in range(2, 68, 4) for i in (0, 1)]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumed_loader_goes_on_with_the_next_sample_over_epochs(num_workers):
    """H57: 20 samples, global batch 4, stopped after step 3, to step 20: the order of an uninterrupted run, and each of
    the 4 epochs holds every sample once."""
    whole, before, after = (loader_of(Counting(20), num_workers=num_workers, wrap=True) for _ in range(3))
    with whole, before, after:
        uninterrupted = [ids(whole.next_microbatches(4 * step, 2)) for step in range(20)]
        resumed = [ids(before.next_microbatches(4 * step, 2)) for step in range(3)]
        resumed += [ids(after.next_microbatches(4 * step, 2)) for step in range(3, 20)]
    assert resumed == uninterrupted
    for epoch in range(4):
        assert sorted(chain(*uninterrupted[5 * epoch : 5 * epoch + 5])) == list(range(20))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_loader_may_jump(num_workers):
    with loader_of(Counting(100), num_workers=num_workers) as loader:
        assert ids(loader.next_microbatches(0, 2)) == [0, 1, 2, 3]
        assert ids(loader.next_microbatches(50, 2)) == [50, 51, 52, 53]
        assert ids(loader.next_microbatches(0, 1)) == [0, 1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_end_of_the_training_data_is_an_error_on_every_rank(num_workers):
    """10 samples: the second round of 8 is not whole. Rank 0's own part of it exists; it must stop all the same."""
    for rank in range(4):
        with loader_of(Counting(10), num_workers=num_workers, dp_rank=rank, dp_size=4) as loader:
            assert len(loader.next_microbatches(0, 1)) == 1
            with pytest.raises(ConfigError, match=r"samples 8 to 15 are next, but only 10 .* --train-samples"):
                loader.next_microbatches(8, 1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_wrapping_starts_again_at_the_end(num_workers):
    with loader_of(Counting(5), num_workers=num_workers, wrap=True) as loader:
        assert ids(loader.next_microbatches(2, 3)) == [2, 3, 4, 0, 1, 2]


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_error_of_a_read_surfaces_in_the_step_that_wants_the_sample(num_workers):
    with loader_of(Counting(40, broken={7}), num_workers=num_workers) as loader:
        assert ids(loader.next_microbatches(0, 3)) == [0, 1, 2, 3, 4, 5]  # 7 is being read ahead by now
        for _ in range(2):
            with pytest.raises(OSError, match="sample 7 cannot be read"):
                loader.next_microbatches(6, 1)
        assert ids(loader.next_microbatches(8, 1)) == [8, 9]


def test_close_ends_the_threads_and_may_come_twice():
    before = threading.active_count()
    loader = loader_of(Counting(1000), num_workers=4)
    loader.next_microbatches(0, 8)
    assert threading.active_count() > before
    loader.close()
    loader.close()
    assert threading.active_count() == before


def test_read_ahead_is_bounded():
    read = []

    class Recording(Counting):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    with loader_of(Recording(1000), num_workers=1, micro_batch_size=1) as loader:
        loader.next_microbatches(0, 10)
    assert len(read) <= 12


@pytest.mark.parametrize(
    "dataset,changes,message",
    [(Counting(0), {}, "holds no sample"), (Counting(4), {"num_workers": -1}, "--num-workers -1")],
)
def test_loader_that_cannot_work_is_refused(dataset, changes, message):
    with pytest.raises(ConfigError, match=message):
        loader_of(dataset, **changes)
