"""MB/s of text on one core: Hugging Face's fast tokenizer, ours three ways, and the whole of tools/preprocess_data.py.

    python benchmarks/tokenizer_speed.py --input corpus.jsonl --vocab-file vocab.json --merge-file merges.txt

Every way is run once a round, rounds are repeated, and the median is shown with its ratio to the fastest row of Hugging
Face. All are pinned to one core where the system can do that. MB are 10^6 bytes of the texts in UTF-8. Ids of all ways
are compared first.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)  # this checkout, whatever is installed

from megatron_zero.data.gpt2_bpe import END_OF_TEXT, GPT2BPETokenizer  # noqa: E402

PACKAGES = ("tokenizers", "tiktoken", "numpy", "torch")
HUGGING_FACE = ("tokenizers, encode", "tokenizers, encode_batch", "tokenizers, encode_batch_fast")
ENCODE, ENCODE_ARRAY, PYTHON = "ours, encode", "ours, encode_array", "ours in Python, encode"
PREPROCESS = "preprocess_data.py --workers 1"

Way = Callable[[Sequence[str]], list[Any]]


def main() -> int:
    options = parse_arguments()
    core = pin_to_one_core()
    with open(options.input, encoding="utf-8") as file:
        texts = [json.loads(line)[options.json_key] for line in file]
    megabytes = sum(len(text.encode("utf-8")) for text in texts) / 1e6
    versions = ", ".join(f"{name} {version_of(name)}" for name in PACKAGES)
    print(f"{cpu_name()}, {core}; Python {platform.python_version()}, {versions}")
    print(f"{len(texts)} texts, {megabytes:.2f} MB; median of {options.repeats} rounds")
    ways, missing = make_ways(options.vocab_file, options.merge_file)
    compare_ids(ways, texts)
    seconds: dict[str, list[float]] = {name: [] for name in [*ways, PREPROCESS]}
    for _ in range(options.repeats):
        for name, way in ways.items():
            started = time.perf_counter()
            way(texts)
            seconds[name].append(time.perf_counter() - started)
        if PREPROCESS not in missing:
            taken = preprocess_seconds(options)
            if isinstance(taken, str):
                missing[PREPROCESS] = taken
            else:
                seconds[PREPROCESS].append(taken)
    show({name: megabytes / statistics.median(taken) for name, taken in seconds.items() if taken}, missing)
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--input", type=Path, required=True, help="JSON lines")
    parser.add_argument("--json-key", default="text")
    parser.add_argument("--vocab-file", type=Path, required=True, help="GPT-2 vocab.json")
    parser.add_argument("--merge-file", type=Path, required=True, help="GPT-2 merges.txt")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for flag, path in (
        ("--input", options.input),
        ("--vocab-file", options.vocab_file),
        ("--merge-file", options.merge_file),
    ):
        if not path.is_file():
            parser.error(f"{flag} {path}: there is no such file")
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats} must be at least 1")
    return options


def make_ways(vocab_file: Path, merge_file: Path) -> tuple[dict[str, Way], dict[str, str]]:
    """name -> texts to ids; and why others are missing."""
    ours, python = GPT2BPETokenizer(vocab_file, merge_file), GPT2BPETokenizer(vocab_file, merge_file, fast=False)
    ways: dict[str, Way] = {}
    missing: dict[str, str] = {}
    try:
        peer = hugging_face(vocab_file, merge_file)
    except ImportError as error:
        missing |= dict.fromkeys(HUGGING_FACE, f"not run: {error}")
    else:
        single, batch, batch_fast = HUGGING_FACE
        ways[single] = lambda texts: [peer.encode(text).ids for text in texts]
        ways[batch] = lambda texts: [encoding.ids for encoding in peer.encode_batch(texts)]
        if hasattr(peer, "encode_batch_fast"):
            ways[batch_fast] = lambda texts: [encoding.ids for encoding in peer.encode_batch_fast(texts)]
        else:
            missing[batch_fast] = "not run: this version has none"
    if ours.implementation == "tiktoken":
        ways[ENCODE] = lambda texts: [ours.encode(text) for text in texts]
        ways[ENCODE_ARRAY] = lambda texts: [ours.encode_array(text) for text in texts]
    else:
        missing |= dict.fromkeys((ENCODE, ENCODE_ARRAY), f"not run: {ours.why_python}")
    ways[PYTHON] = lambda texts: [python.encode(text) for text in texts]
    return ways, missing


def hugging_face(vocab_file: Path, merge_file: Path) -> Any:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # read when the package is first used
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    ids = json.loads(vocab_file.read_text(encoding="utf-8"))
    lines = merge_file.read_text(encoding="utf-8").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    peer = Tokenizer(models.BPE(ids, pairs))
    peer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    peer.decoder = decoders.ByteLevel()
    peer.add_special_tokens([END_OF_TEXT])
    return peer


def compare_ids(ways: dict[str, Way], texts: Sequence[str]) -> None:
    """Also the warm-up."""
    expected = ways[PYTHON](texts)
    for name, way in ways.items():
        wrong = sum(list(ids) != other for ids, other in zip(way(texts), expected, strict=True))
        print(f"ids of {name}: " + (f"{wrong} TEXTS DIFFER" if wrong else "equal"))


def preprocess_seconds(options: argparse.Namespace) -> float | str:
    """Wall time of the process, start and writing included; or what it said when it failed."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        done = subprocess.run(
            [
                *(sys.executable, str(ROOT / "tools/preprocess_data.py"), "--workers", "1", "--append-eod"),
                *("--input", str(options.input), "--json-keys", options.json_key),
                *("--output-prefix", str(Path(folder) / "out"), "--tokenizer-type", "GPT2BPETokenizer"),
                *("--vocab-file", str(options.vocab_file), "--merge-file", str(options.merge_file)),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        taken = time.perf_counter() - started
    return taken if done.returncode == 0 else f"failed with status {done.returncode}: {done.stderr.strip()[-300:]}"


def show(speeds: dict[str, float], missing: dict[str, str]) -> None:
    base = max((speeds[name] for name in HUGGING_FACE if name in speeds), default=None)
    print(f"{'way':32s} {'MB/s':>8s} {'ratio':>8s}")
    for name in (*HUGGING_FACE, ENCODE, ENCODE_ARRAY, PYTHON, PREPROCESS):
        if name in missing:
            print(f"{name:32s} {missing[name]}")
        else:
            ratio = f"{speeds[name] / base:8.2f}" if base else "       -"
            print(f"{name:32s} {speeds[name]:8.2f} {ratio}")


def pin_to_one_core() -> str:
    if not hasattr(os, "sched_setaffinity"):
        return "not pinned to a core"
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return f"pinned to core {core}"


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def version_of(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


if __name__ == "__main__":
    sys.exit(main())
