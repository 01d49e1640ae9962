"""Command line against JSON: the table of json.md section 1, row by row (H46)."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_zero.config.cli import read_command_line
from megatron_zero.config.ds_json import read_ds_config
from megatron_zero.config.precedence import ROWS, SPECIAL, Merged, merge
from megatron_zero.config.tree import walk_knobs


def merged(line: str, json: str = "{}") -> Merged:
    cli, ds = read_command_line(line.split()), read_ds_config(json, name="ds.json")
    assert cli.problems == ds.problems == ()
    return merge(cli, ds)


def value_and_source(result: Merged, path: str) -> tuple[Any, str]:
    return result.values[path].value, result.values[path].source


def test_every_field_that_both_sides_can_name_has_a_row() -> None:
    both = {path for path, knob in walk_knobs() if knob.flag is not None and knob.json is not None}
    assert both == {row.path for row in ROWS} | set(SPECIAL)


def test_one_side_alone_is_taken_as_it_is() -> None:
    result = merged("--lr 2", '{"train_batch_size": 8}')
    assert value_and_source(result, "adam.lr") == (2.0, "--lr")
    assert value_and_source(result, "batch.global_batch_size") == (8, "ds.json:1")
    assert result.warnings == result.problems == []


@pytest.mark.parametrize(
    "line, json, path, value, source",
    [
        (
            "--global-batch-size 1024",
            '{"train_batch_size": 64}',
            "batch.global_batch_size",
            1024,
            "--global-batch-size",
        ),
        ("--clip-grad 1.0", '{"gradient_clipping": 0.5}', "adam.clip_grad", 0.5, "ds.json:1"),
        ("--lr 6e-4", '{"optimizer": {"params": {"lr": 1.5e-4}}}', "adam.lr", 6e-4, "--lr"),
        (
            "--adam-beta1 0.9",
            '{"optimizer": {"params": {"betas": [0.8, 0.99]}}}',
            "adam.adam_beta1",
            0.9,
            "--adam-beta1",
        ),
        ("--adam-eps 1e-8", '{"optimizer": {"params": {"eps": 1e-6}}}', "adam.adam_eps", 1e-8, "--adam-eps"),
        (
            "--weight-decay 0.1",
            '{"optimizer": {"params": {"weight_decay": 0}}}',
            "adam.weight_decay",
            0.1,
            "--weight-decay",
        ),
        ("--hysteresis 3", '{"fp16": {"hysteresis": 2}}', "precision.hysteresis", 2, "ds.json:1"),
    ],
)
def test_the_winner_is_said_in_one_warning(line: str, json: str, path: str, value: Any, source: str) -> None:
    result = merged(line, json)
    assert value_and_source(result, path) == (value, source)
    assert result.problems == []
    (warning,) = result.warnings
    assert "ds.json:1" in warning
    assert line.split()[0] in warning


def test_betas_of_the_json_fill_what_the_command_line_leaves() -> None:
    result = merged("--adam-beta1 0.9", '{"optimizer": {"params": {"betas": [0.9, 0.99]}}}')
    assert value_and_source(result, "adam.adam_beta2") == (0.99, "ds.json:1")
    assert result.warnings == []


@pytest.mark.parametrize(
    "line, json, words",
    [
        (
            "--micro-batch-size 2",
            '{"train_micro_batch_size_per_gpu": 4}',
            ("--micro-batch-size", "2", "4", "ds.json:1"),
        ),
        ("--zero-stage 1", '{"zero_optimization": {"stage": 3}}', ("--zero-stage", "1", "3", "ds.json:1")),
    ],
)
def test_differing_sizes_and_stages_stop_the_run(line: str, json: str, words: tuple[str, ...]) -> None:
    (problem,) = merged(line, json).problems
    assert all(word in problem for word in words)


@pytest.mark.parametrize(
    "line, json",
    [
        ("--micro-batch-size 2", '{"train_micro_batch_size_per_gpu": 2}'),
        ("--zero-stage 3", '{"zero_optimization": {"stage": 3}}'),
        ("--clip-grad 1", '{"gradient_clipping": 1}'),
        (
            "--micro-batch-size 2 --clip-grad 0.3",
            '{"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto"}',
        ),
    ],
)
def test_equal_values_and_auto_say_nothing(line: str, json: str) -> None:
    result = merged(line, json)
    assert result.warnings == result.problems == []


BF16_ON = '{"bf16": {"enabled": true}, "fp16": {"enabled": false}}'
FP16_ON = '{"fp16": {"enabled": true}}'
BOTH_OFF = '{"bf16": {"enabled": false}, "fp16": {"enabled": false}}'
BOTH_ON = '{"bf16": {"enabled": true}, "fp16": {"enabled": true}}'
BOTH_AUTO = '{"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}'


@pytest.mark.parametrize(
    "line, json, bf16, warnings",
    [
        ("--fp16", BF16_ON, True, 1),  # thread 003
        ("--bf16", BF16_ON, True, 0),
        ("", BF16_ON, True, 0),
        ("--bf16", BOTH_AUTO, True, 0),
        ("--bf16", "{}", True, 0),
        ("--bf16", '{"fp16": {"enabled": false}}', True, 0),
        ("", BOTH_OFF, False, 0),
        ("", "{}", False, 0),
    ],
)
def test_precision_that_runs(line: str, json: str, bf16: bool, warnings: int) -> None:
    result = merged(line, json)
    assert result.problems == []
    assert len(result.warnings) == warnings
    for path, wanted in (("precision.bf16", bf16), ("precision.fp16", False)):
        assert (path in result.values and result.values[path].value) is wanted


@pytest.mark.parametrize(
    "line, json, part",
    [
        ("", BOTH_ON, "bf16 and fp16 are both on"),
        ("--bf16", BOTH_ON, "bf16 and fp16 are both on"),
        ("--bf16 --fp16", "{}", "bf16 and fp16 are both on"),
        ("--bf16", BOTH_OFF, "no other precision is on"),
        ("--fp16", BOTH_OFF, "no other precision is on"),
        ("--bf16", '{"bf16": {"enabled": false}}', "no other precision is on"),
        ("--bf16", FP16_ON, "fp16 training is not built yet"),
        ("", FP16_ON, "fp16 training is not built yet"),
        ("--fp16", "{}", "fp16 training is not built yet"),
        ("--fp16", BOTH_AUTO, "fp16 training is not built yet"),
    ],
)
def test_precision_that_stops(line: str, json: str, part: str) -> None:
    (problem,) = merged(line, json).problems
    assert part in problem


def offload(block: str) -> str:
    return f'{{"zero_optimization": {{"stage": 3, "offload_optimizer": {block}}}}}'


@pytest.mark.parametrize(
    "line, json, device, notes",
    [
        ("--cpu-optimizer", "{}", ("cpu", "derived: --cpu-optimizer"), 1),
        ("--cpu-optimizer", offload("{}"), ("cpu", "derived: --cpu-optimizer"), 1),
        ("--cpu-optimizer", offload('{"ratio": 0.5}'), ("cpu", "derived: --cpu-optimizer"), 1),
        ("--cpu-optimizer", offload('{"device": "cpu"}'), ("cpu", "ds.json:1"), 0),
        ("", offload('{"device": "cpu"}'), ("cpu", "ds.json:1"), 1),
        ("", offload('{"device": "none", "ratio": 0.5}'), ("none", "ds.json:1"), 1),
        ("", offload('{"device": "none"}'), ("none", "ds.json:1"), 0),
    ],
)
def test_where_the_optimizer_rests(line: str, json: str, device: tuple[str, str], notes: int) -> None:
    result = merged(line, json)
    assert result.problems == []
    assert value_and_source(result, "zero.offload_optimizer.device") == device
    assert len(result.notes) == notes


@pytest.mark.parametrize(
    "line, block, part",
    [
        ("", '{"ratio": 0.5}', "has no offload_optimizer.device beside it"),
        ("--cpu-optimizer", '{"device": "none"}', "ds.json:1 says device none"),
    ],
)
def test_an_offload_that_contradicts_itself_stops(line: str, block: str, part: str) -> None:
    (problem,) = merged(line, offload(block)).problems
    assert part in problem
