"""Micro-batches: the same whoever reads them, resumable, and every error reaches the step."""

import threading
from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch

from megatron_zero.config.fields import ConfigError
from megatron_zero.data.document_masks import DocumentRules
from megatron_zero.data.loader import BatchLoader
from megatron_zero.data.sample_walk import ShuffledEpochs

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


@pytest.mark.parametrize("kind", ["single", "cyclic"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_resumed_loader_goes_on_with_the_next_sample_over_epochs(num_workers, kind):
    """H57: 20 samples, global batch 4, stopped after step 3, to step 20: the order of an uninterrupted run, and each of
    the 4 epochs holds every sample once."""
    walks = (ShuffledEpochs(20, seed=3) if kind == "cyclic" else None for _ in range(3))
    whole, before, after = (loader_of(Counting(20), num_workers=num_workers, wrap=True, walk=walk) for walk in walks)
    with whole, before, after:
        uninterrupted = [ids(whole.next_microbatches(4 * step, 2)) for step in range(20)]
        resumed = [ids(before.next_microbatches(4 * step, 2)) for step in range(3)]
        resumed += [ids(after.next_microbatches(4 * step, 2)) for step in range(3, 20)]
    assert resumed == uninterrupted
    for epoch in range(4):
        assert sorted(chain(*uninterrupted[5 * epoch : 5 * epoch + 5])) == list(range(20))


@pytest.mark.parametrize("kind", ["single", "cyclic"])
def test_no_sample_is_lost_or_read_twice_when_the_data_parallel_size_changes(kind):
    """H56: micro 1, global 8, over the seam of an epoch; 10 steps at 4, or 5 at 4 and 5 at 2, 1 or 8, any workers."""

    def steps(dp_size, which, num_workers):
        walk = ShuffledEpochs(50, seed=3) if kind == "cyclic" else None
        loaders = [
            loader_of(
                Counting(50),
                micro_batch_size=1,
                dp_rank=rank,
                dp_size=dp_size,
                num_workers=num_workers,
                wrap=True,
                walk=walk,
            )
            for rank in range(dp_size)
        ]
        found = [
            sorted(chain(*(ids(loader.next_microbatches(8 * step, 8 // dp_size)) for loader in loaders))) for step in which
        ]
        for loader in loaders:
            loader.close()
        return found

    straight = steps(4, range(10), 0)
    assert sorted(Counter(chain(*straight)).values()) == [1] * 20 + [2] * 30
    for later in (2, 1, 8):
        for num_workers in (0, 1, 4):
            assert steps(4, range(5), num_workers) + steps(later, range(5, 10), num_workers) == straight


def test_masks_of_documents_come_with_the_batch():
    rules = DocumentRules(302, reset_position_ids=True, reset_attention_mask=True, eod_mask_loss=True)
    with loader_of(Counting(8), documents=rules) as loader:
        (batch,) = loader.next_microbatches(2, 1)  # samples 2 and 3: 302 is the third token of the second
    assert batch.loss_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 0, 1, 1]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, 0, 1]]
    assert batch.document_ids.tolist() == [[0] * 5, [0, 0, 0, 1, 1]]
    assert batch.loss_mask.dtype == torch.float32


def test_without_rules_documents_do_not_count():
    for rules in (None, DocumentRules(302)):
        with loader_of(Counting(8), documents=rules) as loader:
            (batch,) = loader.next_microbatches(2, 1)
        assert batch.position_ids is batch.document_ids is None
        torch.testing.assert_close(batch.loss_mask, torch.ones(2, SEQ), rtol=0, atol=0)


def test_read_ahead_batches_are_there_before_they_are_asked_for():
    """The step that takes a batch does not read it: all reads of the second call ended before that call."""
    reads = threading.Semaphore(0)

    class Announcing(Counting):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            assert threading.current_thread() is not threading.main_thread()
            reads.release()
            return sample

    with loader_of(Announcing(100), num_workers=1, micro_batch_size=1) as loader:
        loader.next_microbatches(0, 1)
        for _ in range(3):  # the first, and two ahead
            assert reads.acquire(timeout=20)
        assert ids(loader.next_microbatches(1, 2)) == [1, 2]


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
