"""What an evaluation says that it read (H51)."""

import pytest

from megatron_zero.training.state import EvaluationRead


@pytest.mark.parametrize(
    "first,samples,held,text",
    [
        (0, 8, 13, "8 samples from 0 on of 13"),
        (8, 5, 13, "5 samples from 8 on of 13"),
        (8, 6, 13, "6 samples from 8 on of 13, which began again 1 times"),
        (0, 40, 13, "40 samples from 0 on of 13, which began again 3 times"),
        (13, 13, 13, "13 samples from 0 on of 13"),
    ],
)
def test_what_was_read_is_told(first, samples, held, text):
    assert str(EvaluationRead(first, samples, held)) == text
