"""A Hugging Face tokenizer from a local folder (optional package transformers)."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config.fields import ConfigError


class HFTokenizer:
    """transformers.AutoTokenizer over the files of a folder; nothing is ever downloaded.

    special_tokens: whether special tokens in text become their ids; none is added to it either way. The folder's
    end-of-sequence token ends a document. vocab_size counts added tokens.
    """

    def __init__(self, folder: Path, *, trust_remote_code: bool, special_tokens: bool = True) -> None:
        named = f"--tokenizer-model {folder}"
        if not folder.is_dir():
            raise ConfigError(
                f"{named}: HFTokenizer reads a local folder with tokenizer.json or the like, and that is none; names of "
                "hubs are not looked up"
            )
        try:
            transformers = importlib.import_module("transformers")
        except ImportError as error:
            raise ConfigError(
                f"--tokenizer-type HFTokenizer needs the package transformers: pip install transformers ({error})"
            ) from error
        try:
            self._tokenizer: Any = transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=trust_remote_code
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{named}: transformers cannot read a tokenizer there: {error}") from error
        if self._tokenizer.eos_token_id is None:
            raise ConfigError(f"{named}: the tokenizer has no end-of-sequence token (eos_token), which ends a document")
        self._split_special = not special_tokens
        self.eod: int = self._tokenizer.eos_token_id
        self.vocab_size: int = max(len(self._tokenizer), max(self._tokenizer.get_vocab().values()) + 1)

    def encode(self, text: str) -> list[int]:
        """Raises UnicodeEncodeError for lone surrogates."""
        text.encode("utf-8")
        ids: list[int] = self._tokenizer.encode(
            text, add_special_tokens=False, split_special_tokens=self._split_special, verbose=False
        )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        return text
