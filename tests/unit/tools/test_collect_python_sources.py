"""tools/collect_python_sources.py: which files become documents, unchanged, in one order."""

import json
import sysconfig
from pathlib import Path

import pytest
from helpers.tools import load_tool

collect = load_tool("collect_python_sources")

SOURCES = {
    "a.py": b"x = 1\n",
    "package/b.py": b"\ttab\r\nform\x0cfeed\rcr\n  leading",
    "package/c.py": "# caf\u00e9 \U0001f600 \0\n".encode(),
    "package/deep/d.py": "\ufeff# byte order mark\u2028".encode(),
    "latin.py": b"# caf\xe9\n",
    "mark.py": "# \u2581\n".encode(),
    "empty.py": b"",
    "text.txt": b"no source",
    "site-packages/e.py": b"installed",
    "package/dist-packages/f.py": b"installed",
    "package/__pycache__/g.py": b"cached",
}
TAKEN = ("a.py", "package/b.py", "package/c.py", "package/deep/d.py")


@pytest.fixture
def root(tmp_path):
    for name, content in SOURCES.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "root"


def read(path):
    return [json.loads(line) for line in path.read_bytes().decode().split("\n")[:-1]]


def test_texts_are_the_files_unchanged(root, tmp_path):
    collect.collect(root, tmp_path / "out.jsonl")
    read_back = {document["file"]: document["text"].encode() for document in read(tmp_path / "out.jsonl")}
    assert read_back == {name: SOURCES[name] for name in TAKEN}


def test_files_left_out_are_counted_by_reason(root, tmp_path, capsys):
    assert collect.main(["--root", str(root), "--output", str(tmp_path / "out.jsonl")]) == 0
    out = capsys.readouterr().out
    assert "4 documents" in out
    assert "left out, not UTF-8: 1 files" in out
    assert "left out, empty: 1 files" in out
    assert "left out, holds U+2581, which SentencePiece writes for a space and gives back as one: 1 files" in out


def test_order_is_the_same_every_time_and_mixes_folders(root, tmp_path):
    for name in "ab":
        collect.collect(root, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    # the order itself is a promise: a resumed run reads data that was made again
    assert [document["file"] for document in read(tmp_path / "a")] == [
        "package/deep/d.py",
        "package/c.py",
        "package/b.py",
        "a.py",
    ]


@pytest.mark.parametrize("max_bytes", [0, 6, 30, 10_000])
def test_cap_holds_and_what_it_leaves_out_is_counted(root, tmp_path, max_bytes):
    counts = collect.collect(root, tmp_path / "out.jsonl", max_bytes=max_bytes)
    assert counts["bytes"] <= max_bytes
    assert counts["documents"] + counts[collect.BEYOND_CAP] == len(TAKEN)
    assert (tmp_path / "out.jsonl").exists() == (counts["documents"] > 0)


def test_folder_without_sources_is_an_error_and_writes_nothing(tmp_path, capsys):
    assert collect.main(["--root", str(tmp_path), "--output", str(tmp_path / "out.jsonl")]) == 1
    assert f"no Python source in {tmp_path}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_missing_root_and_unwritable_output_are_named(root, capsys):
    assert collect.main(["--root", str(root / "nowhere"), "--output", str(root / "out")]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert collect.main(["--root", str(root), "--output", str(root / "a.py" / "out")]) == 1
    assert "cannot write into folder" in capsys.readouterr().err


def test_the_standard_library_is_the_default(tmp_path):
    counts = collect.collect(Path(sysconfig.get_path("stdlib")), tmp_path / "out.jsonl", max_bytes=2_000_000)
    assert counts["documents"] > 20
    assert counts["bytes"] > 1_000_000
