"""What preprocess_data has done so far: counts, bad lines under their right numbers, progress as a bar or as lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final

from tqdm import tqdm

from .line_encoder import BadLine, EncodedPiece
from .tool_process import say

LISTED_BAD_LINES: Final = 10
BAR: Final = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}B [{elapsed}<{remaining}{postfix}]"
BAR_WITHOUT_TOTAL: Final = "{desc}: {n_fmt}B [{elapsed}{postfix}]"


@dataclass(slots=True)
class Report:
    """Counts of the pieces added so far, which come in the order of the inputs.

    texts: one of each key for a document.   empty_texts: those without ids.
    input_bytes: as they lie on disk.   text_bytes: unpacked.   listed: the first bad lines.
    now: the clock, in seconds.
    """

    now: Callable[[], float] = time.monotonic
    documents: int = 0
    texts: int = 0
    empty_texts: int = 0
    tokens: int = 0
    input_bytes: int = 0
    text_bytes: int = 0
    bad_lines: int = 0
    listed: list[BadLine] = field(default_factory=list)
    name: str = ""
    lines_of_name: int = 0
    started: float = 0.0

    def __post_init__(self) -> None:
        self.started = self.now()

    def add(self, piece: EncodedPiece) -> None:
        if piece.name != self.name:
            self.name, self.lines_of_name = piece.name, 0
        for line in piece.bad_lines[: LISTED_BAD_LINES - len(self.listed)]:
            self.listed.append(replace(line, number=line.number + self.lines_of_name))
        self.lines_of_name += piece.num_lines
        self.documents += piece.num_documents
        self.texts += sum(len(texts.lengths) for texts in piece.texts)
        self.empty_texts += sum(int((texts.lengths == 0).sum()) for texts in piece.texts)
        self.tokens += sum(len(texts.ids) for texts in piece.texts)
        self.input_bytes += piece.input_bytes
        self.text_bytes += piece.text_bytes
        self.bad_lines += len(piece.bad_lines)

    def rates(self) -> str:
        seconds = max(self.now() - self.started, 1e-6)
        return f"{self.documents / seconds:.0f} documents/s, {self.text_bytes / seconds / 1e6:.2f} MB/s"

    def line(self) -> str:
        seconds = self.now() - self.started
        empty = f"({self.empty_texts} empty)"
        if self.texts > self.documents:  # several keys: each document has a text, and an entry, in each pair
            empty = f"with {self.texts} texts ({self.empty_texts} of them empty)"
        return f"{self.documents} documents {empty}, {self.tokens} tokens; {seconds:.1f} s, {self.rates()}"

    def line_with_time_left(self, total_bytes: int | None) -> str:
        """total_bytes: of all inputs, as they lie on disk; None where nobody knows (a pipe)."""
        if total_bytes is None or self.input_bytes == 0:
            return self.line()
        share = self.input_bytes / total_bytes
        left = (self.now() - self.started) * (1 - share) / share
        return f"{self.line()}, {100 * share:.1f} %, about {_duration(left)} left"

    def bad_lines_text(self) -> str:
        shown = "\n".join(f"  {line}" for line in self.listed)
        more = f"\n  and {self.bad_lines - len(self.listed)} more" if self.bad_lines > len(self.listed) else ""
        return shown + more


class Progress:
    """A bar on a terminal (stderr); elsewhere a line on stdout whenever another log_interval documents are done."""

    def __init__(self, report: Report, *, total_bytes: int | None, log_interval: int) -> None:
        self._report, self._total, self._interval = report, total_bytes, log_interval
        self._logged = 0
        self._bar = tqdm(
            total=total_bytes,
            unit_scale=True,
            disable=None,  # where stderr is no terminal
            desc="preprocess",
            bar_format=BAR if total_bytes is not None else BAR_WITHOUT_TOTAL,
        )

    def update(self, piece: EncodedPiece) -> None:
        """Call it after report.add(piece)."""
        self._bar.set_postfix_str(self._report.rates(), refresh=False)
        self._bar.update(piece.input_bytes)
        intervals = self._report.documents // self._interval
        if self._bar.disable and intervals > self._logged:
            say(self._report.line_with_time_left(self._total))
        self._logged = intervals

    def say(self, text: str) -> None:
        """A line on stderr, above the bar if there is one."""
        tqdm.write(text, file=sys.stderr)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.close()


def total_input_bytes(sizes: Sequence[int | None]) -> int | None:
    """The sum, or None where a size is not known."""
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}"
