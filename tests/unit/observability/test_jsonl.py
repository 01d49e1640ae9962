"""The metrics file across kills and resumes: every step once, nothing overwritten, a full disk is an error."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from megatron_zero.config.fields import ConfigError
from megatron_zero.observability.jsonl import JsonlLog


def line(iteration: int, run: str = "a") -> str:
    return json.dumps({"iteration": iteration, "run": run}) + "\n"


def iterations(path: Path) -> list[int]:
    return [json.loads(each)["iteration"] for each in path.read_text().splitlines()]


def write_steps(path: Path, steps: range, *, resume: int, run: str = "b") -> list[str]:
    """What was said."""
    said: list[str] = []
    with JsonlLog(path, resume, say=said.append) as log:
        for iteration in steps:
            log.write({"iteration": iteration, "run": run})
    return said


def test_every_line_is_on_disk_before_close(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "log.jsonl"
    with JsonlLog(path, 0) as log:
        for iteration in (1, 2):
            log.write({"iteration": iteration})
            assert iterations(path)[-1] == iteration


def test_resume_goes_on_without_double_steps(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    write_steps(path, range(1, 8), resume=0, run="a")
    said = write_steps(path, range(6, 11), resume=5)
    assert iterations(path) == list(range(1, 11))
    assert [json.loads(each)["run"] for each in path.read_text().splitlines()] == ["a"] * 5 + ["b"] * 5
    assert said == [f"--log-jsonl: {path}: dropped 2 lines after iteration 5, where this run resumes"]
    assert os.listdir(tmp_path) == ["log.jsonl"]


def test_resume_at_the_last_line_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(line(1) + line(2))
    before = path.stat().st_ino
    assert write_steps(path, range(3, 4), resume=2) == []
    assert path.stat().st_ino == before
    assert iterations(path) == [1, 2, 3]
    assert os.listdir(tmp_path) == ["log.jsonl"]


@pytest.mark.parametrize("torn", ['{"iteration": 3, "ru', '{"iter', "\x00\x00", '{"iteration": 3'])
def test_line_torn_by_a_kill_is_dropped_and_said(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(line(1) + line(2) + torn)
    said = write_steps(path, range(3, 5), resume=2)
    assert iterations(path) == [1, 2, 3, 4]
    assert len(said) == 1
    assert "last line, which a killed run had left unfinished" in said[0]


def test_whole_last_line_without_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(line(1) + line(2).rstrip("\n"))
    assert write_steps(path, range(3, 4), resume=2) == []
    assert iterations(path) == [1, 2, 3]


def test_resume_without_a_file_starts_one(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    assert write_steps(path, range(6, 8), resume=5) == []
    assert iterations(path) == [6, 7]


def test_fresh_start_moves_an_existing_file_aside_to_a_free_name(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    (tmp_path / "log.jsonl.1").write_text("keep me")
    path.write_text(line(1))
    said = write_steps(path, range(1, 3), resume=0)
    assert iterations(path) == [1, 2]
    assert (tmp_path / "log.jsonl.1").read_text() == "keep me"
    assert (tmp_path / "log.jsonl.2").read_text() == line(1)
    assert said == [f"--log-jsonl: {path} was there and this run starts fresh; moved to {path}.2"]


def test_fresh_start_takes_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.touch()
    assert write_steps(path, range(1, 2), resume=0) == []
    assert os.listdir(tmp_path) == ["log.jsonl"]


@pytest.mark.parametrize("other", ["not json\n", "[1]\n", '{"step": 1}\n', '{"iteration": "1"}\n', "\n"])
def test_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, other: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(line(1) + other + line(3))
    with pytest.raises(ConfigError, match=r'line 2 is not a JSON object with an integer "iteration"'):
        JsonlLog(path, 5)
    assert path.read_text() == line(1) + other + line(3)


def test_path_below_a_file_is_refused_by_flag_and_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--log-jsonl .*file/log\.jsonl cannot be written"):
        JsonlLog(tmp_path / "file" / "log.jsonl", 0)


def test_folder_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        JsonlLog(tmp_path, 0)


def test_full_disk_raises_with_path_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.symlink_to("/dev/full")
    with JsonlLog(path, 0) as log, pytest.raises(OSError, match=r"wrote 0 of \d+ bytes.*log\.jsonl") as caught:
        log.write({"iteration": 1})
    assert caught.value.errno == errno.ENOSPC


def test_full_disk_while_rewriting_keeps_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(line(1) + line(2))
    (tmp_path / "log.jsonl.tmp").symlink_to("/dev/full")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        JsonlLog(path, 1)
    assert path.read_text() == line(1) + line(2)


def test_value_that_json_lacks_raises(tmp_path: Path) -> None:
    with JsonlLog(tmp_path / "log.jsonl", 0) as log, pytest.raises(ValueError, match="not JSON compliant"):
        log.write({"iteration": 1, "loss": float("nan")})
