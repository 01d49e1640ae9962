"""A small GPT-2 style vocabulary: the 256 bytes, <|endoftext|>, and some merges."""

from __future__ import annotations

import json
from pathlib import Path

from megatron_zero.data.gpt2_bpe import END_OF_TEXT, byte_alphabet

MERGES = (("t", "h"), ("th", "e"), ("\u0120", "the"), ("a", "b"), ("b", "c"), ("ab", "ab"))
VOCABULARY = (*byte_alphabet(), *(left + right for left, right in MERGES), END_OF_TEXT)


def write_bpe_files(folder: Path) -> tuple[Path, Path]:
    """vocab.json and merges.txt in a folder; ids are the positions in VOCABULARY."""
    vocab_file, merge_file = folder / "vocab.json", folder / "merges.txt"
    vocab_file.write_text(json.dumps({piece: token for token, piece in enumerate(VOCABULARY)}), encoding="utf-8")
    lines = "".join(f"{left} {right}\n" for left, right in MERGES)
    merge_file.write_text("#version: 0.2\n" + lines, encoding="utf-8")
    return vocab_file, merge_file
