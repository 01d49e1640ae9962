"""Megatron's three wrappers of a SentencePiece model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import sentencepiece

from ..config.fields import ConfigError
from .tokenizer_protocol import Tokenizer, refusal

SPECIAL_PIECES: Final = ("<CLS>", "<SEP>", "<EOD>", "<MASK>")


class GPTSentencePieceTokenizer(Tokenizer):
    """The model as it is; its end-of-sentence piece ends a document."""

    def __init__(self, model: Path) -> None:
        self._model = _load(model)
        self.vocab_size: int = self._model.get_piece_size()
        self.eod: int = self._model.eos_id()
        if self.eod < 0:
            raise ConfigError(
                f"--tokenizer-model {model} has no end-of-sentence piece, which GPTSentencePieceTokenizer ends a "
                "document with: train it with one, or use --tokenizer-type SentencePieceTokenizer"
            )

    def encode(self, text: str) -> list[int]:
        return _ids(self._model, text)

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._model.decode(list(ids))
        return text


class Llama2Tokenizer(Tokenizer):
    """The model as it is; each text begins with its beginning-of-sentence piece, an empty one too, and its
    end-of-sentence piece ends a document. decode leaves both out."""

    def __init__(self, model: Path) -> None:
        self._model = _load(model)
        self.vocab_size: int = self._model.get_piece_size()
        self._bos: int = self._model.bos_id()
        self.eod: int = self._model.eos_id()
        missing = [name for name, token in (("beginning", self._bos), ("end", self.eod)) if token < 0]
        if missing:
            raise ConfigError(
                f"--tokenizer-model {model} has no {' and no '.join(missing)}-of-sentence piece, which Llama2Tokenizer "
                "puts around a document: train it with both, or use --tokenizer-type SentencePieceTokenizer"
            )

    def encode(self, text: str) -> list[int]:
        return [self._bos, *_ids(self._model, text)]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._model.decode(list(ids))
        return text


class SentencePieceTokenizer(Tokenizer):
    """The model plus Megatron's special tokens: <CLS>, <SEP>, <EOD>, <MASK> and pad, bos, eos.

    Those the model lacks get ids behind its vocabulary, in that order. Each is recognised literally in text, unless
    special_tokens is False. <EOD> ends a document.
    """

    def __init__(self, model: Path, *, special_tokens: bool = True) -> None:
        self._model = _load(model)
        self._ids = _special_ids(self._model)
        self._pieces = {token: piece for piece, token in self._ids.items()}
        self.vocab_size: int = max(self._model.get_piece_size(), max(self._pieces) + 1)
        self.eod = self._ids["<EOD>"]
        # Of two that match at one place the first in order wins, as in Megatron.
        self._special = re.compile("|".join(re.escape(piece) for piece in self._ids)) if special_tokens else None

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        done = 0
        for match in self._special.finditer(text) if self._special else ():
            ids += _ids(self._model, text[done : match.start()])
            ids.append(self._ids[match.group()])
            done = match.end()
        ids += _ids(self._model, text[done:])
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text, plain = "", list[int]()
        for token in ids:
            if token in self._pieces:
                text += self._model.decode(plain) + self._pieces[token]
                plain = []
            else:
                plain.append(token)
        return text + str(self._model.decode(plain))


def _ids(model: sentencepiece.SentencePieceProcessor, text: str) -> list[int]:
    """Errors: UnicodeEncodeError for a lone surrogate; ValueError for other text that the library refuses."""
    text.encode("utf-8")
    try:
        ids: list[int] = model.encode(text)
    except RuntimeError as error:
        raise refusal("sentencepiece", text, error) from error
    return ids


def _special_ids(model: sentencepiece.SentencePieceProcessor) -> dict[str, int]:
    """Piece -> id of the special tokens, those of the model where it has them."""
    known = {model.id_to_piece(token): token for token in range(model.get_piece_size())}
    named = ((model.pad_id(), "<PAD>"), (model.bos_id(), "<BOS>"), (model.eos_id(), "<EOS>"))
    ids: dict[str, int] = {}
    following = model.get_piece_size()
    for piece in (*SPECIAL_PIECES, *(model.id_to_piece(token) if token >= 0 else name for token, name in named)):
        if piece in known:
            ids[piece] = known[piece]
        elif piece not in ids:
            ids[piece] = following
            following += 1
    return ids


def _load(path: Path) -> sentencepiece.SentencePieceProcessor:
    model = sentencepiece.SentencePieceProcessor()
    try:
        model.load(str(path))
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"--tokenizer-model {path} is not a SentencePiece model: {error}") from error
    return model
