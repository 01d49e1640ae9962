"""The .bin/.idx pair: what is written is read back, and no damaged pair is opened."""

import os
import signal

import numpy as np
import psutil
import pytest

from megatron_zero.config.fields import ConfigError
from megatron_zero.data.index_format import HEADER, MAGIC, VERSION, token_dtype, write_index
from megatron_zero.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter

DOCUMENTS = ([[5, 6, 7]], [], [[1], [], [2, 3]], [[]], [[9] * 70])


def write(prefix, documents=DOCUMENTS, vocab_size=100):
    with IndexedDatasetWriter(prefix, vocab_size=vocab_size) as writer:
        for document in documents:
            writer.add_document(document)
    return prefix


def test_sequences_and_documents_come_back(tmp_path):
    dataset = IndexedDataset(write(tmp_path / "a"))
    assert [dataset.get(i).tolist() for i in range(len(dataset))] == [[5, 6, 7], [1], [2, 3], [9] * 70]
    assert dataset.sizes.tolist() == [3, 1, 2, 70]
    assert dataset.num_documents == len(DOCUMENTS)


def test_empty_document_has_no_sequence_but_an_entry(tmp_path):
    """H25: core keeps the entry of an empty document in the document array, as a repeated value."""
    dataset = IndexedDataset(write(tmp_path / "a", [[[]], [[4, 5]], []]))
    assert dataset.document_index.tolist() == [0, 0, 1, 1]
    assert dataset.sizes.tolist() == [2]


@pytest.mark.parametrize("documents", [[], [[], []]])
def test_pair_without_tokens_is_sound(tmp_path, documents):
    dataset = IndexedDataset(write(tmp_path / "a", documents))
    assert len(dataset) == 0
    assert dataset.num_documents == len(documents)


def test_slices_of_a_sequence_equal_slices_of_the_list(tmp_path):
    tokens = list(range(90, 0, -1))
    dataset = IndexedDataset(write(tmp_path / "a", [[[1]], [tokens]]))
    for offset in (0, 1, 89, 90):
        assert dataset.get(1, offset).tolist() == tokens[offset:]
        for length in (0, 90 - offset):
            assert dataset.get(1, offset, length).tolist() == tokens[offset : offset + length]
    for bad in ((2, 0, 1), (-1, 0, 1), (1, 91, 0), (1, 0, 91), (1, -1, 1)):
        with pytest.raises(IndexError, match=r"a\.idx"):
            dataset.get(*bad)


@pytest.mark.parametrize(
    "vocab_size,dtype",
    [(65499, "<u2"), (65500, "<i4"), (65535, "<i4"), (65536, "<i4"), (65537, "<i4"), (100000, "<i4")],
)
def test_first_and_last_id_come_back_in_the_type_of_the_vocabulary(tmp_path, vocab_size, dtype):
    """H29: uint16 below 65,500 as both peers choose; the reader goes by the header."""
    dataset = IndexedDataset(write(tmp_path / "a", [[[0, vocab_size - 1]]], vocab_size))
    assert dataset.dtype == np.dtype(dtype) == token_dtype(vocab_size)
    assert dataset.get(0).tolist() == [0, vocab_size - 1]
    assert (tmp_path / "a.bin").stat().st_size == 2 * np.dtype(dtype).itemsize


@pytest.mark.parametrize("vocab_size", [0, -1, 2**31 + 1])
def test_impossible_vocabulary_is_refused_before_a_file_exists(tmp_path, vocab_size):
    with pytest.raises(ConfigError, match=f"vocabulary of {vocab_size}"):
        IndexedDatasetWriter(tmp_path / "a", vocab_size=vocab_size)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "sequence,message",
    [
        ([1, 100], r"document 1: token id 100; .* ids 0 to 99"),
        ([-1], "token id -1"),
        (np.array([70000], dtype=np.int64), "token id 70000"),
        ([1.5], "float64"),
        ([[1, 2]], r"shape \[1, 2\]"),
    ],
)
def test_bad_sequence_is_refused_and_nothing_is_published(tmp_path, sequence, message):
    with pytest.raises(ConfigError, match=message), IndexedDatasetWriter(tmp_path / "a", vocab_size=100) as writer:
        writer.add_document([[1]])
        writer.add_document([sequence])
    assert list(tmp_path.iterdir()) == []


