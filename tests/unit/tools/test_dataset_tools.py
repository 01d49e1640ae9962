"""tools/merge_datasets.py, inspect_dataset.py and verify_dataset.py as a user calls them."""

import json
import os
import shutil

import numpy as np
import pytest
from helpers.bpe_files import write_bpe_files
from helpers.kill_points import killed_at_every_step
from helpers.tools import load_tool

from megatron_zero.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter

preprocess_data, merge_datasets = load_tool("preprocess_data"), load_tool("merge_datasets")
inspect_dataset, verify_dataset = load_tool("inspect_dataset"), load_tool("verify_dataset")

TEXTS = {"a": ("", "1 2 3", "  "), "b": ("4", ""), "c": ("5 6",)}


def write(prefix, documents, vocab_size=100):
    with IndexedDatasetWriter(prefix, vocab_size=vocab_size) as writer:
        for document in documents:
            writer.add_document([document])
    return str(prefix)


def preprocess(folder, *names, output):
    for name in names:
        (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS[name]))
    argv = [
        *("--input", *(str(folder / name) for name in names), "--output-prefix", str(folder / output), "--workers", "1"),
        *("--tokenizer-type", "NullTokenizer", "--vocab-size", "100", "--append-eod"),
    ]
    assert preprocess_data.main(argv) == 0


# ---- merge


@pytest.mark.parametrize("by_folder", [False, True])
def test_merged_pairs_equal_preprocessing_all_the_text(tmp_path, capsys, by_folder):
    (tmp_path / "pairs").mkdir()
    for name in TEXTS:
        preprocess(tmp_path, name, output=f"pairs/{name}")
    preprocess(tmp_path, *TEXTS, output="whole")
    inputs = [tmp_path / "pairs"] if by_folder else [tmp_path / f"pairs/{name}_text_document" for name in TEXTS]
    argv = ["--input", *map(str, inputs), "--output-prefix", str(tmp_path / "merged")]
    capsys.readouterr()
    assert merge_datasets.main(argv) == 0
    assert "3 pairs, 6 documents, 9 tokens: wrote" in capsys.readouterr().out
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"merged{suffix}").read_bytes() == (tmp_path / f"whole_text_document{suffix}").read_bytes()


def test_merge_says_that_it_widens(tmp_path, capsys):
    write(tmp_path / "a", [[1]])
    write(tmp_path / "b", [[70000]], 70001)
    argv = ["--input", str(tmp_path / "a"), str(tmp_path / "b"), "--output-prefix", str(tmp_path / "out")]
    assert merge_datasets.main(argv) == 0
    assert "uint16 become int32, without loss" in capsys.readouterr().out
    assert IndexedDataset(tmp_path / "out").get(1).tolist() == [70000]


def test_merge_with_a_damaged_input_writes_nothing(tmp_path, capsys):
    write(tmp_path / "a", [[1]])
    write(tmp_path / "b", [[2]])
    (tmp_path / "b.idx").write_bytes((tmp_path / "b.idx").read_bytes()[:-1])
    argv = ["--input", str(tmp_path / "a"), str(tmp_path / "b"), "--output-prefix", str(tmp_path / "out")]
    assert merge_datasets.main(argv) == 1
    assert "b.idx: 61 bytes, but" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


def test_merge_names_the_pairs_of_a_folder_and_what_comes_twice(tmp_path, capsys):
    (tmp_path / "in").mkdir()
    for name, documents in (("a", [[1, 2], [3]]), ("b", [[1, 2], [4]]), ("c", [[1, 2], [3]]), ("d", [])):
        write(tmp_path / "in" / name, documents)
    shutil.copytree(tmp_path / "in", tmp_path / "again")
    argv = ["--input", str(tmp_path / "in"), str(tmp_path / "again/b"), "--output-prefix", str(tmp_path / "out")]
    assert merge_datasets.main(argv) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == f"--input {tmp_path}/in: 4 pairs: a, b, c, d"
    assert err.splitlines() == [
        f"merge_datasets.py: warning: {one} holds what {other} holds: each of its documents comes more than once"
        for one, other in ((f"{tmp_path}/in/c", f"{tmp_path}/in/a"), (f"{tmp_path}/again/b", f"{tmp_path}/in/b"))
    ]
    assert IndexedDataset(tmp_path / "out").num_documents == 8


@pytest.mark.parametrize("given,message", [("a.bin", "a.bin: is a file; give the prefix, "), ("b", "there is no file")])
def test_merge_of_what_is_no_prefix_is_named(tmp_path, capsys, given, message):
    write(tmp_path / "a", [[1]])
    assert merge_datasets.main(["--input", str(tmp_path / given), "--output-prefix", str(tmp_path / "out")]) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("below", ["a/b", "."])
def test_merge_makes_the_folders_of_its_output(tmp_path, below):
    write(tmp_path / "one", [[1]])
    argv = ["--input", str(tmp_path / "one"), "--output-prefix", str(tmp_path / below / "out")]
    assert merge_datasets.main(argv) == 0
    assert IndexedDataset(tmp_path / below / "out").get(0).tolist() == [1]


