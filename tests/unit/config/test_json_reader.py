"""Tolerant JSON with lines: what passes, and every fault with its line."""

from __future__ import annotations

import pytest

from megatron_zero.config.json_reader import Array, Object, Unreadable, read_json


def faults(text: str) -> list[tuple[int, str]]:
    return [(fault.line, fault.text) for fault in read_json(text)[1]]


def test_values_and_their_lines() -> None:
    root, found = read_json('{"a": 1,\n "b": [true, null,\n -2.5e3],\n "c": {"d": "x\\n\\u0041"}}')
    assert found == ()
    a, b, c = root.members
    assert (a.key, a.node.value, a.node.line) == ("a", 1, 1)
    assert isinstance(b.node.value, Array)
    assert [(item.value, item.line) for item in b.node.value.items] == [(True, 2), (None, 2), (-2500.0, 3)]
    assert isinstance(c.node.value, Object)
    assert c.node.value.plain("d") == "x\nA"
    assert c.line == 4


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1,}',
        '{"a": [1, 2,],}',
        '{"a": 1 ## only change it\n}',
        '// first\n{"a": 1} // last',
        '\ufeff{"a": 1}',
        '{"a": "http://x#y"}',
        '{"a": 1}\r\n',
        "{}",
    ],
)
def test_comments_trailing_commas_and_bom_are_tolerated(text: str) -> None:
    assert faults(text) == []


def test_hash_and_slashes_inside_text_are_text() -> None:
    assert read_json('{"a": "http://x#y"}')[0].plain("a") == "http://x#y"


@pytest.mark.parametrize("word", ["1", "-1", "0", "1.5", "5e8", "1E-3"])
def test_json_numbers_are_numbers(word: str) -> None:
    assert read_json(f'{{"a": {word}}}')[0].plain("a") == float(word)


@pytest.mark.parametrize(
    "text, line, part",
    [
        ('{"a": CONFIG_MBSIZE}', 1, "shell variable BATCH_SIZE"),
        ('{"a": SOMETHING_NEW,\n"b": 1}', 1, "placeholder SOMETHING_NEW was not filled"),
        ('{"a": $NAME}', 1, "shell variable NAME"),
        ('{"a": ${NAME}}', 1, "shell variable NAME"),
        ('{"a": <fill me>}', 1, "placeholder <fill me>"),
        ('{"a": True}', 1, "write true"),
        ('{"a": None}', 1, "write null"),
        ('{"a": cpu}', 1, '"cpu"'),
        ('{"a": nan}', 1, "nan is no JSON value"),
        ('{"a": 01}', 1, "01 is no JSON value"),
        ('{"a": .5}', 1, ".5 is no JSON value"),
        ('{"a": 32 64}', 1, "32 64 is no JSON value"),
        ('{"steps": ,\n"b": 1}', 1, "steps: the value is empty; an unset shell variable"),
        ('{"b": 1,\n"steps": }', 2, "steps: the value is empty"),
        ('{"a": 1,\n"b": 2,\n"a": 3}', 3, 'the key "a" stands on lines 1 and 3'),
        ('{"a": {"x": 1,\n"x": 2}}', 2, 'a: the key "x" stands on lines 1 and 2'),
        ('{"a": 1\n"b": 2}', 2, 'a comma is missing before "b"'),
        ("{a: 1}", 1, 'the key a needs double quotes: "a"'),
        ("{'a': 1}", 1, 'needs double quotes: "a"'),
        ("{CL_1st_METRIC_NAME: 1}", 1, "the key is a placeholder CL_1st_METRIC_NAME"),
        ('{"a": "open\n}', 1, "is not closed on its line"),
        ('{"a": "\\q"}', 1, "no JSON text"),
        ('{"a": 1', 1, "{ of line 1 is never closed"),
        ('{"a": [1, 2}', 1, "[ of line 1"),
        ('{"a" 1}', 1, 'a colon is missing after the key "a"'),
        ('{"a": 1} x', 1, "x stands after the closing brace"),
        ("[1]", 1, "a JSON object in { } is expected"),
        ("", 1, "a JSON object in { } is expected"),
        ('{"a": 1]}', 1, "the end of the { of line 1 is expected, not ]"),
    ],
)
def test_faults_have_line_and_words(text: str, line: int, part: str) -> None:
    found = faults(text)
    assert any(at == line and part in said for at, said in found), found


def test_reading_goes_on_after_each_fault() -> None:
    text = '{"a": CONFIG_MBSIZE,\n"b": ,\n"c": True,\n"d": 4}'
    assert [line for line, _ in faults(text)] == [1, 2, 3]
    root, _ = read_json(text)
    assert isinstance(root.plain("a"), Unreadable)
    assert root.plain("d") == 4
