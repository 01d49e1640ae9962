"""Each divided layer, and a small model of all of them, against the undivided one: outputs and every gradient.

Single layers are tested on small integers: sums of those are exact in fp32 in any order, so nothing but the same values
will do. The model has random values.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from helpers.spawn import DistributedPool
from torch import nn
from torch.utils.checkpoint import checkpoint

from megatron_zero.config.fields import ConfigError
from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy
from megatron_zero.tensor_parallel.group import TensorParallel
from megatron_zero.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelHead,
)
from megatron_zero.tensor_parallel.splits import collect_splits

SEQ, HIDDEN, FFN, ROWS, VOCAB = 8, 12, 16, 24, 17  # of ROWS on 4 ranks: 6, 6, 5 and 0 are vocabulary

LAYOUTS = pytest.mark.parametrize("size, sequence_parallel", [(1, False), (2, False), (2, True), (4, False), (4, True)])


@pytest.fixture(scope="module")
def pool():
    with DistributedPool(4) as pool:
        yield pool


def mesh(size):
    return ParallelConfig(tensor_model_parallel_size=size)


def integers(shape, seed):
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def fill(module, *, normal, seed=1):
    """Set every parameter to this rank's part of a logical one that all ranks draw alike; replicas are equal."""
    for index, (name, split) in enumerate(collect_splits(module).items()):
        generator = torch.Generator().manual_seed(1000 * seed + index)
        logical = torch.randn(math.prod(split.shape), generator=generator) * 0.3 if normal else integers(split.shape, index)
        runs = split.runs(0, math.prod(split.local_shape))
        local = torch.cat([logical.flatten()[run.start : run.start + run.numel] for run in runs])
        module.get_parameter(name).data.copy_(local.view(split.local_shape))


def logical_gradients(module_splits, per_rank, *, sequence_parallel):
    """name -> [gradient of the whole parameter], from every rank's: parts put in their places, replicas checked to be
    bit-equal, or summed under sequence parallel, where each is that of its rank's tokens."""
    whole = {}
    for name, split in module_splits[0].items():
        grads = [gradients[name] for gradients in per_rank]
        if split.replicated:
            if not sequence_parallel:
                assert all(torch.equal(grad, grads[0]) for grad in grads)
            whole[name] = sum(grads) if sequence_parallel else grads[0]
            continue
        flat = torch.full((math.prod(split.shape),), float("nan"))
        for splits, grad in zip(module_splits, grads, strict=True):
            at = 0
            for run in splits[name].runs(0, grad.numel()):
                flat[run.start : run.start + run.numel] = grad.flatten()[at : at + run.numel]
                at += run.numel
        whole[name] = flat.view(split.shape)
    return whole


def run_layer(ctx, make, sequence_parallel, x, grad, kind):
    """(output, gradient of x, gradients by name, splits) of the layer on this rank.

    x: whole; grad: of the whole output.   kind: how the two are divided among the ranks.
    """
    tp = TensorParallel(ctx.tp, sequence_parallel)
    layer = make(tp)
    fill(layer, normal=False)

    def own(tensor, dim):
        return tensor.chunk(tp.axis.size, dim)[tp.axis.rank].clone()

    x_dim = {"column": 0 if sequence_parallel else None, "row": 1, "embedding": None}[kind]
    x = x.clone() if x_dim is None else own(x, x_dim)
    if kind == "column":
        shape = collect_splits(layer)["weight"].shape[:-1]
        grad = own(grad.unflatten(1, shape), len(shape)).flatten(1)  # the last dim of out_shape is the divided one
    elif sequence_parallel:
        grad = own(grad, 0)
    if x.is_floating_point():
        x.requires_grad_()
    out = layer(x)
    out.backward(grad)
    return out.detach(), x.grad, {name: p.grad for name, p in layer.named_parameters()}, collect_splits(layer)


def undivided(pool, make, x, grad, kind):
    """The same layer on one rank: torch's own, as tests/unit/tensor_parallel shows."""
    return pool.run(run_layer, make, False, x, grad, kind, parallel=mesh(1))[0]


class Column:
    def __init__(self, out_shape, split_dim, bias):
        self.arguments = {"out_shape": out_shape, "split_dim": split_dim, "bias": bias}

    def __call__(self, tp):
        return ColumnParallelLinear(HIDDEN, **self.arguments, tp=tp)


