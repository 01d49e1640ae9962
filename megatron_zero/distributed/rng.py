"""Random numbers that dropout draws: two named streams over torch's own generator of the run's device.

[Note: two streams]
*replicated*: the same numbers on every tensor-parallel rank, for what each of them computes whole.
*tensor-parallel*: other numbers on every tensor-parallel rank, for what each holds a part of (its attention heads, its
tokens under sequence parallel). Equal masks there would drop the same places of every part (Shoeybi et al. 2019,
arXiv:1909.08053, section 3).
The replicated stream is what the generator holds; fork() puts the other one in its place for a block. With one
tensor-parallel rank the two are one stream, and fork() does nothing.

Python's and numpy's generators are not used anywhere in this project. Initialisation and data order are counter-based
(a function of the seed and a position) and have no state at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

from .context import ParallelAxis

TENSOR_PARALLEL = "tensor-parallel"


class RngStreams:
    """The streams of one rank. One object a run: it owns the state of the stream that is not in the generator."""

    def __init__(self, device: torch.device, forked: Tensor | None) -> None:
        """forked: the generator state that the tensor-parallel stream begins with; None: it is the replicated one."""
        self._device = device
        self._forked = forked

    @staticmethod
    def seeded(seed: int, *, device: torch.device, dp: ParallelAxis, tp: ParallelAxis) -> RngStreams:
        """Seed torch's CPU generator and, on a GPU run, that device's, and make the streams of this rank.

        No two data-parallel ranks share a stream, and no two tensor-parallel ranks share the tensor-parallel one.
        """
        if tp.size == 1:
            seed_everything(seed + dp.rank, device=device)
            return RngStreams(device, None)
        seed_everything(_derived_seed(seed, dp.rank, tp.rank), device=device)
        forked = _generator_state(device)
        seed_everything(seed + dp.rank, device=device)
        return RngStreams(device, forked)

    @staticmethod
    def plain(device: torch.device | str = "cpu") -> RngStreams:
        """Both streams are whatever torch's generator holds: a single process, seeded by the caller."""
        return RngStreams(torch.device(device), None)

    @contextmanager
    def tensor_parallel(self) -> Iterator[None]:
        """Draws inside come from the tensor-parallel stream, which goes on where the last such block ended."""
        if self._forked is None:
            yield
            return
        replicated = _generator_state(self._device)
        _set_generator_state(self._device, self._forked)
        try:
            yield
        finally:
            self._forked = _generator_state(self._device)
            _set_generator_state(self._device, replicated)

    def replay(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """(around a forward, around its recomputation): the second finds the tensor-parallel stream as the first did, and
        leaves it where it was. For torch.utils.checkpoint's context_fn, which keeps the generator itself likewise."""
        found: list[Tensor | None] = []

        @contextmanager
        def forward() -> Iterator[None]:
            found[:] = [self._forked]
            yield

        @contextmanager
        def recompute() -> Iterator[None]:
            now, self._forked = self._forked, found[0]
            try:
                yield
            finally:
                self._forked = now

        return forward(), recompute()

    def capture(self) -> dict[str, Tensor]:
        """States as uint8 CPU tensors: "cpu", "cuda" on a GPU run, "tensor-parallel" if there is one. Nothing is mutated."""
        state = {"cpu": torch.get_rng_state()}
        if self._device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(self._device)
        if self._forked is not None:
            state[TENSOR_PARALLEL] = self._forked.clone()
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Make the next draws those that followed capture(). Raises KeyError, changing nothing, if a state is missing."""
        missing = [name for name in self.capture() if name not in state]
        if missing:
            raise KeyError(
                f"no random state for {missing} among {sorted(state)}; it was captured on another device type or with "
                "another tensor-parallel size"
            )
        torch.set_rng_state(state["cpu"])
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], self._device)
        if self._forked is not None:
            self._forked = state[TENSOR_PARALLEL].clone()


def seed_everything(seed: int, *, device: torch.device) -> None:
    """Seed torch's CPU generator and, if device is a GPU, that device's. Ranks that must differ pass different seeds."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def _derived_seed(seed: int, dp_rank: int, tp_rank: int) -> int:
    """63 bits; a hash, so that neighbouring seeds and ranks do not meet."""
    digest = hashlib.sha256(f"{seed}/{TENSOR_PARALLEL}/{dp_rank}/{tp_rank}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _generator_state(device: torch.device) -> Tensor:
    """Of the generator that draws on this device. On a GPU that is a seed and an offset, kept on the host: nothing waits."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_generator_state(device: torch.device, state: Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)
