"""How a command of tools/ runs as a process: what stdout cannot spell, and what happens when nobody reads it.

A command that makes something goes on without a reader (`say`); one that only shows something ends, quietly and with the
status of a command that SIGPIPE killed (`run_tool`).
"""

from __future__ import annotations

import codecs
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from .stop_signals import Stopped, exit_on_signals

READER_GONE: Final = 128 + signal.SIGPIPE


def run_tool(main: Callable[[], int]) -> int:
    """The exit status of a command: main's own; READER_GONE where stdout's reader left before the end (`| head`), without
    a word; 1 where its lines could not be written, with the reason on stderr. SIGTERM, Ctrl-C and SIGHUP raise
    Stopped in main (stop_signals.py), and one line says so. For the main thread of a process that does nothing else.
    """
    exit_on_signals()
    spell_any_name()
    try:
        status = main()
    except Stopped as stop:
        flush_stdout()
        with suppress(OSError):  # SIGHUP: the terminal may be gone
            print(f"ended by {stop.name}{', ' if stop.state else ''}{stop.state}", file=sys.stderr, flush=True)
        raise
    except SystemExit:  # --help, a wrong command line
        flush_stdout()
        raise
    except BrokenPipeError:
        drop_stdout()
        return READER_GONE
    except OSError as error:  # main explains those of its files; without buffering each print may raise
        drop_stdout()
        print(error if error.filename is not None else _not_written(error), file=sys.stderr)
        return 1
    return flush_stdout() or status


def allow_open_files() -> None:
    """As many open files as this process may allow itself, for commands that hold files of any number of inputs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def spell_any_name() -> None:
    """From here on no text is an error for stdout. A file name that is not text comes out as the bytes that it has where
    stdout is UTF-8; elsewhere what the encoding lacks is escaped, as Python does for stderr."""
    # None: closed (>&-). Another class: a test's.
    if sys.stdout is not None and hasattr(sys.stdout, "reconfigure"):
        is_utf8 = codecs.lookup(sys.stdout.encoding).name == "utf-8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")


def say(text: str) -> None:
    """A line on stdout. Nobody reading it any more (`| head`), or a log on a full disk, does not cost the work: the first
    failure is told on stderr, and nothing is said from then on."""
    if sys.stdout is None:
        return
    try:
        encoding = sys.stdout.encoding or "utf-8"
        errors = getattr(sys.stdout, "errors", None)
        # As spell_any_name() has set it; in a process that has not called it, escaped.
        spelled = text if errors != "strict" else text.encode(encoding, "backslashreplace").decode(encoding)
        print(spelled, flush=True)
    except OSError as error:
        drop_stdout()
        with suppress(OSError):
            print(f"no more progress lines, the run goes on: {error.strerror}", file=sys.stderr)


def flush_stdout() -> int:
    """0, or the status to end with where what was printed cannot be written."""
    if sys.stdout is None:
        return 0
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
        return READER_GONE
    except OSError as error:
        drop_stdout()
        print(_not_written(error), file=sys.stderr)
        return 1
    return 0


def _not_written(error: OSError) -> str:
    return f"cannot write to standard output: {error.strerror or error}"


def drop_stdout() -> None:
    """Nothing is written to stdout from now on, not even what it holds back, which Python would try at the end."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # a test's own
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)
