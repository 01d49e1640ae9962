"""tools/preprocess_data.py: every way to give it text makes the same files; what is wrong is said, with its line."""

import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.bpe_files import write_bpe_files
from helpers.tools import TOOLS, load_tool

from megatron_zero.data.indexed_dataset import IndexedDataset

preprocess_data = load_tool("preprocess_data")


def arguments(folder, *inputs, workers=1, more=(), name="out"):
    return [
        *("--input", *map(str, inputs), "--output-prefix", str(folder / name), "--workers", str(workers)),
        *("--tokenizer-type", "NullTokenizer", "--vocab-size", "100", *more),
    ]


def run(*given, **named):
    return preprocess_data.main(arguments(*given, **named))


def tokens(folder, name="out"):
    dataset = IndexedDataset(folder / f"{name}_text_document")
    return [dataset.get(sequence).tolist() for sequence in range(len(dataset))]


def digest(folder, name="out"):
    return [(folder / f"{name}_text_document{suffix}").read_bytes() for suffix in (".bin", ".idx")]


def lines_of(*texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


def outputs(folder):
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("out"))


# ---- ways to give text


def zstd_compress(data):
    reason = "makes the Zstandard input of this test"
    return pytest.importorskip("zstandard", reason=reason).ZstdCompressor().compress(data)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("pack", [gzip.compress, zstd_compress])
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_compressed_files_give_the_bytes_of_plain_ones(tmp_path, pack, suffix, workers):
    """Two members in one file, the cut in the middle of a line; the name of the file does not matter."""
    data = lines_of(*(" ".join(["7"] * (n % 50)) for n in range(5000)))
    (tmp_path / "plain").write_bytes(data)
    (tmp_path / f"packed{suffix}").write_bytes(pack(data[:70_001]) + pack(data[70_001:]))
    assert run(tmp_path, tmp_path / "plain", name="plain") == 0
    assert run(tmp_path, tmp_path / f"packed{suffix}", workers=workers) == 0
    assert digest(tmp_path) == digest(tmp_path, "plain")


@pytest.mark.parametrize("pack", [gzip.compress, zstd_compress])
@pytest.mark.parametrize("workers", [1, 2])
def test_compressed_file_cut_short_ends_the_run_and_nothing_is_written(tmp_path, capsys, pack, workers):
    data = lines_of(*(str(n % 100) for n in range(200_000)))
    (tmp_path / "a.gz").write_bytes(pack(data)[:-9])
    assert run(tmp_path, tmp_path / "a.gz", workers=workers) == 1
    assert f"{tmp_path}/a.gz: the " in capsys.readouterr().err
    assert outputs(tmp_path) == []


def test_patterns_and_names_are_read_in_order(tmp_path):
    for number, name in enumerate(("a.jsonl", "b.jsonl.gz", "z.jsonl"), start=1):
        data = lines_of(str(number))
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert run(tmp_path, tmp_path / "z.jsonl", tmp_path / "[ab].jsonl*") == 0
    assert tokens(tmp_path) == [[3], [1], [2]]


def start_with_stdin(folder, *inputs, workers=1, data):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOOLS.parent), *sys.path])}
    command = [sys.executable, TOOLS / "preprocess_data.py", *arguments(folder, *inputs, workers=workers)]
    return subprocess.run(command, env=environment, input=data, capture_output=True, timeout=60)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_standard_input_is_read_alone_and_among_files(tmp_path, pack, workers):
    (tmp_path / "a").write_bytes(lines_of("1"))
    (tmp_path / "b").write_bytes(lines_of("3"))
    ended = start_with_stdin(tmp_path, tmp_path / "a", "-", tmp_path / "b", workers=workers, data=pack(lines_of("2", "2 2")))
    assert ended.returncode == 0, ended.stderr
    assert tokens(tmp_path) == [[1], [2], [2, 2], [3]]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("redirection", ["3<{}", "3< <(cat {})"])
@pytest.mark.parametrize("name", ["/dev/fd/3", "/proc/self/fd/3"])
def test_descriptor_of_a_file_or_a_pipe_is_read(tmp_path, name, redirection, workers):
    (tmp_path / "a").write_bytes(lines_of("1", "2 2"))
    words = [sys.executable, str(TOOLS / "preprocess_data.py"), *arguments(tmp_path, name, workers=workers)]
    script = " ".join([*words, redirection.format(tmp_path / "a")])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOOLS.parent), *sys.path])}
    ended = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert tokens(tmp_path) == [[1], [2, 2]]


