"""The parser rules of the command line: only what was typed, every problem at once."""

from __future__ import annotations

import pytest
from helpers.config_cases import SCRIPT_FLAGS

from megatron_zero.config.cli import build_parser, flag_knobs, read_command_line
from megatron_zero.config.refused import foreign_flags
from megatron_zero.config.tree import RunConfig


def values(line: str) -> dict[str, object]:
    reading = read_command_line(line.split())
    assert reading.problems == ()
    return {path: given.value for path, given in reading.given.items()}


def problems(line: str) -> tuple[str, ...]:
    return read_command_line(line.split()).problems


def test_only_typed_flags_are_returned() -> None:
    assert values("--num-layers 4 --bf16") == {"model.num_layers": 4, "precision.bf16": True}
    assert values("") == {}


def test_equals_form_and_space_form_are_one() -> None:
    assert values("--zero-stage=3 --deepspeed_config=a.json") == values("--zero-stage 3 --deepspeed_config a.json")


def test_a_repeated_flag_takes_the_last_value() -> None:
    assert values("--lr 1 --no-pipeline-parallel --lr 2 --no-pipeline-parallel") == {
        "adam.lr": 2.0,
        "parallel.no_pipeline_parallel": True,
    }


@pytest.mark.parametrize(
    "spelling, canonical",
    [
        ("--override-opt-param-scheduler", "--override-opt_param-scheduler"),
        ("--local-rank 1", "--local_rank 1"),
        ("--deepspeed-config a", "--deepspeed_config a"),
        ("--ds-config a", "--deepspeed_config a"),
        ("--norm-epsilon 1e-6", "--layernorm-epsilon 1e-6"),
        ("--optimizer-cpu-offload", "--cpu-optimizer"),
        ("--persistent-save-interval 5", "--save-interval 5"),
    ],
)
def test_aliases_set_the_same_field(spelling: str, canonical: str) -> None:
    assert values(spelling) == values(canonical)


def test_the_source_is_the_spelling_that_was_typed() -> None:
    assert read_command_line(["--ds-config", "a"]).given["zero.deepspeed_config"].source == "--ds-config"


def test_abbreviations_are_unknown_flags() -> None:
    (problem,) = problems("--num-lay 2")
    assert problem == "--num-lay: unknown flag; nearest: --num-layers"


def test_an_unknown_flag_offers_the_nearest_name_and_swallows_its_value() -> None:
    assert problems("--hiden-size 64 --lr 1") == ("--hiden-size: unknown flag; nearest: --hidden-size",)
    assert problems("--hiden-size=64") == ("--hiden-size: unknown flag; nearest: --hidden-size",)


def test_a_stray_word_is_named() -> None:
    assert problems("stray --lr 1") == ("stray: no flag takes this word",)


def test_wrong_values_name_flag_value_and_rule_all_at_once() -> None:
    assert problems("--num-layers two --lr x --zero-stage 7 --split a --timing-log-level 5") == (
        "--num-layers two: must be a whole number",
        "--lr x: must be a number",
        "--zero-stage 7: must be one of 0, 1, 2, 3",
        "--split a: must be up to three numbers with commas between: train,valid,test",
        "--timing-log-level 5: must be one of 0, 1, 2",
    )


@pytest.mark.parametrize("line", ["--num-layers", "--bf16=true", "--lr --bf16"])
def test_argparse_never_exits_for_a_bad_line(line: str) -> None:
    (problem,) = problems(line)
    assert line.split("=")[0].split()[0] in problem


def test_values_upstream_knows_are_refused_by_name() -> None:
    assert "not built yet" in problems("--tokenizer-type TikTokenizer")[0]
    assert "not built yet" in problems("--lr-decay-style WSD")[0]
    assert "preprocess_data" in problems("--data-impl lazy")[0]
    assert "nccl or gloo" in problems("--distributed-backend ccl")[0]


@pytest.mark.parametrize("kind", ["Llama2Tokenizer", "HFTokenizer", "HuggingFaceTokenizer"])
def test_tokenizers_of_the_peers_are_read(kind: str) -> None:
    assert values(f"--tokenizer-type {kind} --tokenizer-model x --trust-remote-code") == {
        "tokenizer.tokenizer_type": kind,
        "tokenizer.tokenizer_model": "x",
        "tokenizer.trust_remote_code": True,
    }
    assert RunConfig().tokenizer.trust_remote_code is False


@pytest.mark.parametrize("kind", ["TikTokenizer", "BertWordPieceLowerCase", "BertWordPieceCase"])
def test_tokenizers_that_are_not_built_are_refused_by_name(kind: str) -> None:
    (problem,) = problems(f"--tokenizer-type {kind}")
    assert problem.startswith(f"--tokenizer-type {kind}: ")
    assert ("GPT2BPETokenizer" in problem) or ("there is no BERT" in problem)


def test_every_refused_flag_of_a_line_is_in_the_list() -> None:
    found = problems("--split-transformers --vision-pretraining --num-experts 4 8 --fp8-format hybrid --hostfile h")
    assert [problem.split(":")[0] for problem in found] == [
        "--split-transformers",
        "--vision-pretraining",
        "--num-experts 4 8",
        "--fp8-format hybrid",
        "--hostfile h",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "--num-experts 1",
        "--num-experts=1",
        "--moe-expert-parallel-size 1",
        "--mlp-type standard",
        "--ds-sequence-parallel-size 1",
        "--transformer-impl local",
        "--optimizer adam",
        "--attention-backend auto",
        "--context-parallel-size 1",
        "--moe-loss-coeff 0.01",
        "--disable-moe-token-dropping",
    ],
)
def test_values_that_ask_for_nothing_are_accepted_and_said(line: str) -> None:
    reading = read_command_line(line.split())
    assert reading.problems == ()
    assert reading.given == {}
    assert line.split("=")[0].split()[0] in reading.notes[0]


def test_no_effect_on_a_dense_model_is_said_once() -> None:
    notes = read_command_line(["--moe-loss-coeff", "0.1", "--moe-min-capacity", "4", "--create-moe-param-group"]).notes
    assert notes == (
        "--moe-loss-coeff 0.1, --moe-min-capacity 4, --create-moe-param-group: no effect on a dense model",
    )


def test_help_is_grouped_by_section_and_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        read_command_line(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    positions = [text.index(f"\n{section}:") for section in RunConfig.__dataclass_fields__]
    assert positions == sorted(positions)
    assert "--split-transformers" not in text


def test_no_flag_is_both_a_knob_and_foreign() -> None:
    assert not set(flag_knobs()) & set(foreign_flags())
    build_parser(foreign_flags())  # argparse rejects a spelling that is declared twice


def test_the_script_of_thread_003_has_59_flags_and_all_are_accepted() -> None:
    words = SCRIPT_FLAGS.format(folder="out").split()
    assert len({word for word in words if word.startswith("--")}) == 59
    assert read_command_line(words).problems == ()
