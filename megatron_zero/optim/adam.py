"""AdamState: fp32 master, exp_avg and exp_avg_sq of one sub-group, contiguous as one record."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .subgroup import Span, SubGroup

STATE_KEYS = ("master", "exp_avg", "exp_avg_sq")
BYTES_PER_ELEMENT = 4 * len(STATE_KEYS)


@dataclass(frozen=True, slots=True)
class StateSlice:
    """One parameter's part of one state tensor: elements [start, start + data.numel()) of the flattened parameter.

    key: one of STATE_KEYS.   data: 1-D fp32 view into the record; writing to it changes the state.
    """

    key: str
    name: str
    shape: tuple[int, ...]
    start: int
    data: Tensor


class AdamState:
    """record: [3, numel] fp32 = master, exp_avg, exp_avg_sq; moments start at zero, the master is the caller's."""

    def __init__(self, subgroup: SubGroup, *, device: torch.device) -> None:
        self.subgroup = subgroup
        self.record = torch.zeros(len(STATE_KEYS), subgroup.numel, dtype=torch.float32, device=device)
        self.master, self.exp_avg, self.exp_avg_sq = self.record.unbind(0)

    @property
    def nbytes(self) -> int:
        return self.record.untyped_storage().nbytes()

    def slices(self) -> list[StateSlice]:
        """Every state tensor described by parameter, for checkpoints."""
        return [
            StateSlice(key, span.name, span.shape, span.member_start, self.record[row, start : start + span.numel])
            for row, key in enumerate(STATE_KEYS)
            for start, span in self.spans()
        ]

    def spans(self) -> list[tuple[int, Span]]:
        """(first element within the state, span) pairs."""
        placed = []
        position = 0
        for span in self.subgroup.spans:
            placed.append((position, span))
            position += span.numel
        return placed
