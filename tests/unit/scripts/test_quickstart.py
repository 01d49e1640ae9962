"""quickstart.sh: which steps run, how far each run trains, what it says at its end. Tools and launcher are stubs."""

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "examples" / "scripts"

# Writes what it is told to with its name, and keeps a list of the calls.
TOOL = r"""
import os, pathlib, sys
name, words = pathlib.Path(sys.argv[0]).stem, sys.argv[1:]
if name in os.environ.get("BROKEN_TOOL", "-").split():
    sys.exit("broken on purpose")
with open(os.environ["CALLS"], "a") as calls:
    print(name, file=calls)
if "--output" in words:
    pathlib.Path(words[words.index("--output") + 1]).touch()
else:
    prefix = words[words.index("--output-prefix") + 1]
    for end in (".bin", ".idx"):
        pathlib.Path(prefix + "_text_document" + end).touch()
"""

# Trains: the checkpoint is at the last step that --train-tokens allows, or at STOP_AT when that is set.
LAUNCHER = r"""
import os, pathlib, sys
words = sys.argv[1:]
value = lambda flag: words[words.index(flag) + 1]
steps = int(value("--train-tokens")) // (int(value("--global-batch-size")) * int(value("--seq-length")))
stop_at = os.environ.get("STOP_AT")
folder = pathlib.Path(value("--save"))
folder.mkdir(parents=True, exist_ok=True)
(folder / "latest_checkpointed_iteration.txt").write_text(stop_at or str(steps))
with open(os.environ["CALLS"], "a") as calls:
    print("train to", steps, "samples", value("--train-samples"), "decay", value("--lr-decay-tokens"), file=calls)
sys.exit(int(os.environ.get("TRAINING_CODE", "0")))
"""


@dataclass(frozen=True, slots=True)
class Quickstart:
    """A copy of the project's scripts with stub tools beside them, in a folder whose name has a space."""

    root: Path

    @property
    def work(self) -> Path:
        return self.root / "quickstart_output"

    def run(self, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self.root / "examples" / "scripts" / "quickstart.sh")],
            cwd=self.root,
            env={
                "PATH": os.environ["PATH"],
                "CALLS": str(self.root / "calls"),
                "LAUNCHER": f"python3 {self.root.parent / 'launcher.py'}",
                "STEPS_PER_RUN": "10",
                "NUM_GPUS": "2",
                **variables,
            },
            capture_output=True,
            text=True,
            check=False,
        )

    def calls(self) -> list[str]:
        """What was called since the last look."""
        path = self.root / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines


@pytest.fixture
def quickstart(tmp_path: Path) -> Quickstart:
    root = tmp_path / "my clone"
    scripts = root / "examples" / "scripts"
    shutil.copytree(SCRIPTS, scripts)
    (scripts / "setup_env.sh").write_text("export MZ_PYTHON=python3\n")
    (root / "tools").mkdir()
    for name in ("collect_python_sources", "train_sentencepiece", "preprocess_data"):
        (root / "tools" / f"{name}.py").write_text(TOOL)
    (tmp_path / "launcher.py").write_text(LAUNCHER)
    return Quickstart(root)


PREPARATION = ["collect_python_sources", "train_sentencepiece", "preprocess_data"]
# 16 samples of 128 tokens a step; the schedule covers both runs of 10 steps.
SCHEDULE = "samples 320 decay 40960"


def test_two_runs_train_half_each_and_a_third_has_nothing_to_do(quickstart: Quickstart) -> None:
    first = quickstart.run()
    assert first.returncode == 0, first.stderr
    assert quickstart.calls() == [*PREPARATION, f"train to 10 {SCHEDULE}"]
    assert "resumes at step 10 and trains 10 more" in first.stdout

    second = quickstart.run()
    assert second.returncode == 0, second.stderr
    assert quickstart.calls() == [f"train to 20 {SCHEDULE}"]
    assert "ds_pretrain_gpt_2.7B.sh" in second.stdout.splitlines()[-1]

    third = quickstart.run()
    assert third.returncode == 0, third.stderr
    assert quickstart.calls() == []
    assert "Both runs are complete (20 steps)" in third.stdout
    assert "To start over: rm -r" in third.stdout


