import pytest

from megatron_zero.pipeline.schedule import ActionKind, one_f_one_b


@pytest.mark.parametrize("count", [1, 2, 7])
def test_each_forward_is_followed_by_its_backward(count):
    actions = [(a.kind, a.micro_batch) for a in one_f_one_b(count, num_stages=1)]
    assert actions == [(kind, i) for i in range(count) for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)]


def test_what_is_not_built_raises():
    with pytest.raises(ValueError, match="2 pipeline stages"):
        one_f_one_b(1, num_stages=2)
    with pytest.raises(ValueError, match="0 micro-batches"):
        one_f_one_b(0, num_stages=1)
