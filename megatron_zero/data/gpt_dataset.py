"""Documents -> samples of seq_length + 1 tokens, and the three data sets of a run (order of samples: sample_index.py).

As in Megatron-core a split is a range of *sequences*: of the documents that are not empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..config.data import DataConfig
from ..config.fields import ConfigError
from .indexed_dataset import IndexedDataset
from .sample_index import build_document_index, build_sample_index, build_shuffle_index, plan_epochs

SPLIT_NAMES: Final = ("train", "valid", "test")
MAX_SEED: Final = 2**32 - 1  # of numpy's RandomState


def parse_split(text: str) -> tuple[float, float, float]:
    """Weights of train, valid and test as typed, e.g. '969, 30, 1'; missing ones are 0. They need not sum to 1."""
    words = [word for word in re.split(r"[,/\s]+", text.strip()) if word]
    try:
        weights = [float(word) for word in words]
    except ValueError as error:
        raise ConfigError(f"--split {text!r}: {error}; write train,valid,test like 969,30,1") from error
    if not 1 <= len(weights) <= len(SPLIT_NAMES):
        raise ConfigError(f"--split {text!r} has {len(weights)} numbers; write train,valid,test like 969,30,1")
    if not all(0.0 <= weight < float("inf") for weight in weights) or sum(weights) <= 0.0:
        raise ConfigError(f"--split {text!r}: weights must be finite, not negative and not all 0")
    train, valid, test = weights + [0.0] * (len(SPLIT_NAMES) - len(weights))
    return train, valid, test


def split_ranges(split: tuple[float, float, float], num_documents: int) -> tuple[tuple[int, int], ...]:
    """(first, past-last) document of train, valid and test, as core rounds them: the cumulative ends, half to even.

    A split without weight is empty (first == past-last), and so may be one with a small weight.
    """
    total = sum(split)
    ends = [0.0]
    for weight in split:
        ends.append(ends[-1] + weight / total)
    bounds = [round(end * float(num_documents)) for end in ends]
    return tuple(pairwise(bounds))


class GPTDataset:
    """Samples of seq_length + 1 tokens over some sequences of an IndexedDataset.

    documents:   ids of the split's sequences, in file order.
    num_samples: so many samples at least are made, over as many epochs as that takes; None: one epoch.
    vocab_size:  token ids must lie below it; None: not checked.
    document_index, sample_index and shuffle_index are made here, in memory. Errors: ConfigError.
    """

    def __init__(
        self,
        indexed: IndexedDataset,
        documents: range | NDArray[Any],
        *,
        num_samples: int | None,
        seq_length: int,
        seed: int,
        name: str,
        vocab_size: int | None = None,
    ) -> None:
        if indexed.dtype.kind not in "iu":
            raise ConfigError(f"{indexed.idx_path}: elements of type {indexed.dtype} are not token ids")
        if not 0 <= seed <= MAX_SEED:
            raise ConfigError(f"--seed {seed} cannot order the data; it must be 0 to {MAX_SEED}")
        ids = np.asarray(documents, dtype=np.int64)
        tokens = int(indexed.sizes[ids].sum(dtype=np.int64))
        if tokens == 0:
            raise ConfigError(f"{indexed.prefix}: {name} is given {len(ids)} sequences, which hold no tokens")
        self.name, self.seq_length, self.vocab_size = name, seq_length, vocab_size
        self._indexed = indexed
        self.plan = plan_epochs(tokens_per_epoch=tokens, num_samples=num_samples, seq_length=seq_length)
        random = np.random.RandomState(seed)
        self.document_index = build_document_index(ids, self.plan, random)
        self.sample_index = build_sample_index(indexed.sizes, self.document_index, self.plan, seq_length=seq_length)
        self.shuffle_index = build_shuffle_index(self.plan, random)

    @property
    def fingerprint(self) -> str:
        """Of the .bin/.idx pair: IndexedDataset.fingerprint."""
        return self._indexed.fingerprint()

    def __len__(self) -> int:
        """Samples that there are: num_samples, or a few more."""
        return self.plan.num_samples

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """[seq_length + 1] int64, a new array: inputs and, one further, labels of sample `index`.

        Errors: IndexError outside of the data set; ConfigError for a token id that the tokenizer does not have.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} sample {index} of {len(self)}")
        row = int(self.shuffle_index[index])
        sample = np.concatenate([part for _, _, part in self._parts(row)]).astype(np.int64, copy=False)
        assert len(sample) == self.seq_length + 1, "the sample index and the lengths disagree"
        if self.vocab_size is not None and not 0 <= int(sample.min()) <= int(sample.max()) < self.vocab_size:
            raise ConfigError(self._foreign_id(row, self.vocab_size))
        return sample

    def _parts(self, row: int) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """(sequence, offset, tokens) of the pieces which make up the sample at a row of the sample index."""
        (first, first_offset), (last, last_offset) = self.sample_index[row : row + 2].tolist()
        for position in range(first, last + 1):
            sequence = int(self.document_index[position])
            offset = first_offset if position == first else 0
            length = last_offset + 1 - offset if position == last else None
            yield sequence, offset, self._indexed.get(sequence, offset, length)

    def _foreign_id(self, row: int, vocab_size: int) -> str:
        sequence, offset, part = next(
            piece for piece in self._parts(row) if ((piece[2] < 0) | (piece[2] >= vocab_size)).any()
        )
        at = int(np.argmax((part < 0) | (part >= vocab_size)))
        return (
            f"{self._indexed.bin_path}: token id {int(part[at])} at byte "
            f"{self._indexed.byte_position(sequence, offset + at)} (sequence {sequence}, token {offset + at}), but the "
            f"tokenizer has ids 0 to {vocab_size - 1} only: the data was made with another tokenizer"
        )


