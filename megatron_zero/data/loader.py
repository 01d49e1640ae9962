"""Micro-batches of one data-parallel rank, in the step or read ahead by threads.

A rank's micro-batches form one endless row (sampler.py), however many of them a step takes, so reading ahead needs no
knowledge of batch sizes to come. Threads, not processes: the work is copying from a mapping, and nothing is forked
after CUDA is up. Pinned memory is torch's cached kind: a block is used again once the copy from it has run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..config.fields import ConfigError
from .document_masks import DocumentMasks, DocumentRules, document_masks
from .sample_walk import SampleWalk, in_order
from .sampler import micro_batch_indices

READ_AHEAD_PER_WORKER = 2  # micro-batches; torch's DataLoader has the same


class SampleDataset(Protocol):
    """What the loader needs of a data set; samples are [seq_length + 1] int64."""

    @property
    def name(self) -> str: ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> NDArray[np.int64]: ...


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward takes, on the device.

    tokens, labels: [micro_batch, seq] int64, labels[:, i] follows tokens[:, i].   loss_mask: [micro_batch, seq] fp32.
    position_ids, document_ids: [micro_batch, seq] int64, see DocumentMasks; None: documents do not count.
    sample_ids: the data set's indices of the rows.
    """

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    position_ids: Tensor | None
    document_ids: Tensor | None
    sample_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _HostBatch:
    """samples: [micro_batch, seq + 1] int64.   loss_mask, position_ids, document_ids: as in DocumentMasks.

    All on the CPU, pinned for a CUDA device.
    """

    samples: Tensor
    loss_mask: Tensor | None
    position_ids: Tensor | None
    document_ids: Tensor | None
    sample_ids: tuple[int, ...]


