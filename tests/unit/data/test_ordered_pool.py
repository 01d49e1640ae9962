"""Results in order from several processes; a dead worker or parent never hangs the other."""

import itertools
import multiprocessing
import os
import subprocess
import sys
import textwrap
from functools import partial

import pytest
from helpers.processes import process_ended

from megatron_zero.config.fields import ConfigError
from megatron_zero.data.ordered_pool import WorkerError, ordered_map

# Workers are spawned and cannot import this file; eval can be pickled by name.
make_square = partial(eval, "lambda n: n * n")
# Early items take longest, so that results come back out of order.
make_slow_start = partial(eval, "lambda n: (sum(range(3_000_000 if n == 0 else 0)), n)[1]")
make_dying = partial(eval, "lambda n: n if n < 5 else __import__('os')._exit(3)")
make_killed = partial(eval, "lambda n: n if n < 5 else __import__('os').kill(__import__('os').getpid(), 9)")
# Announces 65,536 bytes of answer on its pipe, sends 4 and is gone.
make_cut_short = partial(
    eval,
    "lambda n: (__import__('os').write(__import__('sys')._getframe(1).f_locals['connection'].fileno(), "
    "b'\\0\\1\\0\\0half'), __import__('os')._exit(3))",
)
make_failing = partial(eval, "lambda n: 10 // (5 - n)")
make_refusing = partial(
    eval,
    "lambda n: n if n < 5 else (_ for _ in ()).throw("
    "__import__('megatron_zero.config.fields', fromlist=['ConfigError']).ConfigError('a.txt, byte 3'))",
)
make_unreadable = partial(eval, "lambda n: n if n < 5 else (_ for _ in ()).throw(OSError(5, 'a.txt, byte 3'))")
make_unbuildable = partial(eval, "1 // 0")


@pytest.mark.parametrize("workers", [1, 2])
def test_results_are_those_of_map(workers):
    assert list(ordered_map(make_square, range(50), workers=workers)) == [n * n for n in range(50)]


def test_results_come_in_order_whoever_is_done_first():
    assert list(ordered_map(make_slow_start, range(20), workers=2)) == list(range(20))


def test_no_items_no_results():
    assert list(ordered_map(make_square, [], workers=2)) == []


@pytest.mark.parametrize(
    "make,message",
    [
        (make_dying, "ended with exit code 3"),
        (make_killed, "killed by signal 9"),
        (make_cut_short, "ended with exit code 3"),
        (make_failing, "ZeroDivisionError"),
        (make_unbuildable, "ZeroDivisionError"),
    ],
)
def test_worker_that_dies_or_fails_is_an_error_and_all_are_gone(make, message):
    with pytest.raises(WorkerError, match=message):
        list(ordered_map(make, range(1000), workers=2))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("make,kind", [(make_refusing, ConfigError), (make_unreadable, OSError)])
def test_error_of_the_input_comes_as_it_was_raised(make, kind, workers):
    with pytest.raises(kind, match=r"^(\[Errno 5\] )?a\.txt, byte 3$"):
        list(ordered_map(make, range(1000), workers=workers))
    assert multiprocessing.active_children() == []


def test_items_are_not_read_far_ahead():
    counter = itertools.count()
    results = ordered_map(make_square, (next(counter) for _ in range(1000)), workers=2)
    assert next(results) == 0
    results.close()
    assert next(counter) <= 9
    assert multiprocessing.active_children() == []


def test_workers_end_when_the_parent_is_killed(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing, os, sys
        from functools import partial
        from megatron_zero.data.ordered_pool import ordered_map
        if __name__ == "__main__":
            results = ordered_map(partial(eval, "lambda n: n"), range(1000), workers=2)
            next(results)
            print(*(child.pid for child in multiprocessing.active_children()), flush=True)
            os.kill(os.getpid(), 9)
        """)
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=60)
    assert parent.returncode == -9
    workers = [int(word) for word in parent.stdout.split()]
    assert len(workers) == 2
    for pid in workers:
        assert process_ended(pid, seconds=20), "a worker outlives its parent"
