"""Data, tokenizer and checkpoint sections, and which flags each tokenizer type takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from .fields import knob, knobs


@dataclass(frozen=True, slots=True)
class DataConfig:
    data_path: tuple[str, ...] = knob(
        (), flag="--data-path", kind="strs", help="PREFIX of a .bin/.idx pair, several, or WEIGHT PREFIX WEIGHT PREFIX ..."
    )
    train_data_path: tuple[str, ...] = knob(
        (), flag="--train-data-path", kind="strs", help="what is trained on, as in --data-path; not cut by --split"
    )
    valid_data_path: tuple[str, ...] = knob(
        (), flag="--valid-data-path", kind="strs", help="what is evaluated on while training"
    )
    test_data_path: tuple[str, ...] = knob(
        (), flag="--test-data-path", kind="strs", help="what is evaluated on at the end"
    )
    data_args_path: str | None = knob(
        None, flag="--data-args-path", kind="str", help="file that holds the words of --data-path"
    )
    mock_data: bool = knob(False, flag="--mock-data", kind="bool", switch=True, help="train on made-up documents")
    data_cache_path: str | None = knob(
        None,
        flag="--data-cache-path",
        kind="str",
        help="folder that keeps index files; unset: cache/GPTDataset_indices beside the data",
    )
    split: str = knob("969, 30, 1", flag="--split", kind="split", help="train,valid,test proportions")
    data_impl: str = knob(
        "infer", flag="--data-impl", kind="str", choices=("mmap", "infer"), help="dataset implementation"
    )
    num_workers: int = knob(
        2,
        flag="--num-workers",
        kind="int",
        help="0: micro-batches are read in the step; N > 0: N threads read up to 2 N of them ahead",
    )
    dataloader_type: str = knob(
        "single",
        flag="--dataloader-type",
        kind="str",
        choices=("single", "cyclic"),
        help="single: samples in the order of the data set; cyclic: those laid out for the run, shuffled once more",
    )
    repeated_dataloader: bool = knob(
        False,
        flag="--repeated-dataloader",
        kind="bool",
        switch=True,
        help="begin again when all samples were read (a run lays out as many as it needs, so it seldom matters)",
    )
    reset_position_ids: bool = knob(
        False, flag="--reset-position-ids", kind="bool", switch=True, help="positions count from 0 in each document"
    )
    reset_attention_mask: bool = knob(
        False, flag="--reset-attention-mask", kind="bool", switch=True, help="no attention between documents"
    )
    eod_mask_loss: bool = knob(
        False, flag="--eod-mask-loss", kind="bool", switch=True, help="no loss on what follows an end of document"
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
        None, flag="--tokenizer-model", kind="str", help="SentencePiece model file, or a local folder of HFTokenizer"
    )
    vocab_file: str | None = knob(None, flag="--vocab-file", kind="str", help="GPT-2 vocab.json")
    merge_file: str | None = knob(None, flag="--merge-file", kind="str", help="GPT-2 merges.txt")
    vocab_size: int | None = knob(
        None, flag="--vocab-size", kind="int", help="number of ids of NullTokenizer; the others have their own"
    )
    trust_remote_code: bool = knob(
        False, flag="--trust-remote-code", kind="bool", switch=True, help="let HFTokenizer run code of its folder"
    )


# What each tokenizer type cannot do without, and all that it reads. Names of fields.
NEEDED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "GPT2BPETokenizer": ("vocab_file", "merge_file"),
        "GPTSentencePieceTokenizer": ("tokenizer_model",),
        "SentencePieceTokenizer": ("tokenizer_model",),
        "Llama2Tokenizer": ("tokenizer_model",),
        "HFTokenizer": ("tokenizer_model",),
        "HuggingFaceTokenizer": ("tokenizer_model",),
        "NullTokenizer": ("vocab_size",),
    }
)
TAKEN: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        kind: (*needed, "trust_remote_code") if kind in ("HFTokenizer", "HuggingFaceTokenizer") else needed
        for kind, needed in NEEDED.items()
    }
)


def missing_for_tokenizer(config: TokenizerConfig) -> str:
    """Which flags the type needs and does not have, in words; "" where nothing is missing."""
    missing = [_flag(name) for name in NEEDED[config.tokenizer_type] if getattr(config, name) is None]
    return f"--tokenizer-type {config.tokenizer_type} needs {' and '.join(missing)}" if missing else ""


def unused_by_tokenizer(config: TokenizerConfig) -> dict[str, str]:
    """field -> a sentence, for each setting that the type does not read."""
    kind = config.tokenizer_type
    takes = " and ".join(_flag(name) for name in TAKEN[kind])
    return {
        name: f"{given}: --tokenizer-type {kind} does not use it; it takes {takes}"
        for name, given in given_to_tokenizer(config).items()
        if name not in TAKEN[kind]
    }


def given_to_tokenizer(config: TokenizerConfig) -> dict[str, str]:
    """field -> flag and value, of all that is set besides the type."""
    values = {name: getattr(config, name) for name in knobs(TokenizerConfig) if name != "tokenizer_type"}
    return {
        name: _flag(name) if value is True else f"{_flag(name)} {value}"
        for name, value in values.items()
        if value is not None and value is not False
    }


def _flag(name: str) -> str:
    flag = knobs(TokenizerConfig)[name].flag
    assert flag is not None
    return flag


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
