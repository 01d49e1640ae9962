"""The null tokenizer, and which tokenizer the flags name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..config.data import NEEDED, TokenizerConfig, missing_for_tokenizer
from ..config.fields import ConfigError
from .gpt2_bpe import GPT2BPETokenizer
from .hf_tokenizer import HFTokenizer
from .sentencepiece_tokenizers import GPTSentencePieceTokenizer, Llama2Tokenizer, SentencePieceTokenizer
from .tokenizer_protocol import Tokenizer

__all__ = ("NullTokenizer", "Tokenizer", "build_tokenizer")

HF_NAMES: Final = ("HFTokenizer", "HuggingFaceTokenizer")
NUMBER: Final = re.compile(r"[+-]?[0-9]+")
MOST_DIGITS: Final = 40


class NullTokenizer(Tokenizer):
    """Text is token ids already, separated by white space. As in Megatron, `vocab_size` ids 0 .. vocab_size - 1 are
    followed by one for the end of a document, so the tokenizer's own vocab_size is one more than --vocab-size."""

    refuses_text = True

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size + 1
        self.eod = vocab_size

    def encode(self, text: str) -> list[int]:
        return [self._id(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(token) for token in ids)

    def _id(self, word: str) -> int:
        if not NUMBER.fullmatch(word):
            raise ValueError(f"word {word[:40]!r} is not a token id; NullTokenizer reads numbers separated by white space")
        # int() refuses thousands of digits, and no vocabulary needs more than these.
        if len(word) > MOST_DIGITS or not 0 <= int(word) <= self.eod:
            raise ValueError(f"token id {word[:40]} is not 0 to {self.eod}, the ids of --vocab-size {self.eod}")
        return int(word)


def build_tokenizer(config: TokenizerConfig, *, special_tokens: bool = True) -> Tokenizer:
    """The tokenizer that --tokenizer-type names, from its files.

    special_tokens: whether a literal special token in text (<|endoftext|>) becomes its id, or plain pieces.
    Errors: ConfigError naming flag and path.
    """
    kind = config.tokenizer_type
    if kind not in NEEDED:
        raise ConfigError(f"--tokenizer-type {kind} is not known; known are {', '.join(NEEDED)}")
    if missing := missing_for_tokenizer(config):
        raise ConfigError(missing)
    if kind == "NullTokenizer":
        assert config.vocab_size is not None
        if config.vocab_size < 1:
            raise ConfigError(f"--vocab-size {config.vocab_size}: must be at least 1")
        return NullTokenizer(config.vocab_size)
    if kind == "GPT2BPETokenizer":
        return GPT2BPETokenizer(
            _file("--vocab-file", config.vocab_file, kind),
            _file("--merge-file", config.merge_file, kind),
            special_tokens=special_tokens,
        )
    if kind in HF_NAMES:
        return HFTokenizer(
            _folder("--tokenizer-model", config.tokenizer_model, kind),
            trust_remote_code=config.trust_remote_code,
            special_tokens=special_tokens,
        )
    model = _file("--tokenizer-model", config.tokenizer_model, kind)
    if kind == "GPTSentencePieceTokenizer":
        return GPTSentencePieceTokenizer(model)
    if kind == "SentencePieceTokenizer":
        return SentencePieceTokenizer(model, special_tokens=special_tokens)
    assert kind == "Llama2Tokenizer", "a type of NEEDED without a class"
    return Llama2Tokenizer(model)


def _file(flag: str, path: str | None, kind: str) -> Path:
    assert path is not None, "missing_for_tokenizer() comes first"
    if Path(path).is_dir():
        raise ConfigError(f"{flag} {path} is a folder; --tokenizer-type {kind} needs a file there")
    if not Path(path).exists():
        raise ConfigError(f"{flag} {path}: there is no such file")
    if not Path(path).is_file():
        raise ConfigError(
            f"{flag} {path} is not a regular file (a pipe or a device), and each process reads it: write it to a file first"
        )
    return Path(path)


def _folder(flag: str, path: str | None, kind: str) -> Path:
    assert path is not None, "missing_for_tokenizer() comes first"
    if not Path(path).is_dir():
        raise ConfigError(
            f"{flag} {path} is not a folder; --tokenizer-type {kind} reads a local folder with the tokenizer's files, "
            "and nothing is looked up on a hub: save the tokenizer with its save_pretrained and name that folder"
        )
    return Path(path)
