"""GPT-2's merges done by tiktoken, for vocabularies where that provably gives the ids of gpt2_bpe.py.

[Note: when joined pieces tell the pairs]
GPT-2 merges the neighbours (l, r) whose *pair* comes first in merges.txt. tiktoken merges the neighbours whose *joined
piece* has the lowest rank, whatever the pair, and takes a whole word that is in its table at once. Its table here holds
the 256 bytes and the results of the live merges, in their order; words of vocab.json that no merge makes are not in it.
  (a) Suppose that no merge has a part that a later merge makes. Then a merge makes candidates of later rank only.
  (b) A merge is live if its result t, encoded by itself, ends with that merge: both parts come about, and nothing merges
      across the seam between them before. At most one merge is so for each t. A merge that is not live never happens in
      any word, and can be left out: until its pair stood there nothing would have crossed the ends of t's bytes, so the
      steps within them would be those of t encoded by itself.
Then both do the same to every word. Take a step of tiktoken's: x and y become t. For the same reason the steps within t's
bytes were those of t encoded by itself, and these end with t's own pair: (x, y) is a merge of the same rank. So the
lowest of tiktoken's candidates is always one of GPT-2's, whose candidates are among tiktoken's; both take it, from left
to right. A whole word in the table is itself such a t. Whether something merges across a seam is found by undoing merges
there, the latest first, and looking whether the neighbours then at the seam would have merged before the piece undone
came about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from .gpt2_words import cut_long_space, rust_word_pattern
from .tokenizer_protocol import is_failure, refusal

if TYPE_CHECKING:
    from tiktoken import Encoding

BYTE_RANK: Final = -1
Ids = TypeVar("Ids")


class FastEncoder:
    """Ids of plain text (no special tokens) by tiktoken. Made by fast_encoder only."""

    def __init__(self, encoding: Encoding, ids_of_ranks: NDArray[np.uint32] | None) -> None:
        """ids_of_ranks: [ranks], or None where a rank is the id already."""
        self._encoding = encoding
        self._to_array = partial(encoding.encode_to_numpy, disallowed_special=())
        self._ids_of_ranks = ids_of_ranks

    def encode(self, text: str) -> list[int]:
        if self._ids_of_ranks is not None:
            ids: list[int] = self.encode_array(text).tolist()
            return ids
        parts = _parts_by(self._encoding.encode_ordinary, text)
        return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))

    def encode_array(self, text: str) -> NDArray[np.uint32]:
        """Read-only where the ids are tiktoken's own buffer."""
        parts = _parts_by(self._to_array, text)
        ranks = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return ranks if self._ids_of_ranks is None else self._ids_of_ranks[ranks]


def fast_encoder(
    ids: Mapping[str, int], ranks: Mapping[tuple[str, str], int], alphabet: tuple[str, ...]
) -> FastEncoder | str:
    """The encoder, or the reason why this vocabulary or this machine has none.

    ids: of each piece.  ranks: of each pair, lowest first.  alphabet: the character that stands for each byte.
    """
    try:
        from tiktoken import Encoding
    except ImportError as error:
        return f"tiktoken cannot be imported ({error}); pip install tiktoken"
    live = live_merges(sorted(ranks, key=ranks.__getitem__), alphabet)
    if isinstance(live, str):
        return live
    byte_of = {character: byte for byte, character in enumerate(alphabet)}
    pieces = [*alphabet, *(left + right for left, right in live)]
    tokens = np.array([ids[piece] for piece in pieces], dtype=np.uint32)
    # tiktoken compares ranks of results only, so ids that rise with the merges are ranks as good as any.
    is_in_order = bool((np.diff(tokens[len(alphabet) :].astype(np.int64)) > 0).all())
    numbers = tokens.tolist() if is_in_order else range(len(pieces))
    table = {bytes(map(byte_of.__getitem__, piece)): number for piece, number in zip(pieces, numbers, strict=True)}
    # Never looked for here; but with no special token at all tiktoken's buffers try every character for one.
    unused = {"<|unused|>": max(numbers) + 1}
    encoding = Encoding("gpt2", pat_str=rust_word_pattern(), mergeable_ranks=table, special_tokens=unused)
    return FastEncoder(encoding, None if is_in_order else tokens)


def live_merges(pairs: Sequence[tuple[str, str]], alphabet: Sequence[str]) -> list[tuple[str, str]] | str:
    """Those of (b) in the note above, in order; or which merge breaks (a).

    pairs: in the order of their ranks.
    """
    live: list[tuple[str, str]] = []
    without_parts: list[tuple[str, str]] = []
    rank_of: dict[str, int] = dict.fromkeys(alphabet, BYTE_RANK)
    rank_of_pair: dict[tuple[str, str], int] = {}
    for left, right in pairs:
        if left not in rank_of or right not in rank_of:
            without_parts.append((left, right))
        elif not _merges_across(left, right, live, rank_of, rank_of_pair):
            rank_of[left + right] = rank_of_pair[left, right] = len(live)
            live.append((left, right))
    for left, right in without_parts:
        if left in rank_of and right in rank_of:
            return f"the merge '{left} {right}' stands before the one that makes its part"
    return live


def _merges_across(
    left: str,
    right: str,
    live: Sequence[tuple[str, str]],
    rank_of: Mapping[str, int],
    rank_of_pair: Mapping[tuple[str, str], int],
) -> bool:
    """Whether, as left + right is encoded, something merges across the seam before both are whole."""
    left_rank, right_rank = rank_of[left], rank_of[right]
    while left_rank != BYTE_RANK or right_rank != BYTE_RANK:
        if left_rank > right_rank:
            limit, left = left_rank, live[left_rank][1]
            left_rank = rank_of[left]
        else:
            # Of occurrences of one pair the leftmost goes first: the one at the seam before this one.
            limit, right = right_rank + 1, live[right_rank][0]
            right_rank = rank_of[right]
        if rank_of_pair.get((left, right), limit) < limit:
            return True
    return False


def _parts_by(encode: Callable[[str], Ids], text: str) -> list[Ids]:
    """What a function of tiktoken makes of the text's parts.

    Errors: UnicodeEncodeError for a lone surrogate (tiktoken would encode U+FFFD in its place); ValueError where tiktoken
    fails.
    """
    if not text.isascii():
        text.encode("utf-8")
    try:
        return [encode(part) for part in cut_long_space(text)]
    except BaseException as error:
        if not is_failure(error):
            raise
        raise refusal("tiktoken", text, error) from error
