"""`mz`: finding the subcommand."""

from __future__ import annotations

import pytest

from megatron_zero.commands.main import main


@pytest.mark.parametrize("name", ["report", "bench-io", "plan"])
def test_a_subcommand_of_later_is_refused_by_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name]) == 2
    assert capsys.readouterr().err == f"mz {name}: not built yet\n"


@pytest.mark.parametrize("argv", [[], ["lunch"]])
def test_an_unknown_subcommand_shows_the_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert "check-config" in capsys.readouterr().err


def test_help_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "launch" in capsys.readouterr().out
