"""A Hugging Face tokenizer from a local folder. The package transformers is imported only when one is built."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ..config.fields import ConfigError
from .json_text import read_json
from .tokenizer_protocol import Tokenizer, is_failure, refusal

SAVE_AGAIN: Final = "save the tokenizer there again, with its save_pretrained"
JSON_FILES: Final = (
    *("tokenizer_config.json", "tokenizer.json", "config.json", "special_tokens_map.json", "added_tokens.json"),
    "vocab.json",
)
VOCABULARY_FILES: Final = ("tokenizer.json", "vocab.*", "*.model", "*.tiktoken", "*.spm")  # patterns


class HFTokenizer(Tokenizer):
    """What AutoTokenizer makes of the folder; its end-of-sentence token ends a document. Nothing is downloaded.

    As in Megatron-core no token is put around a text (some tokenizers would begin it with their bos).
    special_tokens: whether literal special tokens in text become their ids, or are split like other text.
    trust_remote_code: whether Python code in the folder may be run.
    encode raises UnicodeEncodeError for lone surrogates, ValueError for other text that the library refuses (a word
    without a piece, where there is no unk_token).
    """

    refuses_text = True

    def __init__(self, folder: Path, *, trust_remote_code: bool = False, special_tokens: bool = True) -> None:
        self._tokenizer = _load(folder, trust_remote_code=trust_remote_code)
        self._split_special_tokens = not special_tokens
        pieces: dict[str, int] = self._tokenizer.get_vocab()
        if not pieces.keys() - set(self._tokenizer.all_special_tokens):
            raise ConfigError(f"--tokenizer-model {folder}: transformers finds no vocabulary in it; {_way_out(folder)}")
        # Ids may have gaps; the model's table must reach the last one.
        self.vocab_size: int = max(len(self._tokenizer), max(pieces.values()) + 1)
        eod: int | None = self._tokenizer.eos_token_id
        if eod is None:
            raise ConfigError(
                f"--tokenizer-model {folder} has no eos_token, which HFTokenizer ends a document with: "
                "name one in its tokenizer_config.json"
            )
        if type(eod) is not int or not 0 <= eod < self.vocab_size:
            raise ConfigError(
                f"--tokenizer-model {folder}: its eos_token has the id {eod!r}, and ids are 0 to {self.vocab_size - 1}: "
                "name another one in its tokenizer_config.json"
            )
        self.eod = eod

    def encode(self, text: str) -> list[int]:
        text.encode("utf-8")  # a lone surrogate would be a TypeError of tokenizers
        try:
            ids: list[int] = self._tokenizer.encode(
                text, add_special_tokens=False, split_special_tokens=self._split_special_tokens, verbose=False
            )
        except BaseException as error:
            if not is_failure(error):
                raise
            raise refusal("the Hugging Face tokenizer", text, error) from error
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


def _load(folder: Path, *, trust_remote_code: bool) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ConfigError(
            f"--tokenizer-type HFTokenizer needs the package transformers, which cannot be imported ({error}): "
            "pip install transformers, or use GPT2BPETokenizer or a SentencePiece type with local files"
        ) from error
    if trust_remote_code:
        _refuse_code_elsewhere(folder)
    try:
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=trust_remote_code)
    except BaseException as error:
        if not is_failure(error):
            raise
        needs_trust = not trust_remote_code and "trust_remote_code" in str(error)
        trust = "transformers cannot load it without code of its own: --trust-remote-code lets it run; read that code first"
        if (fault := _fault_of_files(folder)) and not needs_trust:
            raise ConfigError(f"--tokenizer-model {folder}: {fault}; {_way_out(folder)}") from error
        ours = trust if needs_trust else f"transformers cannot load it; {_way_out(folder)}"
        # Theirs come last: they may be many lines, of hubs and packages that do not matter here.
        raise ConfigError(
            f"--tokenizer-model {folder}: {ours}. The words of transformers: {type(error).__name__}: {error}"
        ) from error


def _way_out(folder: Path) -> str:
    models = sorted(path.name for path in folder.glob("*.model"))
    if models and not any((folder / name).exists() for name in JSON_FILES):
        return (
            f"HFTokenizer reads what save_pretrained writes, and this folder holds SentencePiece models: name the file, "
            f"--tokenizer-model {folder / models[0]}, with --tokenizer-type GPTSentencePieceTokenizer, "
            "SentencePieceTokenizer or Llama2Tokenizer"
        )
    return SAVE_AGAIN


def _fault_of_files(folder: Path) -> str:
    """What is wrong with the files by themselves, or "": an error of transformers often does not even name the file."""
    for path in (folder / name for name in JSON_FILES):
        if not os.path.lexists(path):
            continue
        try:
            content = read_json(path.read_bytes().decode("utf-8"))
        except OSError as error:
            return f"its {path.name} cannot be read: {error.strerror}"
        except UnicodeDecodeError as error:
            return f"its {path.name} is not UTF-8: {error}"
        except ValueError as error:
            return f"its {path.name} is {error} (a truncated copy?)"
        if not isinstance(content, dict):
            return f"its {path.name} holds no JSON object"
    if not any(True for pattern in VOCABULARY_FILES for _ in folder.glob(pattern)):
        return f"it holds no vocabulary, none of {' '.join(VOCABULARY_FILES)}"
    return ""


def _refuse_code_elsewhere(folder: Path) -> None:
    """The settings may name code as "owner/repository--module.Class"; transformers would go and fetch it, whatever
    local_files_only says. Settings that cannot be read are for transformers to report."""
    for path in (folder / "tokenizer_config.json", folder / "config.json"):
        try:
            settings = read_json(path.read_bytes().decode("utf-8"))
        except (OSError, ValueError):
            continue
        named = re.search(r'"([^"]+)--[^"]+"', json.dumps(settings.get("auto_map") if isinstance(settings, dict) else ""))
        if named:
            raise ConfigError(
                f"--tokenizer-model {folder}: its {path.name} names code of the repository {named[1]}, and nothing is "
                "fetched: copy that code into the folder and name it in auto_map without the repository"
            )
