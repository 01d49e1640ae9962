"""What a .bin/.idx pair holds: documents, tokens, lengths, and samples as ids or text.

    python tools/inspect_dataset.py data/my_text_document --sample 3 --tokenizer-type GPT2BPETokenizer \\
        --vocab-file vocab.json --merge-file merges.txt

.idx is checked against .bin; .bin itself is read with --scan only. NaN and infinities, in pairs of a floating-point type,
are counted and shown as null.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

from megatron_zero.config.fields import ConfigError
from megatron_zero.config.refused import REFUSED_VALUES
from megatron_zero.data.indexed_dataset import open_prefix
from megatron_zero.data.summary import LengthBucket, Sample, Summary, sample_documents, summarize
from megatron_zero.data.tokenizer import build_tokenizer
from megatron_zero.data.tokenizer_flags import add_tokenizer_flags, tokenizer_config, unused_tokenizer_flags
from megatron_zero.data.tool_flags import ToolParser, whole_number
from megatron_zero.data.tool_process import run_tool

NAME = "inspect_dataset.py"
SAMPLE_IDS = 200
BAR_WIDTH = 40


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 with the reason on stderr (2 for a wrong command line)."""
    parser = ToolParser(prog=NAME, description=__doc__.split("\n")[0])
    parser.add_argument("prefix", help="the pair, without .bin or .idx")
    parser.add_argument("--scan", action="store_true", help="read all of .bin for the smallest and largest id")
    parser.add_argument("--sample", type=whole_number(0), default=0, metavar="N", help="show the beginning of N documents")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    add_tokenizer_flags(parser, required=False, refused=REFUSED_VALUES["tokenizer.tokenizer_type"])
    options = parser.parse_args(argv)
    for line in unused_tokenizer_flags(options):
        print(f"{NAME}: {line}", file=sys.stderr)
    try:
        tokenizer = build_tokenizer(tokenizer_config(options)) if options.tokenizer_type is not None else None
        dataset = open_prefix(options.prefix, flag="prefix")
        summary = summarize(dataset, scan=options.scan)
        samples = sample_documents(dataset, count=options.sample, max_ids=SAMPLE_IDS, tokenizer=tokenizer)
    except (ConfigError, OSError) as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 1
    if options.json:
        found = dataclasses.asdict(summary) | {"samples": [dataclasses.asdict(sample) for sample in samples]}
        print(json.dumps(found, allow_nan=False))
    else:
        print("\n".join([*summary_lines(summary), *(line for sample in samples for line in sample_lines(sample))]))
    return 0


def summary_lines(summary: Summary) -> list[str]:
    lines = [
        f"{summary.prefix}",
        f"  documents  {summary.documents} ({summary.empty_documents} empty), {summary.sequences} sequences",
        f"  tokens     {summary.tokens} ({summary.dtype})",
        f"  bytes      {summary.bin_bytes} in .bin, {summary.idx_bytes} in .idx",
        f"  length     min {summary.min_length}, median {summary.median_length:g}, mean {summary.mean_length:.1f}, "
        f"max {summary.max_length}",
    ]
    if summary.largest_id is not None or summary.not_finite:
        # Elements of a floating-point type are no ids.
        what = "ids   " if summary.dtype.startswith(("int", "uint")) else "values"
        among = "none is finite" if summary.largest_id is None else f"{summary.smallest_id} to {summary.largest_id}"
        left_out = f"; NaN or infinite: {summary.not_finite}" if summary.not_finite else ""
        lines.append(f"  {what}     {among}{left_out}")
    return lines + histogram_lines(summary.lengths)


def histogram_lines(buckets: Sequence[LengthBucket]) -> list[str]:
    most = max((bucket.documents for bucket in buckets), default=0)
    ranges = [
        f"{bucket.lowest}-{bucket.highest}" if bucket.highest > bucket.lowest else str(bucket.lowest) for bucket in buckets
    ]
    width = max((len(text) for text in ranges), default=0)
    return [
        f"  {text:>{width}}  {'#' * -(-bucket.documents * BAR_WIDTH // most)} {bucket.documents}"
        for text, bucket in zip(ranges, buckets, strict=True)
    ]


def sample_lines(sample: Sample) -> list[str]:
    ids = ("null" if token is None else str(token) for token in sample.ids)
    shown = " ".join(ids) if sample.text is None else repr(sample.text)
    more = " ..." if sample.length > len(sample.ids) else ""
    if None in sample.ids:
        more += f"\n  null: NaN or infinite, {sample.ids.count(None)} of the {len(sample.ids)} shown"
    return [f"document {sample.document}, {sample.length} tokens", f"  {shown}{more}"]


if __name__ == "__main__":
    sys.exit(run_tool(main))
