"""Several .bin/.idx pairs -> one, in the order given, with the flags of Megatron's tool of this name.

    python tools/merge_datasets.py --input FOLDER --output-prefix data/all
    python tools/merge_datasets.py --input data/a_text_document data/b_text_document --output-prefix data/all

A folder means all pairs in it, by name. The result is what preprocessing the texts together would have made.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from megatron_zero.config.fields import ConfigError
from megatron_zero.data.indexed_dataset import IndexedDatasetWriter
from megatron_zero.data.merge import merge, plan_merge
from megatron_zero.data.staged_file import make_folder_for
from megatron_zero.data.stop_signals import outcome_told
from megatron_zero.data.tool_flags import ToolParser, output_prefix
from megatron_zero.data.tool_process import allow_open_files, run_tool, say

NAME = "merge_datasets.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 with the reason on stderr (2 for a wrong command line)."""
    parser = ToolParser(prog=NAME, description=__doc__.split("\n")[0])
    parser.add_argument(
        "--input", nargs="+", required=True, metavar="PREFIX", help="pairs without .bin or .idx, or folders of pairs"
    )
    parser.add_argument(
        "--output-prefix",
        required=True,
        type=output_prefix,
        metavar="PREFIX",
        help="outputs are PREFIX.bin and PREFIX.idx; folders that are not there are made",
    )
    options = parser.parse_args(argv)
    try:
        plan = plan_merge(options.input, output=options.output_prefix)
        for line in plan.folder_lines():
            say(line)
        if text := plan.widening_text():
            say(text)
        for line in plan.repeat_lines():
            print(f"{NAME}: warning: {line}", file=sys.stderr)
        make_folder_for(options.output_prefix, flag="--output-prefix")
        writer = IndexedDatasetWriter(options.output_prefix, dtype=plan.dtype)
        with outcome_told(lambda: [f"{options.output_prefix}.bin and .idx"] if writer.is_published else []), writer:
            for line in writer.notes:
                print(line, file=sys.stderr)
            merge(plan, writer)
    except (ConfigError, OSError) as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 1
    say(
        f"{len(plan.datasets)} pairs, {writer.num_documents} documents, {writer.num_elements} tokens: wrote "
        f"{options.output_prefix}.bin and .idx ({plan.dtype.name})"
    )
    return 0


if __name__ == "__main__":
    allow_open_files()  # two for each pair
    sys.exit(run_tool(main))
