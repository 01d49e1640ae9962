"""tools/repair_dataset.py: Megatron-DeepSpeed's lengths become Megatron-core's, or nothing is changed."""

import shutil

import numpy as np
import pytest
from helpers.bpe_files import VOCABULARY, write_bpe_files
from helpers.tools import load_tool

from megatron_zero.config.fields import ConfigError
from megatron_zero.data import length_repair
from megatron_zero.data.index_format import write_index
from megatron_zero.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter
from megatron_zero.data.length_repair import plan_repair, write_repaired

repair_dataset = load_tool("repair_dataset")
EOD = 9
DOCUMENTS = ((1, EOD), (), (2, 3, EOD), (EOD, 4, EOD), ())


def write_short(prefix, documents=DOCUMENTS, dtype="<u2"):
    """The pair, then lengths that leave out the last id of each sequence; returns the right .idx."""
    with IndexedDatasetWriter(prefix, dtype=np.dtype(dtype)) as writer:
        for document in documents:
            writer.add_document([np.array(document, dtype=dtype)])
    idx = prefix.with_suffix(".idx")
    right = idx.read_bytes()
    sizes = np.array([len(document) - 1 for document in documents if document])
    entries = np.cumsum([0, *(len(document) > 0 for document in documents)])
    with open(idx, "wb") as file:
        write_index(file.write, np.dtype(dtype), sizes, entries)
    return right


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_index_of_megatron_deepspeed_becomes_that_of_megatron_core(shared_dir, tmp_path, capsys):
    goldens, data = shared_dir / "data/goldens/indexed", shared_dir / "data"
    shutil.copy(goldens / "corpus_small_gpt2_eod.bin", tmp_path / "a.bin")
    theirs = (goldens / "corpus_small_gpt2_eod_megatron_deepspeed.idx").read_bytes()
    (tmp_path / "a.idx").write_bytes(theirs)
    with pytest.raises(ConfigError, match=f"tools/repair_dataset.py {tmp_path}/a puts them right"):
        IndexedDataset(tmp_path / "a")
    tokenizer = [
        *("--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(data / "gpt2-vocab.json")),
        *("--merge-file", str(data / "gpt2-merges.txt")),
    ]
    assert repair_dataset.main([str(tmp_path / "a"), *tokenizer]) == 0
    assert f"lengths are one longer; the old index is {tmp_path}/a.idx.previous" in capsys.readouterr().out
    assert files(tmp_path) == {
        "a.bin": (goldens / "corpus_small_gpt2_eod.bin").read_bytes(),
        "a.idx": (goldens / "corpus_small_gpt2_eod.idx").read_bytes(),
        "a.idx.previous": theirs,
    }


@pytest.mark.parametrize("chunk", [1, 2, 1 << 20])
@pytest.mark.parametrize("dtype", ["<u2", "<i4"])
def test_repaired_index_is_the_right_one_and_a_second_run_changes_nothing(tmp_path, capsys, monkeypatch, dtype, chunk):
    right = write_short(tmp_path / "a", dtype=dtype)
    monkeypatch.setattr(length_repair, "CHUNK", chunk)
    for said in ("3 lengths are one longer", "sound; nothing was changed"):
        assert repair_dataset.main([str(tmp_path / "a"), "--eod", str(EOD)]) == 0
        assert said in capsys.readouterr().out
        assert (tmp_path / "a.idx").read_bytes() == right
    assert sorted(files(tmp_path)) == ["a.bin", "a.idx", "a.idx.previous"]


@pytest.mark.parametrize("chunk", [1, 1 << 20])
def test_sequence_that_does_not_end_a_document_proves_nothing(tmp_path, capsys, monkeypatch, chunk):
    write_short(tmp_path / "a", ((1, EOD), (2, 3, 5), (4, EOD)))
    monkeypatch.setattr(length_repair, "CHUNK", chunk)
    before = files(tmp_path)
    assert repair_dataset.main([str(tmp_path / "a"), "--eod", str(EOD)]) == 1
    error = capsys.readouterr().err
    assert f"{tmp_path}/a.bin: sequence 1 would end with id 5 at byte 8, and the end of a document is 9" in error
    assert "nothing was changed" in error
    assert files(tmp_path) == before


def test_other_faults_are_told_as_everywhere(tmp_path, capsys):
    write_short(tmp_path / "a")
    (tmp_path / "a.bin").write_bytes((tmp_path / "a.bin").read_bytes() + b"12")
    for name, message in (("a", "the files are not a pair"), ("b", "there is no file"), ("c/d", "there is no file")):
        assert repair_dataset.main([str(tmp_path / name), "--eod", str(EOD)]) == 1
        assert message in capsys.readouterr().err
    assert sorted(files(tmp_path)) == ["a.bin", "a.idx"]


def test_another_index_that_is_kept_already_is_not_replaced(tmp_path, capsys):
    write_short(tmp_path / "a")
    (tmp_path / "a.idx.previous").write_bytes(b"something else")
    before = files(tmp_path)
    assert repair_dataset.main([str(tmp_path / "a"), "--eod", str(EOD)]) == 1
    assert "a.idx.previous: is there already, and is another index" in capsys.readouterr().err
    assert files(tmp_path) == before


def test_run_that_was_killed_after_the_copy_is_completed_by_the_next(tmp_path):
    right = write_short(tmp_path / "a")
    shutil.copy(tmp_path / "a.idx", tmp_path / "a.idx.previous")
    assert repair_dataset.main([str(tmp_path / "a"), "--eod", str(EOD)]) == 0
    assert (tmp_path / "a.idx").read_bytes() == right


def test_index_that_changes_meanwhile_is_left_alone(tmp_path):
    right = write_short(tmp_path / "a")
    plan = plan_repair(str(tmp_path / "a"), eod=EOD)
    (tmp_path / "a.idx").write_bytes(right)
    with pytest.raises(ConfigError, match="another process wrote it meanwhile"):
        write_repaired(plan, str(tmp_path / "a"))
    assert sorted(files(tmp_path)) == ["a.bin", "a.idx"]


def test_failed_write_leaves_the_old_index(tmp_path, monkeypatch):
    write_short(tmp_path / "a")
    before = files(tmp_path)

    def fail(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(length_repair, "write_index", fail)
    assert repair_dataset.main([str(tmp_path / "a"), "--eod", str(EOD)]) == 1
    assert files(tmp_path) == before


@pytest.mark.parametrize("both", [False, True])
def test_id_is_named_in_one_way(tmp_path, capsys, both):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    tokenizer = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(vocab_file), "--merge-file", str(merge_file)]
    with pytest.raises(SystemExit):
        repair_dataset.main([str(tmp_path / "a"), *(["--eod", str(len(VOCABULARY)), *tokenizer] if both else [])])
    assert "either --eod ID or --tokenizer-type" in capsys.readouterr().err
