"""What --data-path and its relatives may say (H32)."""

import pytest

from megatron_zero.config.data import DataConfig
from megatron_zero.config.data_paths import MAX_BLENDED_SETS, Blend, check_data_paths, named_prefixes, parse_blend
from megatron_zero.config.fields import ConfigError


@pytest.mark.parametrize(
    "words,expected",
    [
        ("a", Blend(("a",), None)),
        ("a b", Blend(("a", "b"), None)),
        ("a b c", Blend(("a", "b", "c"), None)),
        ("a 2", Blend(("a", "2"), None)),  # a prefix may read as a number, where no weight would stand
        ("./2024", Blend(("./2024",), None)),
        ("./2024 ./1e3", Blend(("./2024", "./1e3"), None)),
        ("1 a", Blend(("a",), (1.0,))),
        ("1e-9 a 1 b", Blend(("a", "b"), (1e-9, 1.0))),
        ("0.3 7 0.7 8", Blend(("7", "8"), (0.3, 0.7))),
        (".5 a +3 a", Blend(("a", "a"), (0.5, 3.0))),
    ],
)
def test_words_are_read(words, expected):
    assert parse_blend(words.split(), flag="--data-path") == expected
    assert named_prefixes(words.split()) == expected.prefixes


@pytest.mark.parametrize(
    "words,message",
    [
        ((), "name at least one prefix"),
        (("a", ""), "none that is empty"),
        (("0", "a", "1", "b"), "'0' stands where a weight"),
        (("-1", "a", "1", "b"), "'-1' stands where a weight"),
        (("nan", "a", "1", "b"), "'nan' stands where a weight"),
        (("inf", "a"), "'inf' stands where a weight"),
        (("half", "a", "1", "b"), "'half' stands where a weight"),
        (("1", "a", "b"), "3 words; weights and prefixes come in pairs"),
        (("2024",), r"1 words; weights and prefixes come in pairs, .*a prefix that reads as a number is written \./2024"),
        (("0", "a", "0", "b"), "'0' stands where a weight"),
    ],
)
def test_bad_words_are_named_with_the_rule(words, message):
    with pytest.raises(ConfigError, match=f"--train-data-path.*{message}"):
        parse_blend(words, flag="--train-data-path")


def test_more_sets_than_the_index_can_number_are_refused():
    with pytest.raises(ConfigError, match=f"{MAX_BLENDED_SETS + 1} data sets; .*merge"):
        parse_blend(["a"] * (MAX_BLENDED_SETS + 1), flag="--data-path")


@pytest.mark.parametrize(
    "config,message",
    [
        (DataConfig(), "--data-path is required"),
        (DataConfig(data_path=("a",), mock_data=True), "--data-path and --mock-data are given"),
        (DataConfig(data_path=("a",), train_data_path=("b",)), "--data-path and --train-data-path are given"),
        (DataConfig(data_args_path="a", test_data_path=("b",)), "--data-args-path and --test-data-path are given"),
        (DataConfig(valid_data_path=("a",), test_data_path=("b",)), "without --train-data-path"),
        (DataConfig(train_data_path=("a",), valid_data_path=("0", "b")), "--valid-data-path 0 b"),
    ],
)
def test_ways_that_exclude_each_other_are_named(config, message):
    with pytest.raises(ConfigError, match=message):
        check_data_paths(config)
