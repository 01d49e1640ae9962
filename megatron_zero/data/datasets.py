"""The data sets of a run: train, valid and test, from what the flags name.

As in Megatron-core a split is a range of *sequences*: of the documents that are not empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..config.data import DataConfig
from ..config.fields import ConfigError
from .blend import BlendedDataset, blend
from .data_notes import document_flags, lack_of_ends, repeated_data
from .gpt_dataset import Documents, GPTDataset, TokenSource
from .index_cache import IndexCache
from .indexed_dataset import open_prefix
from .mock_data import MockTokens
from .splits import SplitData, parse_split, split_data, split_ranges

Dataset = GPTDataset | BlendedDataset

CACHE_FOLDER: Final = Path("cache") / "GPTDataset_indices"  # beside the data, as in Megatron-core


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """How many samples a run needs of a split; `optional`: it may go without if the split holds no documents."""

    num_samples: int
    optional: bool = False


@dataclass(frozen=True, slots=True)
class DataSets:
    """train, valid, test: None for one of which no samples are asked, or that is left out.

    notes: what was left out, and other things that a user should be told.
    """

    train: Dataset | None
    valid: Dataset | None
    test: Dataset | None
    notes: tuple[str, ...]

    def all(self) -> tuple[Dataset | None, Dataset | None, Dataset | None]:
        return self.train, self.valid, self.test

    def describe(self) -> Iterator[str]:
        """A line per data set that a split reads: samples, share, documents, tokens, epochs."""
        for dataset in self.all():
            if isinstance(dataset, GPTDataset):
                yield _describe(dataset, len(dataset), "")
            elif dataset is not None:
                counts, shares = dataset.samples_of_parts, dataset.shares.tolist()
                for part, samples, share in zip(dataset.parts, counts, shares, strict=True):
                    yield _describe(part, samples, f" (weight {share:.6g})")


def _describe(dataset: GPTDataset, samples: int, weight: str) -> str:
    documents = dataset.documents
    return (
        f"{dataset.name}: {samples} samples from {documents.source.prefix}{weight}: {len(documents.sequences)} documents, "
        f"{documents.num_tokens} tokens, {dataset.epochs_of(samples):.4g} epochs"
    )


def build_datasets(
    config: DataConfig,
    requests: tuple[SplitRequest, SplitRequest, SplitRequest],
    *,
    seq_length: int,
    seed: int,
    vocab_size: int,
    eod: int,
    tell: Callable[[str], None] = lambda line: None,
) -> DataSets:
    """requests: of train, valid, test.   vocab_size, eod: of the tokenizer.   tell: takes lines about cached indices.

    Errors: ConfigError naming flag or file, also when samples are asked of a split that holds no documents.
    """
    builder = _Builder(config, seq_length=seq_length, seed=seed, vocab_size=vocab_size, eod=eod, tell=tell)
    notes: list[str] = []
    built: list[Dataset | None] = []
    for data, request in zip(split_data(config), requests, strict=True):
        dataset = None
        if request.num_samples > 0:
            fault = builder.lack(data)
            if fault is None:
                dataset = builder.build(data, request.num_samples)
                notes += builder.notes(data)
            elif request.optional:
                notes.append(f"{fault}; the run goes without its {data.name} evaluation")
            else:
                raise ConfigError(
                    f"{fault}, but {request.num_samples} {data.name} samples are asked for: "
                    f"give {data.name} documents, or ask for none{_way_to_ask_for_none(data.name)}"
                )
        built.append(dataset)
    train, valid, test = built
    return DataSets(train, valid, test, tuple(dict.fromkeys(notes)))


def _way_to_ask_for_none(name: str) -> str:
    return "" if name == "train" else " (--eval-iters 0)"


class _Builder:
    """Opens each source once, however many splits use it, and adds up the lengths of each split's documents once."""

    def __init__(
        self,
        config: DataConfig,
        *,
        seq_length: int,
        seed: int,
        vocab_size: int,
        eod: int,
        tell: Callable[[str], None],
    ) -> None:
        self._config, self._seq_length, self._seed = config, seq_length, seed
        self._vocab_size, self._eod, self._tell = vocab_size, eod, tell
        self._sources: dict[str | None, tuple[TokenSource, str]] = {}
        self._documents_of_splits: dict[str, list[Documents]] = {}

    def lack(self, data: SplitData) -> str | None:
        """What keeps a split from giving any samples, or None."""
        if data.blend is None and not data.mock:
            return f"{data.flag} is not given, so {data.name} has no data"
        for documents in self._documents(data):
            if len(documents.sequences) == 0:
                source = documents.source
                cause = f"--split {self._config.split!r} leaves" if data.share is not None else f"{data.flag} gives"
                return f"{cause} {data.name} none of the {len(source)} documents in {source.prefix} (empty ones not counted)"
        return None

    def notes(self, data: SplitData) -> Iterator[str]:
        """What a user should be told of the data of a split."""
        sources = [documents.source for documents in self._documents(data)]
        fingerprints = [documents.fingerprint for documents in self._documents(data)]
        yield from repeated_data(sources, fingerprints, flag=data.flag)
        for source in sources:
            if (note := lack_of_ends(source, eod=self._eod, flags=document_flags(self._config))) is not None:
                yield note

    def build(self, data: SplitData, num_samples: int) -> Dataset:
        documents = self._documents(data)
        caches = [self._cache(folder) for folder in _cache_folders(data)]
        weights = None if data.blend is None else data.blend.weights

        def part(index: int, wanted: int | None) -> GPTDataset:
            return GPTDataset(
                documents[index],
                num_samples=wanted,
                seq_length=self._seq_length,
                seed=self._seed,
                name=data.name,
                vocab_size=self._vocab_size,
                cache=caches[index],
            )

        # As in core, the only set of a split of its own is no blend even with a weight; that of --data-path is one.
        if len(documents) == 1 and (weights is None or data.share is None):
            return part(0, num_samples)
        one_epoch = [
            one.plan(num_samples=None, seq_length=self._seq_length, name=data.name).num_samples for one in documents
        ]
        return blend(part, weights=weights, one_epoch=one_epoch, num_samples=num_samples, name=data.name, cache=caches[0])

    def _documents(self, data: SplitData) -> list[Documents]:
        if data.name not in self._documents_of_splits:
            prefixes: tuple[str | None, ...] = (None,) if data.blend is None else data.blend.prefixes
            self._documents_of_splits[data.name] = [self._part_of(prefix, data) for prefix in prefixes]
        return self._documents_of_splits[data.name]

    def _part_of(self, prefix: str | None, data: SplitData) -> Documents:
        source, fingerprint = self._open(prefix, data.flag)
        first, last = 0, len(source)
        if data.share is not None:
            first, last = split_ranges(parse_split(self._config.split), len(source))[data.share]
        return Documents(source, range(first, last), fingerprint=fingerprint)

    def _open(self, prefix: str | None, flag: str) -> tuple[TokenSource, str]:
        if prefix not in self._sources:
            source: TokenSource
            if prefix is None:
                source = MockTokens(vocab_size=self._vocab_size, eod=self._eod)
            else:
                source = open_prefix(prefix, flag=flag)
            self._sources[prefix] = source, source.fingerprint()
        return self._sources[prefix]

    def _cache(self, default: Path | None) -> IndexCache:
        if self._config.data_cache_path is not None:
            return IndexCache(Path(self._config.data_cache_path), required=True, tell=self._tell)
        return IndexCache(default, tell=self._tell)


def _cache_folders(data: SplitData) -> list[Path | None]:
    """Where the indices of each part go unless --data-cache-path says."""
    if data.blend is None:
        return [None]
    return [Path(prefix).parent / CACHE_FOLDER for prefix in data.blend.prefixes]
