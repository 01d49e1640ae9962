"""The tables of foreign flags are well formed and each row answers."""

from __future__ import annotations

import pytest

from megatron_zero.config.cli import read_command_line
from megatron_zero.config.refused import NO_EFFECT, REFUSED, REFUSED_VALUES, ForeignFlag, foreign_flags
from megatron_zero.config.refused_keys import BLOCKS, KEYS
from megatron_zero.config.tree import walk_knobs


@pytest.mark.parametrize("flag", foreign_flags().values(), ids=lambda flag: flag.name)
def test_each_foreign_flag_answers_by_name(flag: ForeignFlag) -> None:
    words = [flag.name] + ([] if flag.nargs in (0, "?") else ["some_value"])
    reading = read_command_line(words)
    answers = reading.problems if flag.refused else reading.notes
    assert len(answers) == 1
    assert answers[0].startswith(" ".join(words) + ": ")
    assert reading.given == {}


@pytest.mark.parametrize("flag", [flag for flag in foreign_flags().values() if flag.off], ids=lambda flag: flag.name)
def test_each_value_that_means_off_is_accepted(flag: ForeignFlag) -> None:
    for value in flag.off:
        reading = read_command_line([flag.name, value])
        assert reading.problems == ()
        assert len(reading.notes) == 1


def test_a_list_is_off_only_if_every_word_is() -> None:
    assert read_command_line(["--num-experts", "1", "1"]).problems == ()
    assert len(read_command_line(["--num-experts", "1", "4"]).problems) == 1
    assert len(read_command_line(["--num-experts"]).problems) == 1


def test_every_refusal_says_what_to_do() -> None:
    sentences = [says for table in (REFUSED, NO_EFFECT) for says, _ in table]
    sentences += [key.says for key in KEYS.values()] + [block.says for block in BLOCKS.values()]
    for says in sentences:
        assert len(says.split()) >= 3, says
        assert says.isascii()


def test_refused_values_belong_to_fields_and_are_not_choices() -> None:
    knobs = dict(walk_knobs())
    for path, values in REFUSED_VALUES.items():
        assert path in knobs
        assert not set(values) & {str(choice) for choice in knobs[path].choices or ()}