def test_failed_run_leaves_the_old_pair_as_it_was(tmp_path):
    before = IndexedDataset(write(tmp_path / "a")).fingerprint()
    with pytest.raises(KeyboardInterrupt), IndexedDatasetWriter(tmp_path / "a", vocab_size=100) as writer:
        writer.add_document([[1, 2]])
        raise KeyboardInterrupt
    assert IndexedDataset(tmp_path / "a").fingerprint() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


def fail_rename(monkeypatch, number):
    """The number-th os.replace (1: of .bin, 2: of .idx) fails; those after it work."""
    calls = []

    def replace(source, target, real=os.replace):
        calls.append(target)
        if len(calls) == number:
            raise OSError(5, "Input/output error")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)


def test_old_pair_is_put_back_when_the_new_bin_gets_no_name(tmp_path, monkeypatch):
    before = IndexedDataset(write(tmp_path / "a")).fingerprint()
    fail_rename(monkeypatch, 1)
    with pytest.raises(OSError, match=r"cannot write .*a\.bin .*Input/output error\. The files of that name are as they"):
        write(tmp_path / "a", [[[1]]])
    assert IndexedDataset(tmp_path / "a").fingerprint() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


@pytest.mark.parametrize("replaces", [True, False])
def test_new_index_is_kept_and_named_when_only_its_rename_fails(tmp_path, monkeypatch, replaces):
    """No .idx stands beside a .bin it does not describe, and the command in the message completes the pair."""
    if replaces:
        write(tmp_path / "a")
    fail_rename(monkeypatch, 2)
    with pytest.raises(OSError, match=r"a\.bin is the new file and complete, but its index has no name yet: mv") as caught:
        write(tmp_path / "a", [[[1, 2]]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx.complete"]
    assert f"mv '{tmp_path / 'a.idx.complete'}' '{tmp_path / 'a.idx'}'" in str(caught.value)
    os.rename(tmp_path / "a.idx.complete", tmp_path / "a.idx")
    assert IndexedDataset(tmp_path / "a").get(0).tolist() == [1, 2]


def test_folder_that_cannot_be_synced_before_the_renames_changes_nothing(tmp_path, monkeypatch):
    before = IndexedDataset(write(tmp_path / "a")).fingerprint()

    def fsync_folder(folder):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("megatron_zero.data.publish_pair.fsync_folder", fsync_folder)
    with pytest.raises(OSError, match="as they were"):
        write(tmp_path / "a", [[[1]]])
    assert IndexedDataset(tmp_path / "a").fingerprint() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_between_the_renames_takes_effect_when_the_pair_is_complete(tmp_path, monkeypatch, number):
    write(tmp_path / "a")

    def stop(received, frame):
        raise SystemExit(128 + received)

    def replace(source, target, real=os.replace):
        signal.raise_signal(number)
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    before = signal.signal(number, stop)
    try:
        with pytest.raises(SystemExit) as caught:
            write(tmp_path / "a", [[[1, 2]]])
    finally:
        signal.signal(number, before)
    assert caught.value.code == 128 + number
    assert IndexedDataset(tmp_path / "a").get(0).tolist() == [1, 2]


def test_second_writer_of_a_prefix_is_refused_while_the_first_one_writes(tmp_path):
    with IndexedDatasetWriter(tmp_path / "a", vocab_size=100) as writer:
        writer.add_document([[1]])
        with pytest.raises(ConfigError, match=r"a\.bin and \.idx are being written by another run"):
            IndexedDatasetWriter(tmp_path / "a", vocab_size=100)
    assert IndexedDataset(tmp_path / "a").get(0).tolist() == [1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


# ---- many documents at once


@pytest.mark.parametrize("vocab_size", [200, 70000])
@pytest.mark.parametrize("cuts", [(), (3,), (0, 1, 2, 300, 300)])
def test_documents_added_together_make_the_bytes_of_documents_added_singly(tmp_path, vocab_size, cuts):
    rng = np.random.default_rng(7)
    lengths = rng.integers(0, 4, 400)
    ids = rng.integers(0, vocab_size, int(lengths.sum()))
    pieces = np.split(ids, np.cumsum(lengths)[:-1])
    write(tmp_path / "single", [[piece] for piece in pieces], vocab_size)
    with IndexedDatasetWriter(tmp_path / "packed", vocab_size=vocab_size) as writer:
        for part in np.split(np.arange(len(lengths)), cuts):
            chosen = [pieces[i] for i in part]
            writer.add_documents(np.concatenate([np.empty(0, np.int64), *chosen]), lengths[part])
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"packed{suffix}").read_bytes() == (tmp_path / f"single{suffix}").read_bytes()


@pytest.mark.parametrize(
    "ids,lengths,kind,message",
    [
        ([1, 2, 100], [1, 0, 2], ConfigError, r"document 3: token id 100; .* ids 0 to 99"),
        ([-1, 2, 100], [1, 0, 2], ConfigError, r"document 1: token id -1"),
        ([1, 2], [1], ValueError, "lengths add up to 1, and 2"),
        ([1, 2], [3, -1], ValueError, "lengths add up to 2, and 2"),
        ([1.5], [1], ConfigError, "document 1: elements of type float64; token ids are whole numbers"),
    ],
)
def test_bad_documents_added_together_are_refused_by_number(tmp_path, ids, lengths, kind, message):
    with pytest.raises(kind, match=message), IndexedDatasetWriter(tmp_path / "a", vocab_size=100) as writer:
        writer.add_document([[1]])
        writer.add_documents(np.array(ids), np.array(lengths))
    assert list(tmp_path.iterdir()) == []


# ---- element types without a vocabulary


@pytest.mark.parametrize("dtype", ["<u1", "<i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"])
def test_every_element_type_of_the_format_comes_back(tmp_path, dtype):
    dtype = np.dtype(dtype)
    limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
    values = np.array([limits.min, 0, limits.max], dtype=dtype)
    with IndexedDatasetWriter(tmp_path / "a", dtype=dtype) as writer:
        writer.add_document([values])
        writer.add_documents(values, np.array([0, 3]))
    dataset = IndexedDataset(tmp_path / "a")
    assert dataset.dtype == dtype
    assert [dataset.get(i).tolist() for i in range(2)] == [values.tolist()] * 2
    assert dataset.document_index.tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize(
    "dtype,values,message",
    [
        ("<u2", [65535, 65536], "document 0: token id 65536; elements of type uint16 are 0 to 65535"),
        ("<u2", [-1], "token id -1; elements of type uint16"),
        ("<i4", [2**31], "token id 2147483648; elements of type int32"),
        ("<i4", [0.5], "float64; token ids are whole numbers"),
        ("<f4", [0.5], "float64; float32 would lose digits"),
        ("<u4", [1], "no code for elements of type uint32"),
    ],
)
def test_value_that_the_element_type_cannot_hold_is_refused(tmp_path, dtype, values, message):
    with (
        pytest.raises(ConfigError, match=message),
        IndexedDatasetWriter(tmp_path / "a", dtype=np.dtype(dtype)) as writer,
    ):
        writer.add_document([values])
    assert list(tmp_path.iterdir()) == []


# ---- large files


def test_positions_beyond_two_gibibytes_are_right_and_opening_reads_no_elements(tmp_path):
    """H27: 3 sequences of 2^29 int32 tokens over a sparse .bin of 6 GiB."""
    tail = np.arange(8, dtype="<i4")
    with open(tmp_path / "a.bin", "wb") as file:
        file.truncate(3 * 2**31)
        file.seek(3 * 2**31 - tail.nbytes)
        file.write(tail.tobytes())
    with open(tmp_path / "a.idx", "wb") as file:
        write_index(file.write, np.dtype("<i4"), np.full(3, 2**29), np.arange(4))
    before = psutil.Process().memory_info().rss
    dataset = IndexedDataset(tmp_path / "a")
    assert psutil.Process().memory_info().rss - before < 64 << 20  # a mapped page that was read would count
    assert [dataset.byte_position(i, 0) for i in range(3)] == [0, 2147483648, 4294967296]
    assert dataset.get(2, 2**29 - 8).tolist() == list(range(8))
    assert dataset.get(1, 2**29 - 2).tolist() == [0, 0]


def test_a_second_writer_replaces_the_pair(tmp_path):
    write(tmp_path / "a")
    assert IndexedDataset(write(tmp_path / "a", [[[8]]])).get(0).tolist() == [8]


def test_fingerprint_follows_the_lengths_and_not_the_name(tmp_path):
    first, same = (IndexedDataset(write(tmp_path / name)).fingerprint() for name in "ab")
    other = IndexedDataset(write(tmp_path / "c", [[[5, 6]], [[7]]])).fingerprint()
    assert first == same != other


# ---- damaged files


def test_every_truncation_of_the_index_is_refused(tmp_path):
    path = write(tmp_path / "a").with_suffix(".idx")
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"a\.idx"):
            IndexedDataset(tmp_path / "a")


def test_every_inverted_byte_of_the_index_is_refused(tmp_path):
    path = write(tmp_path / "a").with_suffix(".idx")
    whole = path.read_bytes()
    for position in range(len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])
        with pytest.raises(ConfigError, match=r"a\.(idx|bin)"):
            IndexedDataset(tmp_path / "a")


