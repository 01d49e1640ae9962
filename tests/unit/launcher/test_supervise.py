"""Signals and exit codes between the user, the launcher and its child. Children talk through pipes: nothing sleeps."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_zero.launcher.supervise import Supervisor, descendants

ROOT = Path(__file__).resolve().parents[3]
WAIT_FOR_END = "sys.stdin.read()"  # the test holds the other end open, so this blocks until a signal comes


def start_supervised(child: str, *, repeat_window_s: float = 60.0) -> subprocess.Popen[str]:
    """A process that supervises `python -c child`; its stdout is the child's, its stderr the launcher's words."""
    code = (
        "import os, sys; from megatron_zero.launcher.supervise import Supervisor; "
        f"sys.exit(Supervisor(repeat_window_s={repeat_window_s}).run([sys.executable, '-c', {child!r}], os.environ))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_exit_code_of_the_child_is_returned(code: int) -> None:
    assert Supervisor().run([sys.executable, "-c", f"raise SystemExit({code})"], os.environ) == code


def test_child_ended_by_a_signal_gives_128_plus_its_number() -> None:
    suicide = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert Supervisor().run([sys.executable, "-c", suicide], os.environ) == 128 + signal.SIGKILL


def test_missing_program_raises_and_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    with pytest.raises(FileNotFoundError):
        Supervisor().run(["/nonexistent/program"], os.environ)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize(("ending", "expected"), [(0, 0), (3, None)])
def test_signal_is_passed_on_once_and_the_child_ends_in_its_own_time(
    number: signal.Signals, ending: int, expected: int | None
) -> None:
    child = (
        "import signal, sys\n"
        "def end(number, frame):\n"
        f"    print('got', number, flush=True); sys.exit({ending})\n"
        f"signal.signal({int(number)}, end)\n"
        f"print('ready', flush=True); {WAIT_FOR_END}"
    )
    with start_supervised(child) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "ready\n"
        launcher.send_signal(number)
        launcher.send_signal(number)  # within the window: the same wish
        rest = launcher.stdout.read()
    assert rest == f"got {int(number)}\n"
    assert launcher.returncode == (128 + number if expected is None else expected)


def test_second_signal_kills_the_whole_tree() -> None:
    stubborn = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    grandchild = stubborn + f"print('ready', flush=True); {WAIT_FOR_END}"
    child = stubborn + (
        "import subprocess; "
        f"subprocess.run([sys.executable, '-c', {grandchild!r}], start_new_session=True); {WAIT_FOR_END}"
    )
    with start_supervised(child, repeat_window_s=0.0) as launcher:
        assert launcher.stdout is not None
        assert launcher.stderr is not None
        assert launcher.stdout.readline() == "ready\n"
        launcher.send_signal(signal.SIGTERM)
        assert "SIGTERM: passed on" in launcher.stderr.readline()
        launcher.send_signal(signal.SIGTERM)
        # Child and grandchild hold this pipe: its end means that both are gone.
        assert launcher.stdout.read() == ""
        assert "killing every process" in launcher.stderr.read()
    assert launcher.returncode == 128 + signal.SIGTERM


def test_descendants_come_from_the_process_table(tmp_path: Path) -> None:
    for pid, parent in [(10, 1), (11, 10), (12, 10), (13, 12), (14, 1)]:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (odd) name 7) S {parent} 0 0\n")
    (tmp_path / "99").mkdir()  # ended meanwhile: no stat
    found = descendants(10, tmp_path)
    assert sorted(found[:2]) == [11, 12]
    assert found[2:] == [13]
