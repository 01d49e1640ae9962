import pytest

from megatron_zero.training.exit import RunEnd
from megatron_zero.training.state import TrainState

NO_END = RunEnd(train_iterations=100, train_tokens=None, exit_interval=None)


def test_a_run_ends_by_the_first_of_its_ends():
    end = RunEnd(train_iterations=10, train_tokens=800, exit_interval=4)
    assert end.after_step(TrainState(iteration=3, consumed_tokens=300), wants_exit=False) is None
    assert "--exit-interval 4" in end.after_step(TrainState(iteration=4, consumed_tokens=400), wants_exit=False)
    assert "--train-tokens 800" in end.after_step(TrainState(iteration=5, consumed_tokens=800), wants_exit=False)
    assert "all 10 iterations" in end.after_step(TrainState(iteration=10, consumed_tokens=790), wants_exit=False)


def test_the_vote_of_the_clock_ends_it():
    assert "--exit-duration" in NO_END.after_step(TrainState(iteration=1), wants_exit=True)


@pytest.mark.parametrize("iteration", [0, 4])
def test_a_run_resumed_on_an_exit_interval_goes_on(iteration):
    end = RunEnd(train_iterations=10, train_tokens=None, exit_interval=4)
    assert end.completion(TrainState(iteration=iteration)) is None


def test_a_run_resumed_at_its_end_has_nothing_to_do():
    assert NO_END.completion(TrainState(iteration=100)) is not None
