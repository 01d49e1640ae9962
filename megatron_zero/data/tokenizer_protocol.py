"""What every tokenizer offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


def is_failure(error: BaseException) -> bool:
    """Whether a library failed at its input: any Exception but a lack of memory (they raise bare ones, among many others),
    and a panic of Rust code, which is no Exception."""
    if isinstance(error, Exception):
        return not isinstance(error, MemoryError)
    return type(error).__name__ == "PanicException"


def refusal(library: str, text: str, error: BaseException) -> ValueError:
    """What encode raises where its library failed; a panic, say, names no text."""
    return ValueError(
        f"{library} failed on a text of {len(text)} characters that begins with {text[:40]!r}: "
        f"{type(error).__name__}: {error}"
    )


class Tokenizer(Protocol):
    """Text <-> token ids. vocab_size counts the ids it can give (the model pads it up, config/derive.py); eod ends a
    document.

    encode raises ValueError for text that it cannot represent (a lone surrogate, say), also where it is a library that
    refuses it. refuses_text: whether that may be text that is UTF-8, so that only encoding tells.
    """

    vocab_size: int
    eod: int
    refuses_text: bool = False

    def encode(self, text: str) -> list[int]: ...

    def encode_array(self, text: str) -> NDArray[Any]:
        """encode's ids as an integer array of one dimension, perhaps read-only; for those who want no list."""
        return np.array(self.encode(text), dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str: ...
