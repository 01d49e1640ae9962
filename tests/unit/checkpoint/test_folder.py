"""Names in the root: which checkpoint is found, what a killed save leaves, what is cleared."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_zero.checkpoint.errors import CheckpointError
from megatron_zero.checkpoint.folder import (
    POINTER,
    clear_leftovers,
    complete_iterations,
    find,
    latest_iteration,
    write_pointer,
)


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir()
        (root / name / "content").write_text(name)


def test_pointer_is_read_back_and_moves(tmp_path: Path) -> None:
    assert latest_iteration(tmp_path) is None
    write_pointer(tmp_path, 5)
    write_pointer(tmp_path, 10)
    assert latest_iteration(tmp_path) == 10
    assert [path.name for path in tmp_path.iterdir()] == [POINTER]


def test_missing_root_has_no_latest(tmp_path: Path) -> None:
    assert latest_iteration(tmp_path / "absent") is None


@pytest.mark.parametrize("text", ["", "release", "-3", "1 2", "\u0663"])
def test_pointer_without_a_number_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / POINTER).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"{POINTER}: holds .*, expected one iteration number"):
        latest_iteration(tmp_path)


def test_missing_folder_names_those_that_are_there(tmp_path: Path) -> None:
    make(tmp_path, "global_step3", "global_step12", "global_step20.tmp")
    with pytest.raises(CheckpointError, match=r"global_step7: no such checkpoint; .* there: 3, 12; write one"):
        find(tmp_path, 7)


def test_missing_root_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no complete checkpoint is there"):
        find(tmp_path / "absent", 7)


def test_moved_aside_checkpoint_is_found_while_its_successor_is_missing(tmp_path: Path) -> None:
    make(tmp_path, "global_step7.old")
    assert find(tmp_path, 7).name == "global_step7.old"
    make(tmp_path, "global_step7")
    assert find(tmp_path, 7).name == "global_step7"


def test_leftovers_are_cleared_and_said(tmp_path: Path) -> None:
    make(tmp_path, "global_step7.tmp", "global_step8.old", "global_step9", "global_step9.old")
    said = clear_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step8", "global_step9"]
    assert (tmp_path / "global_step8" / "content").read_text() == "global_step8.old"
    assert (tmp_path / "global_step9" / "content").read_text() == "global_step9"
    assert len(said) == 3
    assert "restored" in said[1]


def test_other_names_are_left_alone(tmp_path: Path) -> None:
    names = ["global_step7.tmp2", "xglobal_step7.tmp", "global_step.tmp", "mine.tmp", "global_stepx.old"]
    make(tmp_path, *names)
    (tmp_path / "global_step5.tmp").write_text("a file, not a folder")
    assert clear_leftovers(tmp_path) == ()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "global_step5.tmp"])


def test_complete_iterations_rise_numerically(tmp_path: Path) -> None:
    make(tmp_path, "global_step10", "global_step9", "global_step11.tmp", "other")
    assert complete_iterations(tmp_path) == (9, 10)
