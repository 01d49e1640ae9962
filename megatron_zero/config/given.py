"""What one side (command line or JSON) said: values with their sources, and everything worth telling the user.

*Given* means written by the user; "auto" and absent are not given. Problems are collected, not raised, so that
load.py can show all of both sides in one message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Given:
    """One value and where it comes from: "--flag", "file.json:12", "default" or "derived: why"."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Reading:
    """given: dotted field path -> Given.  notes: accepted without effect.  problems: messages that stop the run."""

    given: Mapping[str, Given]
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
