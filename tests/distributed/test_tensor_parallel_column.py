"""The column layer with communication beside its weight gradient has the bits of the plain composition, keeps no more
than the token shard, and starts its collectives before the work that hides them."""

import itertools
from unittest import mock

import pytest
import torch
from helpers.spawn import DistributedPool
from torch.utils._python_dispatch import TorchDispatchMode

from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.distributed.collectives import Handle
from megatron_zero.tensor_parallel.column_linear import column_linear, column_linear_reference
from megatron_zero.tensor_parallel.group import TensorParallel

TOKENS, IN, OUT = 24, 40, 56  # OUT: of one rank


@pytest.fixture(scope="module")
def pool():
    with DistributedPool(4) as pool:
        yield pool


def mesh(size):
    return ParallelConfig(tensor_model_parallel_size=size)


def inputs(tp, seed, dtype, *, has_bias=True, tokens=TOKENS, width=OUT):
    """x (this rank's tokens under sequence parallel), weight, bias, gradient of the output; other ones on every rank."""
    generator = torch.Generator().manual_seed(100 * seed + tp.axis.rank)
    rows = tokens // tp.axis.size if tp.sequence_parallel else tokens
    x, weight, bias, grad = (
        torch.randn(shape, generator=generator).to(dtype) for shape in ((rows, IN), (width, IN), (width,), (tokens, width))
    )
    return x, weight, bias if has_bias else None, grad


def gradients(function, tp, x, weight, bias, grad, needs):
    """The output and the gradients of those of (x, weight, bias) that need one."""
    leaves = [
        None if tensor is None else tensor.detach().requires_grad_(need)
        for tensor, need in zip((x, weight, bias), needs, strict=True)
    ]
    out = function(*leaves, tp=tp)
    wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    return out.detach(), *torch.autograd.grad(out, wanted, grad)


def laid_out(grad, layout):
    if layout == "transposed":
        return grad.t().contiguous().t()
    return grad[:1].expand(grad.shape) if layout == "expanded" else grad


def compare_bits(ctx, sequence_parallel, dtype, seed):
    """Every combination of bias, wanted gradients and layout of the gradient; returns how many were compared."""
    tp = TensorParallel(ctx.tp, sequence_parallel)
    compared = 0
    for has_bias, layout in itertools.product((True, False), ("contiguous", "transposed", "expanded")):
        x, weight, bias, grad = inputs(tp, seed, dtype, has_bias=has_bias)
        for needs in itertools.product((True, False), repeat=3):
            if not any(needs[: 3 if has_bias else 2]):
                continue
            both = [
                gradients(function, tp, x, weight, bias, laid_out(grad, layout), needs)
                for function in (column_linear, column_linear_reference)
            ]
            torch.testing.assert_close(*both, rtol=0, atol=0)
            assert all(tensor.is_contiguous() for tensor in both[0])
            compared += 1
    return compared


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_overlap_changes_no_bit(pool, size, sequence_parallel, dtype):
    for seed in (1, 2):
        assert pool.run(compare_bits, sequence_parallel, dtype, seed, parallel=mesh(size)) == [3 * (7 + 6)] * 4


def compare_choice(ctx, sequence_parallel):
    """overlap=False is the reference, by name."""
    tp = TensorParallel(ctx.tp, sequence_parallel, overlap=False)
    x, weight, bias, _ = inputs(tp, 3, torch.float32)
    return column_linear(x, weight.requires_grad_(), bias, tp=tp).grad_fn.name()


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_overlap_is_a_choice(pool, sequence_parallel):
    assert pool.run(compare_choice, sequence_parallel, parallel=mesh(2)) == ["AddmmBackward0"] * 4


