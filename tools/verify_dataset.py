"""Whether a .bin/.idx pair is sound: .idx against .bin, every id against the vocabulary, and checksums.

    python tools/verify_dataset.py data/my_text_document --vocab-size 50257 --write-checksums
    python tools/verify_dataset.py data/my_text_document --vocab-size 50257      (later: also checks the checksums)

Reads both files whole. Exit status 1 on any fault.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from megatron_zero.config.fields import ConfigError
from megatron_zero.config.refused import REFUSED_VALUES
from megatron_zero.data.tokenizer import build_tokenizer
from megatron_zero.data.tokenizer_flags import add_tokenizer_flags, tokenizer_config, unused_tokenizer_flags
from megatron_zero.data.tool_flags import ToolParser
from megatron_zero.data.tool_process import run_tool
from megatron_zero.data.verification import Verification, checksums_path, verify, write_checksums

NAME = "verify_dataset.py"
LIMIT_HELP = (
    "every id lies below N, whatever else is given; with NullTokenizer N itself is one, its end of document. A tokenizer's "
    "own size is checked, too"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 for a sound pair; 1 with the faults on stderr (2 for a wrong command line)."""
    parser = ToolParser(prog=NAME, description=__doc__.split("\n")[0])
    parser.add_argument("prefix", help="the pair, without .bin or .idx")
    parser.add_argument(
        "--write-checksums", action="store_true", help="write PREFIX.sha256 if there is none and all is well"
    )
    refused = REFUSED_VALUES["tokenizer.tokenizer_type"]
    add_tokenizer_flags(parser, required=False, refused=refused, vocab_size_help=LIMIT_HELP)
    options = parser.parse_args(argv)
    for line in unused_tokenizer_flags(options, used_anyway="vocab_size"):
        print(f"{NAME}: {line}", file=sys.stderr)
    try:
        result = verify(options.prefix, vocab_size=vocab_size_of(options))
        said = verdict(options.prefix, result, write=options.write_checksums)
    except (ConfigError, OSError) as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 1
    for path, digest in result.checksums.items():
        print(f"{digest}  {path}")
    print(said, file=sys.stderr if result.num_faults > 0 else None)
    return 1 if result.num_faults > 0 else 0


def vocab_size_of(options: argparse.Namespace) -> int | None:
    """What every id lies below, as LIMIT_HELP has it. None: neither a number nor a tokenizer is given."""
    limit: int | None = options.vocab_size
    if options.tokenizer_type is None:
        return limit
    own = build_tokenizer(tokenizer_config(options)).vocab_size
    return own if limit is None or options.tokenizer_type == "NullTokenizer" else min(own, limit)


def verdict(prefix: str, result: Verification, *, write: bool) -> str:
    """What is said of the pair; writes the checksums of a sound one, if it has none. Errors: OSError."""
    if result.num_faults > 0:
        more = result.num_faults - len(result.faults)
        lines = [*result.faults, *([f"and {more} more"] if more > 0 else [])]
        return f"{NAME}: {prefix}: faults: {result.num_faults}\n" + "\n".join(f"  {line}" for line in lines)
    if checksums_path(prefix).exists():
        return f"{prefix}: sound, and as {checksums_path(prefix)} has it"
    if write:
        return f"{prefix}: sound; wrote {write_checksums(prefix, result.checksums)}"
    return f"{prefix}: sound"


if __name__ == "__main__":
    sys.exit(run_tool(main))