class BatchLoader:
    """This rank's micro-batches of a data set; close() it, or use it in a with block.

    num_workers: 0 reads in next_microbatches(); N > 0: N threads read 2 N micro-batches ahead. The batches are equal.
    wrap: go on after the last sample (validation, repeated and cyclic training), instead of an error.
    walk: the sample at each position that a run consumes; None: in the data set's order.
    documents: what ends of documents do to masks and positions; None: nothing.
    """

    def __init__(
        self,
        dataset: SampleDataset,
        *,
        micro_batch_size: int,
        dp_rank: int,
        dp_size: int,
        device: torch.device,
        num_workers: int,
        wrap: bool,
        walk: SampleWalk | None = None,
        documents: DocumentRules | None = None,
    ) -> None:
        if len(dataset) == 0:
            raise ConfigError(f"the {dataset.name} data holds no sample: fewer tokens than --seq-length + 1")
        if num_workers < 0:
            raise ConfigError(f"--num-workers {num_workers} is negative; 0 reads in the step, N > 0 ahead of it")
        self._dataset = dataset
        self._micro_batch_size, self._dp_rank, self._dp_size = micro_batch_size, dp_rank, dp_size
        self._device, self._wrap = device, wrap
        self._walk = walk if walk is not None else in_order(len(dataset))
        self._documents = documents
        self._ahead = _ReadAhead(self._read, num_workers, device) if num_workers > 0 else None

    @property
    def num_samples(self) -> int:
        """Samples of the data set."""
        return len(self._dataset)

    @property
    def round_size(self) -> int:
        """Samples that one micro-batch on every rank takes."""
        return self._micro_batch_size * self._dp_size

    def next_microbatches(self, consumed_samples: int, num_microbatches: int) -> list[MicroBatch]:
        """This rank's micro-batches of the step that begins after consumed_samples samples of this data set.

        Copies to a CUDA device are queued on the current stream. Errors, whichever thread met them: ConfigError when
        training data ends before the step does, on every rank alike; what reading raises, on the rank that reads.
        """
        stop = consumed_samples + num_microbatches * self.round_size
        self._check_end(consumed_samples, stop)
        rounds = range(consumed_samples, stop, self.round_size)
        if self._ahead is None:
            return [self._to_device(self._read(first)) for first in rounds]
        last = None if self._wrap else len(self._dataset) - self.round_size
        return [self._to_device(self._ahead.take(first, step=self.round_size, last=last)) for first in rounds]

    def close(self) -> None:
        """Stop reading ahead; returns when the threads have ended. May be called twice."""
        if self._ahead is not None:
            self._ahead.close()

    def __enter__(self) -> BatchLoader:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _check_end(self, consumed_samples: int, stop: int) -> None:
        # Judged by the whole global batch, not by this rank's part, so that no rank goes on while another has stopped.
        if not self._wrap and stop > len(self._dataset):
            raise ConfigError(
                f"the {self._dataset.name} data ends: samples {consumed_samples} to {stop - 1} are next, but only "
                f"{len(self._dataset)} were laid out; raise --train-samples (or --train-iters) to what the run consumes"
            )

    def _read(self, first: int) -> _HostBatch:
        """This rank's micro-batch of the round that begins with sample `first`."""
        (ids,) = micro_batch_indices(
            consumed_samples=first,
            num_microbatches=1,
            micro_batch_size=self._micro_batch_size,
            dp_rank=self._dp_rank,
            dp_size=self._dp_size,
        )
        sample_ids = tuple(self._walk(position) for position in ids)
        samples = np.stack([self._dataset[index] for index in sample_ids])
        masks = DocumentMasks() if self._documents is None else document_masks(samples[:, :-1], self._documents)
        return _HostBatch(
            samples=self._host_tensor(samples),
            loss_mask=None if masks.loss_mask is None else self._host_tensor(masks.loss_mask),
            position_ids=None if masks.position_ids is None else self._host_tensor(masks.position_ids),
            document_ids=None if masks.document_ids is None else self._host_tensor(masks.document_ids),
            sample_ids=sample_ids,
        )

    def _host_tensor(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory() if self._device.type == "cuda" else tensor

    def _to_device(self, batch: _HostBatch) -> MicroBatch:
        def moved(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(self._device, non_blocking=True)

        samples = batch.samples.to(self._device, non_blocking=True)
        labels = samples[:, 1:].contiguous()
        loss_mask = moved(batch.loss_mask)
        return MicroBatch(
            tokens=samples[:, :-1].contiguous(),
            labels=labels,
            loss_mask=torch.ones_like(labels, dtype=torch.float32) if loss_mask is None else loss_mask,
            position_ids=moved(batch.position_ids),
            document_ids=moved(batch.document_ids),
            sample_ids=batch.sample_ids,
        )


class _ReadAhead:
    """Runs read(first), read(first + step), ... in threads, a bounded number ahead of the one taken."""

    def __init__(self, read: Callable[[int], _HostBatch], num_threads: int, device: torch.device) -> None:
        self._read = read
        self._depth = READ_AHEAD_PER_WORKER * num_threads
        self._pending: deque[tuple[int, Future[_HostBatch]]] = deque()
        # Without its own device a thread that pins memory opens a context on GPU 0, whichever GPU the rank has.
        initializer = partial(torch.cuda.set_device, device) if device.type == "cuda" else None
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="read-ahead", initializer=initializer)

    def take(self, first: int, *, step: int, last: int | None) -> _HostBatch:
        """read(first), from what was read ahead if that is its next item; then read on, to `last` at most.

        Raises what that read raised.
        """
        if not self._pending or self._pending[0][0] != first:
            self._drop()
            self._submit(first)
        _, future = self._pending.popleft()
        while len(self._pending) < self._depth:
            following = (self._pending[-1][0] if self._pending else first) + step
            if last is not None and following > last:
                break
            self._submit(following)
        return future.result()

    def close(self) -> None:
        self._drop()
        self._threads.shutdown(wait=True)

    def _submit(self, first: int) -> None:
        self._pending.append((first, self._threads.submit(self._read, first)))

    def _drop(self) -> None:
        for _, future in self._pending:
            future.cancel()
        self._pending.clear()
