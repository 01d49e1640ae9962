"""The benchmark runs, compares ids and gives every way a row; how fast they are is nobody's test."""

import json
import subprocess
import sys
from pathlib import Path

from helpers.bpe_files import write_bpe_files

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks/tokenizer_speed.py"
WAYS = (
    *("tokenizers, encode", "tokenizers, encode_batch", "tokenizers, encode_batch_fast"),
    *("ours, encode", "ours, encode_array", "ours in Python, encode", "preprocess_data.py --workers 1"),
)


def run(*words):
    return subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True, timeout=100)


def test_every_way_has_a_row(tmp_path):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    corpus = tmp_path / "text.jsonl"
    corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("the abc", "", "<|endoftext|> caf\u00e9")))
    done = run("--input", corpus, "--vocab-file", vocab_file, "--merge-file", merge_file, "--repeats", 1)
    assert done.returncode == 0, done.stderr
    assert "DIFFER" not in done.stdout
    assert "failed" not in done.stdout
    table = done.stdout.split("MB/s    ratio\n")[1].split("\n")
    assert [line[:32].strip() for line in table if line] == list(WAYS)


def test_a_missing_file_is_named(tmp_path):
    vocab_file, merge_file = write_bpe_files(tmp_path)
    done = run("--input", tmp_path / "nothing", "--vocab-file", vocab_file, "--merge-file", merge_file)
    assert done.returncode == 2
    assert f"--input {tmp_path / 'nothing'}: there is no such file" in done.stderr
