"""JSON lines become ids, and a bad line costs no other."""

import numpy as np
import pytest

from megatron_zero.config.data import TokenizerConfig
from megatron_zero.data.line_encoder import BadLineError, LineChunk, LineEncoder, read_chunks, texts_of_line

NULL = TokenizerConfig("NullTokenizer", vocab_size=100)


def encode(*lines, keys=("text",), append_eod=False, tokenizer=NULL):
    encoder = LineEncoder(tokenizer, keys=keys, append_eod=append_eod, special_tokens=True)
    return encoder(LineChunk("a.jsonl", 10, lines))


def documents(encoded, key=0):
    return [document.tolist() for document in encoded.texts[key].documents()]


def test_lines_become_documents():
    encoded = encode(b'{"text": "1 2 3"}\n', b'{"text": ""}\n', b'{"text": "4"}')
    assert documents(encoded) == [[1, 2, 3], [], [4]]
    assert encoded.texts[0].ids.dtype == np.dtype("<u2")
    assert encoded.bad_lines == ()
    assert encoded.num_bytes == 18 + 13 + 13


def test_end_of_document_follows_text_but_not_nothing():
    """H25: nothing is appended to an empty document."""
    assert documents(encode(b'{"text": ""}', b'{"text": "5"}', b'{"text": " "}', append_eod=True)) == [[], [5, 100], []]


def test_each_key_has_its_own_documents():
    encoded = encode(b'{"a": "1", "b": "2 3"}', b'{"a": "4"}', b'{"b": "", "a": "5"}', keys=("a", "b"))
    assert documents(encoded, 0) == [[1], [5]]
    assert documents(encoded, 1) == [[2, 3], []]
    assert [str(line) for line in encoded.bad_lines] == ["a.jsonl, line 11: no key 'b'"]


def test_large_vocabulary_makes_four_byte_ids():
    encoded = encode(b'{"text": "70000"}', tokenizer=TokenizerConfig("NullTokenizer", vocab_size=70001))
    assert encoded.texts[0].ids.dtype == np.dtype("<i4")
    assert documents(encoded) == [[70000]]


@pytest.mark.parametrize(
    "line,reason",
    [
        (b"\n", "blank"),
        (b"  \t \r\n", "blank"),
        (b'{"text": "unterminated\n', "not JSON"),
        (b'{"text": "x",}', "not JSON"),
        (b'{"text": "1"} {"text": "2"}', "not JSON: Extra data"),
        (b'{"text": "bad \\x41"}', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"text": "1", "n": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'\xef\xbb\xbf{"text": "1"}', "not JSON"),
        (b'{"text": "\xff\xfe"}', "not UTF-8 at byte 10 of the line"),
        (b"[1, 2]", "a list, not a JSON object"),
        (b'"text"', "a text, not a JSON object"),
        (b"null", "null, not a JSON object"),
        (b'{"content": "1"}', "no key 'text'"),
        (b'{"text": null}', "key 'text' holds null, not a text"),
        (b'{"text": true}', "holds true or false"),
        (b'{"text": 42}', "holds a number"),
        (b'{"text": ["1"]}', "holds a list"),
        (b'{"text": {"a": 1}}', "holds an object"),
        (b'{"text": "ab \\ud83d"}', r"lone surrogate, U\+D83D at character 3"),
        (b'{"text": "\\ude00\\ud83d"}', r"lone surrogate, U\+DE00 at character 0"),
    ],
)
def test_line_that_is_no_document_has_a_reason(line, reason):
    with pytest.raises(BadLineError, match=reason):
        texts_of_line(line, ["text"])


@pytest.mark.parametrize(
    "line,text",
    [
        (b'{"text": "pair \\ud83d\\ude00"}\n', "pair \U0001f600"),
        (b'{"text": "crlf"}\r\n', "crlf"),
        (b'{"text": "1", "v": NaN}', "1"),
        (b'{"text": "1", "text": "the last"}', "the last"),
        (b'  {"text": "indented"}  ', "indented"),
    ],
)
def test_odd_but_valid_line_is_read(line, text):
    assert texts_of_line(line, ["text"]) == [text]


def test_text_that_the_tokenizer_refuses_is_a_bad_line():
    encoded = encode(b'{"text": "1"}', b'{"text": "1000"}', b'{"text": "2"}')
    assert documents(encoded) == [[1], [2]]
    assert str(encoded.bad_lines[0]).startswith("a.jsonl, line 11: token id 1000")


def test_chunks_hold_every_line_with_its_number(tmp_path):
    contents = {"a": b"1\n22\n333\n", "b": b"", "c": b"4\r\n\n no newline at the end"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    for chunk_bytes in (1, 5, 1000):
        read = {name: [] for name in contents}
        for chunk in read_chunks([tmp_path / name for name in contents], chunk_bytes=chunk_bytes):
            lines = read[chunk.path[-1]]
            assert chunk.first_line == len(lines) + 1
            lines += chunk.lines
        assert {name: b"".join(lines) for name, lines in read.items()} == contents
        assert [len(lines) for lines in read.values()] == [3, 0, 3]
