"""The divided cross entropy against torch's on the gathered logits, wherever labels lie and however little a rank has."""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers.spawn import DistributedPool

from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.tensor_parallel.cross_entropy import (
    vocab_parallel_cross_entropy,
    vocab_parallel_cross_entropy_reference,
)

TOKENS = 15
WIDTHS = [(6, 6, 6, 6), (6, 6, 5, 0), (6, 1, 0, 0), (6, 0, 0, 0), (1, 1, 1, 1), (257, 257, 257, 11)]


@pytest.fixture(scope="module")
def pool():
    with DistributedPool(4) as pool:
        yield pool


def mesh(size):
    return ParallelConfig(tensor_model_parallel_size=size)


def case(vocab_size, *, scale=1.0, dtype=torch.float32, which="anywhere"):
    """(logits of the whole vocabulary, labels, gradient of the losses)."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = (scale * torch.randn(TOKENS, vocab_size, generator=generator)).to(dtype)
    labels = torch.randint(0, vocab_size, (TOKENS,), generator=generator)
    if which == "first":
        labels = torch.zeros_like(labels)
    elif which == "last":
        labels = torch.full_like(labels, vocab_size - 1)
    return logits, labels, torch.randn(TOKENS, generator=generator)


def divided(ctx, widths, logits, labels, grad, slow):
    """(losses, gradient of this rank's logits)."""
    rank = ctx.tp.rank
    first = rank * widths[0]
    own = logits[:, sum(widths[:rank]) :][:, : widths[rank]].requires_grad_()  # strided, as a head's are
    before = own.detach().clone()
    if slow:
        losses = vocab_parallel_cross_entropy_reference(own, labels, widths=widths, axis=ctx.tp)
    else:
        losses = vocab_parallel_cross_entropy(own, labels, first_id=first, axis=ctx.tp)
    (own_grad,) = torch.autograd.grad(losses, own, grad)
    torch.testing.assert_close(own.detach(), before, rtol=0, atol=0, equal_nan=True)  # not written to
    return losses.detach(), own_grad


def whole(logits, labels, grad):
    leaf = logits.detach().requires_grad_()
    losses = F.cross_entropy(leaf.float(), labels, reduction="none")
    return losses.detach(), torch.autograd.grad(losses, leaf, grad)[0]


@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("which", ["anywhere", "first", "last"])
def test_losses_and_gradients_equal_torch_s(pool, widths, which):
    logits, labels, grad = case(sum(widths), which=which)
    losses, logits_grad = whole(logits, labels, grad)
    for slow in (False, True):
        results = pool.run(divided, widths, logits, labels, grad, slow, parallel=mesh(4))
        assert all(torch.equal(result[0], results[0][0]) and result[0].dtype == torch.float32 for result in results)
        # The reference is torch's own; ours sums the vocabulary in another order.
        tolerance = {"rtol": 0, "atol": 0} if slow else {"rtol": 1e-6, "atol": 5e-7}
        torch.testing.assert_close(results[0][0], losses, **tolerance)
        torch.testing.assert_close(torch.cat([result[1] for result in results], 1), logits_grad, **tolerance)


def test_two_parts_equal_torch_s(pool):
    logits, labels, grad = case(11)
    losses, logits_grad = whole(logits, labels, grad)
    results = pool.run(divided, (8, 3), logits, labels, grad, False, parallel=mesh(2))
    torch.testing.assert_close(results[0][0], losses, rtol=1e-6, atol=5e-7)
    torch.testing.assert_close(torch.cat([result[1] for result in results[:2]], 1), logits_grad, rtol=1e-6, atol=5e-7)


@pytest.mark.parametrize("widths", [(6, 6, 5, 0), (257, 257, 257, 11)])
def test_bf16_logits_are_computed_in_fp32_and_get_a_bf16_gradient(pool, widths):
    logits, labels, grad = case(sum(widths), dtype=torch.bfloat16)
    losses, logits_grad = whole(logits, labels, grad)
    results = pool.run(divided, widths, logits, labels, grad, False, parallel=mesh(4))
    torch.testing.assert_close(results[0][0], losses, rtol=1e-6, atol=5e-7)
    ours = torch.cat([result[1] for result in results], 1)
    assert ours.dtype == torch.bfloat16
    # The fp32 gradients differ in their last bits, which moves a few across a rounding boundary of bf16: one unit there.
    torch.testing.assert_close(ours, logits_grad, rtol=2.0**-7, atol=1e-7)


@pytest.mark.parametrize("shift", [1e4, -1e4, 3e38, -3e38])
def test_large_logits_neither_overflow_nor_vanish(pool, shift):
    logits, labels, grad = case(17)
    logits = logits + shift
    losses, logits_grad = whole(logits, labels, grad)
    results = pool.run(divided, (6, 6, 5, 0), logits, labels, grad, False, parallel=mesh(4))
    assert losses.isfinite().all()
    torch.testing.assert_close(results[0][0], losses, rtol=1e-6, atol=5e-7)
    torch.testing.assert_close(torch.cat([result[1] for result in results], 1), logits_grad, rtol=1e-6, atol=5e-7)


def test_equal_logits_give_the_logarithm_of_the_vocabulary(pool):
    logits, labels = torch.full((TOKENS, 16), -7.5), torch.arange(TOKENS)
    results = pool.run(divided, (4, 4, 4, 4), logits, labels, torch.ones(TOKENS), False, parallel=mesh(4))
    assert torch.equal(results[0][0], torch.full((TOKENS,), math.log(16.0)))
    expected = torch.full((TOKENS, 16), 1 / 16) - F.one_hot(labels, 16)
    assert torch.equal(torch.cat([result[1] for result in results], 1), expected)


def test_a_nan_reaches_the_loss_of_every_rank(pool):
    logits, labels, grad = case(17)
    logits[3, 8] = float("nan")  # on rank 1
    for losses, _ in pool.run(divided, (6, 6, 5, 0), logits, labels, grad, False, parallel=mesh(4)):
        assert losses.isnan().nonzero().tolist() == [[3]]


def wrong_label(ctx, widths, label):
    logits = torch.zeros(3, widths[ctx.tp.rank], requires_grad=True)
    labels = torch.tensor([0, label, 1])
    try:
        vocab_parallel_cross_entropy(logits, labels, first_id=ctx.tp.rank * widths[0], axis=ctx.tp)
    except IndexError as error:
        return str(error)
    return None


@pytest.mark.parametrize("label", [17, 18, 24, -1, -100, 10**12])
def test_a_label_that_no_rank_has_fails_on_every_rank(pool, label):
    said = pool.run(wrong_label, (6, 6, 5, 0), label, parallel=mesh(4))
    assert all("out of range" in text for text in said)


def backward_twice(ctx):
    logits = torch.zeros(3, 4, requires_grad=True)
    losses = vocab_parallel_cross_entropy(logits, torch.tensor([0, 1, 2]), first_id=4 * ctx.tp.rank, axis=ctx.tp)
    losses.sum().backward(retain_graph=True)
    try:
        losses.sum().backward()
    except RuntimeError as error:
        return str(error)
    return None


def test_a_second_backward_fails_loudly(pool):
    assert all("modified by an inplace operation" in said for said in pool.run(backward_twice, parallel=mesh(4)))


def what_is_kept(ctx):
    """(numel, dtype) of what forward keeps and then, with no gradient wanted, again."""
    kept = []
    logits = torch.zeros(5, 8, dtype=torch.bfloat16, requires_grad=True)
    labels = torch.arange(5)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append((tensor.numel(), tensor.dtype)), lambda _: None
    ):
        vocab_parallel_cross_entropy(logits, labels, first_id=8 * ctx.tp.rank, axis=ctx.tp)
        first = list(kept)
        kept.clear()
        with torch.no_grad():
            vocab_parallel_cross_entropy(logits, labels, first_id=8 * ctx.tp.rank, axis=ctx.tp)
    return first, kept


def test_one_fp32_value_is_kept_for_each_logit_and_none_without_a_gradient(pool):
    for first, second in pool.run(what_is_kept, parallel=mesh(4)):
        assert [entry for entry in first if entry[0] > 5] == [(40, torch.float32)]
        assert second == []
