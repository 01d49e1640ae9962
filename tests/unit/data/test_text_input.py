"""Which files --input names."""

import gzip
import os
import sys

import pytest

from megatron_zero.config.fields import ConfigError
from megatron_zero.data.text_input import TextSource, compression_of, find_sources
from megatron_zero.data.text_pieces import TextBlock, text_pieces


def write(folder, *names, content=b"{}\n"):
    for name in names:
        (folder / name).write_bytes(content)


def names(sources):
    return [os.path.basename(source.name) for source in sources]


def test_files_come_in_the_order_given_and_those_of_a_pattern_by_name(tmp_path):
    write(tmp_path, "b.jsonl", "a.jsonl", "c.jsonl", "z.txt")
    (tmp_path / "deep/er").mkdir(parents=True)
    write(tmp_path / "deep/er", "d.jsonl")
    assert names(find_sources([f"{tmp_path}/z.txt", f"{tmp_path}/*.jsonl"])) == ["z.txt", "a.jsonl", "b.jsonl", "c.jsonl"]
    assert names(find_sources([f"{tmp_path}/deep/**/*.jsonl"])) == ["d.jsonl"]


def test_existing_name_with_the_characters_of_a_pattern_is_that_file(tmp_path):
    write(tmp_path, "part[1].jsonl", "part1.jsonl")
    assert names(find_sources([f"{tmp_path}/part[1].jsonl"])) == ["part[1].jsonl"]
    (tmp_path / "part[1].jsonl").unlink()
    assert names(find_sources([f"{tmp_path}/part[1].jsonl"])) == ["part1.jsonl"]


@pytest.mark.parametrize(
    "name,message",
    [
        ("nowhere.jsonl", "nowhere.jsonl: there is no such file"),
        ("*.parquet", r"\*\.parquet: there is no such file, and as a pattern it matches none"),
        ("folder", r"folder: is a folder; give its files, e\.g\. '.*folder/\*\.jsonl'"),
        ("fol*", "folder: is a folder"),
        ("dangling", "dangling: there is no such file"),
    ],
)
def test_name_without_a_file_is_refused(tmp_path, name, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match=message):
        find_sources([f"{tmp_path}/{name}"])


def test_empty_name_is_refused():
    with pytest.raises(ConfigError, match="an empty name"):
        find_sources([""])


def test_descriptor_goes_by_the_name_of_its_file_where_it_has_one(tmp_path):
    """Workers open it anew, and theirs of that number is another."""
    write(tmp_path, "a", content=b"{}\n")
    with open(tmp_path / "a", "rb") as file:
        name = f"/dev/fd/{file.fileno()}"
        (source,) = find_sources([name])
        assert (source.name, source.path, source.is_lasting) == (name, str(tmp_path / "a"), True)
        (tmp_path / "a").unlink()
        (source,) = find_sources([name])
        assert (source.path, source.is_lasting) == (name, False)
        (piece,) = text_pieces([source])
        assert isinstance(piece, TextBlock)
        assert piece.read() == b"{}\n"


def test_standard_input_is_one_source():
    assert find_sources(["-"]) == (TextSource("<stdin>", None),)
    with pytest.raises(ConfigError, match="<stdin>: named twice"):
        find_sources(["-", "-"])


def test_closed_standard_input_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ConfigError, match="--input -: standard input is closed"):
        find_sources(["-"])


def test_one_file_under_two_names_is_refused_with_both(tmp_path):
    write(tmp_path, "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.link(tmp_path / "a", tmp_path / "hard")
    for second in ("a", "link", "hard", "../" + tmp_path.name + "/a", "[a]"):
        with pytest.raises(ConfigError, match="named twice"):
            find_sources([f"{tmp_path}/a", f"{tmp_path}/{second}"])


def test_compression_is_told_by_content_and_not_by_name(tmp_path):
    write(tmp_path, "plain.gz", "plain.zst")
    write(tmp_path, "zipped.jsonl", content=gzip.compress(b"{}\n"))
    write(tmp_path, "empty.gz", content=b"")
    assert [source.compression for source in find_sources([f"{tmp_path}/plain.*", f"{tmp_path}/empty.gz"])] == [""] * 3
    assert find_sources([f"{tmp_path}/zipped.jsonl"])[0].compression == "gzip"


@pytest.mark.parametrize(
    "first,compression",
    [(b"", ""), (b"{", ""), (b"P", ""), (b"\x1f\x8b\x08", "gzip"), (b"\x28\xb5\x2f\xfd\x24\x00", "zstd"),
     (b"\x5e\x2a\x4d\x18\x00\x00", "zstd"), (b"\x60\x2a\x4d\x18\x00\x00", "")],
)  # fmt: skip
def test_first_bytes_tell_the_compression(first, compression):
    assert compression_of(first, name="a") == compression


@pytest.mark.parametrize(
    "first,command", [(b"\xfd7zXZ\x00", "xz -dc"), (b"BZh91A", "bzip2 -dc"), (b"PK\x03\x04..", "unzip -p")]
)
def test_other_compression_is_refused_with_the_command_that_unpacks_it(first, command):
    with pytest.raises(ConfigError, match=rf"--input a: .*{command} FILE \| \.\.\. --input -"):
        compression_of(first, name="a")