def index_bytes(*, magic=MAGIC, version=VERSION, code=8, sizes=(3, 2), pointers=(0, 6), documents=(0, 1, 2), tail=b""):
    return (
        HEADER.pack(magic, version, code, len(sizes), len(documents))
        + np.array(sizes, "<i4").tobytes()
        + np.array(pointers, "<i8").tobytes()
        + np.array(documents, "<i8").tobytes()
        + tail
    )


@pytest.mark.parametrize(
    "change,message",
    [
        ({"magic": b"TNTIDX\x00\x00\x00"}, "lazy and cached"),
        ({"version": 2}, "version 2 at byte 9"),
        ({"code": 9}, "type code 9 at byte 17"),
        ({"sizes": (6, -1), "pointers": (0, 12)}, "sequence 1 has length -1 at byte 38"),
        ({"pointers": (0, 8)}, "sequence 1 starts at byte 8 .* byte 50, .* add up to 6"),
        ({"documents": (1, 1, 2)}, "must start with 0, found 1"),
        ({"documents": ()}, "must start with 0, found no entry"),
        ({"documents": (0, 1, 3)}, "must end with 2, .* found 3"),
        ({"documents": (0, 2, 1, 2)}, r"falls from 2 to 1 at entry 2 \(byte 74\)"),
        ({"tail": b"\0\0"}, "multimodal"),
        ({"tail": b"\0"}, "83 bytes, but 2 sequences .* need 82"),
        ({"code": 4}, r"a\.bin: 10 bytes, but .* take 20 \(int32\): truncated"),
    ],
)
def test_broken_rule_is_named_with_its_position(tmp_path, change, message):
    if "code" in change and change["code"] == 4:
        change = change | {"pointers": (0, 12)}
    (tmp_path / "a.bin").write_bytes(bytes(10))
    (tmp_path / "a.idx").write_bytes(index_bytes(**change))
    with pytest.raises(ConfigError, match=message):
        IndexedDataset(tmp_path / "a")


