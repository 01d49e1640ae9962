"""Index files made and found by many ranks and jobs at once (H30)."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from helpers.spawn import DistributedPool

from megatron_zero.config.data import DataConfig
from megatron_zero.data.datasets import CACHE_FOLDER, SplitRequest, build_datasets
from megatron_zero.data.indexed_dataset import IndexedDatasetWriter
from megatron_zero.data.sample_index import SampleOrder
from megatron_zero.distributed.turns import run_in_turns

RANKS = 8
LAUNCHES = 20


@pytest.fixture(scope="module")
def pool():
    with DistributedPool(RANKS) as pool:
        yield pool


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for name, seed in (("a", 1), ("b", 2)):
        with IndexedDatasetWriter(folder / name, vocab_size=100) as writer:
            for i in range(50):
                writer.add_document([[seed, *range(1 + i % 17)]])
    return str(folder / "a"), str(folder / "b")


def build(prefixes, cache):
    """First and last samples, and lines told."""
    told = []
    config = DataConfig(data_path=("1", prefixes[0], "2", prefixes[1]), split="8,2,0", data_cache_path=cache)
    datasets = build_datasets(
        config,
        (SplitRequest(60), SplitRequest(7), SplitRequest(0)),
        seq_length=8,
        seed=3,
        vocab_size=100,
        eod=0,
        tell=told.append,
    )
    return [datasets.train[i].tolist() for i in range(60)], [datasets.valid[i].tolist() for i in range(7)], told


def build_in_turns(ctx, prefixes, caches, slow_seconds=0.0):
    """Once per cache folder; where rank 0 builds, it takes slow_seconds more."""
    made = SampleOrder.of

    def slow(*args, **kwargs):
        threading.Event().wait(slow_seconds)
        return made(*args, **kwargs)

    with patch.object(SampleOrder, "of", slow if ctx.world.rank == 0 else made):
        return [
            run_in_turns(
                lambda cache=cache: build(prefixes, cache),
                turn=min(ctx.world.rank, 1),
                num_turns=2,
                axis=ctx.world,
                device=torch.device("cpu"),
                what="reading the data",
            )
            for cache in caches
        ]


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_many_ranks_on_an_empty_folder(pool, prefixes, tmp_path):
    expected = build(prefixes, str(tmp_path / "serial"))
    caches = [str(tmp_path / f"cache{launch}") for launch in range(LAUNCHES)]
    for results in pool.run(build_in_turns, prefixes, caches):
        assert results == [expected] * LAUNCHES
    for cache in caches:
        assert contents(cache) == contents(tmp_path / "serial")


def test_slow_builder_is_waited_for(pool, prefixes, tmp_path):
    expected = build(prefixes, str(tmp_path / "serial"))
    for results in pool.run(build_in_turns, prefixes, [str(tmp_path / "cache")], 0.5):
        assert results == [expected]
    assert contents(tmp_path / "cache") == contents(tmp_path / "serial")


def build_at_once(ctx, prefixes, caches):
    return [build(prefixes, cache) for cache in caches]


def test_ranks_that_do_not_wait_for_each_other(pool, prefixes, tmp_path):
    """As separate jobs do: whoever builds, the files are whole and equal."""
    expected = build(prefixes, str(tmp_path / "serial"))
    caches = [str(tmp_path / f"cache{launch}") for launch in range(LAUNCHES)]
    for results in pool.run(build_at_once, prefixes, caches):
        assert results == [expected] * LAUNCHES
    for cache in caches:
        assert contents(cache) == contents(tmp_path / "serial")


def test_two_jobs_started_together(prefixes, tmp_path):
    expected = build(prefixes, str(tmp_path / "serial"))
    caches = [str(tmp_path / f"cache{launch}") for launch in range(LAUNCHES)]
    with DistributedPool(2) as one, DistributedPool(2) as other, ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(job.run, build_in_turns, prefixes, caches) for job in (one, other)]
        for job in jobs:
            assert job.result() == [[expected] * LAUNCHES] * 2
    for cache in caches:
        assert contents(cache) == contents(tmp_path / "serial")


def test_truncated_file_is_rebuilt_once_for_all(pool, prefixes, tmp_path):
    cache = tmp_path / "cache"
    expected = build(prefixes, str(cache))[:2]
    whole = contents(cache)
    (victim, *_) = sorted(cache.glob("*sample_index.npy"))
    victim.write_bytes(victim.read_bytes()[:-10])
    for rank, [(train, valid, told)] in enumerate(pool.run(build_in_turns, prefixes, [str(cache)])):
        assert (train, valid) == expected
        assert len(told) == (1 if rank == 0 else 0)
    assert contents(cache) == whole


def test_default_folder_is_beside_the_data(prefixes):
    build(prefixes, None)
    assert (Path(prefixes[0]).parent / CACHE_FOLDER).is_dir()
