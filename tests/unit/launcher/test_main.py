"""`python -m megatron_zero.launcher` from outside, and once through the real torchrun."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from megatron_zero.launcher.main import main

ROOT = Path(__file__).resolve().parents[3]
LAUNCH = [sys.executable, "-m", "megatron_zero.launcher"]
ON_CPU = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


def test_missing_script_is_told_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--num_gpus", "1", "no/such/script.py"]) == 2
    assert capsys.readouterr().err.startswith("mz launch: script 'no/such/script.py' does not exist (looked in ")


def test_folder_as_script_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_missing_program_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--no_python", "no-such-program-here"]) == 2
    assert "not on PATH" in capsys.readouterr().err


def test_each_fault_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--hostfile", "h", "--no_ssh", "t.py"]) == 2
    assert [line.split()[2] for line in capsys.readouterr().err.splitlines()] == ["--hostfile", "--no_ssh"]


def test_help_ends_with_code_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "--num_gpus" in capsys.readouterr().out


def test_dry_run_prints_the_command_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    script = tmp_path / "train.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert main(["--dry-run", "--num_gpus", "2", "--master_port", "29876", str(script), "--x", "1"]) == 0
    printed = capsys.readouterr().out
    assert "--nproc_per_node 2 --master_addr 127.0.0.1 --master_port 29876" in printed
    assert printed.rstrip().endswith(f"{script} --x 1")
    assert not (tmp_path / "ran").exists()


def test_importing_the_launcher_does_not_import_torch() -> None:
    code = "import sys, megatron_zero.launcher.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_torchrun_starts_every_rank_and_a_failing_rank_fails_the_launch(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, sys, pathlib\n"
        f"here = pathlib.Path({str(tmp_path)!r})\n"
        "(here / ('rank' + os.environ['RANK'])).write_text(repr(sys.argv[1:]))\n"
        # They meet here, or the failing rank could end the launch before the other one has written.
        "open(here / 'meeting', 'rw'[int(os.environ['RANK'])]).close()\n"
        "sys.exit(int(os.environ['RANK']) * 3)\n"
    )
    os.mkfifo(tmp_path / "meeting")
    tail = ["--num_gpus", "9", "a b", "--x=1"]
    done = subprocess.run(
        [*LAUNCH, "--num_gpus", "2", str(script), *tail],
        cwd=ROOT,
        env=ON_CPU,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert [(tmp_path / f"rank{rank}").read_text() for rank in (0, 1)] == [repr(tail)] * 2
    assert "2 processes on the CPU" in done.stderr


def test_sigterm_reaches_every_rank_through_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, pathlib, signal, sys, threading\n"
        "def end(number, frame):\n"
        f"    pathlib.Path({str(tmp_path)!r}, 'ended' + os.environ['RANK']).touch(); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        # One write: torchrun's ranks are unbuffered, and print would let the other one in before its newline.
        "os.write(1, b'ready\\n')\n"
        "signal.pause()\n"
    )
    with subprocess.Popen(
        [*LAUNCH, "--num_gpus", "2", str(script)],
        cwd=ROOT,
        env=ON_CPU,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as launcher:
        assert launcher.stdout is not None
        try:
            assert [launcher.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
            launcher.send_signal(signal.SIGTERM)
            launcher.stdout.read()  # ends when the last rank has gone
        except BaseException:
            launcher.kill()  # which takes the ranks along; leaving the block would wait for it for ever
            raise
    assert launcher.returncode == 128 + signal.SIGTERM
    assert (tmp_path / "ended0").exists()
    assert (tmp_path / "ended1").exists()