def test_sound_handmade_index_is_read(tmp_path):
    (tmp_path / "a.bin").write_bytes(np.arange(5, dtype="<u2").tobytes())
    (tmp_path / "a.idx").write_bytes(index_bytes())
    assert IndexedDataset(tmp_path / "a").get(1).tolist() == [3, 4]


@pytest.mark.parametrize("change", [-1, 1, 2, -1000])
def test_bin_of_another_size_is_refused(tmp_path, change):
    path = write(tmp_path / "a").with_suffix(".bin")
    content = path.read_bytes()
    path.write_bytes((content + bytes(max(change, 0)))[: max(0, len(content) + change)])
    with pytest.raises(ConfigError, match=rf"a\.bin: {path.stat().st_size} bytes, but"):
        IndexedDataset(tmp_path / "a")


@pytest.mark.parametrize("missing", [".bin", ".idx"])
def test_missing_file_is_named(tmp_path, missing):
    write(tmp_path / "a").with_suffix(missing).unlink()
    with pytest.raises(FileNotFoundError, match=f"a{missing}"):
        IndexedDataset(tmp_path / "a")


# ---- files of the peers


def test_file_of_megatron_core_is_read(shared_dir):
    dataset = IndexedDataset(shared_dir / "data/goldens/indexed/corpus_small_gpt2_eod")
    goldens = np.load(shared_dir / "data/goldens/tokenizer/gpt2_documents.npz")
    ids, offsets = goldens["ids"], goldens["offsets"]
    for document in range(len(offsets) - 1):
        expected = [*ids[offsets[document] : offsets[document + 1]].tolist(), 50256]
        assert dataset.get(document).tolist() == expected


def test_file_with_the_fault_of_megatron_deepspeed_is_refused_and_explained(shared_dir, tmp_path):
    goldens = shared_dir / "data/goldens/indexed"
    (tmp_path / "a.bin").write_bytes((goldens / "corpus_small_gpt2_eod.bin").read_bytes())
    (tmp_path / "a.idx").write_bytes((goldens / "corpus_small_gpt2_eod_megatron_deepspeed.idx").read_bytes())
    with pytest.raises(ConfigError, match="--append-eod, which leaves the end-of-document id out of the lengths"):
        IndexedDataset(tmp_path / "a")
