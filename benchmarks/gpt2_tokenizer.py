"""MB/s of GPT-2 tokenizers on one core: ours, and Hugging Face's fast one, over the same documents in the same run.

    python benchmarks/gpt2_tokenizer.py --input corpus.jsonl --vocab-file vocab.json --merge-file merges.txt

--input: JSON lines with a "text". Rows are interleaved over --repeats, medians; a MB is 10^6 bytes of UTF-8 text (of the
file for the whole tool). "preprocess_data" is the whole tool in a process of its own, over --copies of the file: start,
JSON, encoding, writing.
Before anything is timed, all rows' ids are compared.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megatron_zero.data.gpt2_bpe import END_OF_TEXT, GPT2BPETokenizer

ROOT = Path(__file__).resolve().parents[1]
PEER = "Hugging Face tokenizers: encode"


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def hugging_face(vocab_file: str, merge_file: str) -> Any:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizers = importlib.import_module("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(vocab_file, merge_file))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.add_special_tokens([END_OF_TEXT])
    return made


def rows_of(options: argparse.Namespace) -> dict[str, Callable[[list[str]], list[Any]]]:
    ours = GPT2BPETokenizer(Path(options.vocab_file), Path(options.merge_file))
    print(f"GPT2BPETokenizer: {ours.implementation}")
    rows: dict[str, Callable[[list[str]], list[Any]]] = {
        "ours: encode": lambda texts: [ours.encode(text) for text in texts],
        "ours: encode_array": lambda texts: [ours.encode_array(text) for text in texts],
        "ours: reference in Python": lambda texts: [ours.encode_reference(text) for text in texts],
    }
    try:
        theirs = hugging_face(options.vocab_file, options.merge_file)
    except ImportError as error:
        print(f"the peer is left out: {error}")
        return rows
    return {
        PEER: lambda texts: [theirs.encode(text).ids for text in texts],
        "Hugging Face tokenizers: encode_batch": lambda texts: [each.ids for each in theirs.encode_batch(texts)],
        **rows,
    }


def preprocess(options: argparse.Namespace, text: Path, folder: str) -> None:
    subprocess.run(
        [
            *(sys.executable, str(ROOT / "tools" / "preprocess_data.py"), "--input", str(text)),
            *("--output-prefix", f"{folder}/out", "--tokenizer-type", "GPT2BPETokenizer", "--append-eod"),
            *("--vocab-file", options.vocab_file, "--merge-file", options.merge_file, "--workers", "1"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for flag in ("--input", "--vocab-file", "--merge-file"):
        parser.add_argument(flag, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--copies", type=int, default=8, help="times that preprocess_data gets the input")
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

    lines = Path(options.input).read_text(encoding="utf-8").rstrip("\n").split("\n")
    texts = [json.loads(line)["text"] for line in lines]
    text_bytes = sum(len(text.encode()) for text in texts)
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("tiktoken", "tokenizers", "regex")]
    print(f"{processor()}, one core; Python {platform.python_version()}, {', '.join(versions)}")
    print(f"{len(texts)} documents, {text_bytes / 1e6:.1f} MB; median of {options.repeats}")
    rows = rows_of(options)
    wanted = rows["ours: reference in Python"](texts)
    for name, encode in rows.items():
        assert [list(ids) for ids in encode(texts)] == wanted, f"{name} gives other ids"

    seconds: dict[str, list[float]] = {name: [] for name in rows}
    whole: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.jsonl"
        text.write_bytes(Path(options.input).read_bytes() * options.copies)
        for _ in range(options.repeats):
            for name, encode in rows.items():
                started = time.perf_counter()
                encode(texts)
                seconds[name].append(time.perf_counter() - started)
            started = time.perf_counter()
            preprocess(options, text, folder)
            whole.append(time.perf_counter() - started)
    peer = statistics.median(seconds[PEER]) if PEER in seconds else None
    print(f"\n{'':40} {'MB/s':>8} {'/ peer':>8}")
    for name, times in seconds.items():
        rate = text_bytes / 1e6 / statistics.median(times)
        print(f"{name:40} {rate:8.2f} {'' if peer is None else f'{peer / statistics.median(times):8.2f}'}")
    rate = Path(options.input).stat().st_size * options.copies / 1e6 / statistics.median(whole)
    over_peer = "" if peer is None else f"{rate / (text_bytes / 1e6 / peer):8.2f}"
    print(f"{'preprocess_data --workers 1, whole':40} {rate:8.2f} {over_peer}")


if __name__ == "__main__":
    main()