def build_train_valid_test(
    config: DataConfig, *, seq_length: int, seed: int, num_samples: tuple[int, int, int], vocab_size: int
) -> tuple[GPTDataset | None, GPTDataset | None, GPTDataset | None]:
    """The data sets of a run: train, valid, test; None for one of which no samples are asked.

    num_samples: samples that the run needs of each.
    Errors: ConfigError naming flag or file, also when samples are asked of a split that holds no documents.
    """
    indexed = open_data_path(config.data_path)
    ranges = split_ranges(parse_split(config.split), len(indexed))
    for name, (first, last), wanted in zip(SPLIT_NAMES, ranges, num_samples, strict=True):
        if wanted > 0 and first == last:
            raise ConfigError(
                f"--split {config.split!r} leaves {name} none of the {len(indexed)} documents in {indexed.prefix} "
                f"(empty ones not counted), but {wanted} {name} samples are asked for: give {name} a larger share, "
                "or ask for none"
            )
    train, valid, test = (
        GPTDataset(
            indexed,
            range(first, last),
            num_samples=wanted,
            seq_length=seq_length,
            seed=seed,
            name=name,
            vocab_size=vocab_size,
        )
        if wanted > 0
        else None
        for name, (first, last), wanted in zip(SPLIT_NAMES, ranges, num_samples, strict=True)
    )
    return train, valid, test


def open_data_path(data_path: tuple[str, ...]) -> IndexedDataset:
    """The data set that --data-path names. Errors: ConfigError, also for a file that is not there."""
    if len(data_path) == 0:
        raise ConfigError("--data-path is not given: name the prefix of a .bin/.idx pair of tools/preprocess_data.py")
    if len(data_path) > 1:
        raise ConfigError(
            f"--data-path {' '.join(data_path)}: blends are not built yet; give one prefix, without a weight"
        )
    try:
        return IndexedDataset(data_path[0])
    except FileNotFoundError as error:
        raise ConfigError(
            f"--data-path {data_path[0]}: there is no file {error.filename}; the prefix is what both names have before "
            ".bin and .idx, e.g. my-gpt2_text_document"
        ) from error
