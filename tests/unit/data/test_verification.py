"""Every id outside of the vocabulary and every changed byte is found."""

import hashlib
import shutil
import subprocess

import numpy as np
import pytest

from megatron_zero.config.fields import ConfigError
from megatron_zero.data import verification
from megatron_zero.data.indexed_dataset import IndexedDatasetWriter
from megatron_zero.data.verification import verify, write_checksums


def write(folder, documents, dtype="<u2", name="a"):
    with IndexedDatasetWriter(folder / name, dtype=np.dtype(dtype)) as writer:
        for document in documents:
            writer.add_document(document)
    return str(folder / name)


@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
def test_each_id_outside_is_named_with_byte_and_sequence(tmp_path, monkeypatch, chunk):
    prefix = write(tmp_path, [[[1, 9, 100]], [], [[99], [7, 65535]]])
    monkeypatch.setattr(verification, "CHUNK", chunk)
    result = verify(prefix, vocab_size=100)
    assert result.num_faults == 2
    assert result.faults == (
        f"{prefix}.bin: token id 100 at byte 4 (sequence 0); the vocabulary has ids 0 to 99",
        f"{prefix}.bin: token id 65535 at byte 10 (sequence 2); the vocabulary has ids 0 to 99",
    )
    assert verify(prefix, vocab_size=65536).num_faults == verify(prefix, vocab_size=None).num_faults == 0


def test_negative_id_is_a_fault_without_a_vocabulary_too(tmp_path):
    result = verify(write(tmp_path, [[[1, -5]]], "<i4"), vocab_size=None)
    assert result.faults == (f"{tmp_path}/a.bin: token id -5 at byte 4 (sequence 0); ids are not negative",)


def test_only_the_first_ten_faults_are_listed_and_all_counted(tmp_path):
    result = verify(write(tmp_path, [[[200] * 25]]), vocab_size=100)
    assert (result.num_faults, len(result.faults)) == (25, 10)


def test_checksums_are_those_of_the_files(tmp_path):
    prefix = write(tmp_path, [[[1, 2, 3]]])
    for path, digest in verify(prefix, vocab_size=None).checksums.items():
        assert digest == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["a", "with space", "back\\slash", "new\nline"])
def test_written_checksums_are_checked_here_and_by_sha256sum(tmp_path, name):
    prefix = write(tmp_path, [[[1, 2, 3]]], name=name)
    path = write_checksums(prefix, verify(prefix, vocab_size=None).checksums)
    assert verify(prefix, vocab_size=None).num_faults == 0
    if shutil.which("sha256sum"):
        checked = subprocess.run(["sha256sum", "-c", path.name], cwd=tmp_path, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_changed_byte_is_found_by_the_checksum(tmp_path):
    prefix = write(tmp_path, [[[1, 2, 3]]])
    write_checksums(prefix, verify(prefix, vocab_size=None).checksums)
    (tmp_path / "a.bin").write_bytes(np.array([1, 2, 4], dtype="<u2").tobytes())
    result = verify(prefix, vocab_size=None)
    assert result.num_faults == 1
    assert f"{prefix}.bin: SHA-256 is " in result.faults[0]
    assert result.faults[0].endswith("the file has changed since")


@pytest.mark.parametrize("text", ["", "garbage\n", "0" * 64 + "  other.bin\n"])
def test_checksum_file_without_lines_for_the_pair_is_a_fault(tmp_path, text):
    prefix = write(tmp_path, [[[1]]])
    (tmp_path / "a.sha256").write_text(text)
    assert [fault.split(";")[0] for fault in verify(prefix, vocab_size=None).faults] == [
        f"{prefix}.sha256: no line for a.bin",
        f"{prefix}.sha256: no line for a.idx",
    ]


def test_floating_point_elements_are_no_ids(tmp_path):
    with pytest.raises(ConfigError, match="float32 are no token ids"):
        verify(write(tmp_path, [[np.array([1], np.float32)]], "<f4"), vocab_size=None)
