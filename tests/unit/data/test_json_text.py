"""JSON text: the value, or why there is none and where."""

import pytest

from megatron_zero.data.json_text import read_json


@pytest.mark.parametrize(
    "text,message",
    [
        ("bad", "not JSON: Expecting value at column 1"),
        ('{"text": x}', "not JSON: Expecting value at column 10"),
        ('{"text": "x', "not JSON: Unterminated string starting at column 10"),
        ('{"text": "\t"}', "not JSON: Invalid control character at column 11"),
        ('{"a": 1} {"a": 2}', "not JSON: Extra data at column 10"),
        ('{\n "a": x}', "not JSON: Expecting value at line 2, column 7"),
        ("", "not JSON: Expecting value at column 1"),
    ],
)
def test_place_is_a_column_and_a_line_only_in_a_text_of_several(text, message):
    with pytest.raises(ValueError) as found:
        read_json(text)
    assert str(found.value) == message


def test_many_digits_are_a_number():
    assert read_json("9" * 5000) == float("inf")
