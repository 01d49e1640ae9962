"""Batches on their way to a GPU: none is overtaken, nobody waits, and page-locked memory is used again."""

import numpy as np
import pytest
import torch

from megatron_zero.data.document_masks import DocumentRules
from megatron_zero.data.loader import BatchLoader
from megatron_zero.data.sample_walk import ShuffledEpochs

pytestmark = pytest.mark.gpu
SEQ, MICRO, SAMPLES, EOD = 2048, 4, 4000, 0
RULES = DocumentRules(EOD, reset_position_ids=True, reset_attention_mask=True, eod_mask_loss=True)
FIELDS = ("tokens", "labels", "loss_mask", "position_ids", "document_ids")
WAIT_CYCLES = 200_000_000  # about a tenth of a second of a busy GPU


class Noise:
    """Sample i is random numbers seeded with i."""

    name = "train"

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return np.random.RandomState(index).randint(0, 50, SEQ + 1)


def loader_of(device, num_workers):
    return BatchLoader(
        Noise(),
        micro_batch_size=MICRO,
        dp_rank=0,
        dp_size=1,
        device=device,
        num_workers=num_workers,
        wrap=True,
        walk=ShuffledEpochs(SAMPLES, seed=1234),
        documents=RULES,
    )


def assert_equal_on_the_host(batch, expected):
    assert batch.sample_ids == expected.sample_ids
    for field in FIELDS:
        ours, theirs = getattr(batch, field), getattr(expected, field)
        assert ours.dtype == theirs.dtype and ours.is_contiguous()
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0, msg=field)


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_copies_that_wait_are_not_overtaken(cuda, num_workers):
    """The GPU is busy while 40 batches are read and their copies queued: none may see memory that was filled again.

    Later batches are taken before earlier ones have arrived, and some of what was read ahead is dropped (the jump).
    """
    with loader_of(cuda, num_workers) as loader, loader_of(torch.device("cpu"), 0) as plain:
        loader.next_microbatches(0, 2)  # the allocator has blocks to hand out again
        torch.cuda.synchronize()
        torch.cuda._sleep(WAIT_CYCLES)
        steps = ((8, 10), (400, 10), (8, 20))
        batches = [batch for first, count in steps for batch in loader.next_microbatches(first, count)]
        expected = [batch for first, count in steps for batch in plain.next_microbatches(first, count)]
        assert len(batches) == len(expected) == 40
        for ours, theirs in zip(batches, expected, strict=True):
            assert_equal_on_the_host(ours, theirs)


def test_nobody_waits_for_the_copies(cuda):
    """The call returns while the GPU is still busy with what was queued before."""
    with loader_of(cuda, 1) as loader:
        loader.next_microbatches(0, 8)  # what follows need not page-lock anything
        torch.cuda.synchronize()
        done = torch.cuda.Event()
        torch.cuda._sleep(20 * WAIT_CYCLES)
        done.record()
        loader.next_microbatches(32, 2)
        assert not done.query(), "the copies were waited for"
        torch.cuda.synchronize()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pinned_memory_is_used_again(cuda, num_workers):
    """100 steps of 2 micro-batches page-lock no more than what can be held at once, however long the run.

    Held at once: what is read ahead (2 a worker) and being read, and the step's own; four arrays each. A step ends when
    the GPU has done it, as in training.
    """
    torch.cuda.init()
    allocated = torch.cuda.host_memory_stats()["num_host_alloc"]
    with loader_of(cuda, num_workers) as loader:
        for step in range(100):
            loader.next_microbatches(step * 8, 2)
            torch.cuda.synchronize()
    at_once = 2 * num_workers + num_workers + 1 + 2
    assert torch.cuda.host_memory_stats()["num_host_alloc"] - allocated <= 4 * at_once


def test_threads_stay_on_their_own_gpu():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs: a reading thread of the second must not touch the first")
    second = torch.device("cuda", 1)
    with torch.cuda.device(second), loader_of(second, 2) as loader, loader_of(torch.device("cpu"), 0) as plain:
        for ours, theirs in zip(loader.next_microbatches(0, 6), plain.next_microbatches(0, 6), strict=True):
            assert ours.tokens.device == second
            assert_equal_on_the_host(ours, theirs)
