"""Text <-> token ids: the protocol, the null tokenizer, and which tokenizer the flags name.

`vocab_size` counts the ids a tokenizer can give (the model pads it up, config/derive.py); `eod` ends a document.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ..config.data import TokenizerConfig
from ..config.fields import ConfigError
from .gpt2_bpe import GPT2BPETokenizer
from .hf_tokenizer import HFTokenizer
from .sentencepiece_tokenizers import GPTSentencePieceTokenizer, Llama2Tokenizer, SentencePieceTokenizer


class Tokenizer(Protocol):
    """encode raises ValueError for text that it cannot represent (a lone surrogate, say)."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eod(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class NullTokenizer:
    """Text is token ids already, separated by white space. As in Megatron, `vocab_size` ids 0 .. vocab_size - 1 are
    followed by one for the end of a document, so the tokenizer's own vocab_size is one more than --vocab-size."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size + 1
        self.eod = vocab_size

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in text.split():
            if not word.isascii() or not word.removeprefix("-").isdecimal():
                raise ValueError(f"{word!r} is no token id; NullTokenizer reads whole numbers separated by white space")
            if not 0 <= int(word) < self.vocab_size:
                raise ValueError(f"token id {word} is not 0 to {self.eod}, the ids of --vocab-size {self.eod}")
            ids.append(int(word))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(token) for token in ids)


def build_tokenizer(config: TokenizerConfig, *, special_tokens: bool = True) -> Tokenizer:
    """The tokenizer that --tokenizer-type names, from its files.

    special_tokens: whether a literal special token in text (<|endoftext|>) becomes its id, or plain pieces.
    Errors: ConfigError naming flag and path.
    """
    kind = config.tokenizer_type
    if kind == "NullTokenizer":
        if config.vocab_size is None or config.vocab_size < 1:
            raise ConfigError(
                f"--vocab-size {config.vocab_size}: NullTokenizer needs the number of its ids, at least 1"
            )
        return NullTokenizer(config.vocab_size)
    if kind == "GPT2BPETokenizer":
        return GPT2BPETokenizer(
            _file("--vocab-file", config.vocab_file, kind),
            _file("--merge-file", config.merge_file, kind),
            special_tokens=special_tokens,
        )
    if kind in ("HFTokenizer", "HuggingFaceTokenizer"):  # Megatron-DeepSpeed's name and Megatron-core's
        folder = Path(_given("--tokenizer-model", config.tokenizer_model, kind))
        return HFTokenizer(folder, trust_remote_code=config.trust_remote_code, special_tokens=special_tokens)
    model = _file("--tokenizer-model", config.tokenizer_model, kind)
    if kind == "GPTSentencePieceTokenizer":
        return GPTSentencePieceTokenizer(model)
    if kind == "Llama2Tokenizer":
        return Llama2Tokenizer(model)
    if kind == "SentencePieceTokenizer":
        return SentencePieceTokenizer(model, special_tokens=special_tokens)
    raise ConfigError(f"--tokenizer-type {kind} is not known")


def _file(flag: str, value: str | None, kind: str) -> Path:
    path = Path(_given(flag, value, kind))
    if path.is_dir():
        raise ConfigError(f"{flag} {path} is a folder; name the file")
    if not path.is_file():
        raise ConfigError(f"{flag} {path}: there is no such file")
    return path


def _given(flag: str, value: str | None, kind: str) -> str:
    if value is None:
        raise ConfigError(f"{flag} is not given; --tokenizer-type {kind} needs it")
    return value