def what_is_kept(ctx, sequence_parallel, needs):
    """Which of x and weight forward keeps, by address, and whether anything else; then the same under no_grad."""
    tp = TensorParallel(ctx.tp, sequence_parallel)
    x, weight, bias, _ = inputs(tp, 4, torch.float32)
    names = {x.data_ptr(): "x", weight.data_ptr(): "weight"}
    kept = []
    leaves = [tensor.requires_grad_(need) for tensor, need in zip((x, weight, bias), needs, strict=True)]

    def keep(tensor):
        kept.append((names.get(tensor.data_ptr(), "another"), tuple(tensor.shape)))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        column_linear(*leaves, tp=tp)
        with_grad = sorted(kept)
        kept.clear()
        with torch.no_grad():
            out = column_linear(*leaves, tp=tp)
    return with_grad, kept, out.grad_fn


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_forward_keeps_the_token_shard_and_the_weight_and_no_more_than_is_needed(pool, sequence_parallel):
    x = ("x", (TOKENS // 4 if sequence_parallel else TOKENS, IN))
    weight = ("weight", (OUT, IN))
    for needs, kept in (
        ((True, True, True), [weight, x]),
        ((False, True, True), [x]),
        ((True, False, False), [weight]),
        ((False, False, True), []),
    ):
        assert pool.run(what_is_kept, sequence_parallel, needs, parallel=mesh(4)) == [(kept, [], None)] * 4


class Trace(TorchDispatchMode):
    """Products, sums over tokens and collectives as they start, and the waits that had something to wait for."""

    NAMES = ("mm", "sum", "allreduce_", "_allgather_base_", "_reduce_scatter_base_")

    def __init__(self):
        super().__init__()
        self.events = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in self.NAMES:
            shapes = "".join(str(list(arg.shape)) for arg in args[:2] if isinstance(arg, torch.Tensor))
            self.events.append(name + shapes if name == "mm" else name)
        return func(*args, **(kwargs or {}))


def trace_backward(ctx, sequence_parallel, needs):
    tp = TensorParallel(ctx.tp, sequence_parallel)
    x, weight, bias, grad = inputs(tp, 5, torch.float32)
    leaves = [tensor.requires_grad_(need) for tensor, need in zip((x, weight, bias), needs, strict=True)]
    out = column_linear(*leaves, tp=tp)
    trace, wait = Trace(), Handle.wait

    def traced_wait(handle):
        if handle._work is not None:
            trace.events.append("wait")
        wait(handle)

    with mock.patch.object(Handle, "wait", traced_wait), trace:
        torch.autograd.grad(out, [leaf for leaf in leaves if leaf.requires_grad], grad)
    return trace.events


DX, DW = f"mm[{TOKENS}, {OUT}][{OUT}, {IN}]", f"mm[{OUT}, {TOKENS}][{TOKENS}, {IN}]"
GATHER, SCATTER = "_allgather_base_", "_reduce_scatter_base_"


@pytest.mark.parametrize(
    "sequence_parallel, needs, events",
    [
        (False, (True, True, True), [DX, "allreduce_", "sum", DW, "wait"]),
        (False, (True, False, False), [DX, "allreduce_", "wait"]),
        (False, (False, True, True), ["sum", DW]),
        (True, (True, True, True), [GATHER, DX, SCATTER, "sum", "wait", DW, "wait"]),
        (True, (True, False, False), [DX, SCATTER, "wait"]),
        (True, (False, True, True), [GATHER, "sum", "wait", DW]),
        (True, (False, False, True), ["sum"]),
    ],
)
def test_collectives_start_before_the_work_that_hides_them(pool, sequence_parallel, needs, events):
    assert pool.run(trace_backward, sequence_parallel, needs, parallel=mesh(2)) == [events] * 4


def odd_shapes(ctx, sequence_parallel, tokens, width):
    tp = TensorParallel(ctx.tp, sequence_parallel)
    x, weight, bias, grad = inputs(tp, 6, torch.float32, tokens=tokens, width=width)
    both = [
        gradients(function, tp, x, weight, bias, grad, (True, True, True))
        for function in (column_linear, column_linear_reference)
    ]
    torch.testing.assert_close(*both, rtol=0, atol=0)
    return [tuple(tensor.shape) for tensor in both[0]]


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("tokens, width", [(4, 1), (4, 0), (0, 3)])
def test_one_column_no_column_and_no_token_work(pool, sequence_parallel, tokens, width):
    rows = tokens // 4 if sequence_parallel else tokens
    shapes = [(tokens, width), (rows, IN), (width, IN), (width,)]
    assert pool.run(odd_shapes, sequence_parallel, tokens, width, parallel=mesh(4)) == [shapes] * 4
