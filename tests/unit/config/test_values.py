"""Numbers and texts as users write them, on the command line and in JSON."""

from __future__ import annotations

from typing import Any

import pytest

from megatron_zero.config.fields import KNOB, Knob, knob
from megatron_zero.config.values import from_json, from_words, nearest, same_text


def knob_of(kind: str, **rest: Any) -> Knob:
    record: Knob = knob(None, kind=kind, help="", **rest).metadata[KNOB]
    return record


@pytest.mark.parametrize(
    "kind, words, value",
    [
        ("int", ["12"], 12),
        ("int", ["-3"], -3),
        ("int", ["1e9"], 1_000_000_000),
        ("int", ["3.0"], 3),
        ("int", ["300000000000"], 300_000_000_000),
        ("int", ["9007199254740993"], 9007199254740993),  # above 2**53: must not pass through a float
        ("float", ["1e-3"], 1e-3),
        ("float", ["1"], 1.0),
        ("float", [".5"], 0.5),
        ("ints", ["32", "32", "1953125"], (32, 32, 1953125)),
        ("ints", [], ()),
        ("strs", ["a", "b"], ("a", "b")),
        ("split", ["969, 30, 1"], "969, 30, 1"),
        ("split", ["98,2,0"], "98,2,0"),
        ("split", ["1"], "1"),
        ("bool", [], True),
    ],
)
def test_words_become_the_kind_of_the_knob(kind: str, words: list[str], value: Any) -> None:
    parsed = from_words(knob_of(kind), words)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    "kind, words",
    [
        ("int", ["x"]),
        ("int", ["1.5"]),
        ("int", [""]),
        ("int", ["1_000"]),
        ("int", ["1e99"]),
        ("int", ["1e999"]),
        ("int", ["nan"]),
        ("float", ["nan"]),
        ("float", ["inf"]),
        ("float", ["1e999"]),
        ("float", ["0x10"]),
        ("ints", ["32", "x", "5"]),
        ("split", ["98;2;0"]),
        ("split", ["1,2,3,4"]),
        ("split", ["0,0,0"]),
        ("split", ["-1,2"]),
    ],
)
def test_wrong_words_state_the_rule(kind: str, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"must be|does not fit"):
        from_words(knob_of(kind), words)


@pytest.mark.parametrize(
    "kind, value, parsed",
    [("int", 5e8, 500_000_000), ("int", 7, 7), ("float", 1, 1.0), ("bool", True, True), ("str", "none", "none")],
)
def test_json_values_of_the_right_type_pass(kind: str, value: Any, parsed: Any) -> None:
    result = from_json(knob_of(kind), value)
    assert result == parsed
    assert type(result) is type(parsed)


@pytest.mark.parametrize(
    "kind, value, rule",
    [
        ("int", "1e9", "without quotes"),
        ("int", True, "whole number"),
        ("int", 1.5, "whole number"),
        ("int", float("inf"), "whole number"),
        ("float", "0.5", "without quotes"),
        ("float", True, "must be a number"),
        ("float", float("inf"), "finite"),
        ("bool", "True", "write true"),
        ("bool", "false", "write false"),
        ("bool", 1, "true or false"),
        ("str", 3, "double quotes"),
    ],
)
def test_json_types_are_strict(kind: str, value: Any, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        from_json(knob_of(kind), value)


def test_two_spellings_of_one_number_or_word_agree() -> None:
    assert same_text("1", "1.0")
    assert same_text("LayerNorm", "layernorm")
    assert not same_text("1", "2")
    assert not same_text("1", "one")


def test_nearest_gives_nothing_for_a_name_unlike_all() -> None:
    assert nearest("ofload_optimizer", ("offload_optimizer", "stage")) == "offload_optimizer"
    assert nearest("zzz", ("offload_optimizer", "stage")) is None
