"""Cached index files: equal to what was built, found again, rebuilt when damaged, never half written (H30)."""

import errno
import json
import os

import numpy as np
import pytest
from helpers.kill_points import killed_at_every_step

from megatron_zero.config.fields import ConfigError
from megatron_zero.data import index_cache, staged_file
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
    (path,) = cache.folder.glob("*.json")
    description = json.loads(path.read_text())
    description["arrays"]["rows"][1] = [20, 1]
    path.write_text(json.dumps(description))
    check(cache.get("GPT", RECIPE, build))
    assert "holds int32 (10, 2), not <i4 (20, 1)" in lines[0]


def test_description_of_another_index_is_not_taken(cache, lines):
    build = Builder()
    cache.get("GPT", RECIPE, build)
    (path,) = cache.folder.glob("*.json")
    path.write_text(path.read_text().replace('"abc"', '"xyz"'))
    check(cache.get("GPT", RECIPE, build))
    assert build.calls == 2
    assert "another index" in lines[0]


# ---- names are given once


def refuse_links(monkeypatch, code):
    def link(source, target):
        raise OSError(code, os.strerror(code), source, None, target)

    monkeypatch.setattr(os, "link", link)


def inodes(folder):
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


WITHOUT_LINKS = [errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EXDEV]


@pytest.mark.parametrize("code", [None, *WITHOUT_LINKS])
def test_files_that_appear_meanwhile_stay(cache, lines, monkeypatch, code):
    """Two jobs that find an empty folder both build. Ranks may have the files of the first one mapped: on NFS they would
    die of a replaced one."""
    if code is not None:
        refuse_links(monkeypatch, code)
    first = {}

    def build_slowly():
        cache.get("GPT", RECIPE, Builder())
        first.update(inodes(cache.folder))
        return ARRAYS

    check(cache.get("GPT", RECIPE, build_slowly))
    assert inodes(cache.folder) == first
    assert len(first) == 4
    check(cache.get("GPT", RECIPE, Builder()))
    assert lines == []


@pytest.mark.parametrize("code", [None, errno.EPERM])
@pytest.mark.parametrize("kind", ["*rows.npy", "*.json"])
def test_only_the_damaged_file_of_an_entry_is_replaced(cache, monkeypatch, kind, code):
    cache.get("GPT", RECIPE, Builder())
    before = inodes(cache.folder)
    (path,) = cache.folder.glob(kind)
    truncate(path)
    if code is not None:
        refuse_links(monkeypatch, code)
    check(cache.get("GPT", RECIPE, Builder()))
    after = inodes(cache.folder)
    assert after.keys() == before.keys()
    assert [name for name in after if after[name] != before[name]] == [path.name]


def test_array_with_other_numbers_is_no_equal_one(cache):
    """Without its description nothing says that an array's numbers are those of the recipe."""
    cache.get("GPT", RECIPE, Builder())
    (path,) = cache.folder.glob("*rows.npy")
    np.save(path, ARRAYS["rows"] + 1)
    missing(next(cache.folder.glob("*.json")))
    check(cache.get("GPT", RECIPE, Builder()))


def test_link_that_fails_for_want_of_room_is_told(cache, lines, monkeypatch):
    refuse_links(monkeypatch, errno.EDQUOT)
    check(cache.get("GPT", RECIPE, Builder()))
    assert len(lines) == 1
    assert "cannot write" in lines[0]
    assert os.strerror(errno.EDQUOT) in lines[0]
    assert list(cache.folder.iterdir()) == []


# ---- what a killed build leaves


KILLED = """
import numpy as np
from megatron_zero.data.index_cache import IndexCache

def prepare(folder):
    pass

def act(folder):
    IndexCache(folder / "cache").get("GPT", {"recipe": 1}, lambda: {"rows": np.arange(9), "order": np.arange(4)})
"""


