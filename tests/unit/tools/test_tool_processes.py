"""Every command of tools/ as a process: a reader that leaves, a full device, a locale that cannot spell a name."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from helpers.tools import TOOLS

from megatron_zero.data.index_format import write_index
from megatron_zero.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter

ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
NAMES = {"text": "caf\u00e9", "bytes": b"caf\xe9".decode("utf-8", "surrogateescape")}


def write(prefix, documents=((1, 2), (3,))):
    with IndexedDatasetWriter(prefix, vocab_size=100) as writer:
        for document in documents:
            writer.add_document([document])
    return str(prefix)


def preprocess_flags(folder, source, output):
    tokenizer = ("--tokenizer-type", "NullTokenizer", "--vocab-size", "100")
    return ["--input", str(source), "--output-prefix", str(folder / output), "--workers", "1", *tokenizer]


@pytest.fixture
def files(tmp_path):
    """What the commands read."""
    write(tmp_path / "a")
    write_short(tmp_path / "short")
    (tmp_path / "in.jsonl").write_text('{"text": "1 2"}\n')
    steps = "".join(json.dumps({"iteration": 1 + step, "lm_loss": 1.0}) + "\n" for step in range(3))
    (tmp_path / "log.jsonl").write_text(steps)
    (tmp_path / "code").mkdir()
    (tmp_path / "code/a.py").write_text("pass\n")
    return tmp_path


def write_short(prefix):
    """A pair whose lengths leave out the last id, 9, of each sequence."""
    write(prefix, [(1, 9), (2, 3, 9)])
    with open(f"{prefix}.idx", "wb") as file:
        write_index(file.write, np.dtype("<u2"), np.array([1, 2]), np.array([0, 1, 2]))
    return str(prefix)


def command(tool, folder):
    log = str(folder / "log.jsonl")
    return {
        "inspect_dataset": [str(folder / "a"), "--sample", "2", "--scan"],
        "verify_dataset": [str(folder / "a")],
        "compare_runs": ["losses", log, log, "--steps", "3", "--tolerance", "0"],
        "merge_datasets": ["--input", str(folder / "a"), "--output-prefix", str(folder / "out")],
        "repair_dataset": [str(folder / "short"), "--eod", "9"],
        "preprocess_data": preprocess_flags(folder, folder / "in.jsonl", "out"),
        "collect_python_sources": ["--root", str(folder / "code"), "--output", str(folder / "out.jsonl")],
        "train_sentencepiece": [
            *("--input", str(folder / "many.jsonl"), "--output", str(folder / "out.model")),
            *("--vocab-size", "300", "--threads", "1"),
        ],
    }[tool]


def start(tool, arguments, *, environment=None, **more):
    paths = os.pathsep.join([str(TOOLS.parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, str(TOOLS / f"{tool}.py"), *arguments],
        env={**os.environ, "PYTHONPATH": paths, **(environment or {})},
        stderr=subprocess.PIPE,
        **more,
    )


def without_reader(tool, arguments, *, unbuffered=""):
    """Exit status and stderr of the command whose stdout nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    process = start(tool, arguments, stdout=writing, environment={"PYTHONUNBUFFERED": unbuffered})
    os.close(writing)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors.decode()


SHOWING = ["inspect_dataset", "verify_dataset", "compare_runs"]
MAKING = ["merge_datasets", "repair_dataset", "preprocess_data", "collect_python_sources", "train_sentencepiece"]


@pytest.fixture
def many(files):
    text = "the quick brown fox jumps over the lazy dog and runs away from it"
    (files / "many.jsonl").write_text("".join(json.dumps({"text": f"{text} {n}"}) + "\n" for n in range(200)))
    return files


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("tool", SHOWING)
def test_command_that_shows_ends_quietly_when_nobody_reads(many, tool, unbuffered):
    assert without_reader(tool, command(tool, many), unbuffered=unbuffered) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize("tool", MAKING)
def test_command_that_makes_goes_on_when_nobody_reads(many, tool):
    status, errors = without_reader(tool, command(tool, many))
    assert (status, errors) == (0, "no more progress lines, the run goes on: Broken pipe\n")
    assert list(many.glob("out*" if tool != "repair_dataset" else "*.previous"))