def test_run_ends_with_what_was_made_the_dashboard_and_the_next_step(quickstart: Quickstart) -> None:
    lines = quickstart.run().stdout.splitlines()[-3:]
    assert [line.split(":")[0] for line in lines] == ["Made", "Dashboard", "Next"]
    assert str(quickstart.work) in lines[0]
    assert "tensorboard" in lines[1]
    assert "--logdir" in lines[1]


def test_next_command_repeats_what_was_set_and_works_as_shown(quickstart: Quickstart, tmp_path: Path) -> None:
    folder = str(tmp_path / "else where")
    shown = quickstart.run(MZ_QUICKSTART_DIR=folder).stdout.splitlines()[-1]
    command = shlex.split(shown.removeprefix("Next:").split("   (")[0])
    script = str(quickstart.root / "examples" / "scripts" / "quickstart.sh")
    assert command == [f"MZ_QUICKSTART_DIR={folder}", "STEPS_PER_RUN=10", "bash", script]


def test_every_step_is_announced(quickstart: Quickstart) -> None:
    titles = [line for line in quickstart.run().stdout.splitlines() if line.startswith("== ")]
    assert [title[3:6] for title in titles[:-1]] == ["1/5", "2/5", "3/5", "4/5", "5/5"]


@pytest.mark.parametrize(("stopped_at", "next_target"), [("0", 10), ("4", 10), ("9", 10), ("10", 20), ("13", 20)])
def test_interrupted_run_is_resumed_to_its_own_end(quickstart: Quickstart, stopped_at: str, next_target: int) -> None:
    killed = quickstart.run(STOP_AT=stopped_at, TRAINING_CODE="143")
    assert killed.returncode == 143
    assert quickstart.calls() == [*PREPARATION, f"train to 10 {SCHEDULE}"]
    assert quickstart.run().returncode == 0
    assert quickstart.calls() == [f"train to {next_target} {SCHEDULE}"]


def test_run_that_ends_early_says_how_to_go_on(quickstart: Quickstart) -> None:
    done = quickstart.run(STOP_AT="4")
    assert done.returncode == 0
    assert "the run stopped at step 4 of 10; the same command goes on from there" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("position", [0, 1, 2])
def test_failed_step_stops_everything_and_is_repeated_next_time(quickstart: Quickstart, position: int) -> None:
    failed = quickstart.run(BROKEN_TOOL=PREPARATION[position])
    assert failed.returncode == 1
    assert "broken on purpose" in failed.stderr
    assert quickstart.calls() == PREPARATION[:position]
    assert quickstart.run().returncode == 0
    assert quickstart.calls() == [*PREPARATION[position:], f"train to 10 {SCHEDULE}"]


def test_half_a_dataset_is_made_again(quickstart: Quickstart) -> None:
    quickstart.run()
    quickstart.calls()
    (quickstart.work / "data" / "python_text_document.idx").unlink()
    quickstart.run()
    assert quickstart.calls() == ["preprocess_data", f"train to 20 {SCHEDULE}"]


def test_work_folder_can_be_chosen(quickstart: Quickstart, tmp_path: Path) -> None:
    assert quickstart.run(MZ_QUICKSTART_DIR=str(tmp_path / "else where")).returncode == 0
    assert (tmp_path / "else where" / "data" / "python_text_document.idx").exists()
    assert not quickstart.work.exists()


def test_work_folder_below_a_file_is_told(quickstart: Quickstart, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = quickstart.run(MZ_QUICKSTART_DIR=str(tmp_path / "file" / "x"))
    assert done.returncode == 2
    assert "cannot make MZ_QUICKSTART_DIR=" in done.stderr
    assert quickstart.calls() == []


def test_damaged_checkpoint_pointer_is_told(quickstart: Quickstart) -> None:
    quickstart.run()
    (quickstart.work / "checkpoint" / "gpt-tiny" / "latest_checkpointed_iteration.txt").write_text("half")
    done = quickstart.run()
    assert done.returncode == 2
    assert "holds 'half', not a number" in done.stderr


@pytest.mark.skipif(shutil.which("flock") is None, reason="the lock needs flock")
def test_two_quickstarts_in_one_folder_are_refused(quickstart: Quickstart) -> None:
    quickstart.work.mkdir()
    with subprocess.Popen(
        ["flock", str(quickstart.work / ".lock"), "bash", "-c", "echo held; read"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        done = quickstart.run()
    assert done.returncode == 2
    assert "another quickstart is running in" in done.stderr
