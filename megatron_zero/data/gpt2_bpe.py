"""GPT-2's byte-level BPE, from its two files vocab.json and merges.txt.

Text is cut into words by a regular expression, a word's UTF-8 bytes are written in a printable alphabet of 256
characters, and the pair of neighbours that was learned first is merged until no learned pair is left. That is done by
tiktoken where its ids are the same (gpt2_fast.py), else, and as the reference, here.
Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import regex
from numpy.typing import NDArray

from ..config.fields import ConfigError
from .gpt2_fast import FastEncoder, Unsuitable, check_merges

END_OF_TEXT: Final = "<|endoftext|>"
# Contractions; letters, digits, other signs, each with one space before; white space, but for its last before a word.
WORD_PATTERN: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CACHED_WORDS: Final = 1 << 16
CACHED_WORD_LENGTH: Final = 64  # longer words hardly come twice, and would fill memory
NO_RANK: Final = -1


class GPT2BPETokenizer:
    """Ids of GPT-2's vocabulary; <|endoftext|> ends a document.

    special_tokens: whether that literal in text becomes its id (as in Megatron-core) or plain pieces.
    fast: use tiktoken where it gives the same ids; what is used, and why, says `implementation`.
    encode raises UnicodeEncodeError for lone surrogates, which have no UTF-8. decode gives back any encoded text.
    """

    def __init__(self, vocab_file: Path, merge_file: Path, *, special_tokens: bool = True, fast: bool = True) -> None:
        self._ids = _read_vocabulary(vocab_file)
        self._pieces = [piece for piece, _ in sorted(self._ids.items(), key=lambda item: item[1])]
        self._ranks = _read_merges(merge_file, self._ids)
        self.vocab_size = len(self._ids)
        self.eod = self._ids[END_OF_TEXT]
        self._special_tokens = special_tokens
        self._words = regex.compile(WORD_PATTERN)
        self._alphabet = byte_alphabet()
        self._bytes = {character: byte for byte, character in enumerate(self._alphabet)}
        self._cached_word_ids = lru_cache(CACHED_WORDS)(self._word_ids)
        self._wants_fast = fast
        self._choice: tuple[FastEncoder | None, str] | None = None

    @property
    def implementation(self) -> str:
        """ "tiktoken", or "Python" and the reason."""
        return self._chosen()[1]

    def encode(self, text: str) -> list[int]:
        encoder, _ = self._chosen()
        ids = None if encoder is None else encoder.encode(text, special_tokens=self._special_tokens)
        return self.encode_reference(text) if ids is None else ids

    def encode_array(self, text: str) -> NDArray[Any]:
        """[ids] uint32: what encode gives, faster where tiktoken does it."""
        encoder, _ = self._chosen()
        ids = None if encoder is None else encoder.encode_array(text, special_tokens=self._special_tokens)
        return np.array(self.encode_reference(text), dtype=np.uint32) if ids is None else ids

    def encode_reference(self, text: str) -> list[int]:
        """What encode gives, by merging pair by pair."""
        ids: list[int] = []
        for number, plain in enumerate(text.split(END_OF_TEXT) if self._special_tokens else [text]):
            if number > 0:
                ids.append(self.eod)
            for word in self._words.findall(plain):
                ids += self._cached_word_ids(word) if len(word) <= CACHED_WORD_LENGTH else self._word_ids(word)
        return ids

    def _chosen(self) -> tuple[FastEncoder | None, str]:
        # Made at the first use: training needs no encoder, and the check of the merges takes part of a second.
        if self._choice is None:
            self._choice = self._choose()
        return self._choice

    def _choose(self) -> tuple[FastEncoder | None, str]:
        if not self._wants_fast:
            return None, "Python, as asked for"
        try:
            results = check_merges(self._ranks, self._ids, lambda piece: merge_pieces(list(piece), self._ranks))
            ids = {self._as_bytes(piece): self._ids[piece] for piece in (*self._alphabet, *results)}
            return FastEncoder(ids, pattern=WORD_PATTERN, special={END_OF_TEXT: self.eod}), "tiktoken"
        except Unsuitable as reason:
            return None, f"Python, several times slower, because {reason}"

    def _as_bytes(self, piece: str) -> bytes:
        return bytes(self._bytes[character] for character in piece)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; bytes that are not UTF-8 (a cut character) become U+FFFD."""
        text = ""
        run = bytearray()
        for token in ids:
            if token == self.eod:  # not a piece of the byte alphabet
                text += run.decode("utf-8", errors="replace") + END_OF_TEXT
                run.clear()
            else:
                run += self._as_bytes(self._pieces[token])
        return text + run.decode("utf-8", errors="replace")

    def _word_ids(self, word: str) -> tuple[int, ...]:
        pieces = merge_pieces([self._alphabet[byte] for byte in word.encode("utf-8")], self._ranks)
        return tuple(self._ids[piece] for piece in pieces)