# ---- over a prefix at which an earlier run was killed

REPLACE = """
import os
from megatron_zero.data.indexed_dataset import IndexedDatasetWriter

def write(folder, document):
    with IndexedDatasetWriter(folder / "out_text_document", vocab_size=100) as writer:
        writer.add_document(document)

def prepare(folder):
    write(folder, [[1, 2]])

def act(folder):
    write(folder, [[3, 4]])
"""
PAIR = ["out_text_document.bin", "out_text_document.idx"]


@pytest.fixture
def killed(tmp_path):
    """Folders of runs that were killed, one for each set of names that can be left."""
    (tmp_path / "killed").mkdir()
    by_names = {}
    for each in killed_at_every_step(REPLACE, tmp_path / "killed"):
        names = {".tmp" if path.suffix == ".tmp" else path.name for path in each.folder.iterdir()}
        by_names[frozenset(names)] = each.folder
    assert len(by_names) >= 5
    return list(by_names.values())


@pytest.mark.parametrize("tool", ["preprocess", "merge"])
def test_next_run_over_the_prefix_makes_the_pair_and_names_what_was_left(tmp_path, capsys, killed, tool):
    preprocess(tmp_path, "b", output="expected")
    for folder in killed:
        interrupted = not (folder / PAIR[1]).exists()
        capsys.readouterr()
        if tool == "preprocess":
            preprocess(folder, "b", output="out")
            (folder / "b").unlink()
        else:
            argv = [
                "--input",
                str(tmp_path / "expected_text_document"),
                "--output-prefix",
                str(folder / "out_text_document"),
            ]
            assert merge_datasets.main(argv) == 0
        assert (f"{PAIR[1]}.previous belongs to" in capsys.readouterr().err) == interrupted
        assert sorted(path.name for path in folder.iterdir()) == PAIR
        for name in PAIR:
            assert (folder / name).read_bytes() == (tmp_path / name.replace("out", "expected")).read_bytes()


def test_every_reader_names_the_index_that_stands_aside(tmp_path, capsys, killed):
    for folder in killed:
        if (folder / PAIR[1]).exists():
            continue
        prefix = str(folder / "out_text_document")
        for tool, argv in (
            (inspect_dataset, [prefix]),
            (verify_dataset, [prefix, "--vocab-size", "100"]),
            (merge_datasets, ["--input", prefix, "--output-prefix", str(tmp_path / "merged")]),
        ):
            capsys.readouterr()
            assert tool.main(argv) == 1
            assert f"{prefix}.idx.previous belongs to" in capsys.readouterr().err


# ---- inspect


def test_inspect_shows_numbers_lengths_and_text(tmp_path, capsys):
    prefix = write(tmp_path / "a", [[1, 2, 3], [], [4] * 300])
    argv = [prefix, "--scan", "--sample", "3", "--tokenizer-type", "NullTokenizer", "--vocab-size", "100"]
    assert inspect_dataset.main(argv) == 0
    out = capsys.readouterr().out
    for expected in (
        "documents  3 (1 empty), 2 sequences",
        "tokens     303 (uint16)",
        "min 0, median 3, mean 101.0, max 300",
        "ids        1 to 4",
        "256-511  ######################################## 1",
        "document 0, 3 tokens\n  '1 2 3'\n",
        "document 1, 0 tokens\n  ''\n",
        "4 4' ...\n",
    ):
        assert expected in out, out


