"""`mz check-config`: exit codes, and the play of sed lines on a template."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers.config_cases import SCRIPT_TEMPLATE, filled_script_json, minimal_argv, script_argv

from megatron_zero.commands.main import main

SED_LINES = """\
template_json="ds_config_gpt_TEMPLATE.json"
sed "s/CONFIG_BATCH_SIZE/${GLOBAL_BATCH_SIZE}/" ${template_json} \\
    | sed "s/CONFIG_MBSIZE/${BATCH_SIZE}/" \\
    | sed "s/LOG_INTERVAL/${LOG_INTERVAL}/" \\
    | sed "s/ZERO_STAGE/3/" \\
    | sed "s/PRESCALE_GRAD/true/" \\
    | sed "s/CONFIG_FP16_ENABLED/false/" \\
    | sed "s|CONFIG_BF16_ENABLED|true|g" \\
      > ${config_json}
"""


def check(*words: str) -> int:
    return main(["check-config", *words])


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_a_filled_json_alone_is_usable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--config", write(tmp_path, "ds.json", filled_script_json())) == 0
    assert "zero.stage = 3  [ds.json:7]" in capsys.readouterr().out


def test_json_and_flags_are_checked_as_a_run_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = script_argv(tmp_path)
    assert check("--config", str(tmp_path / "ds_config_gpt.json"), "--", *argv) == 0
    output = capsys.readouterr().out
    assert "warning: bf16 is on from ds_config_gpt.json:28; overrides --fp16" in output
    assert "note: --moe-loss-coeff 0.01" in output


@pytest.mark.parametrize(
    "text, flags", [(SCRIPT_TEMPLATE, ""), ("{}", "--split-transformers"), ('{"zero_optimisation": {}}', "")]
)
def test_an_unusable_configuration_exits_1_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, flags: str
) -> None:
    assert check("--config", write(tmp_path, "ds.json", text), "--", *minimal_argv(flags)) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_a_template_whose_words_are_all_filled_passes_with_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = write(tmp_path, "T.json", SCRIPT_TEMPLATE)
    assert check("--template", template, "--script", write(tmp_path, "s.sh", SED_LINES)) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note:")]
    assert [note.split()[3] for note in notes] == ["ZERO_STAGE", "PRESCALE_GRAD"]


@pytest.mark.parametrize("word", ["CONFIG_BATCH_SIZE", "CONFIG_MBSIZE", "CONFIG_FP16_ENABLED", "CONFIG_BF16_ENABLED"])
def test_a_word_without_a_sed_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], word: str) -> None:
    """H48."""
    lines = [line for line in SED_LINES.splitlines() if f"{word}/" not in line and f"{word}|" not in line]
    script = write(tmp_path, "s.sh", "\n".join(lines))
    assert check("--template", write(tmp_path, "T.json", SCRIPT_TEMPLATE), "--script", script) == 1
    assert f"placeholder {word} is filled by no sed line" in capsys.readouterr().err


def test_words_in_quotes_keys_and_comments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = '{"a": "CONFIG_MBSIZE", # NOT_A_WORD\n "CL_1st_METRIC_NAME": "text", "b": "http://x" // NEITHER\n}'
    path = write(tmp_path, "T.json", template)
    assert check("--template", path, "--script", write(tmp_path, "s.sh", "sed 's/ZERO_STAGE/3/'\n")) == 1
    errors = capsys.readouterr().err
    assert "T.json:1: placeholder CONFIG_MBSIZE" in errors
    assert "T.json:2: placeholder CL_1st_METRIC_NAME" in errors
    assert "NOT_A_WORD" not in errors
    assert "NEITHER" not in errors


def test_a_sourced_script_and_its_word_list_count(tmp_path: Path) -> None:
    words = "CONFIG_BATCH_SIZE CONFIG_MBSIZE LOG_INTERVAL CONFIG_FP16_ENABLED CONFIG_BF16_ENABLED"
    pairs = "".join(f"    {word}:SOME_VARIABLE\n" for word in words.split())
    write(tmp_path, "common.sh", f"TEMPLATE_WORDS=(\n{pairs})\n")
    script = write(tmp_path, "s.sh", 'source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"\n')
    assert check("--template", write(tmp_path, "T.json", SCRIPT_TEMPLATE), "--script", script) == 0


def test_a_script_without_sed_lines_or_a_missing_file_exits_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    template = write(tmp_path, "T.json", SCRIPT_TEMPLATE)
    assert check("--template", template, "--script", write(tmp_path, "s.sh", "echo\n")) == 1
    assert check("--template", template, "--script", str(tmp_path / "none.sh")) == 1
    assert check("--template", template) == 1
    assert capsys.readouterr().err.count("error: ") == 3


def test_no_torch_is_imported(tmp_path: Path) -> None:
    argv = ["check-config", "--config", write(tmp_path, "ds.json", filled_script_json())]
    code = (
        "import sys; from megatron_zero.commands.main import main; code = main(sys.argv[1:]);"
        " sys.exit(code or 10 * ('torch' in sys.modules or 'numpy' in sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