def byte_alphabet() -> tuple[str, ...]:
    """The 256 printable characters that stand for bytes: most of Latin-1 for itself, the rest from U+0100 on."""
    itself = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in itself else next(others)) for byte in range(256))


def merge_pieces(pieces: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """The pieces after all merges: again and again every occurrence of the lowest-ranked pair, from left to right.

    Linear memory and n log n time, so that a "word" of a million characters ends. Mutates `pieces`.
    """
    # A doubly linked list over positions; a heap of (rank, position of the left piece). An entry is stale when the pair
    # at its position is another by now. Pairs made by merges of one rank wait until all of that rank are done: that is
    # the order of the original loop, and it matters where occurrences overlap.
    following = [*range(1, len(pieces)), NO_RANK]
    previous = list(range(-1, len(pieces) - 1))
    alive = [True] * len(pieces)

    def rank_at(left: int) -> int:
        right = following[left]
        return ranks.get((pieces[left], pieces[right]), NO_RANK) if right != NO_RANK else NO_RANK

    heap = [(rank, left) for left in range(len(pieces)) if (rank := rank_at(left)) != NO_RANK]
    heapq.heapify(heap)
    while heap:
        lowest = heap[0][0]
        touched: list[int] = []
        while heap and heap[0][0] == lowest:
            _, left = heapq.heappop(heap)
            if not alive[left] or rank_at(left) != lowest:
                continue
            right = following[left]
            pieces[left] += pieces[right]
            alive[right] = False
            following[left] = following[right]
            if following[left] != NO_RANK:
                previous[following[left]] = left
            touched += [left, previous[left]] if previous[left] != NO_RANK else [left]
        for left in touched:
            if alive[left] and (rank := rank_at(left)) != NO_RANK:
                heapq.heappush(heap, (rank, left))
    return [piece for piece, is_alive in zip(pieces, alive, strict=True) if is_alive]


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        ids = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"--vocab-file {path} is not JSON: {error}") from error
    if not isinstance(ids, dict) or sorted(ids.values(), key=repr) != sorted(range(len(ids)), key=repr):
        raise ConfigError(f"--vocab-file {path} must map each piece to an id, the ids being 0 to their number - 1")
    missing = [piece for piece in (END_OF_TEXT, *byte_alphabet()) if piece not in ids]
    if missing:
        raise ConfigError(f"--vocab-file {path} lacks the piece {missing[0]!r}: not a vocabulary of GPT-2's kind")
    return ids


def _read_merges(path: Path, ids: dict[str, int]) -> dict[tuple[str, str], int]:
    """Pair -> rank, in file order; an optional first line '#version: ...' is left out."""
    ranks: dict[tuple[str, str], int] = {}
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"--merge-file {path} is not UTF-8: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line == "" or (number == 1 and line.startswith("#version")):
            continue
        left, _, right = line.rstrip("\r").partition(" ")
        if not left or not right or left + right not in ids:
            raise ConfigError(f"--merge-file {path}, line {number}: {line!r} does not merge two pieces of --vocab-file")
        ranks[left, right] = len(ranks)
    return ranks