@pytest.mark.parametrize("workers", [1, 2])
def test_tokenizer_file_that_is_a_descriptor_is_found_by_workers_or_refused(tmp_path, workers):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    (tmp_path / "a").write_bytes(lines_of("the"))
    words = [
        *(sys.executable, str(TOOLS / "preprocess_data.py"), "--input", str(tmp_path / "a"), "--workers", str(workers)),
        *("--output-prefix", str(tmp_path / "out"), "--tokenizer-type", "GPT2BPETokenizer"),
        *("--vocab-file", "/dev/fd/3", "--merge-file", str(merge_file)),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOOLS.parent), *sys.path])}

    def run_with(redirection):
        script = " ".join([*words, redirection])
        return subprocess.run(["bash", "-c", script], env=environment, capture_output=True, timeout=60, check=False)

    ended = run_with(f"3< <(cat {vocab_file})")
    assert ended.returncode == 1
    assert b"--vocab-file /dev/fd/3 is not a regular file (a pipe or a device), and each process reads it" in ended.stderr
    ended = run_with(f"3<{vocab_file}")
    assert ended.returncode == 0, ended.stderr
    assert len(tokens(tmp_path)[0]) == 1


def test_bad_line_of_standard_input_has_its_number(tmp_path):
    ended = start_with_stdin(tmp_path, "-", data=lines_of("1") + b"bad\n")
    assert ended.returncode == 1
    assert b"<stdin>, line 2: not JSON" in ended.stderr
    assert ended.stdout == b""


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("partitions", [1, 2])
def test_bytes_do_not_depend_on_workers_and_partitions(shared_dir, tmp_path, workers, partitions):
    """H28, with the bytes of Megatron-core as the reference."""
    data = shared_dir / "data"
    argv = [
        *("--input", str(data / "text/corpus_small.jsonl"), "--output-prefix", str(tmp_path / "out")),
        *("--tokenizer-type", "GPT2BPETokenizer", "--append-eod"),
        *("--vocab-file", str(data / "gpt2-vocab.json"), "--merge-file", str(data / "gpt2-merges.txt")),
        *("--workers", str(workers), "--partitions", str(partitions), "--keep-sequential-samples"),
    ]
    assert preprocess_data.main(argv) == 0
    theirs = json.loads((data / "goldens/indexed/sha256.json").read_text())["small"]
    ours = [hashlib.sha256(content).hexdigest() for content in digest(tmp_path)]
    assert ours == [theirs[f"megatron_core_{suffix}"]["sha256"] for suffix in ("bin", "idx")]


def test_order_is_kept_over_many_pieces_and_files(tmp_path):
    for name, count in (("a", 30_000), ("b", 0), ("c", 20_000)):
        (tmp_path / name).write_bytes(lines_of(*(str(n % 97) for n in range(count))))
    paths = [tmp_path / name for name in "abc"]
    assert run(tmp_path, *paths, workers=3) == 0
    expected = [n % 97 for n in range(30_000)] + [n % 97 for n in range(20_000)]
    assert np.concatenate([IndexedDataset(tmp_path / "out_text_document").get(0)]).tolist() == [0]
    assert [ids[0] for ids in tokens(tmp_path)] == expected


def test_document_of_twenty_megabytes_is_one_document(tmp_path):
    text = "7 " * 10_000_000
    (tmp_path / "a").write_bytes(lines_of("1", text, "2"))
    assert run(tmp_path, tmp_path / "a", workers=2) == 0
    assert IndexedDataset(tmp_path / "out_text_document").sizes.tolist() == [1, 10_000_000, 1]


# ---- empty things


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("more", [(), ("--append-eod",)])
def test_text_of_spaces_is_an_empty_document_and_a_line_of_spaces_is_none(tmp_path, capsys, more, workers):
    (tmp_path / "a").write_bytes(lines_of("", "  ", "1") + b"   \n")
    assert run(tmp_path, tmp_path / "a", more=more, workers=workers) == 1
    assert f"{tmp_path}/a, line 4: blank" in capsys.readouterr().err
    assert run(tmp_path, tmp_path / "a", more=(*more, "--on-error", "skip"), workers=workers) == 0
    assert "3 documents (2 empty)" in capsys.readouterr().out


def test_empty_file_among_others_is_no_error_and_alone_it_is(tmp_path, capsys):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "empty.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "a").write_bytes(lines_of("1")[:-1])
    assert run(tmp_path, tmp_path / "empty", tmp_path / "a", tmp_path / "empty.gz") == 0
    assert tokens(tmp_path) == [[1]]
    assert run(tmp_path, tmp_path / "empty", tmp_path / "empty.gz", name="none") == 1
    assert "no documents in it; nothing was written" in capsys.readouterr().err


