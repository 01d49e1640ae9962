"""Lengths that Megatron-DeepSpeed's preprocess_data --append-eod wrote one too short are put right in PREFIX.idx.

    python tools/repair_dataset.py data/theirs_text_document --tokenizer-type GPT2BPETokenizer \\
        --vocab-file vocab.json --merge-file merges.txt
    python tools/repair_dataset.py data/theirs_text_document --eod 50256

Only where the files prove it: .bin is larger by one element a sequence, and each sequence then ends with the
end-of-document id. .bin is not written; the old .idx stays as PREFIX.idx.previous.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing

from megatron_zero.config.fields import ConfigError
from megatron_zero.config.refused import REFUSED_VALUES
from megatron_zero.data.length_repair import plan_repair, write_repaired
from megatron_zero.data.prefix_lock import PrefixLock
from megatron_zero.data.staged_file import signals_held
from megatron_zero.data.stop_signals import outcome_told
from megatron_zero.data.tokenizer import build_tokenizer
from megatron_zero.data.tokenizer_flags import add_tokenizer_flags, tokenizer_config, unused_tokenizer_flags
from megatron_zero.data.tool_flags import ToolParser, whole_number
from megatron_zero.data.tool_process import run_tool, say

NAME = "repair_dataset.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 for a pair that is sound now; 1 with the reason on stderr (2 for a wrong command line)."""
    parser = ToolParser(prog=NAME, description=__doc__.split("\n")[0])
    parser.add_argument("prefix", help="the pair, without .bin or .idx")
    parser.add_argument("--eod", type=whole_number(0), metavar="ID", help="end-of-document id, in place of a tokenizer")
    add_tokenizer_flags(parser, required=False, refused=REFUSED_VALUES["tokenizer.tokenizer_type"])
    options = parser.parse_args(argv)
    if (options.eod is None) == (options.tokenizer_type is None):
        parser.error("give the end-of-document id of the data: either --eod ID or --tokenizer-type with its files")
    for line in unused_tokenizer_flags(options):
        print(f"{NAME}: {line}", file=sys.stderr)
    try:
        said = repair(options)
    except (ConfigError, OSError) as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 1
    say(said)
    return 0


def repair(options: argparse.Namespace) -> str:
    """What was done, in words. Errors: ConfigError, OSError."""
    eod = options.eod if options.eod is not None else build_tokenizer(tokenizer_config(options)).eod
    plan = plan_repair(options.prefix, eod=eod)
    if plan is None:
        return f"{options.prefix}: sound; nothing was changed"
    written = list[str]()
    with outcome_told(lambda: written), closing(PrefixLock(options.prefix)) as lock:
        if warning := lock.warning():
            print(warning, file=sys.stderr)
        with signals_held():
            kept = write_repaired(plan, options.prefix)
            written.append(f"{options.prefix}.idx")
    return f"{options.prefix}.idx: {len(plan.lengths)} lengths are one longer; the old index is {kept}"


if __name__ == "__main__":
    sys.exit(run_tool(main))
