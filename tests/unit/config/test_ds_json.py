"""The DeepSpeed JSON: knobs by path, refused keys by name, nothing ignored in silence."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.config_cases import SCRIPT_TEMPLATE, filled_script_json

from megatron_zero.config.ds_json import json_knobs, load_ds_config, read_ds_config
from megatron_zero.config.fields import ConfigError
from megatron_zero.config.given import Reading
from megatron_zero.config.refused_keys import BLOCKS, KEYS, NO_EFFECT


def read(text: str) -> Reading:
    return read_ds_config(text, name="ds.json")


def nested(path: str, value: str) -> str:
    """JSON text with one value at a dotted path."""
    for key in reversed(path.split(".")):
        value = f'{{"{key}": {value}}}'
    return value


def one_problem(text: str) -> str:
    (problem,) = read(text).problems
    return problem


def test_the_filled_template_of_thread_003_is_read_with_lines() -> None:
    reading = read(filled_script_json())
    assert reading.problems == ()
    said = {path: (given.value, given.source) for path, given in reading.given.items()}
    assert said["batch.global_batch_size"] == (512, "ds.json:2")
    assert said["zero.stage"] == (3, "ds.json:7")
    assert said["zero.offload_optimizer.ratio"] == (0.1, "ds.json:11")
    assert said["precision.bf16"] == (True, "ds.json:28")
    assert said["precision.loss_scale_window"] == (500, "ds.json:21")
    assert len(said) == 17


def test_every_unfilled_word_of_the_template_is_listed_with_line_and_key() -> None:
    """H48: a template that sed never touched."""
    found = read(SCRIPT_TEMPLATE).problems
    assert [problem.split(": placeholder ")[0] for problem in found] == [
        "ds.json:2: train_batch_size",
        "ds.json:3: train_micro_batch_size_per_gpu",
        "ds.json:4: steps_per_print",
        "ds.json:19: fp16.enabled",
        "ds.json:28: bf16.enabled",
    ]


def test_quoted_words_and_keys_that_are_placeholders_are_found_wherever_they_stand() -> None:
    text = """{
      "data_efficiency": {"enabled": "CL_ENABLED",
        "data_sampling": {"curriculum_learning": {
          "CL_1st_METRIC_NAME": {"path": "CL_1st_METRIC_PATH"}}}},
      "zero_optimization": {"offload_optimizer": {"device": "${DEVICE}", "nvme_path": ["<path>"]}}
    }"""
    lines = [problem.split(":")[1] for problem in read(text).problems if "placeholder" in problem]
    assert lines == ["2", "4", "4", "5", "5"]


@pytest.mark.parametrize("key", ["_comment", "comment", "Comments", "_"])
def test_comment_keys_pass_with_all_they_hold(key: str) -> None:
    reading = read(f'{{"{key}": {{"x": "<anything> CONFIG_X"}}, "zero_optimization": {{"{key}": [1]}}}}')
    assert reading == Reading({})


@pytest.mark.parametrize(
    "text, nearest",
    [
        ('{"zero_optimisation": {}}', 'unknown key "zero_optimisation"; nearest: "zero_optimization"'),
        (nested("zero_optimization.ofload_optimizer", "{}"), 'zero_optimization: unknown key "ofload_optimizer"'),
        (nested("zero_optimization.offload_optimizer.ration", "1"), 'nearest: "ratio"'),
        (nested("fp16.enable", "true"), 'fp16: unknown key "enable"; nearest: "enabled"'),
        (nested("optimizer.params.learning", "1"), 'optimizer.params: unknown key "learning"'),
        (nested("activation_checkpointing.profil", "1"), 'nearest: "profile"'),
        ('{"offload_optimizer": {}}', 'unknown key "offload_optimizer"'),
        ('{"overlap_comm": true}', "it belongs to zero_optimization.overlap_comm"),
        ('{"lr": 1}', "it belongs to optimizer.params.lr"),
    ],
)
def test_an_unknown_key_is_an_error_at_every_level(text: str, nearest: str) -> None:
    assert nearest in one_problem(text)


@pytest.mark.parametrize("path", sorted({path.split("[")[0] for path in json_knobs()}))
def test_auto_is_not_given_or_refused_with_a_reason(path: str) -> None:
    """H46: "auto" for each key, where allowed and where not."""
    reading = read(nested(path, '"auto"'))
    assert reading.given == {}
    not_allowed = {
        "zero_optimization.stage",
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_optimizer.ratio",
        "optimizer.type",
    }
    assert len(reading.problems) == (1 if path in not_allowed else 0)


@pytest.mark.parametrize(
    "path, value, part",
    [
        ("train_batch_size", '"512"', "must be a whole number without quotes"),
        ("train_batch_size", "1.5", "must be a whole number"),
        ("train_batch_size", "true", "must be a whole number"),
        ("train_batch_size", "{}", "must be a whole number"),
        ("zero_optimization.sub_group_size", '"1e9"', "without quotes"),
        ("zero_optimization.stage", "4", "must be one of 0, 1, 2, 3"),
        ("zero_optimization", "3", "must be an object"),
        ("zero_optimization.offload_optimizer.ratio", '"0.5"', "must be a number without quotes"),
        ("zero_optimization.offload_optimizer.device", '"nvme"', "not built yet: use cpu or none"),
        ("zero_optimization.offload_optimizer.device", '"gpu"', "must be one of none, cpu"),
        ("zero_optimization.offload_optimizer.step_policy", '"deadline"', "not built yet: use sync"),
        ("prescale_gradients", "true", "not built yet: use false"),
        ("bf16.enabled", '"True"', "write true"),
        ("optimizer.type", '"OneBitAdam"', "use Adam or AdamW"),
        ("optimizer.params.betas", "[0.9]", "must be a list of 2 numbers"),
        ("optimizer.params.betas", "0.9", "must be a list of 2 numbers"),
        ("optimizer.params.betas", '[0.9, "x"]', "must be a number"),
    ],
)
def test_a_wrong_value_names_key_value_and_rule(path: str, value: str, part: str) -> None:
    problem = one_problem(nested(path, value))
    assert problem.startswith("ds.json:1: ")
    assert path in problem
    assert part in problem


@pytest.mark.parametrize("value", ["5e8", "500000000"])
def test_a_whole_number_may_have_an_exponent(value: str) -> None:
    given = read(nested("zero_optimization.sub_group_size", value)).given["zero.sub_group_size"]
    assert given.value == 500_000_000
    assert isinstance(given.value, int)


def test_betas_are_two_fields() -> None:
    given = read(nested("optimizer.params.betas", "[0.8, 0.95]")).given
    assert {path: item.value for path, item in given.items()} == {"adam.adam_beta1": 0.8, "adam.adam_beta2": 0.95}


@pytest.mark.parametrize("value, stage", [("true", 1), ("false", 0)])
def test_the_boolean_form_of_2020_is_stage_1_or_0(value: str, stage: int) -> None:
    assert read(f'{{"zero_optimization": {value}}}').given["zero.stage"].value == stage


def test_one_setting_under_two_names_is_an_error() -> None:
    assert "already stands at ds.json:1" in one_problem('{"bf16": {"enabled": true}, "bfloat16": {"enabled": true}}')


def test_an_fp16_block_that_is_off_may_hold_its_numbers() -> None:
    assert read('{"fp16": {"enabled": false, "loss_scale": 12, "auto_cast": false}}').problems == ()


@pytest.mark.parametrize("path", sorted(KEYS))
def test_each_refused_key_is_an_error_by_name_unless_off(path: str) -> None:
    assert path in one_problem(nested(path, '"some value"'))
    for off in KEYS[path].off:
        reading = read(nested(path, json.dumps(off)))
        assert reading.problems == ()
        assert path in reading.notes[0]


@pytest.mark.parametrize("path", sorted(BLOCKS))
def test_each_refused_block_is_an_error_by_name_when_on(path: str) -> None:
    switch = BLOCKS[path].switch
    assert path in one_problem(nested(path, f'{{"{switch}": "on", "more": 1}}'))
    if False in BLOCKS[path].off:
        reading = read(nested(path, f'{{"{switch}": false, "more": 1}}'))
        assert reading.problems == ()
        assert path in reading.notes[0]


@pytest.mark.parametrize("path", sorted(NO_EFFECT))
def test_keys_without_effect_are_said(path: str) -> None:
    reading = read(nested(path, "true"))
    assert reading.problems == ()
    assert path in reading.notes[0]


@pytest.mark.parametrize(
    "text",
    [
        '{"amp": {"enabled": false, "opt_level": "O1"}}',
        '{"curriculum_learning": {"enabled": false, "curriculum_type": "seqlen"}}',
        nested("zero_optimization.offload_param", '{"device": "none", "nvme_path": "/x"}'),
        nested("zero_optimization.cpu_offload", "false"),
        '{"tensorboard": null}',
        '{"scheduler": {"params": {}}}',
    ],
)
def test_blocks_that_are_off_pass(text: str) -> None:
    assert read(text).problems == ()


def test_old_names_point_to_the_modern_one() -> None:
    assert '"offload_optimizer": {"device": "cpu"}' in one_problem(nested("zero_optimization.cpu_offload", "true"))


def test_true_is_not_the_number_one() -> None:
    assert len(read('{"gradient_predivide_factor": true}').problems) == 1
    assert len(read('{"sparse_gradients": 0}').problems) == 1


def test_all_faults_of_a_file_come_together_in_line_order() -> None:
    text = '{"amp": {"enabled": true},\n"train_batch_size": "x",\n"zero": 1,\n"steps_per_print": ,\n"aio": {}}'
    assert [problem.split(":")[1] for problem in read(text).problems] == ["1", "2", "3", "4", "5"]


def test_the_argument_may_be_a_path_or_base64(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    text = '{"train_batch_size": 8' + " " * 10_000 + "}"  # longer than a path may be
    path.write_text(text, encoding="utf-8")
    encoded = base64.urlsafe_b64encode(text.encode()).decode()
    for argument in (str(path), encoded):
        assert load_ds_config(argument).given["batch.global_batch_size"].value == 8


@pytest.mark.parametrize("content", [None, b"\xff\xfe{"])
def test_a_missing_or_binary_file_is_a_config_error_with_the_path(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "ds.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        load_ds_config(str(path))
