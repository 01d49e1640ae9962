"""Takes back what a TensorBoard folder tells of steps that a resumed run will make again.

SummaryWriter's purge_step cannot: it hides every scalar whose step is at or past the number, and our "vs samples" and
"vs tokens" series count in samples and tokens, so their whole history would be hidden at each resume.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

VS_SAMPLES: Final = " vs samples"
VS_TOKENS: Final = " vs tokens"
# Length of the record and the checksum of these 8 bytes; the record and 4 bytes of its own checksum follow.
HEADER: Final = struct.Struct("<QI")
MARK: Final = "tfevents"  # TensorBoard reads every file with this in its name


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a run goes on from; all 0 = a fresh start."""

    iteration: int
    consumed_samples: int
    consumed_tokens: int

    def reaches(self, tag: str, step: int) -> bool:
        """Whether a scalar belongs to what the resumed run has behind it. step: in the unit of the tag's axis."""
        if tag.endswith((VS_SAMPLES, "x=samples")):
            return step <= self.consumed_samples
        if tag.endswith((VS_TOKENS, "x=tokens")):
            return step <= self.consumed_tokens
        return step <= self.iteration


def drop_later_events(log_dir: Path, resume: ResumePoint, say: Callable[[str], None]) -> None:
    """Rewrite the event files of log_dir (not of its subfolders) that hold scalars past `resume`, or a torn end.

    The original of such a file stays beside it as superseded.<n>.<name>, under a name TensorBoard does not read. Files
    without such events are not touched. say: is told of each. Raises OSError.
    """
    for path in sorted(log_dir.glob(f"*{MARK}*")):
        temporary = path.with_name(f"rewriting.{path.name.replace(MARK, 'events')}")
        dropped = 0
        with open(path, "rb") as source, open(temporary, "wb") as kept:
            for record, keep in _records(source, resume):
                if keep:
                    kept.write(record)
                else:
                    dropped += 1
            kept.flush()
            os.fsync(kept.fileno())
        if dropped == 0 and temporary.stat().st_size == path.stat().st_size:
            temporary.unlink()
            continue
        aside = _free_name(path)
        os.rename(path, aside)
        os.rename(temporary, path)
        say(
            f"--tensorboard-dir: {path.name}: took back {dropped} events after iteration {resume.iteration}; "
            f"they are still in {aside.name}"
        )


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"superseded.{number}.{path.name.replace(MARK, 'events')}")).exists():
        number += 1
    return aside


def _records(source: BinaryIO, resume: ResumePoint) -> Iterator[tuple[bytes, bool]]:
    """(bytes of one record with its frame, whether to keep it); ends where the file does or is torn.

    A killed process leaves a short last record, a machine that lost power zeros: the frame's checksum finds the latter.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    while len(header := source.read(HEADER.size)) == HEADER.size:
        length, checksum = HEADER.unpack(header)
        if masked_crc32c(header[:8]) != checksum:
            return
        body = source.read(length + 4)
        if len(body) < length + 4:
            return
        event = Event.FromString(body[:length])
        keep = all(resume.reaches(value.tag, event.step) for value in event.summary.value)
        yield header + body, keep
