"""JSON lines -> token ids, a chunk of lines at a time: what each process of preprocess_data does.

One line is one document: a JSON object whose keys hold its texts. A line that is not is reported by file, number and
reason, and the rest of its chunk is encoded all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..config.data import TokenizerConfig
from .index_format import token_dtype
from .tokenizer import build_tokenizer

CHUNK_BYTES: Final = 1 << 20
JSON_TYPES: Final = MappingProxyType(
    {dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
)


@dataclass(frozen=True, slots=True)
class LineChunk:
    """Whole lines of one file, the first of which has number `first_line` (from 1)."""

    path: str
    first_line: int
    lines: tuple[bytes, ...]

    @property
    def num_bytes(self) -> int:
        return sum(len(line) for line in self.lines)


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

    def documents(self) -> Iterator[NDArray[Any]]:
        stop = 0
        for length in self.lengths.tolist():
            start, stop = stop, stop + length
            yield self.ids[start:stop]


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """texts: one per key, all with the same documents.   num_bytes: read for them, bad lines included."""

    texts: tuple[EncodedTexts, ...]
    bad_lines: tuple[BadLine, ...]
    num_bytes: int


class BadLineError(ValueError):
    """Why a line is no document."""


class LineEncoder:
    """Encodes chunks of lines: lines -> texts of the keys -> ids in the files' element type.

    append_eod: an end-of-document id follows each text that has ids; an empty one stays empty, as in Megatron.
    """

    def __init__(
        self, tokenizer: TokenizerConfig, *, keys: Sequence[str], append_eod: bool, special_tokens: bool
    ) -> None:
        self._tokenizer = build_tokenizer(tokenizer, special_tokens=special_tokens)
        self._keys, self._append_eod = tuple(keys), append_eod
        self.vocab_size = self._tokenizer.vocab_size
        self._dtype = token_dtype(self.vocab_size)

    def __call__(self, chunk: LineChunk) -> EncodedChunk:
        documents: list[list[list[int]]] = []
        bad_lines: list[BadLine] = []
        for number, line in enumerate(chunk.lines, start=chunk.first_line):
            try:
                documents.append([self._encode(text) for text in texts_of_line(line, self._keys)])
            except BadLineError as error:
                bad_lines.append(BadLine(chunk.path, number, str(error)))
        texts = tuple(self._pack([document[key] for document in documents]) for key in range(len(self._keys)))
        return EncodedChunk(texts, tuple(bad_lines), chunk.num_bytes)

    def _encode(self, text: str) -> list[int]:
        try:
            ids = self._tokenizer.encode(text)
        except ValueError as error:
            raise BadLineError(str(error)) from error
        return [*ids, self._tokenizer.eod] if ids and self._append_eod else ids

    def _pack(self, texts: list[list[int]]) -> EncodedTexts:
        ids = [np.array(text, dtype=self._dtype) for text in texts]  # raises where an id does not fit
        packed = np.concatenate(ids) if ids else np.empty(0, dtype=self._dtype)
        return EncodedTexts(packed, np.array([len(text) for text in texts], dtype=np.int64))


def texts_of_line(line: bytes, keys: Sequence[str]) -> list[str]:
    """The text under each key of one JSON line. Errors: BadLineError with the reason."""
    if not line.strip():
        raise BadLineError("blank; a line holds one JSON object")
    try:
        document = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadLineError(f"not UTF-8 at byte {error.start} of the line") from error
    except (ValueError, RecursionError) as error:
        raise BadLineError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise BadLineError(f"{JSON_TYPES.get(type(document), 'null')}, not a JSON object")
    return [_checked_text(document, key) for key in keys]


def _checked_text(document: dict[str, object], key: str) -> str:
    if key not in document:
        raise BadLineError(f"no key {key!r}")
    text = document[key]
    if not isinstance(text, str):
        raise BadLineError(f"key {key!r} holds {JSON_TYPES.get(type(text), 'null')}, not a text")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadLineError(
            f"key {key!r} holds a lone surrogate, U+{ord(text[error.start]):04X} at character {error.start}: not text"
        ) from error
    return text


def read_chunks(paths: Sequence[Path], *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[LineChunk]:
    """All lines of the files, in order, in chunks of about chunk_bytes. Lines end with \\n only, and are never cut."""
    for path in paths:
        with open(path, "rb") as file:
            first_line = 1
            while lines := file.readlines(chunk_bytes):
                yield LineChunk(str(path), first_line, tuple(lines))
                first_line += len(lines)
