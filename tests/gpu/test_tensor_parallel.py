"""Over an axis of one rank the divided layers run the kernels of the plain ones, and give their bits."""

import pytest
import torch
import torch.nn.functional as F

from megatron_zero.distributed.context import ParallelAxis
from megatron_zero.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from megatron_zero.tensor_parallel.group import TensorParallel
from megatron_zero.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelHead,
)

pytestmark = pytest.mark.gpu
TOKENS, IN, OUT, VOCABULARY = 512, 256, 768, 1024
TP = TensorParallel.single()


def plain_of(kind, layer):
    if kind == "column":
        return lambda x: F.linear(x, layer.weight, layer.bias)
    if kind == "row":
        return lambda x: torch.addmm(layer.bias, x, layer.weight)
    if kind == "head":
        return lambda x: F.linear(x, layer.weight)
    return lambda x: F.embedding(x, layer.weight)


def layer_of(kind):
    if kind == "column":
        return ColumnParallelLinear(IN, OUT, bias=True, tp=TP)
    if kind == "row":
        return RowParallelLinear(IN, OUT, bias=True, tp=TP)
    if kind == "head":
        return VocabParallelHead(None, VOCABULARY, IN, vocab_size=VOCABULARY, tp=TP)
    return VocabParallelEmbedding(VOCABULARY, IN, tp=TP)


def kernels_of(run):
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        run()
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return [event.name for event in sorted(events, key=lambda event: event.time_range.start)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("kind", ["column", "row", "head", "embedding"])
def test_one_rank_runs_the_plain_kernels(kind, dtype):
    torch.manual_seed(1)
    layer = layer_of(kind).to("cuda", dtype)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    plain = plain_of(kind, layer)
    if kind == "embedding":
        x = torch.randint(0, VOCABULARY, (TOKENS,), device="cuda")
    else:
        x = torch.randn(TOKENS, IN, device="cuda", dtype=dtype, requires_grad=True)
    grad = torch.randn_like(plain(x))
    inputs = [*layer.parameters(), *([] if kind == "embedding" else [x])]
    found = torch.autograd.grad(layer(x), inputs, grad)
    wanted = torch.autograd.grad(plain(x), inputs, grad)
    torch.testing.assert_close(layer(x), plain(x), rtol=0, atol=0)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert kernels_of(lambda: torch.autograd.grad(layer(x), inputs, grad)) == kernels_of(
        lambda: torch.autograd.grad(plain(x), inputs, grad)
    )


def test_one_rank_has_torchs_cross_entropy():
    logits = torch.randn(TOKENS, VOCABULARY, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, VOCABULARY, (TOKENS,), device="cuda")

    def ours():
        losses = vocab_parallel_cross_entropy(logits, labels, first_id=0, axis=ParallelAxis.single("tp"))
        return torch.autograd.grad(losses.sum(), logits)

    def plain():
        return torch.autograd.grad(F.cross_entropy(logits.float(), labels, reduction="none").sum(), logits)

    torch.testing.assert_close(ours()[0], plain()[0], rtol=0, atol=0)
    assert kernels_of(ours) == kernels_of(plain)
