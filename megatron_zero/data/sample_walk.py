"""Which sample comes at a position of the endless walk through a data set: a pure function, so a run resumes anywhere.

Position p is the p-th sample that a run consumes, over all ranks. No state but what can be made again from the seed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..ops.dataset_index import shuffle_

SampleWalk = Callable[[int], int]

KEPT_EPOCHS: Final = 2  # the one that is read, and the one that is read ahead


def in_order(num_samples: int) -> SampleWalk:
    """Sample p modulo num_samples."""
    return lambda position: position % num_samples


class ShuffledEpochs:
    """--dataloader-type cyclic: each epoch is a permutation of all samples of its own, and nothing is left out between
    two: position p is sample permutation[p modulo n] of epoch p div n, numpy's RandomState([seed, epoch]).shuffle.

    May be called by several threads. Keeps two permutations, 4 bytes a sample each.
    """

    def __init__(self, num_samples: int, *, seed: int) -> None:
        self._num_samples, self._seed = num_samples, seed
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, NDArray[Any]] = OrderedDict()

    def __call__(self, position: int) -> int:
        epoch, place = divmod(position, self._num_samples)
        return int(self._permutation(epoch)[place])

    def _permutation(self, epoch: int) -> NDArray[Any]:
        with self._lock:
            if epoch not in self._kept:
                while len(self._kept) >= KEPT_EPOCHS:
                    self._kept.popitem(last=False)
                self._kept[epoch] = epoch_permutation(self._num_samples, seed=self._seed, epoch=epoch)
            self._kept.move_to_end(epoch)
            return self._kept[epoch]


def epoch_permutation(num_samples: int, *, seed: int, epoch: int) -> NDArray[Any]:
    """[num_samples] uint32 (int64 beyond): the order of one epoch."""
    dtype = np.uint32 if num_samples <= np.iinfo(np.uint32).max else np.int64
    order = np.arange(num_samples, dtype=dtype)
    shuffle_(order, np.random.RandomState([seed, epoch]))
    return order
