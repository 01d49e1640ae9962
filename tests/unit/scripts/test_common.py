"""common.sh: the template is filled, or the script stops and says which placeholder and which variable."""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "examples" / "scripts"
TEMPLATE = SCRIPTS / "ds_config_gpt_TEMPLATE.json"
VALUES = {
    "GLOBAL_BATCH_SIZE": "512",
    "BATCH_SIZE": "2",
    "LOG_INTERVAL": "10",
    "ZERO_STAGE": "3",
    "PRESCALE_GRAD": "false",
    "FP16_ENABLED": "false",
    "BF16_ENABLED": "true",
    "OFFLOAD_DEVICE": "cpu",
    "OFFLOAD_RATIO": "0.25",
}


def bash(code: str, *arguments: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run code in a shell that has sourced common.sh the way scripts do; arguments are $1, $2, ..."""
    setup = f"set -euo pipefail; source '{SCRIPTS}/common.sh'; "
    return subprocess.run(
        ["bash", "-c", setup + code, "train.sh", *arguments],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        check=False,
    )


def fill(template: Path, output: Path, values: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return bash('fill_template "$1" "$2"', str(template), str(output), env=values)


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_filled_template_is_json_with_the_values(tmp_path: Path) -> None:
    done = fill(TEMPLATE, tmp_path / "out.json", VALUES)
    assert done.returncode == 0, done.stderr
    filled = json.loads((tmp_path / "out.json").read_text())
    assert filled["train_batch_size"] == 512
    assert filled["train_micro_batch_size_per_gpu"] == 2
    assert filled["steps_per_print"] == 10
    assert filled["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True, "ratio": 0.25},
    }
    assert filled["prescale_gradients"] is False
    assert (filled["fp16"]["enabled"], filled["bf16"]["enabled"]) == (False, True)


@pytest.mark.parametrize("variable", sorted(VALUES))
@pytest.mark.parametrize("empty", [False, True])
def test_unset_or_empty_variable_stops_naming_placeholder_and_variable(
    tmp_path: Path, variable: str, empty: bool
) -> None:
    values = {name: value for name, value in VALUES.items() if name != variable}
    done = fill(TEMPLATE, tmp_path / "out.json", {**values, variable: ""} if empty else values)
    assert done.returncode == 2
    assert f"needs the shell variable {variable}, which is unset or empty" in done.stderr
    assert " line " in done.stderr
    assert "placeholder " in done.stderr
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("value", ["/mnt/a&b", "x\\1/&&", "a b", "0.5|s/x/y/", "$HOME", "CONFIG_LIKE_PATH"])
def test_values_are_taken_literally(tmp_path: Path, value: str) -> None:
    template = write(tmp_path / "t.json", "[CONFIG_OFFLOAD_DEVICE, CONFIG_OFFLOAD_DEVICE]\n")
    done = fill(template, tmp_path / "out", {"OFFLOAD_DEVICE": value})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_text() == f"[{value}, {value}]\n"


def test_a_word_inside_a_longer_word_stays(tmp_path: Path) -> None:
    template = write(tmp_path / "t.json", '{"x": "MY_ZERO_STAGE2", "stage": ZERO_STAGE}\n')
    done = fill(template, tmp_path / "out", {"ZERO_STAGE": "3"})
    # The longer word is quoted and looks like a placeholder of its own.
    assert done.returncode == 2
    assert "MY_ZERO_STAGE2 (line 1)" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n "a": CONFIG_NVME_PATH\n}\n', ["CONFIG_NVME_PATH (line 2)"]),
        ('{"a": "CONFIG_NVME_PATH"}\n', ["CONFIG_NVME_PATH (line 1)"]),
        ('{"a": "/mnt/CONFIG_NVME_PATH/x"}\n', ["CONFIG_NVME_PATH (line 1)"]),
        ('{"a": GBSIZE,\n "b": MBSIZE}\n', ["GBSIZE (line 1)", "MBSIZE (line 2)"]),
        ('{"CL_1st_METRIC_NAME": 1}\n', ["CL_1st_METRIC_NAME (line 1)"]),
    ],
)
def test_placeholder_that_no_variable_fills_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    done = fill(write(tmp_path / "t.json", text), tmp_path / "out", VALUES)
    assert done.returncode == 2
    assert all(word in done.stderr for word in words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text",
    [
        '{"train_batch_size": 512, "optimizer": {"type": "AdamW"}}\n',
        '{"a": 1} # ZERO_STAGE_OF_OLD was 2\n',
        '{"a": 1} // NOT_A_PLACEHOLDER\n',
        '{"path": "/mnt/NVME/x"}\n',
    ],
)
def test_template_without_placeholders_is_copied(tmp_path: Path, text: str) -> None:
    done = fill(write(tmp_path / "t.json", text), tmp_path / "out", {})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_text() == text


def test_crlf_template_gives_lf_json(tmp_path: Path) -> None:
    template = write(tmp_path / "t.json", '{\r\n  "a": ZERO_STAGE\r\n}\r\n')
    assert fill(template, tmp_path / "out", {"ZERO_STAGE": "1"}).returncode == 0
    assert (tmp_path / "out").read_bytes() == b'{\n  "a": 1\n}\n'


def test_value_with_a_line_end_is_told(tmp_path: Path) -> None:
    done = fill(TEMPLATE, tmp_path / "out", {**VALUES, "OFFLOAD_RATIO": "0.3\r"})
    assert done.returncode == 2
    assert "OFFLOAD_RATIO (for placeholder CONFIG_OFFLOAD_RATIO) holds a line end" in done.stderr


def test_missing_template_is_told(tmp_path: Path) -> None:
    done = fill(tmp_path / "none.json", tmp_path / "out", VALUES)
    assert done.returncode == 2
    assert "none.json does not exist" in done.stderr


@pytest.mark.parametrize("value", ["3e9", "08", "1.5", "", "x", "1 2"])
def test_number_that_bash_would_misread_is_told(value: str) -> None:
    done = bash("require_integers TRAIN_TOKENS", env={"TRAIN_TOKENS": value})
    assert done.returncode == 2
    assert f"TRAIN_TOKENS='{value}' is not a whole number" in done.stderr


@pytest.mark.parametrize(("value", "code"), [("true", 0), ("false", 0), ("True", 2), ("1", 2), ("", 2)])
def test_switch_that_is_neither_true_nor_false_is_told(value: str, code: int) -> None:
    done = bash("require_booleans MOE_DROP_TOKEN", env={"MOE_DROP_TOKEN": value})
    assert done.returncode == code
    assert (f"MOE_DROP_TOKEN='{value}' is neither true nor false" in done.stderr) == (code == 2)


@pytest.mark.parametrize(("value", "code"), [("", 1), ("0", 1), ("false", 1), ("1", 0), ("true", 0), ("yes", 0)])
def test_dry_run_is_meant_by_anything_but_off(value: str, code: int) -> None:
    assert bash("is_dry_run", env={"DRY_RUN": value}).returncode == code


@pytest.mark.parametrize("value", ["0", "300000000000", "-1"])
def test_whole_numbers_pass(value: str) -> None:
    assert bash("require_integers TRAIN_TOKENS", env={"TRAIN_TOKENS": value}).returncode == 0


def test_shown_command_is_one_a_shell_reads_back() -> None:
    words = ["mz launch", "--lr", "1e-4", "--split", "98,2,0", "a&b", "it's", "", "--x"]
    shown = bash('show_command "$@"', *words, env={}).stdout
    again = subprocess.run(["bash", "-c", f"printf '%s\\n' {shown}"], capture_output=True, text=True, check=True)
    assert again.stdout.split("\n")[:-1] == words


def test_python_without_the_package_is_told(tmp_path: Path) -> None:
    fake = write(tmp_path / "python3", "#!/bin/bash\nexit 1\n")
    fake.chmod(0o755)
    code = 'PATH="$1:$PATH"; MZ_ROOT=$1; find_python'
    done = bash(code, str(tmp_path), env={})
    assert done.returncode == 2
    assert "no python with megatron_zero was found" in done.stderr
