"""The line format that parsers know, and who speaks."""

from __future__ import annotations

import errno
import io
import os
import re

import pytest

from megatron_zero.observability.logging import RankLogger, make_logger

PREFIX = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\] \[%s\] \[test_logging\.py:\d+:%s\] "


def logger(*, rank: int = 0, is_logging_rank: bool = True) -> tuple[RankLogger, io.StringIO]:
    stream = io.StringIO()
    return make_logger(rank=rank, is_logging_rank=is_logging_rank, stream=stream), stream


def test_info_names_time_level_and_the_callers_line() -> None:
    log, stream = logger()
    log.info("before forward 4, 100% of %s")
    expected = PREFIX % ("INFO", "test_info_names_time_level_and_the_callers_line")
    assert re.fullmatch(expected + r"before forward 4, 100% of %s\n", stream.getvalue())


def test_tagged_line_begins_with_the_rank() -> None:
    log, stream = logger(rank=3)
    log.info("step=5, skipped=0", tag_rank=True)
    assert stream.getvalue().endswith("] [Rank 3] step=5, skipped=0\n")


def test_plain_lines_have_no_prefix() -> None:
    log, stream = logger()
    log.plain(" iteration        1/       2 |")
    assert stream.getvalue() == " iteration        1/       2 |\n"


def test_other_ranks_speak_only_for_themselves() -> None:
    log, stream = logger(rank=5, is_logging_rank=False)
    log.info("a")
    log.warning("b")
    log.plain("c")
    assert stream.getvalue() == ""
    log.info_all("d")
    log.warning_all("e")
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(PREFIX % ("INFO", "test_other_ranks_speak_only_for_themselves") + r"\[Rank 5\] d", first)
    assert re.fullmatch(PREFIX % ("WARNING", "test_other_ranks_speak_only_for_themselves") + r"\[Rank 5\] e", second)


def test_standard_output_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    make_logger(rank=0, is_logging_rank=True).plain("hello")
    assert capsys.readouterr().out == "hello\n"


@pytest.mark.parametrize("method", ["info", "warning", "plain"])
def test_full_disk_under_the_log_raises(method: str) -> None:
    with open("/dev/full", "w") as full:
        log = make_logger(rank=0, is_logging_rank=True, stream=full)
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            getattr(log, method)("text")
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            full.close()
