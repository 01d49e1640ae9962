"""Flags of tools/: numbers with their rule, and a tokenizer's flags from training's table."""

import argparse

import pytest

from megatron_zero.config.cli import read_command_line
from megatron_zero.config.data import TokenizerConfig
from megatron_zero.config.fields import knobs
from megatron_zero.data.tokenizer_flags import add_tokenizer_flags, tokenizer_config
from megatron_zero.data.tool_flags import ToolParser, number_from_zero, output_prefix, whole_number


@pytest.mark.parametrize("text,value", [("0", 0), ("12", 12), ("+7", 7), ("1e3", 1000), ("20.0", 20)])
def test_whole_numbers_are_written_as_for_training(text, value):
    assert whole_number(0)(text) == value
    assert read_command_line(["--num-workers", text]).given["data.num_workers"].value == value


@pytest.mark.parametrize("text", ["", " ", "x", "1.5", "-1", "4", "nan", "inf", "1e400", "9" * 5000, "0x2", "1_0", "--"])
def test_what_is_no_whole_number_within_the_limits_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a whole number from 0 to 3$") as found:
        whole_number(0, 3)(text)
    assert len(str(found.value)) < 100


@pytest.mark.parametrize("text", ["", "x", "-0.1", "nan", "inf", "1e400"])
def test_what_is_no_number_from_zero_is_refused(text):
    assert number_from_zero("2e-2") == 0.02
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a finite number of at least 0$"):
        number_from_zero(text)


@pytest.mark.parametrize(
    "text,example", [("data/", "data/my"), ("a/b/.", "a/b/my"), (".", "./my"), ("..", "./my"), ("x.", "x/my")]
)
def test_prefix_that_ends_in_no_name_is_refused_with_an_example(text, example):
    with pytest.raises(argparse.ArgumentTypeError, match=f"ends in .*FOLDER/NAME, e.g. {example}$"):
        output_prefix(text)


@pytest.mark.parametrize("text", ["a", "a.b/c", "../a", ".hidden"])
def test_prefix_with_a_name_is_taken_as_it_is(text):
    assert output_prefix(text) == text


def test_usage_of_a_required_choice_is_its_name_in_short(capsys):
    parser = ToolParser(prog="tool.py")
    add_tokenizer_flags(parser, required=True, refused={"Old": "retired: use another"})
    for words, error in (([], "the following arguments are required: --tokenizer-type"), (["Old"], "retired: use another")):
        with pytest.raises(SystemExit):
            parser.parse_args(["--tokenizer-type", *words] if words else [])
        usage, told = capsys.readouterr().err.splitlines()
        assert usage == "usage: tool.py --tokenizer-type TOKENIZER_TYPE ...; --help lists all flags"
        assert told == f"tool.py: error: {'--tokenizer-type Old: ' if words else ''}{error}"


def test_tokenizer_flags_and_their_help_are_those_of_training():
    parser = ToolParser()
    add_tokenizer_flags(parser, required=False, refused={})
    shown = {action.option_strings[0]: action.help for action in parser._actions[1:]}
    assert shown == {knob.flag: knob.help for knob in knobs(TokenizerConfig).values()}
    assert all(kind in parser.format_help() for kind in knobs(TokenizerConfig)["tokenizer_type"].choices)
    words = [
        *("--tokenizer-type", "Llama2Tokenizer", "--tokenizer-model", "m", "--vocab-file", "v", "--merge-file", "g"),
        *("--vocab-size", "5", "--trust-remote-code"),
    ]
    assert tokenizer_config(parser.parse_args(words)) == TokenizerConfig("Llama2Tokenizer", "m", "v", "g", 5, True)
    given = read_command_line(words).given
    assert {name: found.value for name, found in given.items()} == {
        f"tokenizer.{name}": value
        for name, value in zip(knobs(TokenizerConfig), ("Llama2Tokenizer", "m", "v", "g", 5, True), strict=True)
    }


def test_wrong_command_line_names_what_is_required_and_what_is_wrong(capsys):
    parser = ToolParser(prog="tool.py")
    parser.add_argument("prefix")
    parser.add_argument("--input", nargs="+", required=True, metavar="FILE", help="what is read")
    parser.add_argument("--workers", type=whole_number(1), help="processes")
    with pytest.raises(SystemExit) as exit_info:
        parser.parse_args(["a", "--input", "b", "--workers", "0"])
    assert exit_info.value.code == 2
    assert capsys.readouterr().err == (
        "usage: tool.py PREFIX --input FILE ...; --help lists all flags\n"
        "tool.py: error: --workers: '0' is not a whole number of at least 1\n"
    )
    assert "what is read (required)" in parser.format_help()
    with pytest.raises(SystemExit):
        parser.parse_args(["a", "--inp", "b"])
