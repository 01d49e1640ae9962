"""Run a module-level function on N gloo processes and get every rank's result, or the first failing rank's traceback.

    results = run_distributed(check_sum, 2, 7)          # check_sum(ctx: ParallelContext, seven: int) on two ranks
    with DistributedPool(2) as pool: pool.run(check_sum, 7); pool.run(other)      # one start for many calls

Starting torch costs seconds per process, so share a pool (a session fixture; PoolSet holds one per world size). Inside the
workers warnings are errors and torch uses one thread. A failed or hung call kills all workers; the next starts new ones.
Values travel by plain pickle: tensors are copied, never shared memory.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from megatron_zero.config.parallel import ParallelConfig

START_TIMEOUT_S = 180.0
GRACE_S = 1.0  # after the first failure: how long other ranks may take to report an earlier one


class RankFailure(RuntimeError):
    """A rank raised, died or did not answer in time; the message holds its traceback. rank: which one."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


def run_distributed(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    parallel: ParallelConfig | None = None,
    timeout_s: float = 120.0,
) -> list[Any]:
    """fn(ctx, *args) on world_size new processes; the results in rank order. fn: module-level. See DistributedPool.run."""
    with DistributedPool(world_size) as pool:
        return pool.run(fn, *args, parallel=parallel, timeout_s=timeout_s)


