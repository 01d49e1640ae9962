"""GPT-2's byte-level BPE, from its two files vocab.json and merges.txt.

Text is cut into words (gpt2_words.py), a word's UTF-8 bytes are written in a printable alphabet of 256 characters, and
the pair of neighbours that was learned first is merged until no learned pair is left. The code here does that for any
vocabulary; gpt2_fast.py does the same with tiktoken for those where both provably give equal ids.
Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.2.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..config.fields import ConfigError
from .gpt2_fast import fast_encoder
from .gpt2_words import word_pattern
from .json_text import read_json
from .tokenizer_protocol import Tokenizer

END_OF_TEXT: Final = "<|endoftext|>"
CACHED_WORDS: Final = 1 << 16
CACHED_WORD_LENGTH: Final = 64  # longer words hardly come twice, and would fill memory
NO_RANK: Final = -1
MAX_ADDED_PIECES: Final = 64  # pieces that no merge makes: tokens added by hand, but not a lost part of a file


class GPT2BPETokenizer(Tokenizer):
    """Ids of GPT-2's vocabulary; <|endoftext|> ends a document.

    special_tokens: whether that literal in text becomes its id (as in Megatron-core) or plain pieces.
    fast: False takes the implementation in Python even where tiktoken can do it; ids are equal.
    implementation: "tiktoken" or "python"; why_python: the reason for the second, else "".
    encode raises UnicodeEncodeError for lone surrogates, which have no UTF-8. decode gives back any encoded text.
    """

    def __init__(self, vocab_file: Path, merge_file: Path, *, special_tokens: bool = True, fast: bool = True) -> None:
        self._ids = _read_vocabulary(vocab_file)
        self._pieces = [piece for piece, _ in sorted(self._ids.items(), key=lambda item: item[1])]
        self._ranks = _read_merges(merge_file, self._ids)
        self.vocab_size = len(self._ids)
        self.eod = self._ids[END_OF_TEXT]
        self._special_tokens = special_tokens
        self._alphabet = byte_alphabet()
        self._bytes = {character: byte for byte, character in enumerate(self._alphabet)}
        self._words = word_pattern()
        self._cached_word_ids = lru_cache(CACHED_WORDS)(self._word_ids)
        found = fast_encoder(self._ids, self._ranks, self._alphabet) if fast else "it was asked for"
        self._fast = None if isinstance(found, str) else found
        self.implementation = "tiktoken" if self._fast else "python"
        self.why_python = found if isinstance(found, str) else ""

    def encode(self, text: str) -> list[int]:
        first, *others = self._plain_parts(text)
        ids = self._encode_plain(first)
        for plain in others:
            ids.append(self.eod)
            ids += self._encode_plain(plain)
        return ids

    def encode_array(self, text: str) -> NDArray[Any]:
        if self._fast is None:
            return super().encode_array(text)
        first, *others = self._plain_parts(text)
        ids = self._fast.encode_array(first)
        if not others:
            return ids
        eod = np.array([self.eod], dtype=ids.dtype)
        return np.concatenate([ids, *(part for plain in others for part in (eod, self._fast.encode_array(plain)))])

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids; bytes that are not UTF-8 (a cut character) become U+FFFD. IndexError for what is no id."""
        text = ""
        run = bytearray()
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise IndexError(f"token id {token} is not 0 to {self.vocab_size - 1}")
            if token == self.eod:  # not a piece of the byte alphabet
                text += run.decode("utf-8", errors="replace") + END_OF_TEXT
                run.clear()
            else:
                run += self._bytes_of(self._pieces[token])
        return text + run.decode("utf-8", errors="replace")

    def _plain_parts(self, text: str) -> list[str]:
        """At least one; an end of text stands between each two."""
        return text.split(END_OF_TEXT) if self._special_tokens else [text]

    def _encode_plain(self, text: str) -> list[int]:
        if self._fast is not None:
            return self._fast.encode(text)
        ids: list[int] = []
        for word in self._words.findall(text):
            ids += self._cached_word_ids(word) if len(word) <= CACHED_WORD_LENGTH else self._word_ids(word)
        return ids

    def _word_ids(self, word: str) -> tuple[int, ...]:
        pieces = merge_pieces([self._alphabet[byte] for byte in word.encode("utf-8")], self._ranks)
        return tuple(self._ids[piece] for piece in pieces)

    def _bytes_of(self, piece: str) -> bytes:
        """A piece that was added by hand need not be in the alphabet: it stands for itself."""
        known = [self._bytes.get(character) for character in piece]
        return piece.encode("utf-8") if None in known else bytes(byte for byte in known if byte is not None)


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
    text = _text_of("--vocab-file", path)
    try:
        ids = read_json(text)
    except ValueError as error:
        raise ConfigError(f"--vocab-file {path} is {error} (a truncated copy?)") from error
    rule = f"--vocab-file {path} must map each piece to an id, the ids being 0 to their number - 1"
    if not isinstance(ids, dict):
        raise ConfigError(f"{rule}; it holds no JSON object")
    pieces = dict[int, str]()
    for piece, token in ids.items():
        if type(token) is not int or not 0 <= token < len(ids):
            raise ConfigError(f"{rule}; {_shown(piece)} of its {len(ids)} pieces has {_shown(token)}")
        if token in pieces:
            raise ConfigError(f"{rule}; {_shown(pieces[token])} and {_shown(piece)} of its {len(ids)} pieces have {token}")
        if any("\ud800" <= character <= "\udfff" for character in piece):
            raise ConfigError(f"--vocab-file {path}: {_shown(piece)} (id {token}) holds a lone surrogate: not text")
        pieces[token] = piece
    missing = [piece for piece in (END_OF_TEXT, *byte_alphabet()) if piece not in ids]
    if missing:
        raise ConfigError(f"--vocab-file {path} lacks the piece {missing[0]!r}: not a vocabulary of GPT-2's kind")
    return ids


def _read_merges(path: Path, ids: dict[str, int]) -> dict[tuple[str, str], int]:
    """Pair -> rank, the line's number; of a pair that comes twice the last line counts, as in GPT-2's own code. An
    optional first line '#version: ...' is left out."""
    ranks: dict[tuple[str, str], int] = {}
    text = _text_of("--merge-file", path)
    if not text.strip():
        raise ConfigError(
            f"--merge-file {path} is empty: a truncated copy? One without merges has the line '#version: 0.2' alone"
        )
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.rstrip("\r")
        if line == "" or (number == 1 and line.startswith("#version")):
            continue
        left, _, right = line.partition(" ")
        if not {left, right, left + right} <= ids.keys():
            raise ConfigError(
                f"--merge-file {path}, line {number}: {_shown(line)} does not merge two pieces of --vocab-file into a third;"
                " the two files must belong together"
            )
        ranks[left, right] = number
    made = {left + right for left, right in ranks} | set(byte_alphabet()) | {END_OF_TEXT}
    unmade = len(ids.keys() - made)
    if unmade > max(MAX_ADDED_PIECES, len(ids) // 10):
        raise ConfigError(
            f"--merge-file {path} makes {len(ids) - unmade} of the {len(ids)} pieces of --vocab-file; {unmade} can never "
            "come about: a truncated copy, or the two files do not belong together"
        )
    return ranks


def _text_of(flag: str, path: Path) -> str:
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag} {path} is not UTF-8: {error}") from error
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be read: {error}") from error
    if text.startswith("\ufeff"):
        raise ConfigError(
            f"{flag} {path} begins with a byte order mark (bytes 0 to 2), which is no part of it: "
            "save it as UTF-8 without one"
        )
    return text


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
