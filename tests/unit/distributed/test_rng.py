"""Two streams of random numbers: what is equal over tensor parallel, what differs, and what a recomputation sees again."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from megatron_zero.distributed.context import ParallelAxis
from megatron_zero.distributed.rng import RngStreams, seed_everything

CPU = torch.device("cpu")


def axis(name, size, rank):
    return ParallelAxis(name, size, rank, None, tuple(range(size)))


def streams(*, dp=(1, 0), tp=(1, 0), seed=1234):
    return RngStreams.seeded(seed, device=CPU, dp=axis("dp", *dp), tp=axis("tp", *tp))


def draws(made):
    """5 numbers of each stream."""
    with made.tensor_parallel():
        part = torch.rand(5)
    return torch.rand(5), part


@pytest.mark.parametrize("size", [2, 4])
def test_replicated_numbers_are_equal_and_the_others_differ(size):
    found = [draws(streams(tp=(size, rank))) for rank in range(size)]
    for rank in range(1, size):
        assert torch.equal(found[rank][0], found[0][0])
    parts = {tuple(part.tolist()) for _, part in found}
    assert len(parts) == size
    assert tuple(found[0][0].tolist()) not in parts


def test_no_two_ranks_of_data_parallel_share_a_stream():
    found = [draws(streams(dp=(2, d), tp=(2, t))) for d in range(2) for t in range(2)]
    assert len({tuple(part.tolist()) for _, part in found}) == 4
    assert len({tuple(whole.tolist()) for whole, _ in found}) == 2


def test_one_tensor_parallel_rank_has_one_stream():
    made = streams()
    with made.tensor_parallel():
        first = torch.rand(5)
    second = torch.rand(5)
    seed_everything(1234, device=CPU)
    assert torch.equal(torch.cat([first, second]), torch.rand(10))


def test_a_fork_leaves_the_generator_as_it_was_and_goes_on_next_time():
    made, other = streams(tp=(2, 1)), None
    whole, first = draws(made)
    with made.tensor_parallel():
        second = torch.rand(5)
    other = streams(tp=(2, 1))
    with other.tensor_parallel():
        together = torch.rand(10)
    assert torch.equal(torch.cat([first, second]), together)
    assert torch.equal(torch.rand(5), whole)


def test_a_fork_that_fails_keeps_both_streams():
    made = streams(tp=(2, 0))
    with pytest.raises(ZeroDivisionError), made.tensor_parallel():
        first = torch.rand(5)
        raise ZeroDivisionError
    whole, second = draws(made)
    again = streams(tp=(2, 0))
    with again.tensor_parallel():
        assert torch.equal(torch.rand(10), torch.cat([first, second]))
    assert torch.equal(torch.rand(5), whole)


@pytest.mark.parametrize("tp", [(1, 0), (2, 1)])
def test_captured_states_come_back(tp):
    made = streams(tp=tp)
    draws(made)
    state = made.capture()
    first = draws(made)
    draws(made)
    made.restore(state)
    again = draws(made)
    assert torch.equal(again[0], first[0]) and torch.equal(again[1], first[1])


def test_a_missing_state_is_named_and_nothing_changes():
    made = streams(tp=(2, 0))
    state = made.capture()
    with pytest.raises(KeyError, match="cpu"):
        made.restore({})
    del state["tensor-parallel"]
    with pytest.raises(KeyError, match="tensor-parallel"):
        made.restore(state)
    whole, part = draws(made)
    again = draws(streams(tp=(2, 0)))
    assert torch.equal(whole, again[0]) and torch.equal(part, again[1])


@pytest.mark.parametrize("tp", [(1, 0), (2, 1)])
def test_recomputation_sees_the_same_numbers_of_both_streams_and_moves_neither(tp):
    made = streams(tp=tp)
    seen = []

    def block(x):
        with made.tensor_parallel():
            part = torch.rand(5)
        whole = torch.rand(5)
        seen.append((part, whole))
        return (x * part).exp() * whole

    x = torch.ones(5, requires_grad=True)
    first = checkpoint(block, x, use_reentrant=False, context_fn=made.replay)
    second = checkpoint(block, first, use_reentrant=False, context_fn=made.replay)
    state = made.capture()
    second.sum().backward()
    assert len(seen) == 4  # forward twice, then the second block again, then the first
    for again, before in ((seen[2], seen[1]), (seen[3], seen[0])):
        assert torch.equal(again[0], before[0]) and torch.equal(again[1], before[1])
    for name, value in made.capture().items():
        assert torch.equal(value, state[name]), name