class DistributedPool:
    """world_size gloo workers that stay alive over many calls; a context manager. Started by the first run()."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._processes: list[Any] = []
        self._connections: list[Connection] = []
        self._folder: Path | None = None

    def __enter__(self) -> DistributedPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, by force if they do not go at once, and remove everything they left. May be called twice."""
        for connection in self._connections:
            connection.close()  # an idle worker reads the end of the pipe and leaves
        deadline = time.monotonic() + 2.0
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
        self._kill()

    def run(
        self, fn: Callable[..., Any], *args: Any, parallel: ParallelConfig | None = None, timeout_s: float = 120.0
    ) -> list[Any]:
        """fn(ctx, *args) on every rank; the results in rank order.

        fn: module-level; its file is loaded in the workers.   args, results: picklable.
        parallel: the mesh of ctx; None = all ranks on the dp axis.
        Raises RankFailure for the rank that failed first (by the clock), or that did not answer within timeout_s: then
        with the stack it hangs in. A test of an expected error catches it inside fn and returns it.
        """
        if not self._processes:
            self._start()
        call = pickle.dumps((fn.__module__, sys.modules[fn.__module__].__file__, fn.__qualname__, parallel))
        arguments = pickle.dumps(args)
        for connection in self._connections:
            # Two messages: the arguments may need the function's module to be loaded before they are unpickled.
            connection.send_bytes(call)
            connection.send_bytes(arguments)
        return self._collect(fn.__qualname__, timeout_s)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = Path(tempfile.mkdtemp(prefix="mz_spawn_"))
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_worker, args=(rank, self.world_size, str(self._folder), theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._connections.append(ours)
        self._collect("start of the worker", START_TIMEOUT_S)

    def _collect(self, what: str, timeout_s: float) -> list[Any]:
        """One answer of each rank; on failure or time-out the workers are gone when this raises."""
        started = time.monotonic()
        deadline = started + timeout_s
        answers: dict[int, Any] = {}
        failures: list[tuple[float, int, str]] = []  # (time, rank, message)
        while len(answers) + len(failures) < self.world_size and time.monotonic() < deadline:
            done = answers.keys() | {rank for _, rank, _ in failures}
            waiting = {self._connections[rank]: rank for rank in range(self.world_size) if rank not in done}
            for ready in wait(list(waiting), timeout=max(0.0, deadline - time.monotonic())):
                rank = waiting[ready]  # type: ignore[index]
                try:
                    failed_at, value = pickle.loads(self._connections[rank].recv_bytes())
                except (EOFError, ConnectionResetError):
                    self._processes[rank].join(5.0)
                    # -1: before any time on the clock, because what others report is the death of this one's connections.
                    failed_at, value = -1.0, f"died with exit code {self._processes[rank].exitcode}"
                if failed_at is None:
                    answers[rank] = value
                else:
                    failures.append((failed_at, rank, value))
                    deadline = min(deadline, time.monotonic() + GRACE_S)
        if failures:
            self._kill()
            _, rank, message = min(failures)
            raise RankFailure(rank, f"{what}: rank {rank} of {self.world_size} failed first:\n{message}")
        if len(answers) < self.world_size:
            silent = [rank for rank in range(self.world_size) if rank not in answers]
            stacks = "\n".join(f"rank {rank} is here:\n{self._stack(rank)}" for rank in silent)
            self._kill()
            raise RankFailure(silent[0], f"{what}: ranks {silent} did not answer in {timeout_s:g} s\n{stacks}")
        return [answers[rank] for rank in range(self.world_size)]

    def _stack(self, rank: int) -> str:
        """The Python stack of a worker that hangs, written by its signal handler."""
        assert self._folder is not None
        path = self._folder / f"stack{rank}"
        pid = self._processes[rank].pid
        if not path.exists() or pid is None:
            return "(it has not started yet)"
        return _ask_for_stack(pid, path)

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
            process.close()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []
        if self._folder is not None:
            shutil.rmtree(self._folder)
            self._folder = None


class PoolSet:
    """One DistributedPool per world size, made when first asked for: what a session fixture holds."""

    def __init__(self) -> None:
        self._pools: dict[int, DistributedPool] = {}

    def __call__(self, world_size: int) -> DistributedPool:
        return self._pools.setdefault(world_size, DistributedPool(world_size))

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


def _ask_for_stack(pid: int, path: Path) -> str:
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + 2.0
    size = -1
    while time.monotonic() < deadline:
        now = path.stat().st_size
        if now == size and now > 0:  # unchanged since the last look: the handler has written all of it
            break
        size = now
        time.sleep(0.05)
    return path.read_text()


def _worker(rank: int, world_size: int, folder: str, connection: Connection) -> None:
    """A worker's life: join the group, then answer calls until the pipe closes."""
    with open(Path(folder) / f"stack{rank}", "w") as stack_file:
        faulthandler.register(signal.SIGUSR1, file=stack_file)
        try:
            _serve(rank, world_size, folder, connection)
        except EOFError:
            return


def _serve(rank: int, world_size: int, folder: str, connection: Connection) -> None:
    import torch
    import torch.distributed as dist

    from megatron_zero.distributed.context import ParallelContext

    torch.set_num_threads(1)
    warnings.simplefilter("error")
    patience = timedelta(seconds=START_TIMEOUT_S)

    def start() -> None:
        # A file, not a port: tests of several people run on one machine, and a port found free may be taken by then.
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world_size, timeout=patience
        )

    _answer(connection, start)
    contexts: dict[ParallelConfig, ParallelContext] = {}
    while True:
        call, arguments = connection.recv_bytes(), connection.recv_bytes()

        def execute(call: bytes = call, arguments: bytes = arguments) -> Any:
            module, file, name, parallel = pickle.loads(call)
            _load(module, file)
            parallel = parallel or ParallelConfig()
            if parallel not in contexts:
                contexts[parallel] = ParallelContext.create(
                    parallel, rank=rank, world_size=world_size, device=torch.device("cpu"), timeout=patience
                )
            fn = getattr(sys.modules[module], name)
            return fn(contexts[parallel], *pickle.loads(arguments))

        _answer(connection, execute)


def _load(module: str, file: str) -> None:
    """Import a test's file under the name that pytest gave it, so that its classes unpickle on both sides."""
    if module not in sys.modules:
        spec = importlib.util.spec_from_file_location(module, file)
        assert spec is not None and spec.loader is not None
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])


def _answer(connection: Connection, action: Callable[[], Any]) -> None:
    """Send (None, result) or (time of failure, traceback)."""
    try:
        message = pickle.dumps((None, action()))
    except BaseException:  # whatever it was, the test's process has to see it
        message = pickle.dumps((time.monotonic(), traceback.format_exc()))
    connection.send_bytes(message)