def test_inspect_shows_ids_without_a_tokenizer_and_json_for_machines(tmp_path, capsys):
    prefix = write(tmp_path / "a", [[1, 2, 3]])
    assert inspect_dataset.main([prefix, "--sample", "1"]) == 0
    assert "document 0, 3 tokens\n  1 2 3\n" in capsys.readouterr().out
    assert inspect_dataset.main([prefix, "--sample", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["documents"], found["tokens"], found["largest_id"]) == (1, 3, None)
    assert found["samples"] == [{"document": 0, "length": 3, "ids": [1, 2, 3], "text": None}]


def test_inspect_of_floating_point_says_what_is_not_shown_and_writes_valid_json(tmp_path, capsys):
    with IndexedDatasetWriter(tmp_path / "a", dtype=np.dtype("<f4")) as writer:
        writer.add_document([np.array([0.5, np.nan, -np.inf, 3.0], dtype="<f4")])
    argv = [str(tmp_path / "a"), "--scan", "--sample", "1"]
    assert inspect_dataset.main(argv) == 0
    out = capsys.readouterr().out
    assert "  values     0.5 to 3.0; NaN or infinite: 2\n" in out
    assert "  0.5 null null 3.0\n  null: NaN or infinite, 2 of the 4 shown\n" in out
    assert inspect_dataset.main([*argv, "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (found["smallest_id"], found["largest_id"], found["not_finite"]) == (0.5, 3.0, 2)
    assert found["samples"][0]["ids"] == [0.5, None, None, 3.0]


@pytest.mark.parametrize("documents", [[], [[]]])
def test_inspect_of_nothing_is_no_error(tmp_path, capsys, documents):
    assert inspect_dataset.main([write(tmp_path / "a", documents), "--scan", "--sample", "2"]) == 0
    assert "tokens     0 (uint16)" in capsys.readouterr().out


@pytest.mark.parametrize("tool", [inspect_dataset, verify_dataset])
def test_damaged_or_missing_pair_is_an_error(tmp_path, capsys, tool):
    prefix = write(tmp_path / "a", [[1, 2, 3]])
    (tmp_path / "a.bin").write_bytes(b"12345")
    assert tool.main([prefix]) == 1
    assert f"{prefix}.bin: 5 bytes, but the 1 sequences of {prefix}.idx take 6 (uint16)" in capsys.readouterr().err
    for missing, hint in (("nowhere", "e.g. my-gpt2"), ("a.bin", "did you type PREFIX.bin"), ("", "did you type a folder")):
        assert tool.main([f"{tmp_path}/{missing}"]) == 1
        error = capsys.readouterr().err
        assert f"error: prefix {tmp_path}/{missing}: there is no file {tmp_path}/{missing}.idx; the prefix is" in error
        assert hint in error


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
@pytest.mark.parametrize("tool", [inspect_dataset, verify_dataset])
def test_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for(tmp_path, capsys, tool, suffix):
    prefix = write(tmp_path / "a", [[1, 2, 3]])
    (tmp_path / f"a{suffix}").unlink()
    os.mkfifo(tmp_path / f"a{suffix}")
    assert tool.main([prefix]) == 1
    assert f"prefix {prefix}: {prefix}{suffix} cannot be read: not a regular file (a pipe" in capsys.readouterr().err


def test_verify_refuses_checksums_that_are_a_pipe(tmp_path, capsys):
    prefix = write(tmp_path / "a", [[1, 2, 3]])
    os.mkfifo(tmp_path / "a.sha256")
    assert verify_dataset.main([prefix]) == 1
    assert "a.sha256: not a regular file" in capsys.readouterr().err


# ---- verify


def test_verify_writes_checksums_once_and_checks_them_later(tmp_path, capsys):
    prefix = write(tmp_path / "a", [[1, 2, 3]])
    for said in ("sound; wrote", "sound, and as", "sound, and as"):
        assert verify_dataset.main([prefix, "--vocab-size", "4", "--write-checksums"]) == 0
        assert f"{prefix}: {said}" in capsys.readouterr().out
    written = (tmp_path / "a.sha256").read_bytes()
    write(tmp_path / "a", [[1, 2, 0]])
    assert verify_dataset.main([prefix, "--write-checksums"]) == 1
    assert "the file has changed since" in capsys.readouterr().err
    assert (tmp_path / "a.sha256").read_bytes() == written


@pytest.mark.parametrize(
    "flags,status",
    [
        ([], 0),
        (["--vocab-size", "11"], 0),
        (["--vocab-size", "10"], 1),
        (["--vocab-size", "10", "--tokenizer-type", "NullTokenizer"], 0),
        (["--vocab-size", "9", "--tokenizer-type", "NullTokenizer"], 1),
    ],
)
def test_verify_judges_ids_by_the_vocabulary_that_is_named(tmp_path, capsys, flags, status):
    prefix = write(tmp_path / "a", [[1], [2, 10]])
    assert verify_dataset.main([prefix, *flags]) == status
    if status:
        assert f"{prefix}.bin: token id 10 at byte 4 (sequence 1)" in capsys.readouterr().err


@pytest.mark.parametrize("limit,status", [(["--vocab-size", "10"], 1), (["--vocab-size", "11"], 0), ([], 0)])
def test_verify_never_calls_ids_at_the_given_limit_sound(tmp_path, limit, status):
    """The tokenizer's own size, which is larger here, does not lift the limit."""
    vocab_file, merge_file = write_bpe_files(tmp_path)
    prefix = write(tmp_path / "a", [[1], [2, 10]])
    tokenizer = ["--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(vocab_file), "--merge-file", str(merge_file)]
    assert verify_dataset.main([prefix, *tokenizer, *limit]) == status


def test_flags_that_do_nothing_are_told(tmp_path, capsys):
    prefix = write(tmp_path / "a", [[1]])
    for tool, name in ((inspect_dataset, "inspect_dataset.py"), (verify_dataset, "verify_dataset.py")):
        assert tool.main([prefix, "--merge-file", "m"]) == 0
        assert capsys.readouterr().err == f"{name}: warning: --merge-file m: has no effect without --tokenizer-type\n"
    assert inspect_dataset.main([prefix, "--vocab-size", "5"]) == 0
    assert "--vocab-size 5: has no effect without --tokenizer-type" in capsys.readouterr().err
    assert verify_dataset.main([prefix, "--vocab-size", "5"]) == 0
    assert capsys.readouterr().err == ""


def test_faulty_pair_gets_no_checksums(tmp_path, capsys):
    prefix = write(tmp_path / "a", [[50] * 12])
    assert verify_dataset.main([prefix, "--vocab-size", "50", "--write-checksums"]) == 1
    error = capsys.readouterr().err
    assert "faults: 12" in error
    assert "and 2 more" in error
    assert not (tmp_path / "a.sha256").exists()
