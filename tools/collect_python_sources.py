"""The running Python's standard library as JSON lines, one source file a document: text that every machine has.

    python tools/collect_python_sources.py --output sources.jsonl

Files come in an order that looks random and is the same on every machine with this Python (by a digest of the path), so
that any part of the output, like a validation split at its end, is a fair sample. Text is read as it is: no newline is
translated, and what cannot come back exactly from a SentencePiece tokenizer is left out and counted.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from megatron_zero.data.staged_file import StagedFile, make_folder_for
from megatron_zero.data.stop_signals import outcome_told
from megatron_zero.data.tool_flags import ToolParser, whole_number
from megatron_zero.data.tool_process import run_tool, say

NAME = "collect_python_sources.py"
FOREIGN_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})
SENTENCEPIECE_SPACE = "\u2581"

NOT_UTF8 = "not UTF-8"
EMPTY = "empty"
HOLDS_SPACE_MARK = "holds U+2581, which SentencePiece writes for a space and gives back as one"
BEYOND_CAP = "beyond --max-bytes"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 with the reason on stderr."""
    parser = ToolParser(prog=NAME, description=__doc__.split("\n")[0])
    parser.add_argument("--output", required=True, type=Path, help="JSON lines file to write: keys text and file")
    parser.add_argument("--root", type=Path, default=Path(sysconfig.get_path("stdlib")), help="folder to collect from")
    parser.add_argument(
        "--max-bytes", type=whole_number(1), default=None, help="stop before the text exceeds this many bytes"
    )
    options = parser.parse_args(argv)
    try:
        counts = collect(options.root, options.output, max_bytes=options.max_bytes)
    except OSError as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 1
    if counts["documents"] == 0:
        print(f"{NAME}: error: no Python source in {options.root}; nothing was written", file=sys.stderr)
        return 1
    say(f"{options.output}: {counts.pop('documents')} documents, {counts.pop('bytes') / 1e6:.1f} MB of text")
    for reason, files in sorted(counts.items()):
        say(f"  left out, {reason}: {files} files")
    return 0


def collect(root: Path, output: Path, *, max_bytes: int | None = None) -> Counter[str]:
    """Write the documents; nothing where there are none. Returns "documents", "bytes" (UTF-8, of the texts), and by
    reason the number of files left out. Errors: OSError with the path."""
    counts: Counter[str] = Counter()
    make_folder_for(output, flag="--output")
    with StagedFile(output) as file, outcome_told(lambda: [str(output)] if file.is_published else []):
        for name in sorted(python_files(root), key=lambda name: hashlib.sha256(name.encode()).digest()):
            raw = (root / name).read_bytes()
            reason = reason_to_leave_out(raw)
            if reason is None and max_bytes is not None and counts["bytes"] + len(raw) > max_bytes:
                reason = BEYOND_CAP
            if reason is not None:
                counts[reason] += 1
                continue
            document = {"text": raw.decode("utf-8"), "file": name}
            file.write(json.dumps(document, ensure_ascii=False).encode("utf-8") + b"\n")
            counts["documents"] += 1
            counts["bytes"] += len(raw)
        if counts["documents"] > 0:
            file.seal()
            file.publish()
    return counts


def python_files(root: Path) -> Iterator[str]:
    """Paths of the .py files below root, relative, with forward slashes; installed packages are not among them."""
    for folder, subfolders, files in os.walk(root, onerror=_raise):
        subfolders[:] = [name for name in subfolders if name not in FOREIGN_FOLDERS]
        for name in files:
            path = Path(folder, name)
            if path.suffix == ".py" and path.is_file():
                yield path.relative_to(root).as_posix()


def reason_to_leave_out(raw: bytes) -> str | None:
    """Why a file is no document, or None."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return NOT_UTF8
    if text == "":
        return EMPTY
    return HOLDS_SPACE_MARK if SENTENCEPIECE_SPACE in text else None


def _raise(error: OSError) -> None:
    raise error


if __name__ == "__main__":
    sys.exit(run_tool(main))
