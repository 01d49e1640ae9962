"""JSON lines -> token ids, a piece of an input at a time: what each process of preprocess_data does.

One line is one document: a JSON object whose keys hold its texts. A line that is not is reported by file, number and
reason, and the rest of its piece is encoded all the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..config.data import TokenizerConfig
from .gpt2_bpe import GPT2BPETokenizer
from .index_format import TokenDtype, token_dtype
from .json_text import read_json
from .text_pieces import TextPiece
from .tokenizer import build_tokenizer

JSON_TYPES: Final = MappingProxyType(
    {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
)


@dataclass(frozen=True, slots=True)
class BadLine:
    path: str
    number: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.number}: {self.reason}"


@dataclass(frozen=True, slots=True)
class EncodedTexts:
    """Ids of the texts under one key, in line order, end to end; lengths[i] of them belong to document i."""

    ids: NDArray[Any]
    lengths: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EncodeTask:
    """check_only: find the bad lines; the other ones are counted, and get no ids."""

    piece: TextPiece
    check_only: bool = False


@dataclass(frozen=True, slots=True)
class EncodedPiece:
    """What became of one piece of an input.

    texts: one per key, all with the same documents.   bad_lines: their numbers count from the piece's first line (1).
    text_bytes: read and unpacked, bad lines included.   input_bytes: of the input, which may be compressed.
    """

    name: str
    texts: tuple[EncodedTexts, ...]
    bad_lines: tuple[BadLine, ...]
    num_lines: int
    text_bytes: int
    input_bytes: int

    @property
    def num_documents(self) -> int:
        return self.num_lines - len(self.bad_lines)


class BadLineError(ValueError):
    """Why a line is no document."""


class LineEncoder:
    """Encodes pieces of an input: lines -> texts of the keys -> ids in the files' element type.

    append_eod: an end-of-document id follows each text that has ids; an empty one stays empty, as in Megatron.
    An id outside of the tokenizer's own vocabulary makes its line a bad one. note: what a user should know of the speed.
    """

    def __init__(self, tokenizer: TokenizerConfig, *, keys: Sequence[str], append_eod: bool, special_tokens: bool) -> None:
        built = build_tokenizer(tokenizer, special_tokens=special_tokens)
        # An array only where it is made as one: packing a list is cheaper than making an array of it first.
        is_gpt2 = isinstance(built, GPT2BPETokenizer)
        self._encode: Callable[[str], list[int] | NDArray[Any]] = built.encode_array if is_gpt2 else built.encode
        self._refuses_text = built.refuses_text
        self._keys, self._eod = tuple(keys), built.eod if append_eod else None
        self.vocab_size = built.vocab_size
        slow = built.why_python if isinstance(built, GPT2BPETokenizer) else ""
        self.note = f"encoding in Python, several times slower than with tiktoken: {slow}" if slow else ""
        self._dtype = token_dtype(self.vocab_size)

    def __call__(self, task: EncodeTask) -> EncodedPiece:
        text = task.piece.read()
        lines = text.split(b"\n")
        if not lines[-1]:
            lines.pop()
        texts: tuple[EncodedTexts, ...] = ()
        if task.check_only:
            bad_lines = self._check(lines, task.piece.name)
        else:
            try:
                texts, bad_lines = self._encode_lines(lines, task.piece.name, self._encode)
            except _OutsideVocabularyError:  # once more, looking at each text
                texts, bad_lines = self._encode_lines(lines, task.piece.name, self._encode_checked)
        return EncodedPiece(task.piece.name, texts, bad_lines, len(lines), len(text), task.piece.input_bytes)

    def _encode_lines(
        self, lines: list[bytes], name: str, encode: Callable[[str], list[int] | NDArray[Any]]
    ) -> tuple[tuple[EncodedTexts, ...], tuple[BadLine, ...]]:
        packed = [_PackedIds(self.vocab_size, self._eod) for _ in self._keys]
        bad_lines = list[BadLine]()
        for number, line in enumerate(lines, start=1):
            try:
                encoded = [encode(text) for text in texts_of_line(line, self._keys)]
            except ValueError as error:  # BadLineError, or the tokenizer refuses the text
                bad_lines.append(BadLine(name, number, str(error)))
                continue
            for ids, target in zip(encoded, packed, strict=True):
                target.add(ids)
        return tuple(target.finish(self._dtype) for target in packed), tuple(bad_lines)

    def _check(self, lines: list[bytes], name: str) -> tuple[BadLine, ...]:
        bad_lines = list[BadLine]()
        for number, line in enumerate(lines, start=1):
            try:
                for text in texts_of_line(line, self._keys):
                    if self._refuses_text:
                        self._encode(text)
            except ValueError as error:
                bad_lines.append(BadLine(name, number, str(error)))
        return tuple(bad_lines)

    def _encode_checked(self, text: str) -> list[int] | NDArray[Any]:
        ids = self._encode(text)
        for token in (int(min(ids)), int(max(ids))) if len(ids) > 0 else ():
            if not 0 <= token < self.vocab_size:
                raise BadLineError(
                    f"the tokenizer gives token id {token}, and its vocabulary has ids 0 to {self.vocab_size - 1}: wrong "
                    "tokenizer files?"
                )
        return ids


class _OutsideVocabularyError(Exception):
    """Some id of a piece."""


class _PackedIds:
    """Ids of many texts, end to end, gathered as C ints: a list of Python ints is seven times as large."""

    def __init__(self, vocab_size: int, eod: int | None) -> None:
        self._ids = array("i")
        self._lengths = list[int]()
        self._vocab_size, self._eod = vocab_size, eod

    def add(self, ids: list[int] | NDArray[Any]) -> None:
        before = len(self._ids)
        try:
            if isinstance(ids, list):
                self._ids.fromlist(ids)
            else:
                self._ids.frombytes(_as_ints(ids).tobytes())
        except OverflowError as error:
            raise _OutsideVocabularyError from error
        if self._eod is not None and len(ids) > 0:
            self._ids.append(self._eod)
        self._lengths.append(len(self._ids) - before)

    def finish(self, dtype: TokenDtype) -> EncodedTexts:
        ids = np.frombuffer(self._ids, dtype=np.intc)
        if len(ids) > 0 and not 0 <= int(ids.min()) <= int(ids.max()) < self._vocab_size:
            raise _OutsideVocabularyError
        return EncodedTexts(ids.astype(dtype), np.array(self._lengths, dtype=np.int64))


def _as_ints(ids: NDArray[Any]) -> NDArray[np.intc]:
    converted = ids.astype(np.intc, copy=False)
    if not np.can_cast(ids.dtype, np.intc) and not np.array_equal(converted, ids):
        raise OverflowError(f"ids of type {ids.dtype} beyond int32")
    return converted


def texts_of_line(line: bytes, keys: Sequence[str]) -> list[str]:
    """The text under each key of one JSON line. Errors: BadLineError with the reason."""
    if not line.strip():
        raise BadLineError("blank; a line holds one JSON object")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLineError(f"not UTF-8 at byte {error.start} of the line") from error
    if text.startswith("\ufeff"):
        raise BadLineError("begins with a byte order mark, which is no JSON; save the file as UTF-8 without one")
    try:
        document = read_json(text)
    except ValueError as error:
        raise BadLineError(str(error)) from error
    if not isinstance(document, dict):
        raise BadLineError(f"{JSON_TYPES.get(type(document), 'null')}, not a JSON object")
    return [_checked_text(document, key) for key in keys]


def _checked_text(document: dict[str, object], key: str) -> str:
    if key not in document:
        raise BadLineError(f"no key {key!r}")
    text = document[key]
    if not isinstance(text, str):
        raise BadLineError(f"key {key!r} holds {JSON_TYPES.get(type(text), 'null')}, not a text")
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadLineError(
            f"key {key!r} holds a lone surrogate, U+{ord(text[error.start]):04X} at character {error.start}: not text"
        ) from error
    return text
