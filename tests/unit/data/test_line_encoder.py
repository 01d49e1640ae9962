"""JSON lines become ids, and a bad line costs no other."""

import json

import numpy as np
import pytest

from megatron_zero.config.data import TokenizerConfig
from megatron_zero.data import line_encoder
from megatron_zero.data.line_encoder import BadLineError, EncodeTask, LineEncoder, texts_of_line
from megatron_zero.data.text_pieces import TextBlock

NULL = TokenizerConfig("NullTokenizer", vocab_size=100)


def encode(*lines, keys=("text",), append_eod=False, tokenizer=NULL, check_only=False):
    encoder = LineEncoder(tokenizer, keys=keys, append_eod=append_eod, special_tokens=True)
    block = TextBlock("a.jsonl", b"\n".join(lines), input_bytes=7)
    return encoder(EncodeTask(block, check_only=check_only))


def documents(encoded, key=0):
    texts = encoded.texts[key]
    return [part.tolist() for part in np.split(texts.ids, np.cumsum(texts.lengths)[:-1])] if len(texts.lengths) else []


def test_lines_become_documents():
    encoded = encode(b'{"text": "1 2 3"}', b'{"text": ""}', b'{"text": "4"}')
    assert documents(encoded) == [[1, 2, 3], [], [4]]
    assert encoded.texts[0].ids.dtype == np.dtype("<u2")
    assert encoded.bad_lines == ()
    assert (encoded.num_lines, encoded.num_documents) == (3, 3)
    assert (encoded.text_bytes, encoded.input_bytes) == (18 + 13 + 13, 7)


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 5000, "1e999", "NaN", "9" * 4000])
def test_number_under_another_key_may_have_any_size(number):
    line = b'{"text": "1 2", "n": [%s, 7]}' % number.encode()
    assert documents(encode(line)) == [[1, 2]]


def test_end_of_document_follows_text_but_not_nothing():
    """H25: nothing is appended to an empty document."""
    assert documents(encode(b'{"text": ""}', b'{"text": "5"}', b'{"text": " "}', append_eod=True)) == [[], [5, 100], []]


def test_each_key_has_its_own_documents():
    encoded = encode(b'{"a": "1", "b": "2 3"}', b'{"a": "4"}', b'{"b": "", "a": "5"}', keys=("a", "b"))
    assert documents(encoded, 0) == [[1], [5]]
    assert documents(encoded, 1) == [[2, 3], []]
    assert [str(line) for line in encoded.bad_lines] == ["a.jsonl, line 2: no key 'b'"]


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
        (b"[" * 100_000, "nested too deeply: lists and objects are followed for about a thousand levels"),
        (b'{"text": "1", "n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"text": "1", "n": ' + b"9" * 5000, "not JSON: Expecting ',' delimiter"),
        (b'{"text": ' + b"9" * 5000 + b"}", "key 'text' holds a number, not a text"),
        (b'\xef\xbb\xbf{"text": "1"}', "begins with a byte order mark"),
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


@pytest.mark.parametrize("text,num_lines", [(b"", 0), (b"\n", 1), (b"\n\n", 2), (b"x", 1), (b"x\n", 1), (b"x\ny", 2)])
def test_lines_are_counted_with_and_without_a_last_newline(text, num_lines):
    encoder = LineEncoder(NULL, keys=["text"], append_eod=False, special_tokens=True)
    encoded = encoder(EncodeTask(TextBlock("a", text, len(text))))
    assert encoded.num_lines == len(encoded.bad_lines) == num_lines
    assert documents(encoded) == []


def test_text_that_the_tokenizer_refuses_is_a_bad_line():
    encoded = encode(b'{"text": "1"}', b'{"text": "1000"}', b'{"text": "2"}')
    assert documents(encoded) == [[1], [2]]
    assert str(encoded.bad_lines[0]).startswith("a.jsonl, line 2: token id 1000")


def test_check_finds_the_same_bad_lines_and_encodes_nothing():
    lines = (b'{"text": "1"}', b"x", b'{"text": "1000"}', b"", b'{"a": 1}', b'{"text": "2"}')
    checked = encode(*lines, check_only=True)
    assert checked.texts == ()
    assert checked.bad_lines == encode(*lines).bad_lines
    assert len(checked.bad_lines) == 4
    assert checked.num_documents == 2


# ---- what the tokenizer gives


class OddTokenizer:
    """Its text is the ids; anything goes, also beyond its vocabulary."""

    vocab_size, eod, refuses_text = 100, 99, False

    def encode(self, text):
        return json.loads(text)


class ArrayTokenizer(OddTokenizer):
    def __init__(self, dtype):
        self.dtype = dtype

    def encode_array(self, text):
        return np.array(json.loads(text), dtype=self.dtype)


def odd_documents(monkeypatch, tokenizer, *texts):
    monkeypatch.setattr(line_encoder, "build_tokenizer", lambda config, *, special_tokens: tokenizer)
    encoded = encode(*(json.dumps({"text": text}).encode() for text in texts), append_eod=True)
    return documents(encoded), encoded


@pytest.mark.parametrize("bad", [[100], [5, 65536 + 3], [-1], [2**40], [1, 2**31]])
@pytest.mark.parametrize("tokenizer", [OddTokenizer(), ArrayTokenizer(np.int64)])
def test_id_outside_of_the_vocabulary_is_a_bad_line_and_never_wraps(monkeypatch, bad, tokenizer):
    found, encoded = odd_documents(monkeypatch, tokenizer, "[1, 2]", str(bad), "[]", "[3]")
    assert found == [[1, 2, 99], [], [3, 99]]
    wrong = next(token for token in bad if not 0 <= token < 100)
    expected = f"a.jsonl, line 2: the tokenizer gives token id {wrong}, and its vocabulary has ids 0 to 99"
    assert [str(line).split(":")[:2] for line in encoded.bad_lines] == [expected.split(":")]


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_array_of_any_whole_type_gives_what_the_list_gives(monkeypatch, dtype):
    texts = ("[1, 2, 98]", "[]", "[0]")
    found, _ = odd_documents(monkeypatch, ArrayTokenizer(dtype), *texts)
    assert found == odd_documents(monkeypatch, OddTokenizer(), *texts)[0] == [[1, 2, 98, 99], [], [0, 99]]
