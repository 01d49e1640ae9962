"""One line format for all ranks: `[2026-12-01 10:00:00,123] [INFO] [file.py:line:func] text`.

The shape is DeepSpeed's, because people's parsers know it. Nothing is registered with the logging module: a logger is
an object that is passed to those who speak.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, TextIO

FORMAT: Final = "[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d:%(funcName)s] %(message)s"


class _RaisingHandler(logging.StreamHandler[TextIO]):
    """Raises when the stream cannot be written; the standard handler would only print the error and go on."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise  # noqa: PLE0704  # called inside the handler's except block: re-raises what failed there


class RankLogger:
    """Speaks for one rank. Lines are flushed one by one and written whole, so those of several ranks do not mix."""

    def __init__(self, *, rank: int, is_logging_rank: bool, stream: TextIO) -> None:
        self.rank = rank
        self.is_logging_rank = is_logging_rank
        self._stream = stream
        handler = _RaisingHandler(stream)
        handler.setFormatter(logging.Formatter(FORMAT))
        self._logger = logging.Logger("megatron_zero", logging.INFO)
        self._logger.addHandler(handler)

    def info(self, message: str, *, tag_rank: bool = False) -> None:
        """One line from the logging rank; others stay silent. tag_rank: begin it with `[Rank r] `."""
        if self.is_logging_rank:
            self._log(logging.INFO, message, tag_rank=tag_rank)

    def info_all(self, message: str) -> None:
        """One line from every rank that calls, begun with `[Rank r] `."""
        self._log(logging.INFO, message, tag_rank=True)

    def warning(self, message: str) -> None:
        """One line from the logging rank, for what all ranks know."""
        if self.is_logging_rank:
            self._log(logging.WARNING, message, tag_rank=False)

    def warning_all(self, message: str) -> None:
        """One line from every rank that calls, for what only that rank knows."""
        self._log(logging.WARNING, message, tag_rank=True)

    def plain(self, text: str) -> None:
        """Bare text from the logging rank: the Megatron lines, which parsers expect without a prefix."""
        if self.is_logging_rank:
            self._stream.write(text + "\n")
            self._stream.flush()

    def _log(self, level: int, message: str, *, tag_rank: bool) -> None:
        tag = f"[Rank {self.rank}] " if tag_rank else ""
        # stacklevel: the line names the caller of info(), not this file. %-signs in messages are text: no arguments.
        self._logger.log(level, tag + message, stacklevel=3)


def make_logger(*, rank: int, is_logging_rank: bool, stream: Any = None) -> RankLogger:
    """A logger for this rank. stream: where lines go; None = standard output as it is now."""
    return RankLogger(rank=rank, is_logging_rank=is_logging_rank, stream=sys.stdout if stream is None else stream)
