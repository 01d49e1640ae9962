import pytest

from megatron_zero.config.derive import BatchSchedule
from megatron_zero.training.exit import RunEnd
from megatron_zero.training.state import TrainState


def end(**limits):
    given = {"train_iterations": None, "train_samples": None, "train_tokens": None, "exit_interval": None, **limits}
    return RunEnd(**given, batch_schedule=BatchSchedule.of((), final=8, granule=2))


def test_a_run_ends_by_the_first_of_its_ends():
    run = end(train_iterations=10, train_tokens=800, exit_interval=4)
    assert run.after_step(TrainState(iteration=3, consumed_tokens=300), wants_exit=False) is None
    assert "--exit-interval 4" in run.after_step(TrainState(iteration=4, consumed_tokens=400), wants_exit=False)
    assert "--train-tokens 800" in run.after_step(TrainState(iteration=5, consumed_tokens=800), wants_exit=False)
    assert "all 10 iterations" in run.after_step(TrainState(iteration=10, consumed_tokens=790), wants_exit=False)


def test_samples_end_it_whatever_the_iteration():
    """A resume with another batch counts samples, not the steps that the first batch would have made."""
    run = end(train_samples=80)
    assert run.completion(TrainState(iteration=5, consumed_samples=40)) is None
    assert run.completion(TrainState(iteration=500, consumed_samples=72)) is None
    assert "--train-samples 80" in run.completion(TrainState(iteration=9, consumed_samples=73))
    assert "--train-samples 80" in run.completion(TrainState(iteration=10, consumed_samples=80))


def test_the_vote_of_the_clock_ends_it():
    assert "--exit-duration" in end(train_iterations=100).after_step(TrainState(iteration=1), wants_exit=True)


@pytest.mark.parametrize("iteration", [0, 4])
def test_a_run_resumed_on_an_exit_interval_goes_on(iteration):
    assert end(train_iterations=10, exit_interval=4).completion(TrainState(iteration=iteration)) is None


def test_a_run_resumed_at_its_end_has_nothing_to_do():
    assert end(train_iterations=100).completion(TrainState(iteration=100)) is not None
