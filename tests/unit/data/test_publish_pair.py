"""A pair that is replaced: after a kill at any step it is the old one, the new one, or none that opens."""

import os

import numpy as np
import pytest
from helpers.kill_points import killed_at_every_step

from megatron_zero.config.data import DataConfig
from megatron_zero.config.fields import ConfigError
from megatron_zero.data.datasets import SplitRequest, build_datasets
from megatron_zero.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter
from megatron_zero.data.merge import plan_merge

REPLACE = """
import os
from megatron_zero.data.indexed_dataset import IndexedDatasetWriter

def write(folder, *documents):
    with IndexedDatasetWriter(folder / "a", vocab_size=100) as writer:
        for document in documents:
            writer.add_document([document])

def prepare(folder):
    {prepare}

def act(folder):
    write(folder, {new})
"""
OLD = [[1, 2, 3], [4]]
OLD_PAIR = """write(folder, [1, 2, 3], [4])
    for name in ("a.bin", "a.idx"):
        os.utime(folder / name, (1, 1))"""
NEW = {"same size": [[5], [6, 7, 8]], "other size": [[5], [6]]}
# The states that an earlier kill leaves: after the first rename, and after the second.
ASIDE = """
    os.rename(folder / "a.idx", folder / "a.idx.previous")"""
NEW_BIN = """
    (folder / "a.bin").write_bytes(bytes(8))"""


def write(folder, documents):
    with IndexedDatasetWriter(folder / "a", vocab_size=100) as writer:
        for document in documents:
            writer.add_document([document])
    return writer.notes


def documents_of(folder):
    dataset = IndexedDataset(folder / "a")
    return [dataset.get(sequence).tolist() for sequence in range(len(dataset))]


def opened(folder):
    """(its documents, "") or (None, the error)."""
    try:
        return documents_of(folder), ""
    except (ConfigError, FileNotFoundError) as error:
        return None, str(error)


def killed_while_replacing(root, *, prepare, new):
    return killed_at_every_step(REPLACE.format(prepare=prepare, new=", ".join(map(str, new))), root)


def temporary(folder):
    return [path.name for path in folder.iterdir() if path.suffix == ".tmp" or path.name == "a.lock"]


@pytest.mark.parametrize("new", NEW.values(), ids=NEW)
@pytest.mark.parametrize("before", ["", ASIDE, ASIDE + NEW_BIN], ids=["a pair", "index aside", "new bin, index aside"])
def test_kill_at_any_step_leaves_the_old_pair_or_the_new_one_or_an_error_with_the_way_out(tmp_path, before, new):
    killed = killed_while_replacing(tmp_path, prepare=OLD_PAIR + before, new=new)
    assert len(killed) > 20
    old_bin = np.array([1, 2, 3, 4], np.uint16).tobytes()
    seen = set()
    for each in killed:
        folder = each.folder
        previous, index = folder / "a.idx.previous", folder / "a.idx"
        found, error = opened(folder)
        if found is not None:
            state = {str(OLD): "old", str(new): "new"}[str(found)]
        else:
            state = "old bin" if (folder / "a.bin").read_bytes() == old_bin else "new bin"
            assert str(previous) in error, each.step
            assert (f"mv '{previous}' '{index}'" in error) == (state == "old bin"), each.step
            assert "make the pair again" in error
        seen.add(state)

        notes = write(folder, [[9], [8, 7]])
        assert documents_of(folder) == [[9], [8, 7]], each.step
        assert sorted(path.name for path in folder.iterdir()) == ["a.bin", "a.idx"], each.step
        assert any(str(previous) in line for line in notes) == state.endswith("bin"), each.step
    assert seen == {"new", "new bin"} | ({"old", "old bin"} if before == "" else {"old bin"} if before == ASIDE else set())


def test_the_way_out_gives_the_old_pair_back(tmp_path):
    for each in killed_while_replacing(tmp_path, prepare=OLD_PAIR, new=NEW["same size"]):
        previous, index = each.folder / "a.idx.previous", each.folder / "a.idx"
        if "mv" in opened(each.folder)[1]:
            os.rename(previous, index)
            assert documents_of(each.folder) == OLD


def test_killed_first_pair_opens_whole_or_not_at_all(tmp_path):
    for each in killed_while_replacing(tmp_path, prepare="pass", new=NEW["same size"]):
        found, error = opened(each.folder)
        assert found == NEW["same size"] or "a.idx" in error, each.step
        assert not any("previous" in line for line in write(each.folder, OLD))
        assert documents_of(each.folder) == OLD
        assert temporary(each.folder) == []


