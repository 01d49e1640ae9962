"""The random state that dropout draws from: torch's CPU generator and, on a GPU run, that device's generator.

Python's and numpy's generators are not used anywhere in this project, so they are not captured. Initialisation and
data order are counter-based (a function of the seed and a position) and have no state at all.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


def seed_everything(seed: int, *, device: torch.device) -> None:
    """Seed torch's CPU generator and, if device is a GPU, that device's. Ranks that must differ pass different seeds."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


class RngState:
    """Capture and restore the generators that seed_everything seeds."""

    @staticmethod
    def capture(device: torch.device) -> dict[str, Tensor]:
        """Generator states as uint8 CPU tensors: "cpu", and "cuda" if device is a GPU. Copies; nothing is mutated."""
        state = {"cpu": torch.get_rng_state()}
        if device.type == "cuda":
            state["cuda"] = torch.cuda.get_rng_state(device)
        return state

    @staticmethod
    def restore(device: torch.device, state: Mapping[str, Tensor]) -> None:
        """Make the next draws those that followed capture(). Raises KeyError, changing nothing, if a state is missing."""
        needed = ("cpu", "cuda") if device.type == "cuda" else ("cpu",)
        missing = [name for name in needed if name not in state]
        if missing:
            raise KeyError(
                f"no random state for {missing} among {sorted(state)}; it was captured on another device type"
            )
        torch.set_rng_state(state["cpu"])
        if device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda"], device)
