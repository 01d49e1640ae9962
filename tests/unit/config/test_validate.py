"""Rules of the merged configuration: each is broken alone, and the message names the setting as it was written."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from helpers.config_cases import minimal_argv

from megatron_zero.config.data import NEEDED, TokenizerConfig
from megatron_zero.config.fields import ConfigError, knobs
from megatron_zero.config.load import LoadedConfig, load_run_config


def message(extra: str, **rest: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load_run_config(minimal_argv(extra, **rest))  # type: ignore[arg-type]
    return str(caught.value)


def without(*flags: str) -> list[str]:
    """The minimal command line less these flags and their values."""
    words = iter(minimal_argv())
    kept: list[str] = []
    for flag, value in zip(words, words, strict=True):
        if flag not in flags:
            kept += [flag, value]
    return kept


def test_the_minimal_run_is_valid() -> None:
    loaded = load_run_config(minimal_argv())
    assert isinstance(loaded, LoadedConfig)
    assert loaded.warnings == loaded.notes == ()


@pytest.mark.parametrize(
    "extra, parts",
    [
        ("--num-layers 0", ("--num-layers 0", "at least 1")),
        ("--micro-batch-size -2", ("--micro-batch-size -2", "at least 1")),
        ("--eval-interval 0", ("--eval-interval 0", "at least 1")),
        ("--eval-iters -1", ("--eval-iters -1", "at least 0")),
        ("--lr -1", ("--lr -1.0", "at least 0")),
        ("--adam-eps 0", ("--adam-eps 0.0", "above 0")),
        ("--distributed-timeout-minutes 0", ("--distributed-timeout-minutes 0.0", "above 0")),
        ("--seed -1", ("--seed -1", "at least 0")),
        ("--seed 4294967296", ("--seed 4294967296", "below 2**32")),
        ("--exit-interval 0", ("--exit-interval 0", "at least 1")),
        ("--log-interval 0", ("--log-interval 0", "at least 1")),
        ("--attention-dropout 1", ("--attention-dropout 1.0", "below 1")),
        ("--hidden-dropout -0.1", ("--hidden-dropout -0.1", "at least 0")),
        ("--adam-beta2 1", ("--adam-beta2 1.0", "below 1")),
        ("--hidden-size 66", ("--hidden-size 66", "--num-attention-heads 4", "64 or 68")),
        ("--seq-length 64", ("--seq-length 64", "--max-position-embeddings 32")),
        ("--train-samples 8", ("--train-iters 6", "--train-samples 8", "exclude each other")),
        ("--rampup-batch-size 4 4 32", ("--rampup-batch-size 4 4 32", "--train-iters 6")),
        ("--tensor-model-parallel-size 8", ("--tensor-model-parallel-size 8", "not built yet")),
        ("--pipeline-model-parallel-size 2", ("--pipeline-model-parallel-size 2", "not built yet")),
        ("--pipeline-model-parallel-size 2 --no-pipeline-parallel", ("contradicts --no-pipeline-parallel",)),
        ("--cpu-optimizer", ("derived: --cpu-optimizer", "stage 0", "--zero-stage")),
        ("--deepspeed", ("--deepspeed needs --deepspeed_config",)),
        ("--deepspeed_config x.json", ("only read with --deepspeed",)),
        ("--min-lr 1", ("--min-lr 1.0", "--lr 0.001")),
        ("--lr-warmup-tokens 2000 --lr-decay-tokens 1000", ("--lr-warmup-tokens 2000", "--lr-decay-tokens 1000")),
        ("--lr-warmup-tokens 1000 --lr-decay-tokens 1000", ("--lr-warmup-tokens 1000", "--lr-decay-tokens 1000")),
        ("--lr-decay-tokens 0", ("--lr-decay-tokens 0", "at least 1")),
        ("--save out", ("--save out", "--save-interval")),
        ("--data-path 0.3 a 0 b", ("--data-path 0.3 a 0 b", "above 0")),
        ("--data-path 0.3 a 0.7", ("--data-path 0.3 a 0.7", "pairs")),
        ("--mock-data", ("--data-path and --mock-data are given", "one of them")),
        ("--split 0,1,0", ("--split 0,1,0", "train")),
        ("--tokenizer-type GPT2BPETokenizer", ("GPT2BPETokenizer needs --vocab-file and --merge-file",)),
        ("--tokenizer-type SentencePieceTokenizer", ("needs --tokenizer-model",)),
        ("--tokenizer-type Llama2Tokenizer", ("Llama2Tokenizer needs --tokenizer-model",)),
        ("--tokenizer-type HFTokenizer", ("HFTokenizer needs --tokenizer-model",)),
        ("--tokenizer-type HuggingFaceTokenizer", ("HuggingFaceTokenizer needs --tokenizer-model",)),
    ],
)
def test_each_broken_rule_names_setting_value_and_rule(extra: str, parts: tuple[str, ...]) -> None:
    text = message(extra)
    assert "problems" not in text, text
    assert all(part in text for part in parts), text


@pytest.mark.parametrize(
    "ramp, part",
    [
        ("4 3 32", "8 - 4 = 4 must be a multiple of 3"),
        ("4 4", "takes three numbers"),
        ("", "--rampup-batch-size: expected at least one argument"),
    ],
)
def test_a_ramp_is_three_numbers_that_reach_the_batch(ramp: str, part: str) -> None:
    argv = [*without("--train-iters"), "--train-samples", "72", "--rampup-batch-size", *ramp.split()]
    with pytest.raises(ConfigError, match=re.escape(part)):
        load_run_config(argv)


@pytest.mark.parametrize(
    "flag",
    [
        "--num-layers",
        "--hidden-size",
        "--num-attention-heads",
        "--seq-length",
        "--max-position-embeddings",
        "--lr",
        "--data-path",
    ],
)
def test_a_missing_required_setting_is_named(flag: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} is required"):
        load_run_config(without(flag))


def test_a_missing_batch_run_length_or_vocabulary_is_named() -> None:
    with pytest.raises(ConfigError, match="--micro-batch-size is required"):
        load_run_config(without("--micro-batch-size", "--global-batch-size"))
    with pytest.raises(ConfigError, match="--train-iters, --train-samples or --train-tokens"):
        load_run_config(without("--train-iters"))
    with pytest.raises(ConfigError, match="NullTokenizer needs --vocab-size"):
        load_run_config(without("--vocab-size"))


def test_all_broken_rules_come_in_one_message() -> None:
    text = message("--num-layers 0 --adam-eps 0 --save out")
    assert text.startswith("3 problems:")
    assert all(flag in text for flag in ("--num-layers 0", "--adam-eps 0.0", "--save out"))


def test_a_value_of_the_json_is_named_by_its_key_and_line(tmp_path: Path) -> None:
    text = message("", json='{\n"gradient_clipping": -1}', folder=tmp_path)
    assert text == "gradient_clipping -1.0 (ds.json:2): must be at least 0"


@pytest.mark.parametrize("ratio", ["-0.1", "1.5"])
def test_a_ratio_outside_0_to_1_is_refused(tmp_path: Path, ratio: str) -> None:
    """H2."""
    block = f'{{"zero_optimization": {{"stage": 1, "offload_optimizer": {{"device": "cpu", "ratio": {ratio}}}}}}}'
    assert f"offload_optimizer.ratio {ratio}" in message("", json=block, folder=tmp_path)


@pytest.mark.parametrize(
    "flags", ["--save {}/x --save-interval 1", "--tensorboard-dir {}/x/y", "--log-jsonl {}/x.jsonl"]
)
def test_an_output_below_a_regular_file_is_refused_before_anything_is_made(tmp_path: Path, flags: str) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("", encoding="utf-8")
    text = message(flags.format(blocker))
    assert f"{blocker} is not a folder" in text
    assert flags.split()[0] in text
    assert os.listdir(tmp_path) == ["file"]


def test_an_output_that_is_itself_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    assert "is not a folder" in message(f"--tensorboard-dir {file}")
    assert "is a folder" in message(f"--log-jsonl {tmp_path}")


def test_outputs_that_do_not_exist_yet_are_fine_and_are_not_made(tmp_path: Path) -> None:
    new = tmp_path / "a" / "b"
    load_run_config(
        minimal_argv(f"--save {new} --load {new} --save-interval 5 --log-jsonl {new}.jsonl --tensorboard-dir {new}")
    )
    assert os.listdir(tmp_path) == []


def test_settings_that_do_nothing_are_warned_of() -> None:
    assert len(load_run_config(minimal_argv("--save-interval 5")).warnings) == 1
    assert len(load_run_config(minimal_argv("--exit-interval 5")).warnings) == 1


@pytest.mark.parametrize(
    "extra", ["--train-tokens 1000", "--lr 0", "--zero-stage 3", "--zero-stage 3 --cpu-optimizer", "--bf16"]
)
def test_legal_combinations_pass(extra: str) -> None:
    load_run_config(minimal_argv(extra))


def test_split_beside_paths_that_are_not_cut_is_named() -> None:
    argv = [*without("--data-path"), "--train-data-path", "a"]
    load_run_config(argv)
    with pytest.raises(ConfigError, match="--split 9,1,0: has no effect beside --train-data-path"):
        load_run_config([*argv, "--split", "9,1,0"])


def test_cache_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--data-cache-path" in message(f"--data-cache-path {tmp_path / 'file' / 'cache'}")


def test_every_tokenizer_type_has_its_required_files() -> None:
    assert set(NEEDED) == set(knobs(TokenizerConfig)["tokenizer_type"].choices or ())


@pytest.mark.parametrize(
    ("flags", "warning"),
    [
        (
            "--tokenizer-model m",
            "--tokenizer-model m: --tokenizer-type NullTokenizer does not use it; it takes --vocab-size",
        ),
        (
            "--trust-remote-code",
            "--trust-remote-code: --tokenizer-type NullTokenizer does not use it; it takes --vocab-size",
        ),
        (
            "--tokenizer-type GPT2BPETokenizer --vocab-file v --merge-file m",
            "--vocab-size 50: --tokenizer-type GPT2BPETokenizer does not use it; it takes --vocab-file and --merge-file",
        ),
        (
            "--tokenizer-type HFTokenizer --tokenizer-model m --trust-remote-code",
            "--vocab-size 50: --tokenizer-type HFTokenizer does not use it; it takes --tokenizer-model and"
            " --trust-remote-code",
        ),
    ],
)
def test_a_flag_that_the_tokenizer_does_not_use_is_a_warning(flags: str, warning: str) -> None:
    assert load_run_config(minimal_argv(flags)).warnings == (warning,)
