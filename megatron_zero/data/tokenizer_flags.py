"""The command-line flags of the tools that choose a tokenizer, under training's names."""

from __future__ import annotations

import argparse

from ..config.data import TokenizerConfig
from ..config.fields import knobs


def add_tokenizer_flags(parser: argparse.ArgumentParser, *, required: bool, vocab_size: int | None) -> None:
    """vocab_size: default of --vocab-size."""
    choices = knobs(TokenizerConfig)["tokenizer_type"].choices
    parser.add_argument("--tokenizer-type", required=required, choices=choices)
    parser.add_argument("--tokenizer-model", help="SentencePiece model, or a local folder of HFTokenizer")
    parser.add_argument("--vocab-file", help="GPT-2 vocab.json")
    parser.add_argument("--merge-file", help="GPT-2 merges.txt")
    parser.add_argument("--vocab-size", type=int, default=vocab_size, help="number of ids of NullTokenizer")
    parser.add_argument("--trust-remote-code", action="store_true", help="let HFTokenizer run code of its folder")


def tokenizer_config(options: argparse.Namespace) -> TokenizerConfig:
    return TokenizerConfig(
        tokenizer_type=options.tokenizer_type,
        tokenizer_model=options.tokenizer_model,
        vocab_file=options.vocab_file,
        merge_file=options.merge_file,
        vocab_size=options.vocab_size,
        trust_remote_code=options.trust_remote_code,
    )
