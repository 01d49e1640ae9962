"""Each mapping and its conjugate, exactly: the values are small integers, so no order of summation shows."""

import pytest
import torch
from helpers.spawn import DistributedPool

from megatron_zero.config.fields import ConfigError
from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.tensor_parallel import mappings

ROWS, COLUMNS = 8, 3


@pytest.fixture(scope="module")
def pool():
    with DistributedPool(4) as pool:
        yield pool


def mesh(size):
    """Four ranks as `size` tensor-parallel ones, the rest data-parallel."""
    return ParallelConfig(tensor_model_parallel_size=size)


def values(rank, shape, dtype, salt):
    """Small integers, other ones on every rank."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(7 * rank + salt)).to(dtype)


def there_and_back(ctx, name, shape, grad_shape, dtype, layout):
    """The mapping's output and its input's gradient; x and the gradient of the output differ from rank to rank."""
    mapping = getattr(mappings, name)
    x = values(ctx.tp.rank, shape, dtype, 0)
    grad = values(ctx.tp.rank, grad_shape, dtype, 1)
    if layout == "transposed":
        grad = grad.t().contiguous().t()
        if not name.endswith("_"):
            x = x.t().contiguous().t()
    elif layout == "expanded":
        grad = grad[:1].expand(grad_shape)
    before = x.clone(), grad.clone()
    leaf = x.detach().requires_grad_()
    out = mapping(leaf * 1 if name.endswith("_") else leaf, axis=ctx.tp)
    out.backward(grad)
    assert torch.equal(x, before[0]) and torch.equal(grad, before[1])  # neither input nor gradient is written to
    assert out.is_contiguous() or name.startswith("copy")
    return out.detach(), leaf.grad


def expected(name, rank, xs, grads):
    """(output, gradient of the input) on rank, from the inputs and the outputs' gradients of all ranks."""
    size = len(xs)

    def own(tensor, dim):
        return tensor.chunk(size, dim)[rank]

    if name.startswith("copy"):
        return xs[rank], sum(grads)
    if name.startswith("reduce_from"):
        return sum(xs), grads[rank]
    if name == "gather_from_tensor_model_parallel_region":
        return torch.cat(xs, -1), own(grads[rank], -1)
    if name == "gather_from_sequence_parallel_region":
        return torch.cat(xs), own(sum(grads), 0)
    if name == "reduce_scatter_to_sequence_parallel_region":
        return own(sum(xs), 0), torch.cat(grads)
    assert name == "scatter_to_sequence_parallel_region"
    return own(xs[rank], 0), torch.cat(grads)


@pytest.mark.parametrize(
    "name",
    [
        "copy_to_tensor_model_parallel_region",
        "reduce_from_tensor_model_parallel_region",
        "reduce_from_tensor_model_parallel_region_",
        "gather_from_tensor_model_parallel_region",
        "gather_from_sequence_parallel_region",
        "reduce_scatter_to_sequence_parallel_region",
        "scatter_to_sequence_parallel_region",
    ],
)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "expanded"])
@pytest.mark.parametrize("size", [2, 4])
def test_output_and_gradient_are_exact(pool, name, layout, size):
    shape = (ROWS, COLUMNS)
    grad_shape = {
        "gather_from_tensor_model_parallel_region": (ROWS, size * COLUMNS),
        "gather_from_sequence_parallel_region": (size * ROWS, COLUMNS),
        "reduce_scatter_to_sequence_parallel_region": (ROWS // size, COLUMNS),
        "scatter_to_sequence_parallel_region": (ROWS // size, COLUMNS),
    }.get(name, shape)
    for dtype in (torch.float32, torch.bfloat16):
        results = pool.run(there_and_back, name, shape, grad_shape, dtype, layout, parallel=mesh(size))
        xs = [values(rank, shape, dtype, 0) for rank in range(size)]
        grads = [values(rank, grad_shape, dtype, 1) for rank in range(size)]
        if layout == "expanded":
            grads = [grad[:1].expand(grad_shape) for grad in grads]
        for rank, (out, x_grad) in enumerate(results):
            wanted, wanted_grad = expected(name, rank % size, xs, grads)
            assert out.dtype == x_grad.dtype == dtype
            assert torch.equal(out, wanted) and torch.equal(x_grad, wanted_grad)


def gather_unequal(ctx, widths):
    x = values(ctx.tp.rank, (5, widths[ctx.tp.rank]), torch.float32, 0).requires_grad_()
    out = mappings.gather_from_tensor_model_parallel_region(x, axis=ctx.tp, widths=widths)
    grad = values(0, tuple(out.shape), torch.float32, 1)
    (x_grad,) = torch.autograd.grad(out, x, grad)
    return out.detach(), x_grad


@pytest.mark.parametrize("widths", [(4, 4, 3, 0), (1, 0, 0, 0), (0, 0, 0, 2), (0, 0, 0, 0), (1, 3, 2, 5)])
def test_parts_of_unequal_width_are_gathered_without_their_padding(pool, widths):
    whole = torch.cat([values(rank, (5, width), torch.float32, 0) for rank, width in enumerate(widths)], 1)
    grads = values(0, tuple(whole.shape), torch.float32, 1).split(list(widths), 1)
    for rank, (out, x_grad) in enumerate(pool.run(gather_unequal, widths, parallel=mesh(4))):
        assert torch.equal(out, whole) and torch.equal(x_grad, grads[rank])


def refusals(ctx):
    """What each wrong call says; none communicates, so no rank waits for another."""
    said = []
    x = torch.zeros(6, 3)
    for call in (
        lambda: mappings.scatter_to_sequence_parallel_region(x, axis=ctx.tp),
        lambda: mappings.reduce_scatter_to_sequence_parallel_region(x, axis=ctx.tp),
        lambda: mappings.gather_from_tensor_model_parallel_region(x, axis=ctx.tp, widths=(3, 3, 3)),
        lambda: mappings.gather_from_tensor_model_parallel_region(x, axis=ctx.tp, widths=(2, 2, 2, 2)),
    ):
        try:
            call()
        except (ConfigError, ValueError) as error:
            said.append((type(error), str(error)))
    return said


def test_sizes_that_do_not_fit_are_refused_on_every_rank(pool):
    for rank, said in enumerate(pool.run(refusals, parallel=mesh(4))):
        assert [kind for kind, _ in said] == [ConfigError, ConfigError, ValueError, ValueError]
        assert all("6 tokens" in text and "size 4" in text and "4 or 8" in text for _, text in said[:2])
        assert f"widths (2, 2, 2, 2) over axis tp of size 4: rank {rank} holds 3 columns" in said[3][1]


def differentiate_twice(ctx):
    x = torch.ones(4, 3, requires_grad=True)
    out = mappings.copy_to_tensor_model_parallel_region(x, axis=ctx.tp)
    (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    try:
        grad.sum().backward()
    except RuntimeError as error:
        return str(error)
    return None


def test_a_second_derivative_is_refused(pool):
    assert all("once_differentiable" in said for said in pool.run(differentiate_twice, parallel=mesh(4)))
