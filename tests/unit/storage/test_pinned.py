"""The pool counts exactly what it holds, and says what the driver refused."""

import torch

from megatron_zero.storage.pinned import PinnedPool


def test_pageable_buffers_are_counted_to_the_byte():
    pool = PinnedPool(pinned=False)
    first, second = pool.buffer(1000, torch.float32), pool.buffer(77, torch.bfloat16)
    assert (first.numel(), second.dtype) == (1000, torch.bfloat16)
    assert not first.any()
    assert (pool.pageable_bytes, pool.pinned_bytes, pool.refused_bytes) == (4154, 0, 0)
    pool.close()
    pool.close()


def test_a_refused_registration_falls_back_and_is_counted(monkeypatch):
    monkeypatch.setattr(PinnedPool, "_register", staticmethod(lambda tensor, nbytes: False))
    pool = PinnedPool(pinned=True)
    assert pool.buffer(256, torch.float32).numel() == 256
    assert (pool.pageable_bytes, pool.pinned_bytes, pool.refused_bytes) == (1024, 0, 1024)


def test_an_empty_buffer_is_not_registered(monkeypatch):
    monkeypatch.setattr(PinnedPool, "_register", staticmethod(lambda tensor, nbytes: 1 / 0))
    pool = PinnedPool(pinned=True)
    assert pool.buffer(0, torch.float32).numel() == 0
    assert pool.pinned_bytes == pool.pageable_bytes == 0