# ---- an index that stands aside


@pytest.fixture
def interrupted(tmp_path):
    write(tmp_path, OLD)
    os.rename(tmp_path / "a.idx", tmp_path / "a.idx.previous")
    return tmp_path


def fail_rename_of(monkeypatch, name):
    def replace(source, target, real=os.replace):
        if str(target).endswith(name):
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)


def test_index_of_an_earlier_bin_is_not_put_back_when_publishing_fails(interrupted, monkeypatch):
    """It may belong to a .bin that is gone; of the same size it would open, as a wrong pair."""
    (interrupted / "a.bin").write_bytes(bytes(8))
    fail_rename_of(monkeypatch, ".bin")
    with pytest.raises(OSError, match="as they were"):
        write(interrupted, NEW["same size"])
    assert sorted(path.name for path in interrupted.iterdir()) == ["a.bin", "a.idx.previous"]


@pytest.mark.parametrize("content", [b"", b"MMIDIDX", bytes(100)])
def test_file_that_is_no_index_is_not_recommended(interrupted, content):
    (interrupted / "a.idx.previous").write_bytes(content)
    with pytest.raises(ConfigError, match="make the pair again") as caught:
        IndexedDataset(interrupted / "a")
    assert "mv" not in str(caught.value)


def test_pair_of_no_sequences_is_recognised(tmp_path):
    write(tmp_path, [])
    os.rename(tmp_path / "a.idx", tmp_path / "a.idx.previous")
    with pytest.raises(ConfigError, match="mv"):
        IndexedDataset(tmp_path / "a")


def test_index_that_could_not_be_renamed_is_named_by_who_opens_the_pair(tmp_path, monkeypatch):
    write(tmp_path, OLD)
    with monkeypatch.context() as failing:
        fail_rename_of(failing, ".idx")
        with pytest.raises(OSError, match="completes the pair"):
            write(tmp_path, NEW["same size"])
    with pytest.raises(ConfigError, match=r"the \.bin that this run wrote, .* mv") as caught:
        IndexedDataset(tmp_path / "a")
    assert f"mv '{tmp_path / 'a.idx.complete'}' '{tmp_path / 'a.idx'}'" in str(caught.value)
    os.rename(tmp_path / "a.idx.complete", tmp_path / "a.idx")
    assert documents_of(tmp_path) == NEW["same size"]


def test_index_that_can_neither_be_renamed_nor_kept_is_told(tmp_path, monkeypatch):
    write(tmp_path, OLD)

    def link(source, target):
        raise OSError(1, "Operation not permitted")

    fail_rename_of(monkeypatch, "")
    monkeypatch.setattr(os, "link", link)
    with pytest.raises(OSError, match="as they were"):
        write(tmp_path, NEW["same size"])
    monkeypatch.undo()
    monkeypatch.setattr(os, "link", link)
    calls = []

    def replace(source, target, real=os.replace):
        calls.append(target)
        if len(calls) > 1:
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match=r"could not be kept \(Input/output error\): make the pair again"):
        write(tmp_path, NEW["same size"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin"]


@pytest.mark.parametrize("renamed", [".bin", ".idx"])
def test_rename_that_is_done_but_answered_as_an_error_is_done(tmp_path, monkeypatch, renamed):
    """NFS: the answer is lost, the request is sent again, and the file is there no more."""

    def replace(source, target, real=os.replace):
        real(source, target)
        if str(target).endswith(renamed):
            raise FileNotFoundError(2, "No such file or directory")

    write(tmp_path, OLD)
    monkeypatch.setattr(os, "replace", replace)
    write(tmp_path, NEW["same size"])
    assert documents_of(tmp_path) == NEW["same size"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


def test_a_run_and_a_merge_name_it(interrupted):
    prefix = str(interrupted / "a")
    with pytest.raises(ConfigError, match=r"a\.idx\.previous"):
        build_datasets(
            DataConfig(data_path=(prefix,), split="1"),
            (SplitRequest(1), SplitRequest(0), SplitRequest(0)),
            seq_length=2,
            seed=1,
            vocab_size=100,
            eod=0,
        )
    for given in (prefix, str(interrupted)):
        with pytest.raises(ConfigError, match=r"a\.idx\.previous belongs to"):
            plan_merge([given], output=str(interrupted / "out"))
