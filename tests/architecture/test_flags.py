"""Every flag and JSON key of the design pages is accepted, or refused by name: none is unknown or ignored in silence.

The names live in the code (knobs, refused.py, refused_keys.py). With MZ_SHARED set they are also compared with the
pages themselves, and with the flags of the script in thread 003.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from megatron_zero.config.cli import flag_knobs, known_flags, read_command_line
from megatron_zero.config.ds_json import json_knobs, read_ds_config
from megatron_zero.config.refused import foreign_flags
from megatron_zero.config.refused_keys import BLOCKS, KEYS, NO_EFFECT

needs_pages = pytest.mark.skipif(
    "MZ_SHARED" not in os.environ, reason="MZ_SHARED does not name the folder with the design pages"
)
# Words of the pages that are no flag: argparse's own, the example "--flag=value", the stem of eight unnamed flags.
NOT_FLAGS = frozenset({"--help", "--flag", "--analyzing-"})


def page(name: str) -> str:
    return (Path(os.environ["MZ_SHARED"]) / name).read_text(encoding="utf-8")


def flags_in(text: str) -> set[str]:
    """Flags between backquotes; "--a-iters/-samples" names two."""
    found: set[str] = set()
    for code in re.findall(r"`([^`]*)`", text):
        for flag, ending in re.findall(r"(?<![\w-])(--[A-Za-z][\w-]*)((?:/-\w+)*)", code):
            found.add(flag)
            found.update(flag.rsplit("-", 1)[0] + other for other in re.findall(r"-\w+", ending))
    return found - NOT_FLAGS


def test_a_known_flag_is_never_answered_as_unknown() -> None:
    for flag in known_flags():
        (*answers,) = read_command_line([flag, "1"]).problems
        assert not any("unknown flag" in answer for answer in answers)


def test_the_counts_of_known_flags_do_not_shrink() -> None:
    """314 flags of Megatron-DeepSpeed, the core names, the launcher's and the tools'."""
    assert len(flag_knobs()) >= 70
    assert len(known_flags()) >= 480


def test_knobs_and_refused_keys_do_not_overlap() -> None:
    tables = (set(json_knobs()), set(KEYS), set(BLOCKS), set(NO_EFFECT))
    assert sum(map(len, tables)) == len(set().union(*tables))
    for block in BLOCKS:
        assert not any(path.startswith(block + ".") for path in (*json_knobs(), *KEYS, *NO_EFFECT))


@needs_pages
def test_every_flag_of_cli_md_is_known() -> None:
    text = page("design/cli.md")
    rows = {flag for line in text.splitlines() if line.startswith("| `--") for flag in flags_in(line.split(" | ")[0])}
    assert len(rows) > 380
    assert sorted((rows | flags_in(text)) - set(known_flags())) == []


@needs_pages
def test_every_flag_of_the_script_in_thread_003_is_accepted() -> None:
    text = page("threads/003_twin_flow_ratio_2.7B_script.txt")
    script = text[text.index("megatron_options=") : text.index("run_cmd=")]
    flags = set(re.findall(r"(?<![\w-])--[\w-]+", script)) | {
        "--vocab-file",
        "--merge-file",
        "--data-path",
        "--data-impl",
    }
    assert len(flags) == 59
    foreign = foreign_flags()
    for flag in flags:
        assert flag in flag_knobs() or not foreign[flag].refused or foreign[flag].off == ("1",)


def keys_in(text: str) -> set[str]:
    """Dotted keys of the tables in json.md; "a.b, c" names a.b and a.c, "a.*" the block a."""
    keys: set[str] = set()
    for row in re.findall(r"^\| `([^`|]+)`", text, re.MULTILINE):
        if row.startswith("optimizer ("):
            continue
        first, *others = [re.sub(r"[()]|\(also .*|\(old.*", "", part).strip() for part in row.split(", ")]
        keys.add(first)
        parent = first.rsplit(".", 1)[0] + "." if "." in first and not first.endswith(".*") else ""
        keys.update(other if "." in other else parent + other for other in others)
    return {key.split(" ")[0] for key in keys}


@needs_pages
def test_every_key_of_json_md_is_known() -> None:
    text = page("design/json.md")
    keys = keys_in(text[text.index("## 4. Keys") : text.index("## 5.")])
    assert len(keys) > 160
    unknown = []
    for key in sorted(keys):
        path = key.removesuffix(".*")
        inner = '{"enabled": true}' if key.endswith(".*") else '"some value"'
        json = inner
        for part in reversed(path.split(".")):
            json = f'{{"{part}": {json}}}'
        reading = read_ds_config(json, name="ds.json")
        if any("unknown key" in problem for problem in reading.problems) or not (reading.problems or reading.notes):
            unknown.append(key)
    assert unknown == []
