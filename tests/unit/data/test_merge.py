"""Merged pairs hold every document of their inputs, in order, whatever the element types."""

import numpy as np
import pytest

from megatron_zero.config.fields import ConfigError
from megatron_zero.data import indexed_dataset
from megatron_zero.data import merge as merge_module
from megatron_zero.data.index_format import write_index
from megatron_zero.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter, open_prefix
from megatron_zero.data.merge import common_dtype, merge, plan_merge

A = ([[1, 2]], [], [[3], [4, 5]])
B = ([], [[6] * 9], [])


def write(prefix, documents, dtype="<u2"):
    with IndexedDatasetWriter(prefix, dtype=np.dtype(dtype)) as writer:
        for document in documents:
            writer.add_document([np.array(sequence, dtype=dtype) for sequence in document])
    return str(prefix)


def merged(inputs, output):
    plan = plan_merge(inputs, output=str(output))
    with IndexedDatasetWriter(output, dtype=plan.dtype) as writer:
        merge(plan, writer)
    return plan


def contents(prefix):
    return [(prefix.with_name(prefix.name + suffix)).read_bytes() for suffix in (".bin", ".idx")]


@pytest.mark.parametrize("dtype", ["<u1", "<i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"])
@pytest.mark.parametrize("chunk", [1, 2, 1 << 20])
def test_merged_bytes_are_those_of_writing_all_documents_to_one_pair(tmp_path, monkeypatch, dtype, chunk):
    prefixes = [write(tmp_path / "a", A, dtype), write(tmp_path / "b", B, dtype), write(tmp_path / "c", [], dtype)]
    write(tmp_path / "expected", (*A, *B), dtype)
    monkeypatch.setattr(indexed_dataset, "CHUNK", chunk)
    assert merged(prefixes, tmp_path / "out").widening_text() == ""
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


def test_narrower_elements_become_the_wider_type_with_a_line(tmp_path):
    write(tmp_path / "a", [[[65535, 0]]], "<u2")
    write(tmp_path / "b", [[[70000]]], "<i4")
    plan = merged([str(tmp_path / "a"), str(tmp_path / "b")], tmp_path / "out")
    assert plan.widening_text() == "element types differ: uint16 become int32, without loss"
    dataset = IndexedDataset(tmp_path / "out")
    assert dataset.dtype == np.dtype("<i4")
    assert [dataset.get(i).tolist() for i in range(2)] == [[65535, 0], [70000]]


@pytest.mark.parametrize(
    "dtypes,expected",
    [("<u2 <u2", "<u2"), ("<u2 <i2", "<i4"), ("<u1 <i1", "<i2"), ("<i4 <i8", "<i8"), ("<f4 <f8", "<f8"), ("<u1 <u2", "<u2")],
)
def test_common_type_holds_all_values(dtypes, expected):
    given = [np.dtype(text) for text in dtypes.split()]
    assert common_dtype(given) == np.dtype(expected)
    assert all(np.can_cast(dtype, expected, "safe") for dtype in given)


def test_whole_numbers_and_floating_point_are_not_merged():
    with pytest.raises(ConfigError, match="float32, uint16; whole numbers and floating point"):
        common_dtype([np.dtype("<u2"), np.dtype("<f4")])


def test_folder_means_all_its_pairs_by_name(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("b", "a", "c.d"):
        write(tmp_path / "in" / name, [[[ord(name[0])]]])
    plan = plan_merge([str(tmp_path / "in")], output=str(tmp_path / "out"))
    assert tuple(dataset.prefix for dataset in plan.datasets) == tuple(
        str(tmp_path / "in" / name) for name in ("a", "b", "c.d")
    )


@pytest.mark.parametrize(
    "spoil,inputs,message",
    [
        (lambda folder: (folder / "a.idx").unlink(), ["."], "a.idx is missing beside a.bin"),
        (lambda folder: (folder / "a.bin").unlink(), ["."], "a.bin is missing beside a.idx"),
        (lambda folder: None, ["empty"], "no .bin and .idx in this folder"),
        (lambda folder: None, ["a", "b", "a"], "a.bin: is the same file as .*a.bin"),
        (lambda folder: None, [".", "b"], "b.bin: is the same file"),
        (lambda folder: None, ["a.bin"], "is a file; give the prefix, .*a$"),
        (lambda folder: (folder / "b.bin").write_bytes(b"1"), ["a", "b"], "b.bin: 1 bytes, but"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_written(tmp_path, spoil, inputs, message):
    (tmp_path / "empty").mkdir()
    write(tmp_path / "a", A)
    write(tmp_path / "b", B)
    spoil(tmp_path)
    with pytest.raises(ConfigError, match=message.replace(".", r"\.").replace(r"\.*", ".*")):
        plan_merge([str(tmp_path / name) for name in inputs], output=str(tmp_path / "out"))


def test_every_pair_is_opened_once(tmp_path, monkeypatch):
    prefixes = [write(tmp_path / name, A) for name in "ab"]
    opened = []
    monkeypatch.setattr(
        merge_module, "open_prefix", lambda prefix, flag: opened.append(prefix) or open_prefix(prefix, flag=flag)
    )
    merged(prefixes, tmp_path / "out")
    assert opened == prefixes


def test_output_over_an_input_is_refused_also_through_a_link(tmp_path):
    write(tmp_path / "a", A)
    write(tmp_path / "b", B)
    (tmp_path / "out.bin").symlink_to(tmp_path / "b.bin")
    for output in ("a", "out"):
        with pytest.raises(ConfigError, match=rf"{output}\.bin would replace an input"):
            plan_merge([str(tmp_path / "a"), str(tmp_path / "b")], output=str(tmp_path / output))


def test_missing_pair_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"--input .*nowhere: there is no file .*nowhere\.idx; the prefix is"):
        plan_merge([str(tmp_path / "nowhere")], output=str(tmp_path / "out"))


def test_bin_that_shrinks_after_opening_is_an_error(tmp_path):
    dataset = IndexedDataset(write(tmp_path / "a", A))
    (tmp_path / "a.bin").write_bytes(b"123")
    with (
        pytest.raises(OSError, match=r"a\.bin: ends at byte 3; it had 10 when opened"),
        IndexedDatasetWriter(tmp_path / "out", dtype=dataset.dtype) as writer,
    ):
        writer.add_dataset(dataset)
    assert not (tmp_path / "out.bin").exists()


def test_element_that_the_written_vocabulary_lacks_is_named_with_its_byte(tmp_path):
    dataset = IndexedDataset(write(tmp_path / "a", A))
    with (
        pytest.raises(ConfigError, match=r"a\.bin: 5 at byte 8; the vocabulary .* ids 0 to 4"),
        IndexedDatasetWriter(tmp_path / "out", vocab_size=5) as writer,
    ):
        writer.add_dataset(dataset)


def test_sequences_beyond_two_gibibytes_keep_their_positions(tmp_path):
    """Only the arithmetic of .idx: 3 GiB of uint16 in two sequences."""
    with open(tmp_path / "a.idx", "wb") as file:
        write_index(file.write, np.dtype("<u2"), np.array([3 << 28, 3 << 28, 1]), np.arange(4))
    with open(tmp_path / "a.bin", "wb") as file:
        file.truncate((3 << 30) + 2)
    dataset = IndexedDataset(tmp_path / "a")
    assert [dataset.sequence_at_byte(position) for position in (0, (3 << 29) - 2, 3 << 29, 3 << 30)] == [0, 0, 1, 2]
