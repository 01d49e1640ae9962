"""The mesh has Megatron's order, and every axis is a value."""

import pytest
import torch

from megatron_zero.distributed.context import ParallelAxis, ParallelContext, mesh_rank_lists


def test_order_of_a_mesh_of_eight():
    """Rank 5 of (pp 2, dp 2, tp 2) is pp 1, dp 0, tp 1."""
    lists = mesh_rank_lists(pp=2, dp=2, tp=2)
    assert next(ranks for ranks in lists["tp"] if 5 in ranks) == (4, 5)
    assert next(ranks for ranks in lists["dp"] if 5 in ranks) == (5, 7)
    assert next(ranks for ranks in lists["pp"] if 5 in ranks) == (1, 5)
    assert next(ranks for ranks in lists["model"] if 5 in ranks) == (0, 1, 4, 5)
    assert next(ranks for ranks in lists["embedding"] if 5 in ranks) == (1, 5)
    assert lists["world"] == (tuple(range(8)),)


@pytest.mark.parametrize("pp, dp, tp", [(1, 1, 1), (1, 4, 1), (2, 1, 3), (4, 3, 2)])
def test_every_axis_covers_every_rank_once(pp, dp, tp):
    lists = mesh_rank_lists(pp=pp, dp=dp, tp=tp)
    everyone = list(range(pp * dp * tp))
    for name in ("world", "tp", "dp", "pp", "model"):
        assert sorted(rank for ranks in lists[name] for rank in ranks) == everyone, name
    ends = sorted(rank for ranks in lists["embedding"] for rank in ranks)
    assert ends == [rank for rank in everyone if rank // (dp * tp) in (0, pp - 1)]


def test_widths_below_one_raise():
    with pytest.raises(ValueError, match="pp=1, dp=0, tp=2"):
        mesh_rank_lists(pp=1, dp=0, tp=2)


def test_a_single_process_needs_no_group():
    context = ParallelContext.single_process()
    assert context.device == torch.device("cpu")
    for axis in (context.world, context.tp, context.dp, context.pp, context.model, context.embedding):
        assert (axis.size, axis.rank, axis.group, axis.global_ranks) == (1, 0, None, (0,))
        assert axis.is_first
        assert axis.is_last
    assert ParallelAxis.single("dp", 7).global_ranks == (7,)
