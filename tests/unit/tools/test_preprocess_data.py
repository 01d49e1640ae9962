"""tools/preprocess_data.py: Megatron-core's bytes, clear errors, and nothing left behind."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from helpers.bpe_files import write_bpe_files
from helpers.processes import process_ended
from helpers.tools import TOOLS, load_tool

from megatron_zero.data.indexed_dataset import IndexedDataset

preprocess_data = load_tool("preprocess_data")


def null_arguments(path, folder, *more, workers=1):
    return [
        *("--input", str(path), "--output-prefix", str(folder / "out"), "--workers", str(workers)),
        *("--tokenizer-type", "NullTokenizer", "--vocab-size", "100", *more),
    ]


def write_lines(folder, *lines, end="\n"):
    path = folder / "in.jsonl"
    path.write_text("\n".join(lines) + end, encoding="utf-8")
    return path


def documents(prefix):
    dataset = IndexedDataset(prefix)
    starts = dataset.document_index.tolist()
    return [
        [token for sequence in range(first, last) for token in dataset.get(sequence).tolist()]
        for first, last in pairwise(starts)
    ]


# ---- right input


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("append_eod", [False, True])
def test_empty_first_and_last_document(tmp_path, capsys, append_eod, workers):
    """H25: three lines, two of them empty: both are reported, counted as documents, and hold no sequence."""
    path = write_lines(tmp_path, '{"text": ""}', '{"text": "1 2"}', '{"text": ""}')
    more = ["--append-eod"] if append_eod else []
    assert preprocess_data.main(null_arguments(path, tmp_path, *more, workers=workers)) == 0
    assert "3 documents (2 empty)" in capsys.readouterr().out
    assert documents(tmp_path / "out_text_document") == [[], [1, 2, 100] if append_eod else [1, 2], []]
    dataset = IndexedDataset(tmp_path / "out_text_document")
    assert dataset.num_documents == 3
    assert int(dataset.sizes.sum()) * 2 == (tmp_path / "out_text_document.bin").stat().st_size


def test_last_line_may_lack_its_newline(tmp_path):
    path = write_lines(tmp_path, '{"text": "1"}', '{"text": "2"}', end="")
    assert preprocess_data.main(null_arguments(path, tmp_path)) == 0
    assert documents(tmp_path / "out_text_document") == [[1], [2]]


def test_files_and_keys_are_taken_in_order(tmp_path):
    for name, token in (("a", 1), ("b", 2)):
        (tmp_path / name).write_text(f'{{"x": "{token}", "y": "{token + 10}"}}\n')
    arguments = null_arguments(tmp_path / "b", tmp_path, "--json-keys", "x", "y")
    arguments.insert(2, str(tmp_path / "a"))
    assert preprocess_data.main(arguments) == 0
    assert documents(tmp_path / "out_x_document") == [[2], [1]]
    assert documents(tmp_path / "out_y_document") == [[12], [11]]


def test_special_tokens_may_be_plain(tmp_path):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    path = write_lines(tmp_path, '{"text": "a<|endoftext|>"}')
    lengths = []
    for more in ([], ["--no-special-tokens"]):
        arguments = [
            *("--input", str(path), "--output-prefix", str(tmp_path / "out"), "--workers", "1"),
            *("--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(vocab_file), "--merge-file", str(merge_file)),
        ]
        assert preprocess_data.main([*arguments, *more]) == 0
        lengths.append(len(documents(tmp_path / "out_text_document")[0]))
    assert lengths == [2, 13 + 1]


def test_outputs_of_an_earlier_run_are_replaced(tmp_path):
    for text in ("1", "2 3"):
        path = write_lines(tmp_path, f'{{"text": "{text}"}}')
        assert preprocess_data.main(null_arguments(path, tmp_path)) == 0
    assert documents(tmp_path / "out_text_document") == [[2, 3]]


@pytest.mark.parametrize(
    "corpus,key,more,workers",
    [
        ("corpus_small", "small", ["--append-eod"], 1),
        ("corpus_small", "small_noeod", [], 2),
        ("edge_cases", "edge", ["--append-eod"], 2),
        ("edge_cases", "edge_noeod", [], 1),
    ],
)
def test_bytes_are_those_of_megatron_core(shared_dir, tmp_path, corpus, key, more, workers):
    data = shared_dir / "data"
    arguments = [
        *("--input", str(data / f"text/{corpus}.jsonl"), "--output-prefix", str(tmp_path / "out")),
        *("--tokenizer-type", "GPT2BPETokenizer", "--workers", str(workers), *more),
        *("--vocab-file", str(data / "gpt2-vocab.json"), "--merge-file", str(data / "gpt2-merges.txt")),
    ]
    assert preprocess_data.main(arguments) == 0
    theirs = json.loads((data / "goldens/indexed/sha256.json").read_text())[key]
    for suffix in ("bin", "idx"):
        ours = (tmp_path / f"out_text_document.{suffix}").read_bytes()
        assert hashlib.sha256(ours).hexdigest() == theirs[f"megatron_core_{suffix}"]["sha256"]


# ---- bad lines

BAD = ('{"text": "1"}', "not json", '{"text": "2"}', '{"other": 1}', "   ", '{"text": "\\ud83d"}', '{"text": "3"}')


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_line_ends_the_run_with_file_and_number(tmp_path, capsys, workers):
    path = write_lines(tmp_path, *BAD)
    assert preprocess_data.main(null_arguments(path, tmp_path, workers=workers)) == 1
    message = capsys.readouterr().err
    for expected in ("line 2: not JSON", "line 4: no key 'text'", "line 5: blank", "line 6: key 'text' holds a lone"):
        assert f"{path}, {expected}" in message
    assert "--on-error skip" in message
    assert [entry.name for entry in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_lines_are_skipped_and_counted(tmp_path, capsys, workers):
    path = write_lines(tmp_path, *BAD)
    assert preprocess_data.main(null_arguments(path, tmp_path, "--on-error", "skip", workers=workers)) == 0
    out = capsys.readouterr().out
    assert "3 documents" in out
    assert "4 bad lines skipped" in out
    assert f"{path}, line 4: no key 'text'" in out
    assert documents(tmp_path / "out_text_document") == [[1], [2], [3]]


def test_only_the_first_ten_bad_lines_are_listed(tmp_path, capsys):
    path = write_lines(tmp_path, '{"text": "1"}', *["bad"] * 25)
    assert preprocess_data.main(null_arguments(path, tmp_path, "--on-error", "skip")) == 0
    out = capsys.readouterr().out
    assert out.count("not JSON") == 10
    assert "25 bad lines skipped" in out
    assert "and 15 more" in out


@pytest.mark.parametrize(
    "name,good,bad",
    [
        ("edge_malformed", 5, (2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 14)),
        ("edge_missing_key", 2, (2, 3, 4, 5, 6)),
        ("edge_lone_surrogate", 1, (1, 2, 4, 5)),
    ],
)
def test_edge_files_lose_their_bad_lines_only(shared_dir, tmp_path, name, good, bad):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    path = shared_dir / f"data/text/{name}.jsonl"
    arguments = [
        *("--input", str(path), "--output-prefix", str(tmp_path / "out"), "--workers", "1", "--on-error", "skip"),
        *("--tokenizer-type", "GPT2BPETokenizer", "--vocab-file", str(vocab_file), "--merge-file", str(merge_file)),
    ]
    report = preprocess_data.preprocess(preprocess_data.parse_arguments(arguments))
    assert (report.documents, report.bad_lines) == (good, len(bad))
    assert tuple(line.number for line in report.listed) == bad[:10]


# ---- other bad input


@pytest.mark.parametrize("content", [b"", b"bad\n"])
def test_input_without_documents_is_an_error(tmp_path, capsys, content):
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    assert preprocess_data.main(null_arguments(path, tmp_path, "--on-error", "skip")) == 1
    assert f"--input {path}: no documents in it" in capsys.readouterr().err
    assert [entry.name for entry in tmp_path.iterdir()] == ["in.jsonl"]


def test_missing_input_and_tokenizer_are_named(tmp_path, capsys):
    assert preprocess_data.main(null_arguments(tmp_path / "nowhere", tmp_path)) == 1
    assert "nowhere: there is no such file" in capsys.readouterr().err
    path = write_lines(tmp_path, '{"text": "1"}')
    arguments = ["--input", str(path), "--output-prefix", str(tmp_path / "out"), "--workers", "1"]
    assert preprocess_data.main([*arguments, "--tokenizer-type", "GPT2BPETokenizer"]) == 1
    assert "--tokenizer-type GPT2BPETokenizer needs --vocab-file and --merge-file\n" in capsys.readouterr().err


def test_output_below_a_regular_file_is_named(tmp_path, capsys):
    path = write_lines(tmp_path, '{"text": "1"}')
    assert preprocess_data.main(null_arguments(path, path)) == 1
    error = capsys.readouterr().err
    assert f"--output-prefix {path}/out: cannot write into folder {path}, which cannot be made: File exists" in error
    assert f"mkdir -p '{path}'" in error
    assert [entry.name for entry in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    "more,messages",
    [
        (["--split-sentences", "--lang", "english"], ["--split-sentences is not", "--lang is not implemented"]),
        (["--partitions", "0"], ["--partitions: '0' is not a whole number"]),
        (["--keep-newlines"], ["--keep-newlines is not implemented"]),
        (["--seq-length", "64", "--keep-newlines"], ["--seq-length is not", "--keep-newlines is not"]),
        (["--dataset-impl", "lazy"], ["--dataset-impl lazy", "use mmap"]),
        (["--json-keys", "a", "a"], ["a key comes twice"]),
        (["--json-keys", "a/b"], ["--json-keys 'a/b': a key becomes part of a file name"]),
        (["--output-prefix", ""], ["--output-prefix: '' is empty; give FOLDER/NAME"]),
        (["--output-prefix", "data/"], ["--output-prefix: 'data/' ends in '/'", "give FOLDER/NAME, e.g. data/my"]),
        (["--output-prefix", "."], ["--output-prefix: '.' ends in '.'", "e.g. ./my"]),
        (["--workers", "0"], ["--workers: '0' is not a whole number"]),
        (["--append"], ["unrecognized arguments: --append"]),
        (["--tokenizer-type", "TikTokenizer"], ["error: --tokenizer-type TikTokenizer: not built yet: use GPT2BPE"]),
        (["--tokenizer-type", "gpt2"], ["error: --tokenizer-type gpt2: must be one of GPT2BPETokenizer, "]),
    ],
)
def test_flag_that_does_not_work_is_refused_by_name(tmp_path, capsys, more, messages):
    with pytest.raises(SystemExit) as exit_info:
        preprocess_data.main(null_arguments(tmp_path / "in", tmp_path, *more))
    assert exit_info.value.code == 2
    error = capsys.readouterr().err
    assert all(message in error for message in messages), error


def test_values_that_ask_for_nothing_are_accepted(tmp_path):
    path = write_lines(tmp_path, '{"text": "1"}')
    more = ["--partitions", "1", "--keep-sequential-samples", "--dataset-impl", "mmap", "--log-interval", "10"]
    assert preprocess_data.main(null_arguments(path, tmp_path, *more)) == 0


def test_null_tokenizer_has_no_hidden_vocabulary(tmp_path, capsys):
    path = write_lines(tmp_path, '{"text": "1"}')
    arguments = null_arguments(path, tmp_path)
    del arguments[arguments.index("--vocab-size") :]
    assert preprocess_data.main(arguments) == 1
    assert "error: --tokenizer-type NullTokenizer needs --vocab-size\n" in capsys.readouterr().err


def test_flag_that_the_tokenizer_does_not_use_is_told_and_changes_nothing(tmp_path, capsys):
    path = write_lines(tmp_path, '{"text": "1"}')
    assert preprocess_data.main(null_arguments(path, tmp_path, "--vocab-file", "v", "--tokenizer-model", "nowhere")) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"preprocess_data.py: warning: {given}: --tokenizer-type NullTokenizer does not use it; it takes --vocab-size"
        for given in ("--tokenizer-model nowhere", "--vocab-file v")
    ]


# ---- processes


def start(folder, *, workers):
    """The tool on enough text that it is still at work after its first line of progress, which has been read."""
    path = folder / "in.jsonl"
    line = json.dumps({"text": " ".join(["7"] * 50_000)}) + "\n"
    path.write_text(line * 150)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOOLS.parent), *sys.path])}
    arguments = null_arguments(path, folder, "--log-interval", "1", workers=workers)
    process = subprocess.Popen(
        [sys.executable, str(TOOLS / "preprocess_data.py"), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert "documents" in process.stdout.readline()
    return process


@pytest.mark.parametrize("workers", [1, 2])
def test_terminated_run_leaves_nothing_behind(tmp_path, workers):
    process = start(tmp_path, workers=workers)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert error == "ended by SIGTERM, nothing written; earlier files are untouched\n"
    assert [entry.name for entry in Path(tmp_path).iterdir()] == ["in.jsonl"]
    assert all(process_ended(child.pid, seconds=20) for child in children)


def test_killed_worker_ends_the_run_with_an_error(tmp_path):
    process = start(tmp_path, workers=2)
    workers = [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]
    workers[0].kill()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was killed by signal 9" in error
    assert [entry.name for entry in Path(tmp_path).iterdir()] == ["in.jsonl"]
