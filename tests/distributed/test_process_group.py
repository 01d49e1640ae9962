"""process_group as a run uses it: ranks meet, part, and never wait for one that failed. Over gloo; tests/gpu has NCCL."""

import time

from helpers.ranks import COLLECTIVE_TIMEOUT_S, run_ranks

MEET = """
def body(ctx):
    print(all_gather_object(ctx.dp.rank, axis=ctx.dp), flush=True)
"""

FAIL_ON_RANK_1 = """
def body(ctx):
    if ctx.dp.rank == 1:
        raise KeyError("this rank alone")
    barrier(axis=ctx.dp)
"""


def test_ranks_meet_and_part():
    for code, out, err in run_ranks(2, MEET, backend="gloo"):
        assert (code, out.splitlines()) == (0, ["[0, 1]", "gone"]), err


def test_a_rank_that_fails_ends_the_others_long_before_the_time_out():
    started = time.monotonic()
    results = run_ranks(2, FAIL_ON_RANK_1, backend="gloo")
    assert time.monotonic() - started < COLLECTIVE_TIMEOUT_S / 2
    for code, out, err in results:
        assert (code, out) == (1, "gone\n"), err
    assert "KeyError: 'this rank alone'" in results[1][2]
    assert "KeyError" not in results[0][2]