@LAYOUTS
@pytest.mark.parametrize("micro_batch", [1, 3])
@pytest.mark.parametrize("out_shape, split_dim", [(FFN, 0), ((2, FFN), 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_column_layer_equals_the_undivided(pool, size, sequence_parallel, micro_batch, out_shape, split_dim, bias):
    make = Column(out_shape, split_dim, bias)
    shape = out_shape if isinstance(out_shape, tuple) else (out_shape,)
    x, grad = integers((micro_batch * SEQ, HIDDEN), 1), integers((micro_batch * SEQ, math.prod(shape)), 2)
    out, x_grad, gradients, _ = undivided(pool, make, x, grad, "column")
    results = pool.run(run_layer, make, sequence_parallel, x, grad, "column", parallel=mesh(size))[:size]
    outs = [result[0].unflatten(1, (*shape[:-1], shape[-1] // size)) for result in results]
    assert torch.equal(torch.cat(outs, -1).flatten(1), out)
    if sequence_parallel:
        assert torch.equal(torch.cat([result[1] for result in results]), x_grad)
    else:
        assert all(torch.equal(result[1], x_grad) for result in results)
    ours = logical_gradients([r[3] for r in results], [r[2] for r in results], sequence_parallel=sequence_parallel)
    assert ours.keys() == gradients.keys() and all(torch.equal(ours[name], gradients[name]) for name in ours)


class Row:
    def __init__(self, bias):
        self.bias = bias

    def __call__(self, tp):
        return RowParallelLinear(FFN, HIDDEN, bias=self.bias, tp=tp)


@LAYOUTS
@pytest.mark.parametrize("micro_batch", [1, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_row_layer_equals_the_undivided(pool, size, sequence_parallel, micro_batch, bias):
    x, grad = integers((micro_batch * SEQ, FFN), 1), integers((micro_batch * SEQ, HIDDEN), 2)
    out, x_grad, gradients, _ = undivided(pool, Row(bias), x, grad, "row")
    results = pool.run(run_layer, Row(bias), sequence_parallel, x, grad, "row", parallel=mesh(size))[:size]
    if sequence_parallel:
        assert torch.equal(torch.cat([result[0] for result in results]), out)
    else:
        assert all(torch.equal(result[0], out) for result in results)
    assert torch.equal(torch.cat([result[1] for result in results], 1), x_grad)
    ours = logical_gradients([r[3] for r in results], [r[2] for r in results], sequence_parallel=sequence_parallel)
    assert ours.keys() == gradients.keys() and all(torch.equal(ours[name], gradients[name]) for name in ours)


def make_embedding(tp):
    return VocabParallelEmbedding(ROWS, HIDDEN, tp=tp)


@LAYOUTS
@pytest.mark.parametrize("micro_batch", [1, 3])
@pytest.mark.parametrize("which", ["all rows", "rows of one rank", "one row"])
def test_embedding_equals_the_undivided(pool, size, sequence_parallel, micro_batch, which):
    generator = torch.Generator().manual_seed(3)
    low, high = {"all rows": (0, ROWS), "rows of one rank": (6, 12), "one row": (23, 24)}[which]
    tokens = torch.randint(low, high, (micro_batch * SEQ,), generator=generator)
    grad = torch.randn(micro_batch * SEQ, HIDDEN, generator=generator)  # a row's gradients are summed in the same order
    out, _, gradients, _ = undivided(pool, make_embedding, tokens, grad, "embedding")
    results = pool.run(run_layer, make_embedding, sequence_parallel, tokens, grad, "embedding", parallel=mesh(size))[:size]
    if sequence_parallel:
        assert torch.equal(torch.cat([result[0] for result in results]), out)
    else:
        assert all(torch.equal(result[0], out) for result in results)
    ours = logical_gradients([r[3] for r in results], [r[2] for r in results], sequence_parallel=sequence_parallel)
    assert torch.equal(ours["weight"], gradients["weight"])


def look_up(ctx, token):
    try:
        make_embedding(TensorParallel(ctx.tp))(torch.tensor([0, token, 1, 2]))
    except IndexError as error:
        return str(error)
    return None


@pytest.mark.parametrize("token", [-1, ROWS, ROWS + 1, 10**12, -(10**12)])
def test_an_index_without_a_row_fails_on_every_rank(pool, token):
    for size in (1, 2, 4):
        assert all("index out of range" in said for said in pool.run(look_up, token, parallel=mesh(size)))


def run_head(ctx, sequence_parallel, hidden, grad):
    tp = TensorParallel(ctx.tp, sequence_parallel)
    head = VocabParallelHead(None, ROWS, HIDDEN, vocab_size=VOCAB, tp=tp)
    fill(head, normal=False)
    x = hidden.chunk(tp.axis.size)[tp.axis.rank].clone() if sequence_parallel else hidden.clone()
    logits = head(x.requires_grad_())
    assert logits.shape == (hidden.shape[0], head.num_valid)
    logits.backward(grad[:, head.first_id : head.first_id + head.num_valid])
    return logits.detach(), x.grad, {"weight": head.weight.grad}, collect_splits(head)


@LAYOUTS
@pytest.mark.parametrize("micro_batch", [1, 3])
def test_head_equals_the_undivided_and_its_padding_has_no_gradient(pool, size, sequence_parallel, micro_batch):
    hidden, grad = integers((micro_batch * SEQ, HIDDEN), 1), integers((micro_batch * SEQ, VOCAB), 2)
    logits, x_grad, gradients, _ = pool.run(run_head, False, hidden, grad, parallel=mesh(1))[0]
    results = pool.run(run_head, sequence_parallel, hidden, grad, parallel=mesh(size))[:size]
    assert torch.equal(torch.cat([result[0] for result in results], 1), logits)
    if sequence_parallel:
        assert torch.equal(torch.cat([result[1] for result in results]), x_grad)
    else:
        assert all(torch.equal(result[1], x_grad) for result in results)
    ours = logical_gradients([r[3] for r in results], [r[2] for r in results], sequence_parallel=sequence_parallel)
    assert torch.equal(ours["weight"], gradients["weight"])
    assert torch.equal(ours["weight"][VOCAB:], torch.zeros(ROWS - VOCAB, HIDDEN))


class Model(nn.Module):
    """Every layer once: tied or untied, with a norm that each rank applies to its own tokens."""

    def __init__(self, tp, *, tied, recompute=False):
        super().__init__()
        self.tp = tp
        self.recompute = recompute
        self.word = VocabParallelEmbedding(ROWS, HIDDEN, tp=tp)
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = ColumnParallelLinear(HIDDEN, (2, FFN), split_dim=1, bias=True, tp=tp)
        self.down = RowParallelLinear(FFN, HIDDEN, bias=True, tp=tp)
        self.head = VocabParallelHead(self.word.weight if tied else None, ROWS, HIDDEN, vocab_size=VOCAB, tp=tp)

    def forward(self, tokens, labels):
        hidden = self.word(tokens)
        block = checkpoint(self.block, hidden, use_reentrant=False) if self.recompute else self.block(hidden)
        logits = self.head(hidden + block)
        return vocab_parallel_cross_entropy(logits, labels, first_id=self.head.first_id, axis=self.tp.axis)

    def block(self, hidden):
        gate, up = self.up(self.norm(hidden)).chunk(2, 1)
        return self.down(F.silu(gate) * up)


def run_model(ctx, sequence_parallel, overlap, tied, micro_batch, recompute=False):
    tp = TensorParallel(ctx.tp, sequence_parallel, overlap)
    model = Model(tp, tied=tied, recompute=recompute)
    fill(model, normal=True)
    tokens, labels = torch.randint(0, VOCAB, (2, micro_batch * SEQ), generator=torch.Generator().manual_seed(9))
    losses = model(tokens, labels)
    losses.mean().backward()
    return losses.detach(), {name: p.grad for name, p in model.named_parameters()}, collect_splits(model)


@pytest.mark.parametrize("size, sequence_parallel", [(2, False), (2, True), (4, False), (4, True)])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("micro_batch", [1, 3])
def test_a_model_of_all_layers_equals_the_undivided(pool, size, sequence_parallel, tied, micro_batch):
    losses, gradients, _ = pool.run(run_model, False, True, tied, micro_batch, parallel=mesh(1))[0]
    results = pool.run(run_model, sequence_parallel, True, tied, micro_batch, parallel=mesh(size))
    plain = pool.run(run_model, sequence_parallel, False, tied, micro_batch, parallel=mesh(size))
    for result, reference in zip(results, plain, strict=True):
        assert torch.equal(result[0], results[0][0])  # the replicas, tensor-parallel and data-parallel ones
        torch.testing.assert_close(result[:2], reference[:2], rtol=0, atol=0)
    # Sums over FFN, HIDDEN and VOCAB are taken in another order: a few units in the last place of terms around 1.
    torch.testing.assert_close(results[0][0], losses, rtol=1e-6, atol=1e-6)
    ours = logical_gradients(
        [r[2] for r in results[:size]], [r[1] for r in results[:size]], sequence_parallel=sequence_parallel
    )
    assert list(ours) == list(gradients) and ("head.weight" in ours) is not tied
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-5, atol=2e-7, msg=lambda text, name=name: f"{name}: {text}")
    padding = ours["word.weight" if tied else "head.weight"][VOCAB:]
    assert torch.equal(padding, torch.zeros_like(padding))


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_recompute_changes_no_bit(pool, sequence_parallel, overlap):
    arguments = (sequence_parallel, overlap, True, 1)
    kept = pool.run(run_model, *arguments, parallel=mesh(4))
    again = pool.run(run_model, *arguments, True, parallel=mesh(4))
    for ours, reference in zip(again, kept, strict=True):
        torch.testing.assert_close(ours[:2], reference[:2], rtol=0, atol=0)


def refused_tokens(ctx):
    tp = TensorParallel(ctx.tp, sequence_parallel=True)
    said = []
    for call in (
        lambda: RowParallelLinear(FFN, HIDDEN, bias=True, tp=tp)(torch.zeros(6, FFN // 4)),
        lambda: make_embedding(tp)(torch.zeros(6, dtype=torch.int64)),
    ):
        try:
            call()
        except ConfigError as error:
            said.append(str(error))
    return said


def test_tokens_that_do_not_divide_are_refused_on_every_rank(pool):
    for said in pool.run(refused_tokens, parallel=mesh(4)):
        assert len(said) == 2 and all(text.startswith("6 tokens of a micro-batch") for text in said)
