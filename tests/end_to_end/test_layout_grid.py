"""Layouts agree with one process: a pairwise cover of the grid. All of it: python tests/run_layout_grid.py."""

from contextlib import closing

import pytest
from helpers.layout_grid import VALUES, Cell, all_cells, check_outcomes, pairwise_cover, run_cell
from helpers.spawn import PoolSet

from megatron_zero.distributed.context import ParallelContext

COVER = pairwise_cover(all_cells())


@pytest.fixture(scope="module")
def pools():
    with closing(PoolSet()) as pools:
        yield pools


@pytest.fixture(scope="module")
def references(corpus, tmp_path_factory):
    """F3 of each family."""
    folder = tmp_path_factory.mktemp("reference")
    found = {}
    for family in VALUES["family"]:
        cell = Cell(1, 1, 0, None, False, "none", 1, family)
        argv = cell.arguments(corpus, folder / f"{family}.json")
        found[family] = run_cell(ParallelContext.single_process(), argv)
    return found


def test_the_cover_has_every_pair_of_values():
    pairs = {
        (one, other)
        for cell in all_cells()
        for one in ((name, getattr(cell, name)) for name in VALUES)
        for other in ((name, getattr(cell, name)) for name in VALUES)
    }
    covered = {
        (one, other)
        for cell in COVER
        for one in ((name, getattr(cell, name)) for name in VALUES)
        for other in ((name, getattr(cell, name)) for name in VALUES)
    }
    assert covered == pairs
    assert len(all_cells()) == 2080


@pytest.mark.parametrize("cell", COVER, ids=str)
def test_layout_trains_like_one_process(pools, corpus, references, tmp_path, cell):
    argv = cell.arguments(corpus, tmp_path / "config.json")
    outcomes = pools(cell.world_size).run(run_cell, argv, parallel=cell.parallel(), timeout_s=120)
    check_outcomes(outcomes, references[cell.family])
