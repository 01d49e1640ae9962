"""Sequences -> samples of seq_length + 1 tokens (order of samples: sample_index.py)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from ..config.fields import ConfigError
from .index_cache import IndexCache
from .sample_index import EpochPlan, SampleOrder, plan_epochs

MAX_SEED: Final = 2**32 - 1  # of numpy's RandomState
RECIPE_VERSION: Final = 1  # raise it when the rules of sample_index.py change


class TokenSource(Protocol):
    """What samples are cut from: IndexedDataset, or made-up tokens. sizes: [sequences] int32."""

    @property
    def prefix(self) -> str: ...

    @property
    def bin_path(self) -> object: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    @property
    def sizes(self) -> NDArray[np.int32]: ...

    def __len__(self) -> int: ...

    def get(self, sequence: int, offset: int = 0, length: int | None = None) -> NDArray[Any]: ...

    def byte_position(self, sequence: int, offset: int) -> int: ...

    def fingerprint(self) -> str: ...


class Documents:
    """A range of the sequences of a source: one split of it.

    num_tokens: of all of them.   fingerprint: of the whole source.   Errors: ConfigError where elements are no ids.
    """

    def __init__(self, source: TokenSource, sequences: range, *, fingerprint: str) -> None:
        if source.dtype.kind not in "iu":
            raise ConfigError(f"{source.prefix}: elements of type {source.dtype} are not token ids")
        self.source, self.sequences, self.fingerprint = source, sequences, fingerprint
        self.num_tokens = int(source.sizes[sequences.start : sequences.stop].sum(dtype=np.int64))

    def plan(self, *, num_samples: int | None, seq_length: int, name: str) -> EpochPlan:
        """How often they are walked through for so many samples (None: once). Errors: ConfigError without any token."""
        if self.num_tokens == 0:
            raise ConfigError(f"{self.source.prefix}: {name} is given {len(self.sequences)} sequences, which hold no tokens")
        return plan_epochs(tokens_per_epoch=self.num_tokens, num_samples=num_samples, seq_length=seq_length)


def check_index_fits(plan: EpochPlan, documents: Documents, *, name: str, seq_length: int) -> None:
    """ConfigError where the indices would not fit this machine's memory: a typing error in the length of a run, say."""
    wanted = 4 * plan.num_epochs * len(documents.sequences) + 12 * plan.num_samples
    what = f"{documents.source.prefix}: {name} is asked for {plan.num_samples} samples of {seq_length} tokens"
    check_indices_fit(wanted, f"{what}, {plan.num_epochs} epochs: their indices")


def check_indices_fit(wanted: int, what: str) -> None:
    """ConfigError where so many bytes are more than this machine's memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if wanted > memory:
        raise ConfigError(
            f"{what} would take {wanted} bytes, and this machine has {memory}: shorten the run "
            "(--train-iters, --train-samples; for evaluations --eval-iters)"
        )


class GPTDataset:
    """Samples of seq_length + 1 tokens over some sequences of a source.

    num_samples: so many samples at least are made, over as many epochs as that takes; None: one epoch.
    vocab_size:  token ids must lie below it; None: not checked.
    cache:       where the indices are kept; without one they are built here, in memory.
    Errors: ConfigError.
    """

    def __init__(
        self,
        documents: Documents,
        *,
        num_samples: int | None,
        seq_length: int,
        seed: int,
        name: str,
        vocab_size: int | None = None,
        cache: IndexCache | None = None,
    ) -> None:
        if not 0 <= seed <= MAX_SEED:
            raise ConfigError(f"--seed {seed} cannot order the data; it must be 0 to {MAX_SEED}")
        self.name, self.seq_length, self.vocab_size, self.documents = name, seq_length, vocab_size, documents
        self.plan = documents.plan(num_samples=num_samples, seq_length=seq_length, name=name)
        self.recipe = {
            "kind": "GPT samples",
            "version": RECIPE_VERSION,
            "data": documents.fingerprint,
            "sequences": [documents.sequences.start, documents.sequences.stop],
            "seq_length": seq_length,
            "seed": seed,
            "num_epochs": self.plan.num_epochs,
            "separate_last_epoch": self.plan.separate_last,
        }

        def build() -> dict[str, NDArray[Any]]:
            check_index_fits(self.plan, documents, name=name, seq_length=seq_length)
            order = SampleOrder.of(documents.source.sizes, documents.sequences, self.plan, seq_length=seq_length, seed=seed)
            return {
                "document_index": order.document_index,
                "sample_index": order.sample_index,
                "shuffle_index": order.shuffle_index,
            }

        self.order = SampleOrder(**(cache or IndexCache(None)).get("GPT", self.recipe, build))

    def __len__(self) -> int:
        """Samples that there are: num_samples, or a few more."""
        return self.plan.num_samples

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        """[seq_length + 1] int64, a new array: inputs and, one further, labels of sample `index`.

        Errors: IndexError outside of the data set; ConfigError for a token id that the tokenizer does not have.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"{self.name} sample {index} of {len(self)}")
        row = int(self.order.shuffle_index[index])
        sample = np.concatenate([part for _, _, part in self._parts(row)]).astype(np.int64, copy=False)
        assert len(sample) == self.seq_length + 1, "the sample index and the lengths disagree"
        if self.vocab_size is not None and not 0 <= int(sample.min()) <= int(sample.max()) < self.vocab_size:
            raise ConfigError(self._foreign_id(row, self.vocab_size))
        return sample

    @property
    def fingerprint(self) -> str:
        """Of the data that samples are cut from: every length, the size of .bin, and which sequences are this split's."""
        sequences = self.documents.sequences
        text = f"{self.documents.fingerprint}/{sequences.start}/{sequences.stop}"
        return hashlib.sha256(text.encode()).hexdigest()

    def epochs_of(self, num_samples: int) -> float:
        """How often so many samples walk through the tokens."""
        return num_samples * self.seq_length / self.documents.num_tokens

    def _parts(self, row: int) -> Iterator[tuple[int, int, NDArray[Any]]]:
        """(sequence, offset, elements) of the pieces of the sample at a row of the sample index."""
        (first, first_offset), (last, last_offset) = self.order.sample_index[row : row + 2].tolist()
        for position in range(first, last + 1):
            sequence = int(self.order.document_index[position])
            offset = first_offset if position == first else 0
            length = last_offset + 1 - offset if position == last else None
            yield sequence, offset, self.documents.source.get(sequence, offset, length)

    def _foreign_id(self, row: int, vocab_size: int) -> str:
        sequence, offset, part = next(
            piece for piece in self._parts(row) if ((piece[2] < 0) | (piece[2] >= vocab_size)).any()
        )
        at = int(np.argmax((part < 0) | (part >= vocab_size)))
        source = self.documents.source
        return (
            f"{source.bin_path}: token id {int(part[at])} at byte {source.byte_position(sequence, offset + at)} "
            f"(sequence {sequence}, token {offset + at}), but the tokenizer has ids 0 to {vocab_size - 1} only: "
            "the data was made with another tokenizer"
        )
