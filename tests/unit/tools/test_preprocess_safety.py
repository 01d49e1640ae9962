"""tools/preprocess_data.py that is killed, refused or out of space: the old pair stays, and no half one is left."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys

import psutil
import pytest
from helpers.processes import process_ended
from helpers.tools import TOOLS, load_tool

from megatron_zero.data import indexed_dataset, stop_signals
from megatron_zero.data.indexed_dataset import IndexedDataset, IndexedDatasetWriter

preprocess_data = load_tool("preprocess_data")
TOOL = TOOLS / "preprocess_data.py"
PAIR = ["out_text_document.bin", "out_text_document.idx"]
TEMPORARY = [r"out_text_document.bin.", r"out_text_document.idx.", "out_text_document.lock"]


def arguments(folder, *more, workers=1):
    return [
        *("--input", str(folder / "in.jsonl"), "--output-prefix", str(folder / "out"), "--workers", str(workers)),
        *("--tokenizer-type", "NullTokenizer", "--vocab-size", "100", "--log-interval", "1", *more),
    ]


@pytest.fixture
def old_pair(tmp_path):
    """A pair of the same name, which a run that does not end well must not touch."""
    with IndexedDatasetWriter(tmp_path / "out_text_document", vocab_size=101) as writer:
        writer.add_document([[1, 2, 3]])
    return IndexedDataset(tmp_path / "out_text_document").fingerprint()


def write_text(folder, *, documents):
    line = json.dumps({"text": " ".join(["7"] * 50_000)}) + "\n"
    (folder / "in.jsonl").write_text(line * documents)


def start(folder, *more, workers, max_file_bytes=None):
    """The tool at work: its first line of progress has been read, and there is enough text that it is not done yet."""
    write_text(folder, documents=150)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOOLS.parent), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, str(TOOLS / "preprocess_data.py"), *arguments(folder, *more, workers=workers)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    if max_file_bytes is not None:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (max_file_bytes, max_file_bytes))
    assert "documents" in process.stdout.readline()
    return process


def encoders(process):
    return [child for child in psutil.Process(process.pid).children() if "spawn_main" in " ".join(child.cmdline())]


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "in.jsonl")


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_run_leaves_the_old_pair_and_the_next_one_clears_up(tmp_path, old_pair, workers):
    process = start(tmp_path, workers=workers)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=60)
    assert all(process_ended(child.pid, seconds=20) for child in children)
    assert IndexedDataset(tmp_path / "out_text_document").fingerprint() == old_pair
    left = [name for name in names(tmp_path) if name not in PAIR]
    assert [name.startswith(start) for name, start in zip(left, TEMPORARY, strict=True)] == [True] * 3

    write_text(tmp_path, documents=1)
    again = subprocess.run(
        [sys.executable, str(TOOLS / "preprocess_data.py"), *arguments(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TOOLS.parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert again.returncode == 0
    for name in left[:2]:
        assert f"removed {tmp_path / name}, which a run that was killed left" in again.stderr
    assert names(tmp_path) == PAIR
    assert IndexedDataset(tmp_path / "out_text_document").sizes.tolist() == [50_000]


def test_killed_first_run_leaves_no_pair_at_all(tmp_path):
    process = start(tmp_path, workers=1)
    process.kill()
    process.communicate(timeout=60)
    assert not set(names(tmp_path)) & set(PAIR)


def test_killed_worker_ends_the_run_and_the_old_pair_stays(tmp_path, old_pair):
    process = start(tmp_path, workers=2)
    encoders(process)[0].kill()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "was killed by signal 9" in error
    assert names(tmp_path) == PAIR
    assert IndexedDataset(tmp_path / "out_text_document").fingerprint() == old_pair


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_stopped_run_removes_what_it_began_and_its_code_tells_the_signal(tmp_path, old_pair, number, workers):
    process = start(tmp_path, workers=workers)
    children = psutil.Process(process.pid).children(recursive=True)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as Ctrl-C does
    else:
        process.send_signal(number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    name = signal.Signals(number).name
    assert error == f"ended by {name}, nothing written; earlier files are untouched\n"
    assert names(tmp_path) == PAIR
    assert IndexedDataset(tmp_path / "out_text_document").fingerprint() == old_pair
    assert all(process_ended(child.pid, seconds=20) for child in children)


def test_second_run_for_the_same_prefix_is_refused_and_the_first_one_is_not_disturbed(tmp_path, capsys):
    process = start(tmp_path, workers=1)
    process.send_signal(signal.SIGSTOP)
    try:
        assert preprocess_data.main(arguments(tmp_path)) == 1
    finally:
        process.send_signal(signal.SIGCONT)
    assert "out_text_document.bin and .idx are being written by another run" in capsys.readouterr().err
    _, error = process.communicate(timeout=60)
    assert process.returncode == 0, error
    assert names(tmp_path) == PAIR
    assert len(IndexedDataset(tmp_path / "out_text_document")) == 150


@pytest.mark.parametrize("workers", [1, 2])
def test_file_that_cannot_grow_ends_the_run_and_the_old_pair_stays(tmp_path, old_pair, workers):
    """A limit of the kernel on the size of a file stands for a full disk: the same path, another error number."""
    process = start(tmp_path, workers=workers, max_file_bytes=5_000_000)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "error: [Errno 27] cannot write " in error
    assert "out_text_document.bin (byte " in error
    assert names(tmp_path) == PAIR
    assert IndexedDataset(tmp_path / "out_text_document").fingerprint() == old_pair


@pytest.mark.parametrize("call", ["write", "seal"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_full_or_broken_device_is_an_error_with_the_path(tmp_path, old_pair, monkeypatch, capsys, call, code):
    def fail(file, *given):
        raise OSError(code, f"cannot write {file.path}: {os.strerror(code)}")

    monkeypatch.setattr(indexed_dataset.StagedFile, call, fail)
    write_text(tmp_path, documents=2)
    assert preprocess_data.main(arguments(tmp_path)) == 1
    assert os.strerror(code) in capsys.readouterr().err
    assert names(tmp_path) == PAIR
    assert IndexedDataset(tmp_path / "out_text_document").fingerprint() == old_pair


def test_fault_of_one_key_publishes_none(tmp_path, monkeypatch, capsys):
    """The disk is full when the second key's files are sealed: the first key's are not published either."""
    calls = []

    def seal(file, real=indexed_dataset.StagedFile.seal):
        calls.append(file.path.name)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, f"cannot write {file.path}: No space left on device")
        real(file)

    monkeypatch.setattr(indexed_dataset.StagedFile, "seal", seal)
    (tmp_path / "in.jsonl").write_text('{"a": "1", "b": "2"}\n')
    assert preprocess_data.main(arguments(tmp_path, "--json-keys", "a", "b")) == 1
    assert "out_b_document.bin: No space left" in capsys.readouterr().err
    assert names(tmp_path) == []


def test_missing_output_folder_is_made_with_its_parents(tmp_path):
    write_text(tmp_path, documents=1)
    assert preprocess_data.main(arguments(tmp_path, "--output-prefix", str(tmp_path / "a/b/out"))) == 0
    assert names(tmp_path / "a/b") == PAIR


@pytest.fixture
def signals_of_a_tool():
    before = {number: signal.getsignal(number) for number in stop_signals.STOPPING}
    stop_signals.exit_on_signals()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signal_between_two_pairs_says_which_one_is_written(tmp_path, monkeypatch, signals_of_a_tool):
    (tmp_path / "in.jsonl").write_text('{"a": "1", "b": "2"}\n')

    def publish(data, index, real=indexed_dataset.publish_pair):
        signal.raise_signal(signal.SIGTERM)  # held until both files have their names
        real(data, index)

    monkeypatch.setattr(indexed_dataset, "publish_pair", publish)
    with pytest.raises(stop_signals.Stopped) as stopped:
        preprocess_data.main(arguments(tmp_path, "--json-keys", "a", "b"))
    assert (stopped.value.code, stopped.value.name) == (143, "SIGTERM")
    assert stopped.value.state == f"after {tmp_path}/out_b_document.bin and .idx had been written"
    assert names(tmp_path) == ["out_b_document.bin", "out_b_document.idx"]


def test_reader_that_leaves_does_not_cost_the_run(tmp_path):
    """`preprocess_data ... | head -1`: the pair is complete all the same."""
    source = tmp_path / "words.jsonl"
    source.write_bytes(b'{"text": "7"}\n' * 200_000)
    command = " ".join(
        [
            f"{sys.executable} {TOOL} --input {source} --output-prefix {tmp_path / 'out'} --workers 1 --log-interval 10",
            "--tokenizer-type NullTokenizer --vocab-size 100 | head -1",
        ]
    )
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert IndexedDataset(tmp_path / "out_text_document").num_documents == 200_000


def test_line_added_behind_the_last_piece_is_noticed(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "1"}\n')
    fifo = tmp_path / "late"
    os.mkfifo(fifo)
    process = subprocess.Popen(
        [
            *(sys.executable, str(TOOL), "--input", str(source), str(fifo), "--output-prefix", str(tmp_path / "out")),
            *("--workers", "1", "--tokenizer-type", "NullTokenizer", "--vocab-size", "100"),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    with open(fifo, "w") as late:  # opens when the tool has come to it
        late.write('{"text": "2"}\n')
        with open(source, "a") as file:
            file.write('{"text": "3"}\n')
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"{source}: changed while it was read" in errors
    assert not list(tmp_path.glob("out*.idx"))


def test_file_that_comes_through_stdin_too_is_refused(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "1"}\n')
    with open(source) as file:
        done = subprocess.run(
            [
                *(sys.executable, str(TOOL), "--input", "-", str(source), "--output-prefix", str(tmp_path / "out")),
                *("--workers", "1", "--tokenizer-type", "NullTokenizer", "--vocab-size", "100"),
            ],
            stdin=file,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    assert done.returncode == 1
    assert "named twice" in done.stderr
