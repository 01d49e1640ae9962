"""JSON lines -> PREFIX_KEY_document.bin/.idx, with the flags of Megatron's tool of this name.

    python tools/preprocess_data.py --input text.jsonl --output-prefix data/my --tokenizer-type GPT2BPETokenizer \\
        --vocab-file vocab.json --merge-file merges.txt --append-eod --workers 8

The files are those that Megatron-core writes, byte for byte, whatever the number of workers. They appear only when they
are complete; a run that fails or is stopped leaves nothing behind.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from tqdm import tqdm

from megatron_zero.config.data import TokenizerConfig
from megatron_zero.config.fields import ConfigError, knobs
from megatron_zero.data.index_format import token_dtype
from megatron_zero.data.indexed_dataset import IndexedDatasetWriter
from megatron_zero.data.line_encoder import BadLine, EncodedChunk, LineEncoder, read_chunks
from megatron_zero.data.ordered_pool import WorkerError, ordered_map

NAME = "preprocess_data.py"
LISTED_BAD_LINES = 10

# Flags of Megatron's tools that are not implemented: how many values they take, the one that asks for nothing, way out.
REFUSED = (
    ("--split-sentences", 0, None, "documents are stored whole, which is what GPT training reads; leave it out"),
    ("--keep-newlines", 0, None, "it belongs to --split-sentences; newlines are always kept here; leave it out"),
    ("--lang", 1, None, "it belongs to --split-sentences; leave it out"),
    ("--partitions", 1, "1", "one call uses all of --workers and keeps the order; leave it out"),
    ("--seq-length", 1, None, "documents are stored whole and cut by training's --seq-length; leave it out"),
    ("--trust-remote-code", 0, None, "no tokenizer here runs foreign code; leave it out"),
)


@dataclass(slots=True)
class Report:
    """What was done so far."""

    documents: int = 0
    empty_documents: int = 0
    tokens: int = 0
    input_bytes: int = 0
    bad_lines: int = 0
    listed: list[BadLine] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def add(self, chunk: EncodedChunk) -> None:
        self.documents += len(chunk.texts[0].lengths)
        self.empty_documents += sum(int((texts.lengths == 0).sum()) for texts in chunk.texts)
        self.tokens += sum(len(texts.ids) for texts in chunk.texts)
        self.input_bytes += chunk.num_bytes
        self.bad_lines += len(chunk.bad_lines)
        self.listed += chunk.bad_lines[: LISTED_BAD_LINES - len(self.listed)]

    def line(self) -> str:
        seconds = max(time.monotonic() - self.started, 1e-6)
        return (
            f"{self.documents} documents ({self.empty_documents} empty), {self.tokens} tokens; {seconds:.1f} s, "
            f"{self.documents / seconds:.0f} documents/s, {self.input_bytes / seconds / 1e6:.2f} MB/s"
        )

    def bad_lines_text(self) -> str:
        shown = "\n".join(f"  {line}" for line in self.listed)
        more = f"\n  and {self.bad_lines - len(self.listed)} more" if self.bad_lines > len(self.listed) else ""
        return shown + more


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 with the reason on stderr (2 for a wrong command line)."""
    options = parse_arguments(argv)
    try:
        preprocess(options)
    except (ConfigError, OSError, WorkerError) as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 1
    return 0