def test_killed_at_any_step_a_build_is_made_good_by_the_next_one(tmp_path):
    expected = {"rows": np.arange(9), "order": np.arange(4)}
    killed = killed_at_every_step(KILLED, tmp_path)
    assert len(killed) > 25
    whole = {path.name: path.read_bytes() for path in (killed[-1].folder / "cache").iterdir()}
    assert len(whole) == 3
    for each in killed:
        told = []
        folder = each.folder / "cache"
        cache = IndexCache(folder, required=True, tell=told.append)
        for _ in range(2):
            arrays = cache.get("GPT", {"recipe": 1}, lambda: expected)
            for name, array in expected.items():
                np.testing.assert_array_equal(arrays[name], array, err_msg=each.step)
        # An entry that is complete is only read; the next one that is written clears up.
        cache.get("other", {}, dict)
        assert all("removed" in line and ".tmp, which a run that was killed left" in line for line in told), told
        assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name[:5] != "other"} == whole, each.step


def test_files_of_living_builds_and_of_other_machines_stay(cache, lines, monkeypatch):
    stem = f"GPT-{'0' * 32}"
    cache.folder.mkdir(parents=True)
    with index_cache.StagedFile(cache.folder / f"{stem}-rows.npy") as living, monkeypatch.context() as elsewhere:
        elsewhere.setattr(staged_file, "_machine_mark", lambda: "0badcafe")
        others = [staged_file.temporary_path(cache.folder / f"{stem}{end}") for end in ("-rows.npy", "-order.npy")]
        elsewhere.undo()
        for other in others:
            other.write_bytes(b"half")
        os.utime(others[0], (0, 0))
        cache.get("GPT", RECIPE, Builder())
        assert living.temporary.exists()
        assert all(other.exists() for other in others)
    assert lines == [f"{others[0]} seems to be left by a run that was killed on another machine: remove it if so"]


def test_temporary_files_of_other_things_are_not_looked_at(cache, lines):
    """--data-cache-path may name a folder that holds the data, too."""
    cache.folder.mkdir(parents=True)
    left = [staged_file.temporary_path(cache.folder / name) for name in ("a.bin", "a.idx", f"a-{'0' * 31}.json")]
    for path in left:
        path.write_bytes(b"half")
    cache.get("GPT", RECIPE, Builder())
    assert all(path.exists() for path in left)
    assert lines == []


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


@pytest.mark.parametrize("kind", ["rows", "order"])
def test_numbers_that_changed_at_the_same_size_are_told_and_built_again(cache, lines, kind):
    """A crash may leave zeros behind a good header; every sample would be the first one, and no error."""
    cache.get("GPT", RECIPE, Builder())
    (path,) = cache.folder.glob(f"*-{kind}.npy")
    content = path.read_bytes()
    path.write_bytes(content[:128] + bytes(len(content) - 128))
    build = Builder()
    check(cache.get("GPT", RECIPE, build))
    assert build.calls == 1
    (line,) = lines
    assert f"{path} is damaged" in line and "building it again" in line


@pytest.mark.parametrize("seed", range(4))
def test_no_changed_byte_goes_unseen(cache, lines, seed):
    random = np.random.RandomState(seed)
    cache.get("GPT", RECIPE, Builder())
    for _ in range(25):
        paths = sorted(cache.folder.iterdir())
        path = paths[random.randint(len(paths))]
        content = bytearray(path.read_bytes())
        content[random.randint(len(content))] ^= 1 << random.randint(8)
        path.write_bytes(content)
        check(cache.get("GPT", RECIPE, Builder()))
        check(cache.get("GPT", RECIPE, Builder()))


@pytest.mark.parametrize("text", ['{"recipe": 1, "arrays": []}', "[" * 200_000, "3"], ids=["list", "deep", "number"])
def test_json_that_is_no_description_is_told_and_built_again(cache, lines, text):
    cache.get("GPT", RECIPE, Builder())
    (path,) = cache.folder.glob("*.json")
    path.write_text(text)
    build = Builder()
    check(cache.get("GPT", RECIPE, build))
    assert build.calls == 1
    (line,) = lines
    assert f"{path} is no description of an index" in line and "building it again" in line
