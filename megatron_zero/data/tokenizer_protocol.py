"""What every tokenizer offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Tokenizer(Protocol):
    """Text <-> token ids. vocab_size counts the ids it can give (the model pads it up, config/derive.py); eod ends a
    document.

    encode raises ValueError for text that it cannot represent (a lone surrogate, say).
    """

    vocab_size: int
    eod: int

    def encode(self, text: str) -> list[int]: ...

    def encode_array(self, text: str) -> NDArray[Any]:
        """encode's ids as an integer array of one dimension, perhaps read-only; for those who want no list."""
        return np.array(self.encode(text), dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str: ...