def preprocess(options: argparse.Namespace) -> Report:
    """Do what the flags say. Errors: ConfigError (also for bad lines under --on-error raise), OSError, WorkerError."""
    paths = [Path(name) for name in options.input]
    for path in paths:
        if not path.is_file():
            raise ConfigError(f"--input {path}: there is no such file")
    make_encoder = partial(
        LineEncoder,
        TokenizerConfig(
            tokenizer_type=options.tokenizer_type,
            tokenizer_model=options.tokenizer_model,
            vocab_file=options.vocab_file,
            merge_file=options.merge_file,
            vocab_size=options.vocab_size,
        ),
        keys=options.json_keys,
        append_eod=options.append_eod,
        special_tokens=not options.no_special_tokens,
    )
    vocab_size = make_encoder().vocab_size  # wrong tokenizer files end the run here, before any process or file is made
    prefixes = [f"{options.output_prefix}_{key}_document" for key in options.json_keys]
    report = Report()
    with ExitStack() as opened:
        writers = [opened.enter_context(IndexedDatasetWriter(prefix, vocab_size=vocab_size)) for prefix in prefixes]
        total = sum(path.stat().st_size for path in paths)
        progress = opened.enter_context(tqdm(total=total, unit="B", unit_scale=True, disable=None, desc="preprocess"))
        logged = 0
        chunks = opened.enter_context(closing(ordered_map(make_encoder, read_chunks(paths), workers=options.workers)))
        for chunk in chunks:
            report.add(chunk)
            if report.bad_lines and options.on_error == "raise":
                raise ConfigError(
                    f"these lines are no documents; nothing was written. Correct them, or leave such lines out with "
                    f"--on-error skip:\n{report.bad_lines_text()}"
                )
            for writer, texts in zip(writers, chunk.texts, strict=True):
                for document in texts.documents():
                    writer.add_document([document])
            progress.update(chunk.num_bytes)
            intervals = report.documents // options.log_interval
            if progress.disable and intervals > logged:  # no terminal, so no bar: lines for the log file
                print(report.line(), flush=True)
            logged = intervals
        if report.documents == 0:
            raise ConfigError(f"--input {' '.join(options.input)}: no documents in it; nothing was written")
    print(report.line())
    if report.bad_lines:
        print(f"{report.bad_lines} bad lines skipped:\n{report.bad_lines_text()}")
    for prefix in prefixes:
        print(
            f"wrote {prefix}.bin and .idx ({token_dtype(vocab_size).name}); train with --data-path {prefix}", flush=True
        )
    return report


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=NAME, description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--input", nargs="+", required=True, metavar="FILE", help="JSON lines, one document each")
    parser.add_argument("--json-keys", nargs="+", default=["text"], metavar="KEY", help="keys whose texts are taken")
    parser.add_argument("--output-prefix", required=True, help="outputs are PREFIX_KEY_document.bin and .idx")
    parser.add_argument("--tokenizer-type", required=True, choices=knobs(TokenizerConfig)["tokenizer_type"].choices)
    parser.add_argument("--tokenizer-model", help="SentencePiece model")
    parser.add_argument("--vocab-file", help="GPT-2 vocab.json")
    parser.add_argument("--merge-file", help="GPT-2 merges.txt")
    parser.add_argument("--vocab-size", type=int, default=786, help="number of ids of NullTokenizer")
    parser.add_argument("--append-eod", action="store_true", help="end-of-document id after each document")
    parser.add_argument(
        "--no-special-tokens", action="store_true", help="a literal <|endoftext|> in text becomes plain pieces"
    )
    parser.add_argument("--on-error", choices=("raise", "skip"), default="raise", help="what a bad line does")
    parser.add_argument("--workers", type=_positive, required=True, help="processes that encode")
    parser.add_argument("--log-interval", type=_positive, default=1000, help="documents between lines, without a bar")
    parser.add_argument("--dataset-impl", default="mmap", help="mmap, the only one left")
    parser.add_argument("--keep-sequential-samples", action="store_true", help="accepted: the order is always kept")
    for flag, values, _, _ in REFUSED:
        parser.add_argument(flag, help=argparse.SUPPRESS, **({"nargs": 0} if values == 0 else {}), action=_Given)
    options = parser.parse_args(argv)
    faults = [
        f"{flag} is not implemented: {way_out}"
        for flag, values, harmless, way_out in REFUSED
        if (given := getattr(options, flag[2:].replace("-", "_"))) is not None and (values == 0 or given != harmless)
    ]
    if options.dataset_impl != "mmap":
        faults.append(f"--dataset-impl {options.dataset_impl}: the lazy and cached formats are retired; use mmap")
    if len(set(options.json_keys)) < len(options.json_keys):
        faults.append(f"--json-keys {' '.join(options.json_keys)}: a key comes twice, and both would write one file")
    if faults:
        parser.error("; ".join(faults))
    return options


class _Given(argparse.Action):
    """Remembers that a refused flag was typed, so that all of them are named in one message."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _stop(signal_number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signal_number)  # through the with blocks, which remove what was begun


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    sys.exit(main())
