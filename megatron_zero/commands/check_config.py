"""`mz check-config`: the configuration alone, before any GPU is touched. No torch.

With --config and flags it does what a run does first, and prints the merged configuration. With --template and --script
it plays the script's sed lines and tells which placeholders nobody fills and which patterns match nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from megatron_zero.config.ds_json import load_ds_config
from megatron_zero.config.fields import ConfigError, raise_all
from megatron_zero.config.load import LoadedConfig, format_provenance, load_run_config
from megatron_zero.config.placeholders import find_placeholder

# sed "s/WORD/value/": any delimiter sed takes, and a value that may hold ${NAME/a/b} only if the delimiter is another.
_SED: Final = re.compile(r"""\bs(?P<mark>[/|#,@])(?P<word>[^/|#,@\n]+)(?P=mark)(?P<value>[^"'\n]*?)(?P=mark)g?""")
# An entry WORD:VARIABLE of the list TEMPLATE_WORDS in examples/scripts/common.sh.
_PAIR: Final = re.compile(r"^\s+(?P<word>[A-Z][A-Z0-9_]*):(?P<value>[A-Z][A-Z0-9_]*)$", re.MULTILINE)
_SOURCED: Final = re.compile(r"""^\s*(?:source|\.)\s.*?(?P<name>[\w.-]+\.sh)["']?\s*$""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Leftover:
    line: int
    word: str


def main(argv: Sequence[str]) -> int:
    """0: usable, 1: not (the reasons are on stderr)."""
    words = list(argv)
    split = words.index("--") if "--" in words else len(words)
    parser = _parser()
    options = parser.parse_args(words[:split])
    flags = words[split + 1 :]
    if (options.config is None) == (options.template is None):
        parser.error("give either --config X.json [-- training flags] or --template T.json --script S.sh")
    try:
        if options.config is None:
            check_template(Path(options.template), [Path(script) for script in options.script])
        elif flags:
            show_loaded(load_run_config([*flags, "--deepspeed", "--deepspeed_config", options.config]))
        else:
            check_json(options.config)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mz check-config",
        allow_abbrev=False,
        usage="mz check-config --config X.json [-- training flags] | --template T.json --script S.sh ...",
        description="Check a configuration without touching a GPU. Exit code 0: usable, 1: not.",
    )
    parser.add_argument("--config", help="a filled JSON; with the training flags after -- the whole run is checked")
    parser.add_argument("--template", help="a JSON template with placeholders")
    parser.add_argument("--script", nargs="+", default=[], help="the scripts whose sed lines fill the template")
    return parser


def check_json(path: str) -> None:
    """Print what the JSON alone gives; raise ConfigError with all that is wrong in it."""
    reading = load_ds_config(path)
    raise_all(reading.problems)
    for field, given in reading.given.items():
        print(f"{field} = {given.value}  [{given.source}]")
    for note in reading.notes:
        print(f"note: {note}")
    print(f"{path}: usable (give the training flags after -- to check the whole run)")


def show_loaded(loaded: LoadedConfig) -> None:
    print(format_provenance(loaded))
    for note in loaded.notes:
        print(f"note: {note}")
    for warning in loaded.warnings:
        print(f"warning: {warning}")
    print("configuration: usable (what depends on the number of processes is checked at launch)")


def check_template(template: Path, scripts: Sequence[Path]) -> None:
    """Print the patterns that match nothing; raise ConfigError for the placeholders that no script fills."""
    if not scripts:
        raise ConfigError("--template needs --script: the scripts whose sed lines fill it")
    text = _read(template)
    patterns = dict.fromkeys(pattern for script in scripts for pattern in patterns_of(script))
    if not patterns:
        raise ConfigError(f"{', '.join(map(str, scripts))}: no sed line s/WORD/value/ was found")
    for pattern in patterns:
        if not re.search(pattern, text):
            print(f"note: the pattern {pattern} matches nothing in {template.name} (legal: not every template has it)")
    raise_all(
        [
            f"{template.name}:{leftover.line}: placeholder {leftover.word} is filled by no sed line"
            for leftover in leftovers(text, list(patterns))
        ]
    )
    print(f"{template}: every placeholder is filled by {', '.join(map(str, scripts))}")


def patterns_of(script: Path) -> Iterator[str]:
    """The words a script replaces, as regular expressions, in order; scripts it sources from its own folder first."""
    text = _read(script)
    for match in _SOURCED.finditer(text):
        sourced = script.parent / match["name"]
        if sourced.is_file() and sourced != script:
            yield from patterns_of(sourced)
    for match in sorted((*_SED.finditer(text), *_PAIR.finditer(text)), key=lambda found: found.start()):
        word = match["word"]
        if re.fullmatch(r"[\w$<>{}]+", word):  # anything else edits text, it fills no placeholder
            yield re.escape(word)


def leftovers(text: str, patterns: Sequence[str]) -> Iterator[Leftover]:
    """Placeholders of a template that no pattern replaces: bare capitals, known words, $NAME, <...>, CONFIG_*."""
    filled = text
    for pattern in patterns:
        filled = re.sub(pattern, "0", filled)
    for number, line in enumerate(filled.splitlines(), start=1):
        code = re.sub(r"""("(?:\\.|[^"\\])*")|(?:\#|//).*""", lambda match: match[1] or "", line)
        for quoted, bare in re.findall(r'"((?:\\.|[^"\\])*)"|([^\s"{}\[\],:]+)', code):
            word = find_placeholder(quoted or bare)
            if word is None and bare and re.fullmatch(r"[A-Z][A-Z0-9_]+", bare):
                word = bare
            if word is not None:
                yield Leftover(number, word)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
