"""A vocabulary of GPT-2's kind in tiktoken, where that gives the very same ids as merging pair by pair.

tiktoken looks at the *result* of a merge, not at the pair, takes the token's id for its rank, and takes a whole word
that is a token for that token. This is the original algorithm exactly where (a) results of merges come once, (b) their
ids rise with the order of the merges, and (c) every token, cut into bytes and merged, becomes itself again. For then a
segment that tiktoken joins was made, inside its bounds, by the merges that make that token. GPT-2's own files obey all
three; others may not, and are encoded pair by pair.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import tiktoken

LONG_WHITE_SPACE: Final = 500_000  # characters; the engine of tiktoken overflows at a run of a million
PANIC: Final = "PanicException"  # what a failure inside tiktoken's native code raises, derived from BaseException


class Unsuitable(Exception):
    """Why tiktoken is not used, in words that end "encoded in Python because ..."."""


class FastEncoder:
    """ids of words, from bytes to tokens.

    ids: of every byte and of every result of a merge, as bytes.   special: text -> id, recognised where asked.
    """

    def __init__(self, ids: Mapping[bytes, int], *, pattern: str, special: Mapping[str, int]) -> None:
        try:
            import tiktoken
        except ImportError as error:
            raise Unsuitable(f"the package tiktoken cannot be imported ({error})") from error
        self._encoding: tiktoken.Encoding = tiktoken.Encoding(
            "GPT-2's kind", pat_str=pattern, mergeable_ranks=dict(ids), special_tokens=dict(special)
        )
        self._special = set(special)

    def encode(self, text: str, *, special_tokens: bool) -> list[int] | None:
        """None where the engine cannot: encode in Python."""
        return self._guarded(self._encoding.encode, text, special_tokens)  # type: ignore[no-any-return]

    def encode_array(self, text: str, *, special_tokens: bool) -> NDArray[np.uint32] | None:
        return self._guarded(self._encoding.encode_to_numpy, text, special_tokens)  # type: ignore[no-any-return]

    def _guarded(self, encode: Any, text: str, special_tokens: bool) -> Any:
        text.encode("utf-8")  # tiktoken replaces lone surrogates; this raises UnicodeEncodeError
        if len(text) >= LONG_WHITE_SPACE and re.search(rf"\s{{{LONG_WHITE_SPACE}}}", text):
            return None
        try:
            return encode(text, allowed_special=self._special if special_tokens else set(), disallowed_special=())
        except BaseException as error:
            if type(error).__name__ != PANIC:
                raise
            return None


def check_merges(
    merges: Mapping[tuple[str, str], int], ids: Mapping[str, int], encode_word: Callable[[str], list[str]]
) -> Sequence[str]:
    """The results of the merges, in order. encode_word: piece -> its pieces after merging.

    Raises Unsuitable where (a), (b) or (c) of the module's docstring does not hold.
    """
    results = [left + right for left, right in merges]
    if len(set(results)) < len(results):
        twice = next(result for number, result in enumerate(results) if result in results[:number])
        raise Unsuitable(f"two merges give the token {twice!r}")
    if not all(ids[earlier] < ids[later] for earlier, later in pairwise(results)):
        raise Unsuitable("the ids of --vocab-file do not rise with the merges of --merge-file")
    for result in results:
        if encode_word(result) != [result]:
            raise Unsuitable(f"the token {result!r} is not what its bytes merge to")
    return results