# ---- bad lines


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_bad_lines_of_the_whole_input_are_listed_with_their_numbers(tmp_path, capsys, workers, packed):
    """They lie far apart, in two files, and in pieces that different processes read."""
    good = lines_of("1 2 3")
    for name, bad in (("a", (1, 30_000, 59_999)), ("b", (45_000,))):
        lines = [good] * 60_000
        for number in bad:
            lines[number - 1] = b'{"text": 5}\n'
        data = b"".join(lines)
        (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
    assert run(tmp_path, tmp_path / "a", tmp_path / "b", workers=workers) == 1
    captured = capsys.readouterr()
    assert "4 lines are no documents (in all); nothing was written" in captured.err
    for place in ("a, line 1:", "a, line 30000:", "a, line 59999:", "b, line 45000:"):
        assert f"{tmp_path}/{place} key 'text' holds a number" in captured.err
    assert "reading on to list up to 10 of them" in captured.err
    assert outputs(tmp_path) == []


def test_reading_stops_when_ten_bad_lines_are_listed(tmp_path, capsys):
    data = lines_of("1") + b"bad\n" * 25 + lines_of("1") * 300_000
    (tmp_path / "a").write_bytes(data)
    assert run(tmp_path, tmp_path / "a") == 1
    message = capsys.readouterr().err
    assert "25 lines are no documents (so far; reading stopped at " in message
    assert message.count("not JSON") == 10
    assert "and 15 more" in message


def test_numbers_are_right_when_bad_lines_are_skipped(tmp_path, capsys):
    lines = [lines_of("1 2 3")] * 90_000
    lines[70_000 - 1] = b"\xff\n"
    (tmp_path / "a").write_bytes(b"".join(lines))
    assert run(tmp_path, tmp_path / "a", workers=2, more=("--on-error", "skip")) == 0
    assert f"1 bad lines skipped:\n  {tmp_path}/a, line 70000: not UTF-8 at byte 0" in capsys.readouterr().out
    assert len(tokens(tmp_path)) == 89_999


@pytest.mark.parametrize(
    "name,listed,in_all",
    [("edge_malformed", 10, 11), ("edge_missing_key", 5, 5), ("edge_lone_surrogate", 4, 4)],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_edge_files_end_the_run_by_default(shared_dir, tmp_path, capsys, name, listed, in_all, workers):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    argv = [
        *("--input", str(shared_dir / f"data/text/{name}.jsonl"), "--output-prefix", str(tmp_path / "out")),
        *("--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(vocab_file), "--merge-file", str(merge_file)),
        *("--workers", str(workers)),
    ]
    assert preprocess_data.main(argv) == 1
    message = capsys.readouterr().err
    assert message.count(f"{name}.jsonl, line ") - message.count("reading stopped at") == listed
    assert f"{in_all} lines are no documents" in message
    assert outputs(tmp_path) == []


def test_input_of_bad_lines_only_lists_them_when_they_are_skipped(tmp_path, capsys):
    (tmp_path / "a").write_bytes(b'{"content": "1"}\n')
    assert run(tmp_path, tmp_path / "a", more=("--on-error", "skip")) == 1
    message = capsys.readouterr().err
    assert f"no documents in it; nothing was written; 1 bad lines:\n  {tmp_path}/a, line 1: no key 'text'" in message


# ---- what is printed


def test_lines_of_progress_have_rates_and_the_time_left(tmp_path, capsys):
    (tmp_path / "a").write_bytes(lines_of("1 2 3") * 30_000)
    assert run(tmp_path, tmp_path / "a", more=("--log-interval", "5000")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 3
    for line in lines[:-3]:
        assert " documents (0 empty), " in line
        assert " documents/s, " in line
        assert " MB/s, " in line
        assert line.endswith(" left")


def test_partitions_are_accepted_with_a_line(tmp_path, capsys):
    (tmp_path / "a").write_bytes(lines_of("1"))
    assert run(tmp_path, tmp_path / "a", workers=2, more=("--partitions", "2")) == 0
    assert "--partitions 2: not needed here" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["out_text_document.bin", "out_text_document.idx"])
@pytest.mark.parametrize("by_link", [False, True])
def test_output_over_an_input_is_refused(tmp_path, capsys, target, by_link):
    """The input lies under an output's name, or that name is a link to it."""
    text = lines_of("1")
    path = tmp_path / target
    if by_link:
        path.symlink_to(tmp_path / "text")
        path = tmp_path / "text"
    path.write_bytes(text)
    assert run(tmp_path, path) == 1
    assert f"{tmp_path / target} would replace {path}" in capsys.readouterr().err
    assert path.read_bytes() == text
    assert Path(tmp_path / target).read_bytes() == text
