"""The JSON documents: equal after a round trip, and refused by name when they are not what they should be."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from megatron_zero.checkpoint.errors import CheckpointError
from megatron_zero.checkpoint.manifest import MANIFEST, VERSION, Header, Manifest, encode_common, to_json
from megatron_zero.checkpoint.plan import Extent, Record
from megatron_zero.checkpoint.store import FileEntry

ENTRY = FileEntry("rank_00000.bin", 100, 64, (1, 0xFFFFFFFF))
WHOLE = Manifest(20, 2, {"dp": 2}, {ENTRY.name: ENTRY})
RECORD = Record(Extent("master/w", (5, 5), "float32", 2, 10), "rank_00000.bin", 24)


def stored(folder: Path, content: bytes) -> Path:
    (folder / MANIFEST).write_bytes(content)
    return folder


def test_manifest_survives_the_disk(tmp_path: Path) -> None:
    assert Manifest.read(stored(tmp_path, WHOLE.encode())) == WHOLE


def test_changed_digit_in_the_manifest_is_found(tmp_path: Path) -> None:
    content = WHOLE.encode().replace(b'"bytes":100', b'"bytes":101')
    with pytest.raises(CheckpointError, match=r"manifest\.json: has crc32 [0-9a-f]+, expected [0-9a-f]+"):
        Manifest.read(stored(tmp_path, content))


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"crc32": "zz", "manifest": {}}', b'{"manifest": 1'])
def test_other_content_is_not_a_manifest(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"manifest\.json: not a manifest"):
        Manifest.read(stored(tmp_path, content))


def test_missing_manifest_means_incomplete(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not a complete checkpoint"):
        Manifest.read(tmp_path)


@pytest.mark.parametrize(
    "version, message",
    [
        (VERSION + 1, rf"version {VERSION + 1}, expected .* version {VERSION}$"),
        (1, r"version 1, expected .*: it was made before 0\.1\.0: attention\.dense and mlp\.fc2 weights lie the other way"),
    ],
)
def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, message: str) -> None:
    monkeypatch.setattr("megatron_zero.checkpoint.manifest.VERSION", version)
    content = WHOLE.encode()
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=message):
        Manifest.read(stored(tmp_path, content))


def test_unlisted_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"does not list rank_00001\.bin"):
        WHOLE.entry(tmp_path, "rank_00001.bin")


def test_header_survives_json() -> None:
    header = Header(0, (RECORD,), (Record(Extent("cpu", (), "int64", 0, 1), "rank_00000.bin", 64),))
    assert Header.decode(header.encode(), path=Path("h"), data=ENTRY) == header


@pytest.mark.parametrize("change", [{"offset": 80}, {"offset": 2}, {"offset": -4}, {"numel": 99}, {"dtype": "float7"}])
def test_record_that_cannot_lie_there_is_refused(change: dict[str, object]) -> None:
    value = json.loads(Header(0, (RECORD,), ()).encode())
    value["slices"][0].update(change)
    with pytest.raises(CheckpointError, match="h: not a rank header"):
        Header.decode(to_json(value), path=Path("h"), data=ENTRY)


def test_common_keeps_every_bit_of_a_float() -> None:
    common = {"lr": 0.1 + 0.2, "tiny": 5e-324, "big": 2**60 + 1, "none": None, "list": [1, {"a": True}], "t": (1, 2)}
    assert json.loads(encode_common(common)) == common | {"t": [1, 2]}


@pytest.mark.parametrize(
    "common, where",
    [
        ({"a": {1: 2}}, r"common\['a'\]: key 1 is not a string"),
        ({"a": [0, math.nan]}, r"common\['a'\]\[1\] is nan"),
        ({"a": math.inf}, r"common\['a'\] is inf"),
        ({"a": b""}, r"common\['a'\] is a bytes"),
    ],
)
def test_common_that_json_would_change_is_refused(common: dict[str, object], where: str) -> None:
    with pytest.raises(ValueError, match=where):
        encode_common(common)
