"""Cached index files: equal to what was built, found again, rebuilt when damaged, never half written (H30)."""

import errno
import os

import numpy as np
import pytest

from megatron_zero.config.fields import ConfigError
from megatron_zero.data import index_cache
from megatron_zero.data.index_cache import IndexCache

RECIPE = {"data": "abc", "seed": 1, "sequences": [0, 7]}
ARRAYS = {
    "rows": np.arange(20, dtype=np.int32).reshape(10, 2),
    "order": np.arange(10, dtype=np.uint32)[::-1],
    "nothing": np.empty(0, dtype=np.int64),
}


class Builder:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return ARRAYS


@pytest.fixture
def lines():
    return []


@pytest.fixture
def cache(tmp_path, lines):
    return IndexCache(tmp_path / "deep" / "cache", tell=lines.append)


def check(arrays):
    assert list(arrays) == list(ARRAYS)
    for name, array in arrays.items():
        assert array.dtype == ARRAYS[name].dtype
        np.testing.assert_array_equal(array, ARRAYS[name])


def test_second_time_is_read_from_files(cache, lines):
    build = Builder()
    for _ in range(2):
        check(cache.get("GPT", RECIPE, build))
    assert build.calls == 1
    assert lines == []
    assert not any(path.suffix == ".tmp" for path in cache.folder.iterdir())


def test_arrays_of_files_cannot_be_written_to(cache):
    arrays = cache.get("GPT", RECIPE, Builder())
    with pytest.raises(ValueError, match="read-only"):
        arrays["rows"][0] = 1


@pytest.mark.parametrize("change", [{"data": "abd"}, {"seed": 2}, {"sequences": [0, 8]}, {"more": None}])
def test_every_value_of_the_recipe_counts(cache, change):
    build = Builder()
    cache.get("GPT", RECIPE, build)
    cache.get("GPT", RECIPE | change, build)
    assert build.calls == 2


def test_order_of_the_recipe_does_not_count(cache):
    build = Builder()
    cache.get("GPT", RECIPE, build)
    cache.get("GPT", dict(reversed(RECIPE.items())), build)
    assert build.calls == 1


def test_without_a_folder_everything_is_built(tmp_path):
    build = Builder()
    check(IndexCache(None).get("GPT", RECIPE, build))
    assert list(tmp_path.iterdir()) == []


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


def append(path):
    path.write_bytes(path.read_bytes() + b"x")


def empty(path):
    path.write_bytes(b"")


def garbage(path):
    path.write_bytes(b"{" * path.stat().st_size)


def missing(path):
    path.unlink()


@pytest.mark.parametrize("damage", [truncate, empty, garbage])
@pytest.mark.parametrize("kind", ["*rows.npy", "*order.npy", "*.json"])
def test_damaged_entry_is_told_and_built_again(cache, lines, kind, damage):
    build = Builder()
    cache.get("GPT", RECIPE, build)
    (path,) = cache.folder.glob(kind)
    damage(path)
    check(cache.get("GPT", RECIPE, build))
    assert build.calls == 2
    assert len(lines) == 1
    assert str(path) in lines[0]
    assert "building it again" in lines[0]
    check(cache.get("GPT", RECIPE, build))
    assert build.calls == 2


def test_missing_array_is_told_and_built_again(cache, lines):
    build = Builder()
    cache.get("GPT", RECIPE, build)
    (path,) = cache.folder.glob("*rows.npy")
    missing(path)
    check(cache.get("GPT", RECIPE, build))
    assert build.calls == 2
    assert str(path) in lines[0]


def test_arrays_of_another_shape_are_not_taken(cache, lines):
    build = Builder()
    cache.get("GPT", RECIPE, build)
    (path,) = cache.folder.glob("*rows.npy")
    np.save(path, np.zeros((9, 2), np.int32))
    check(cache.get("GPT", RECIPE, build))
    assert "(9, 2)" in lines[0]


def test_description_of_another_index_is_not_taken(cache, lines):
    build = Builder()
    cache.get("GPT", RECIPE, build)
    (path,) = cache.folder.glob("*.json")
    path.write_text(path.read_text().replace('"abc"', '"xyz"'))
    check(cache.get("GPT", RECIPE, build))
    assert build.calls == 2
    assert "another index" in lines[0]


def test_files_that_appear_meanwhile_are_replaced_by_equal_ones(cache):
    """Two jobs that find an empty folder both build; the later one publishes over the files of the first."""

    def build_slowly():
        cache.get("GPT", RECIPE, Builder())
        return ARRAYS

    check(cache.get("GPT", RECIPE, build_slowly))
    check(cache.get("GPT", RECIPE, Builder()))


class FullDisk(index_cache.StagedFile):
    def write(self, data):
        raise OSError(errno.ENOSPC, f"cannot write {self.path}: No space left on device")


def test_folder_that_cannot_be_written_is_told_and_memory_used(cache, lines, monkeypatch):
    monkeypatch.setattr(index_cache, "StagedFile", FullDisk)
    check(cache.get("GPT", RECIPE, Builder()))
    assert len(lines) == 1
    assert "No space left on device" in lines[0]
    assert "--data-cache-path" in lines[0]
    assert list(cache.folder.iterdir()) == []


def test_folder_that_was_asked_for_and_cannot_be_written_is_an_error(cache, monkeypatch):
    monkeypatch.setattr(index_cache, "StagedFile", FullDisk)
    required = IndexCache(cache.folder, required=True)
    with pytest.raises(ConfigError, match=r"--data-cache-path .*No space left"):
        required.get("GPT", RECIPE, Builder())
    assert list(cache.folder.iterdir()) == []


def test_file_in_the_way_of_the_folder_is_told(tmp_path, lines):
    (tmp_path / "cache").write_text("")
    check(IndexCache(tmp_path / "cache", tell=lines.append).get("GPT", RECIPE, Builder()))
    assert "kept in the memory of each rank" in lines[0]


def test_failed_build_leaves_no_files(cache):
    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.get("GPT", RECIPE, fail)
    assert not cache.folder.exists()
