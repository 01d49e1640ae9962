"""A function applied to many items in several processes, results in the order of the items.

Unlike multiprocessing.Pool it ends when a worker dies, and unlike any pool of the library its workers end when the
parent does: each has one pipe of its own, and either end sees the other's death as an end of file. Bounded memory.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Final, Generic, TypeVar

from ..config.fields import ConfigError

Item = TypeVar("Item")
Result = TypeVar("Result")

LOOK_AHEAD: Final = 4  # items begun per worker before the oldest one's result is taken
STOP_SECONDS: Final = 5.0  # what a worker gets to end by itself


class WorkerError(RuntimeError):
    """A worker process died, or its function failed; the message has the exit code or the worker's traceback."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """error: an exception that has its reason in the input, and is no fault of the program."""

    trace: str
    error: Exception | None = None


def ordered_map(
    make_function: Callable[[], Callable[[Item], Result]], items: Iterable[Item], *, workers: int
) -> Generator[Result, None, None]:
    """function(item) of each item, in order, where each worker process makes its own function once.

    workers: 1 runs everything in this process. make_function, items and results are pickled for more (they are spawned,
    not forked). Errors: ConfigError and OSError of the function, as it raised them; WorkerError for a worker that died,
    and for any other exception (which comes as it is with one worker). All workers are gone when this ends or is closed.
    """
    if workers == 1:
        yield from map(make_function(), items)
        return
    with ExitStack() as started:
        pool = [started.enter_context(_Worker[Item, Result](make_function)) for _ in range(workers)]
        yield from _in_order(pool, items)


def _in_order(pool: list[_Worker[Item, Result]], items: Iterable[Item]) -> Iterator[Result]:
    numbered = enumerate(items)
    idle, busy = list(pool), dict[Connection, tuple[int, _Worker[Item, Result]]]()
    done: dict[int, Result] = {}
    next_out = next_in = 0
    exhausted = False
    while True:
        while idle and not exhausted and next_in < next_out + LOOK_AHEAD * len(pool):
            following = next(numbered, None)
            if following is None:
                exhausted = True
                break
            next_in = following[0] + 1
            worker = idle.pop()
            worker.send(following[1])
            busy[worker.connection] = following[0], worker
        while next_out in done:
            yield done.pop(next_out)
            next_out += 1
        if not busy and exhausted:
            return
        for connection in wait(list(busy)) if busy else ():
            assert isinstance(connection, Connection)
            index, worker = busy.pop(connection)
            done[index] = worker.receive()
            idle.append(worker)


class _Worker(Generic[Item, Result]):
    """One process and the pipe to it. It has one item at a time, so the two ends never both block in a write."""

    def __init__(self, make_function: Callable[[], Callable[[Item], Result]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, make_function), daemon=True)
        # Ctrl-C reaches the whole group, and the parent decides: a worker never sees it, not even while it starts. The
        # first start of all would also start the library's tracker process, which takes the signal out of the mask.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # only the worker holds it now, so that its death ends the pipe

    def send(self, item: Item) -> None:
        try:
            self.connection.send(item)
        except OSError as error:
            raise self._death() from error

    def receive(self) -> Result:
        try:
            answer = self.connection.recv()
        except (EOFError, OSError) as error:  # OSError: it died in the middle of an answer
            raise self._death() from error
        if isinstance(answer, _Failure):
            if answer.error is not None:
                raise answer.error
            raise WorkerError(f"a worker process failed:\n{answer.trace}")
        result: Result = answer
        return result

    def __enter__(self) -> _Worker[Item, Result]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.connection.close()
        if error is not None:
            self._process.terminate()
        self._process.join(STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._process.close()

    def _death(self) -> WorkerError:
        self._process.join(STOP_SECONDS)
        code = self._process.exitcode
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        return WorkerError(f"worker process {self._process.pid} {how} (out of memory? try fewer workers)")


def _serve(connection: Connection, make_function: Callable[[], Callable[[Any], Any]]) -> None:
    """A worker's life: until the parent closes the pipe or is gone."""
    function: Callable[[Any], Any] | None = None
    while True:
        try:
            item = connection.recv()
        except (EOFError, OSError):
            return
        try:
            function = function or make_function()
            answer = function(item)
        except (ConfigError, OSError) as error:
            answer = _Failure(traceback.format_exc(), error)
        except Exception:  # whatever it is, it is raised again in the parent
            answer = _Failure(traceback.format_exc())
        try:
            connection.send(answer)
        except OSError:
            return
