"""Train a SentencePiece BPE model on JSON lines, such that every text comes back from it exactly.

    python tools/train_sentencepiece.py --input sources.jsonl --output tokenizer.model

Nothing is normalised, white space is kept and may form pieces, a newline is a piece of its own, and characters without
a piece become bytes. One character alone does not come back: U+2581, which SentencePiece itself writes for a space (all
of Unicode was tried). Documents that hold it are left out of the training and counted. The model's </s> ends a
document: use it as --tokenizer-type GPTSentencePieceTokenizer.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import sentencepiece

from megatron_zero.config.fields import ConfigError
from megatron_zero.data.line_encoder import BadLineError, texts_of_line
from megatron_zero.data.staged_file import StagedFile, make_folder_for
from megatron_zero.data.stop_signals import outcome_told
from megatron_zero.data.text_input import TextSource, find_sources
from megatron_zero.data.text_pieces import MAX_PIECE_BYTES, text_pieces
from megatron_zero.data.tool_flags import ToolParser, whole_number
from megatron_zero.data.tool_process import run_tool, say

NAME = "train_sentencepiece.py"
SENTENCEPIECE_SPACE = "\u2581"
MAX_LINE_BYTES = 1 << 20  # the library leaves longer sentences out without a word; such lines are cut instead
MIN_PIECES = 3 + 1 + 256  # unknown, begin, end; the newline; the bytes
MAX_PIECES = 2**31 - 1  # the library's numbers
MAX_THREADS = 1024  # the library's rule


@dataclass(slots=True)
class Corpus:
    """The lines of the documents, up to a number of characters; counts what it has given so far.

    fault: what ended lines() early; the library would wrap it in an error of its own, whatever it is.
    """

    inputs: Sequence[TextSource]
    key: str
    max_characters: int
    documents: int = 0
    characters: int = 0
    left_out: int = 0
    fault: BaseException | None = None

    def lines(self) -> Iterator[str]:
        """Lines without their newline, not empty. Errors: ConfigError naming file and line of a bad document."""
        try:
            yield from self._lines()
        except BaseException as error:
            self.fault = error
            raise

    def _lines(self) -> Iterator[str]:
        for text in self._texts():
            if SENTENCEPIECE_SPACE in text:
                self.left_out += 1
                continue
            if self.characters + len(text) > self.max_characters and self.documents > 0:
                return
            self.documents += 1
            self.characters += len(text)
            for line in text.split("\n"):
                for start in range(0, len(line), MAX_LINE_BYTES // 4):
                    yield line[start : start + MAX_LINE_BYTES // 4]

    def _texts(self) -> Iterator[str]:
        number, name = 0, ""
        for piece in text_pieces(self.inputs, piece_bytes=MAX_PIECE_BYTES):
            number, name = (number if piece.name == name else 0), piece.name
            lines = piece.read().split(b"\n")
            for line in lines if lines[-1] else lines[:-1]:
                number += 1
                try:
                    yield texts_of_line(line, [self.key])[0]
                except BadLineError as error:
                    raise ConfigError(f"{name}, line {number}: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 with the reason on stderr."""
    parser = ToolParser(prog=NAME, description=__doc__.split("\n")[0])
    parser.add_argument("--input", nargs="+", required=True, metavar="FILE", help="JSON lines; also gzip, Zstandard, -")
    parser.add_argument("--json-key", default="text", help="key that holds a document's text")
    parser.add_argument("--output", required=True, type=Path, help="model file to write")
    parser.add_argument("--vocab-size", type=whole_number(MIN_PIECES, MAX_PIECES), default=4096, help="number of pieces")
    parser.add_argument(
        "--max-characters",
        type=whole_number(1),
        default=50_000_000,
        help="train on the first documents, up to this much text",
    )
    parser.add_argument("--threads", type=whole_number(1, MAX_THREADS), default=2)
    options = parser.parse_args(argv)
    started = time.monotonic()
    try:
        corpus = Corpus(find_sources(options.input), options.json_key, options.max_characters)
        check_output(options.output, corpus.inputs)
        train(corpus, options.output, vocab_size=options.vocab_size, threads=options.threads)
    except (ConfigError, OSError) as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 1
    say(
        f"{options.output}: {options.vocab_size} pieces from {corpus.documents} documents, "
        f"{corpus.characters / 1e6:.1f} million characters, in {time.monotonic() - started:.1f} s"
    )
    if corpus.left_out > 0:
        say(f"  left out, holds U+2581, which SentencePiece gives back as a space: {corpus.left_out} documents")
    return 0


def check_output(output: Path, inputs: Sequence[TextSource]) -> None:
    """ConfigError where the model would replace what it is made from."""
    for source in inputs:
        if source.path is not None and output.exists() and os.path.samefile(output, source.path):
            raise ConfigError(f"--output {output} would replace {source.name}, which this run reads; choose another name")


def train(corpus: Corpus, output: Path, *, vocab_size: int, threads: int) -> None:
    """Train on the corpus and write the model file. Errors: ConfigError, also of the corpus; OSError with the path."""
    model = io.BytesIO()
    make_folder_for(output, flag="--output")
    # A path that cannot be written ends the run before the training.
    with StagedFile(output) as file, outcome_told(lambda: [str(output)] if file.is_published else []):
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=corpus.lines(),
                model_writer=model,
                model_type="bpe",
                vocab_size=vocab_size,
                normalization_rule_name="identity",
                byte_fallback=True,
                remove_extra_whitespaces=False,
                add_dummy_prefix=False,
                allow_whitespace_only_pieces=True,
                user_defined_symbols=["\n"],
                max_sentence_length=MAX_LINE_BYTES,
                num_threads=threads,
                minloglevel=2,
            )
        except RuntimeError as error:
            if corpus.fault is not None:
                raise corpus.fault from None
            raise ConfigError(
                f"SentencePiece cannot make {vocab_size} pieces of {corpus.documents} documents with "
                f"{corpus.characters} characters: {error}; give more text or a smaller --vocab-size"
            ) from error
        file.write(model.getvalue())
        file.seal()
        file.publish()


if __name__ == "__main__":
    sys.exit(run_tool(main))
