"""Data, tokenizer and checkpoint sections."""

from __future__ import annotations

from dataclasses import dataclass

from .fields import knob


@dataclass(frozen=True, slots=True)
class DataConfig:
    data_path: tuple[str, ...] = knob(
        (), flag="--data-path", kind="strs", help="prefix of the .bin/.idx pair (blends of several come later)"
    )
    split: str = knob("969, 30, 1", flag="--split", kind="split", help="train,valid,test proportions")
    data_impl: str = knob(
        "infer", flag="--data-impl", kind="str", choices=("mmap", "infer"), help="dataset implementation"
    )
    num_workers: int = knob(
        2, flag="--num-workers", kind="int", help="0: batches are read in the step; > 0: read ahead by a thread"
    )


@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    tokenizer_type: str = knob(
        "GPT2BPETokenizer",
        flag="--tokenizer-type",
        kind="str",
        choices=(
            "GPT2BPETokenizer",
            "GPTSentencePieceTokenizer",
            "SentencePieceTokenizer",
            "Llama2Tokenizer",
            "HFTokenizer",
            "HuggingFaceTokenizer",  # Megatron-core's name of the one before
            "NullTokenizer",
        ),
        help="tokenizer whose vocabulary and end-of-document id are used",
    )
    tokenizer_model: str | None = knob(
        None, flag="--tokenizer-model", kind="str", help="SentencePiece model file, or folder of HFTokenizer"
    )
    vocab_file: str | None = knob(None, flag="--vocab-file", kind="str", help="GPT-2 vocab.json")
    merge_file: str | None = knob(None, flag="--merge-file", kind="str", help="GPT-2 merges.txt")
    vocab_size: int | None = knob(None, flag="--vocab-size", kind="int", help="vocabulary of NullTokenizer")
    trust_remote_code: bool = knob(
        False, flag="--trust-remote-code", kind="bool", help="HFTokenizer may run Python code of its folder"
    )


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    save: str | None = knob(None, flag="--save", kind="str", help="checkpoint directory to write")
    save_interval: int | None = knob(
        None,
        flag="--save-interval",
        aliases=("--persistent-save-interval",),
        kind="int",
        help="iterations between saves",
    )
    load: str | None = knob(
        None, flag="--load", kind="str", help="checkpoint directory to resume from; absent = start fresh, and say so"
    )
