"""Counts, line numbers and what is shown while preprocess_data works."""

import io
import os
import sys

import numpy as np
import pytest

from megatron_zero.data.line_encoder import BadLine, EncodedPiece, EncodedTexts
from megatron_zero.data.preprocess_report import Progress, Report, total_input_bytes


def piece(name, *, lines=10, bad=(), lengths=None, input_bytes=100, text_bytes=1000):
    lengths = np.ones(lines - len(bad), np.int64) if lengths is None else np.array(lengths)
    texts = (EncodedTexts(np.zeros(int(lengths.sum()), np.uint16), lengths),)
    return EncodedPiece(name, texts, tuple(BadLine(name, n, "bad") for n in bad), lines, text_bytes, input_bytes)


def report_at(*seconds):
    """A report whose clock shows these seconds at its calls, the first one when it is made, and then the last for ever."""
    times = list(seconds)
    return Report(now=lambda: times.pop(0) if len(times) > 1 else times[0])


def test_lines_of_pieces_are_numbered_by_file():
    report = report_at(0)
    for added in (
        piece("a", bad=(3,)),
        piece("a", lines=5),
        piece("a", bad=(1, 10)),
        piece("b", bad=(2,)),
        piece("b", bad=(1,)),
    ):
        report.add(added)
    assert [str(line) for line in report.listed] == [
        "a, line 3: bad",
        "a, line 16: bad",
        "a, line 25: bad",
        "b, line 2: bad",
        "b, line 11: bad",
    ]
    assert (report.bad_lines, report.documents) == (5, 40)


def test_ten_bad_lines_are_listed_and_all_counted():
    report = report_at(0)
    report.add(piece("a", lines=8, bad=range(1, 9)))
    report.add(piece("a", lines=8, bad=range(1, 9)))
    assert [line.number for line in report.listed] == list(range(1, 11))
    assert report.bad_lines_text().endswith("a, line 10: bad\n  and 6 more")


def test_line_has_counts_rates_and_the_time_left():
    report = report_at(100, 104)
    report.add(piece("a", lines=4, lengths=[3, 0, 0, 1], input_bytes=500, text_bytes=8_000_000))
    assert report.line() == "4 documents (2 empty), 4 tokens; 4.0 s, 1 documents/s, 2.00 MB/s"
    assert report.line_with_time_left(2000) == report.line() + ", 25.0 %, about 0:00:12 left"
    assert report.line_with_time_left(None) == report.line()


def test_texts_of_several_keys_are_counted_by_themselves():
    report = report_at(100, 104)
    texts = [EncodedTexts(np.zeros(sum(lengths), np.uint16), np.array(lengths)) for lengths in ([0, 2], [0, 0])]
    report.add(EncodedPiece("a", tuple(texts), (), 2, 8, 8))
    assert (report.documents, report.texts, report.empty_texts) == (2, 4, 3)
    assert report.line().startswith("2 documents with 4 texts (3 of them empty), 2 tokens; ")


def test_piece_without_texts_counts_its_documents():
    report = report_at(0)
    report.add(EncodedPiece("a", (), (BadLine("a", 1, "bad"),), 7, 10, 10))
    assert (report.documents, report.tokens, report.bad_lines) == (6, 0, 1)


@pytest.mark.parametrize("sizes,total", [([], 0), ([1, 2], 3), ([1, None], None)])
def test_total_is_unknown_with_a_pipe_among_the_inputs(sizes, total):
    assert total_input_bytes(sizes) == total


def test_without_a_terminal_lines_come_by_the_interval(monkeypatch, capsys):
    report = report_at(0, 1)
    with Progress(report, total_bytes=400, log_interval=25) as progress:
        for _ in range(4):
            report.add(piece("a"))
            progress.update(piece("a"))
    out = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in out] == ["30"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("total", [400, None])
def test_on_a_terminal_a_bar_shows_rates_and_no_lines_come(monkeypatch, capsys, total):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    report = report_at(0, 2)
    with Progress(report, total_bytes=total, log_interval=1) as progress:
        report.add(piece("a", input_bytes=400))
        progress.update(piece("a", input_bytes=400))
        progress.say("a line" + os.linesep)
    assert capsys.readouterr().out == ""
    shown = terminal.getvalue()
    assert "5 documents/s, 0.00 MB/s" in shown
    assert "a line" in shown
    assert ("100%" in shown) == (total is not None)
