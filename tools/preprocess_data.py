"""JSON lines -> PREFIX_KEY_document.bin/.idx, with the flags of Megatron's tool of this name.

    python tools/preprocess_data.py --input 'text/*.jsonl.gz' --output-prefix data/my --tokenizer-type GPT2BPETokenizer \\
        --vocab-file vocab.json --merge-file merges.txt --append-eod --workers 8

The files are those that Megatron-core writes, byte for byte, whatever the number of workers. They appear only when they
are complete; a run that fails or is stopped leaves nothing behind. docs/preprocessing.md has the rules.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial

from megatron_zero.config.fields import ConfigError
from megatron_zero.config.refused import REFUSED_VALUES
from megatron_zero.data.index_format import bin_path, idx_path
from megatron_zero.data.indexed_dataset import IndexedDatasetWriter
from megatron_zero.data.line_encoder import EncodeTask, LineEncoder
from megatron_zero.data.ordered_pool import WorkerError, ordered_map
from megatron_zero.data.preprocess_report import LISTED_BAD_LINES, Progress, Report, total_input_bytes
from megatron_zero.data.staged_file import make_folder_for
from megatron_zero.data.stop_signals import outcome_told
from megatron_zero.data.text_input import TextSource, find_sources
from megatron_zero.data.text_pieces import piece_bytes_for, text_pieces
from megatron_zero.data.tokenizer_flags import add_tokenizer_flags, tokenizer_config, unused_tokenizer_flags
from megatron_zero.data.tool_flags import ToolParser, output_prefix, whole_number
from megatron_zero.data.tool_process import run_tool, say

NAME = "preprocess_data.py"

OUTPUT_HELP = "outputs are PREFIX_KEY_document.bin and .idx; folders that are not there are made"

# Flags of Megatron's tools that are not implemented: how many values they take, and the way out.
REFUSED = (
    ("--split-sentences", 0, "documents are stored whole, which is what GPT training reads; leave it out"),
    ("--keep-newlines", 0, "it belongs to --split-sentences; newlines are always kept here; leave it out"),
    ("--lang", 1, "it belongs to --split-sentences; leave it out"),
    ("--seq-length", 1, "documents are stored whole and cut by training's --seq-length; leave it out"),
)


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
    writers = dict[str, IndexedDatasetWriter]()
    with outcome_told(lambda: [f"{prefix}.bin and .idx" for prefix, writer in writers.items() if writer.is_published]):
        return make_pairs(options, writers)


def make_pairs(options: argparse.Namespace, writers: dict[str, IndexedDatasetWriter]) -> Report:
    """writers: by prefix; filled here, so that the caller knows what is done when a signal ends the run."""
    for line in unused_tokenizer_flags(options):
        print(f"{NAME}: {line}", file=sys.stderr)
    sources = find_sources(options.input)
    make_encoder = partial(
        LineEncoder,
        tokenizer_config(options),
        keys=options.json_keys,
        append_eod=options.append_eod,
        special_tokens=not options.no_special_tokens,
    )
    encoder = make_encoder()  # wrong tokenizer files end the run here, before any process or file is made
    vocab_size = encoder.vocab_size
    prefixes = [f"{options.output_prefix}_{key}_document" for key in options.json_keys]
    protected = [options.tokenizer_model, options.vocab_file, options.merge_file, *(source.path for source in sources)]
    check_outputs(prefixes, protected=[path for path in protected if path is not None])
    make_folder_for(options.output_prefix, flag="--output-prefix")
    report = Report()
    with ExitStack() as opened:
        for prefix in prefixes:
            writers[prefix] = opened.enter_context(IndexedDatasetWriter(prefix, vocab_size=vocab_size))
            for line in writers[prefix].notes:
                print(line, file=sys.stderr)
        if encoder.note:
            say(encoder.note)
        if options.partitions > 1:
            say(f"--partitions {options.partitions}: not needed here; all --workers share every file, in order")
        # One worker works in this process, with the encoder that is made already.
        encode(options, sources, make_encoder if options.workers > 1 else lambda: encoder, [*writers.values()], report)
        if report.documents == 0:
            bad = f"; {report.bad_lines} bad lines:\n{report.bad_lines_text()}" if report.bad_lines else ""
            raise ConfigError(f"--input {' '.join(options.input)}: no documents in it; nothing was written{bad}")
        for source in sources:
            source.check_still_unchanged()
        for writer in writers.values():
            writer.seal()
    say(report.line())
    if report.bad_lines:
        say(f"{report.bad_lines} bad lines skipped:\n{report.bad_lines_text()}")
    for prefix, writer in writers.items():
        say(f"wrote {prefix}.bin and .idx ({writer.dtype.name}); train with --data-path {prefix}")
    return report


def encode(
    options: argparse.Namespace,
    sources: Sequence[TextSource],
    make_encoder: Callable[[], LineEncoder],
    writers: Sequence[IndexedDatasetWriter],
    report: Report,
) -> None:
    """Read everything, count it in the report, and give it to the writers.

    Under --on-error raise nothing is written from the first bad line on. Reading goes on without encoding until
    LISTED_BAD_LINES are found or the inputs end, so that one run shows what has to be corrected.
    Errors: ConfigError that lists bad lines; those of text_pieces, ordered_map and the writers.
    """

    def is_failing() -> bool:
        return options.on_error == "raise" and report.bad_lines > 0

    def tasks() -> Iterator[EncodeTask]:
        piece_bytes = piece_bytes_for(sources, workers=options.workers)
        for piece in text_pieces(sources, piece_bytes=piece_bytes):
            yield EncodeTask(piece, check_only=is_failing())

    total_bytes = total_input_bytes([source.identity and source.identity.num_bytes for source in sources])
    is_told, is_complete = False, True
    with (
        Progress(report, total_bytes=total_bytes, log_interval=options.log_interval) as progress,
        closing(ordered_map(make_encoder, tasks(), workers=options.workers)) as pieces,
    ):
        for piece in pieces:
            if is_failing() and not is_told:
                progress.say(
                    f"{report.listed[0]}\nNothing will be written; reading on to list up to {LISTED_BAD_LINES} of them"
                )
                is_told = True
            report.add(piece)
            progress.update(piece)
            if not is_failing():
                for writer, texts in zip(writers, piece.texts, strict=True):
                    writer.add_documents(texts.ids, texts.lengths)
            elif report.bad_lines >= LISTED_BAD_LINES:
                is_complete = False
                break
    if is_failing():
        raise ConfigError(bad_lines_message(report, is_complete=is_complete))


def bad_lines_message(report: Report, *, is_complete: bool) -> str:
    how_many = "in all" if is_complete else f"so far; reading stopped at {report.name}, line {report.lines_of_name}"
    said = "1 line is no document" if report.bad_lines == 1 else f"{report.bad_lines} lines are no documents"
    return (
        f"{said} ({how_many}); nothing was written. Correct them, or leave such lines "
        f"out with --on-error skip:\n{report.bad_lines_text()}"
    )


def check_outputs(prefixes: Sequence[str], *, protected: Sequence[str]) -> None:
    """Errors: ConfigError if an output, under any name, is one of the files that the run reads."""
    for output in (path(prefix) for prefix in prefixes for path in (bin_path, idx_path)):
        for name in protected if output.exists() else ():
            if os.path.samefile(output, name):
                raise ConfigError(
                    f"--output-prefix: {output} would replace {name}, which this run reads; choose another prefix"
                )


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = ToolParser(prog=NAME, description=__doc__.split("\n")[0])
    parser.add_argument(
        "--input",
        nargs="+",
        required=True,
        metavar="FILE",
        help="JSON lines, one document each; plain, gzip or Zstandard; quoted patterns; - is standard input",
    )
    parser.add_argument("--json-keys", nargs="+", default=["text"], metavar="KEY", help="keys whose texts are taken")
    parser.add_argument("--output-prefix", required=True, type=output_prefix, metavar="PREFIX", help=OUTPUT_HELP)
    add_tokenizer_flags(parser, required=True, refused=REFUSED_VALUES["tokenizer.tokenizer_type"])
    parser.add_argument("--append-eod", action="store_true", help="end-of-document id after each document")
    parser.add_argument(
        "--no-special-tokens", action="store_true", help="a literal <|endoftext|> in text becomes plain pieces"
    )
    parser.add_argument("--on-error", choices=("raise", "skip"), default="raise", help="what a bad line does")
    parser.add_argument("--workers", type=whole_number(1), required=True, help="processes that encode")
    parser.add_argument("--log-interval", type=whole_number(1), default=1000, help="documents between lines, without a bar")
    parser.add_argument("--dataset-impl", default="mmap", help="mmap, the only one left")
    parser.add_argument("--keep-sequential-samples", action="store_true", help="accepted: the order is always kept")
    parser.add_argument(
        "--partitions", type=whole_number(1), default=1, help="accepted: the files are the same for any number"
    )
    for flag, values, _ in REFUSED:
        parser.add_argument(flag, help=argparse.SUPPRESS, **({"nargs": 0} if values == 0 else {}), action=_Given)
    options = parser.parse_args(argv)
    faults = [
        f"{flag} is not implemented: {way_out}"
        for flag, _, way_out in REFUSED
        if getattr(options, flag[2:].replace("-", "_")) is not None
    ]
    if options.dataset_impl != "mmap":
        faults.append(f"--dataset-impl {options.dataset_impl}: the lazy and cached formats are retired; use mmap")
    if len(set(options.json_keys)) < len(options.json_keys):
        faults.append(f"--json-keys {' '.join(options.json_keys)}: a key comes twice, and both would write one file")
    faults += [
        f"--json-keys {key!r}: a key becomes part of a file name, so it has no /" for key in options.json_keys if "/" in key
    ]
    if faults:
        parser.error("; ".join(faults))
    return options


class _Given(argparse.Action):
    """Remembers that a refused flag was typed, so that all of them are named in one message."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        setattr(namespace, self.dest, values)


if __name__ == "__main__":
    sys.exit(run_tool(main))