@pytest.mark.parametrize("tool", [*SHOWING, *MAKING])
def test_help_ends_quietly_when_nobody_reads(tool):
    assert without_reader(tool, ["--help"])[1] == ""


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--input"], []])
@pytest.mark.parametrize("tool", [*SHOWING, *MAKING])
def test_wrong_command_line_is_two_lines(tool, arguments):
    status, errors = without_reader(tool, arguments)
    usage, error = errors.splitlines()
    assert status == 2
    assert usage.startswith(f"usage: {tool}.py ")
    assert usage.endswith("...; --help lists all flags")
    assert error.startswith(f"{tool}.py: error: ")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("tool", SHOWING)
def test_full_device_is_an_error_without_a_traceback(files, tool, unbuffered):
    with open("/dev/full", "wb") as full:
        process = start(tool, command(tool, files), stdout=full, environment={"PYTHONUNBUFFERED": unbuffered})
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors == b"cannot write to standard output: No space left on device\n"


@pytest.mark.parametrize("tool", [*SHOWING, *MAKING])
def test_closed_standard_output_is_no_error(many, tool):
    arguments = " ".join(command(tool, many))
    script = f"{sys.executable} {TOOLS / tool}.py {arguments} >&-"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TOOLS.parent), *sys.path])}
    done = subprocess.run(["bash", "-c", script], env=environment, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("environment", [ASCII, {"PYTHONIOENCODING": "utf-8"}, {}], ids=["ascii", "utf-8", "default"])
@pytest.mark.parametrize("kind", NAMES)
def test_names_that_stdout_cannot_spell_are_no_error(tmp_path, kind, environment):
    """One after the other, each on the files of the one before."""
    folder = tmp_path / NAMES[kind]
    folder.mkdir()
    (folder / "in.jsonl").write_text('{"text": "1 2"}\n')
    prefix = str(folder / "one_text_document")
    for tool, arguments in (
        ("preprocess_data", preprocess_flags(folder, folder / "in.jsonl", "one")),
        ("merge_datasets", ["--input", prefix, "--output-prefix", str(folder / "all")]),
        ("inspect_dataset", [str(folder / "all"), "--sample", "1"]),
        ("inspect_dataset", [str(folder / "all"), "--json"]),
        ("verify_dataset", [str(folder / "all"), "--write-checksums"]),
    ):
        process = start(tool, arguments, environment=environment, stdout=subprocess.PIPE)
        output, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, b"")
        if "--json" in arguments:
            assert os.fsencode(json.loads(output)["prefix"]) == os.fsencode(folder / "all")
        else:
            assert b"caf" in output
        if tool == "verify_dataset" and environment.get("PYTHONIOENCODING") == "utf-8":
            assert os.fsencode(str(folder / "all.bin")) in output
    assert IndexedDataset(folder / "all").num_documents == 1


def test_missing_names_that_stderr_cannot_spell_are_errors_all_the_same(tmp_path):
    for tool in ("inspect_dataset", "verify_dataset"):
        process = start(tool, [str(tmp_path / NAMES["bytes"])], environment=ASCII, stdout=subprocess.DEVNULL)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert b"there is no file" in errors
        assert b"Traceback" not in errors


def test_many_pairs_are_merged_where_few_open_files_are_allowed_at_first(tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(60):
        write(tmp_path / f"in/{number:03d}", [[number]])
    tool = f"{sys.executable} {TOOLS / 'merge_datasets.py'} --input {tmp_path / 'in'} --output-prefix {tmp_path / 'out'}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TOOLS.parent), *sys.path])}

    def run(limit):
        script = f"ulimit {limit}; {tool}"
        return subprocess.run(
            ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    hard = run("-n 64")
    assert hard.returncode == 1
    assert "cannot be read: Too many open files; each pair takes two: ulimit -n allows more" in hard.stderr
    soft = run("-Sn 64")
    assert (soft.returncode, soft.stderr) == (0, "")
    assert [IndexedDataset(tmp_path / "out").get(n).tolist() for n in range(60)] == [[n] for n in range(60)]
