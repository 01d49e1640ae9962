"""Over an axis of one rank every layer is torch's own, and a mapping is nothing at all."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from megatron_zero.config.fields import ConfigError
from megatron_zero.distributed.context import ParallelAxis
from megatron_zero.tensor_parallel import mappings
from megatron_zero.tensor_parallel.column_linear import column_linear
from megatron_zero.tensor_parallel.cross_entropy import (
    vocab_parallel_cross_entropy,
    vocab_parallel_cross_entropy_reference,
)
from megatron_zero.tensor_parallel.group import TensorParallel
from megatron_zero.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelHead,
)

SINGLE = TensorParallel.single()
TWO = TensorParallel(ParallelAxis("tp", 2, 1, None, (0, 1)))  # has no group: for what is decided before anything travels
MAPPINGS = [
    mappings.copy_to_tensor_model_parallel_region,
    mappings.reduce_from_tensor_model_parallel_region,
    mappings.reduce_from_tensor_model_parallel_region_,
    mappings.gather_from_tensor_model_parallel_region,
    mappings.gather_from_sequence_parallel_region,
    mappings.reduce_scatter_to_sequence_parallel_region,
    mappings.scatter_to_sequence_parallel_region,
]


class Operations(TorchDispatchMode):
    """The names of the operations that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def filled(module, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=generator)
    return module


def operations_of(function, *inputs):
    """What runs forward and in backward of function(*inputs)."""
    with Operations() as operations:
        out = function(*inputs)
        torch.autograd.grad(out, inputs, torch.ones_like(out))
    return operations.names


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda mapping: mapping.__name__)
def test_a_mapping_returns_its_input_itself(mapping):
    x = torch.ones(3, 4, requires_grad=True)
    assert mapping(x, axis=ParallelAxis.single("tp")) is x


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_run_what_torch_runs(bias):
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    column = filled(ColumnParallelLinear(4, 10, bias=bias, tp=SINGLE), 1)
    row = filled(RowParallelLinear(4, 10, bias=bias, tp=SINGLE), 2)

    def by_torch(x):
        return torch.addmm(row.bias, x, row.weight) if bias else torch.mm(x, row.weight)

    assert torch.equal(column(x), F.linear(x, column.weight, column.bias))
    assert operations_of(column, x) == operations_of(lambda x: F.linear(x, column.weight, column.bias), x)
    assert torch.equal(row(x), by_torch(x))
    assert operations_of(row, x) == operations_of(by_torch, x)


def test_a_column_layer_of_two_output_dims_is_the_flat_one():
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    gated = filled(ColumnParallelLinear(4, (2, 5), split_dim=1, bias=True, tp=SINGLE), 1)
    assert gated.weight.shape == (2, 5, 4) and gated.bias.shape == (2, 5)
    assert torch.equal(gated(x), F.linear(x, gated.weight.view(10, 4), gated.bias.view(10)))


@pytest.mark.parametrize("vocab_size", [7, 12])
def test_embedding_head_and_loss_are_torch_s(vocab_size):
    tokens = torch.arange(9) % vocab_size
    embedding = filled(VocabParallelEmbedding(12, 4, tp=SINGLE), 3)
    head = VocabParallelHead(embedding.weight, 12, 4, vocab_size=vocab_size, tp=SINGLE)
    assert head.weight is embedding.weight
    assert (head.first_id, head.num_valid, head.valid_widths) == (0, vocab_size, (vocab_size,))
    assert torch.equal(embedding(tokens), F.embedding(tokens, embedding.weight))
    logits = head(embedding(tokens))
    assert torch.equal(logits, F.linear(embedding(tokens), embedding.weight)[:, :vocab_size])
    expected = F.cross_entropy(logits.float(), tokens, reduction="none")
    axis = ParallelAxis.single("tp")
    assert torch.equal(vocab_parallel_cross_entropy(logits, tokens, first_id=0, axis=axis), expected)
    assert torch.equal(vocab_parallel_cross_entropy_reference(logits, tokens, widths=(vocab_size,), axis=axis), expected)


def test_padding_rows_get_a_gradient_of_exactly_zero():
    head = filled(VocabParallelHead(None, 12, 4, vocab_size=7, tp=SINGLE), 5)
    head(torch.randn(6, 4, generator=torch.Generator().manual_seed(0))).square().sum().backward()
    assert torch.equal(head.weight.grad[7:], torch.zeros(5, 4))
    assert (head.weight.grad[:7] != 0).all()


def test_layers_can_be_made_on_the_meta_device():
    with torch.device("meta"):
        assert ColumnParallelLinear(4, (2, 6), split_dim=1, bias=True, tp=TWO).weight.shape == (2, 3, 4)
        assert RowParallelLinear(4, 6, bias=True, tp=TWO).weight.is_meta


def test_a_part_knows_its_place_in_the_vocabulary():
    for vocab_size, widths in ((12, (6, 6)), (11, (6, 5)), (6, (6, 0)), (1, (1, 0))):
        head = VocabParallelHead(None, 12, 4, vocab_size=vocab_size, tp=TWO)
        assert (head.first_id, head.num_valid, head.valid_widths) == (6, widths[1], widths)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: ColumnParallelLinear(4, 7, bias=True, tp=TWO), r"dim 0 .* \(7, 4\) is 7.*nearest valid: 6 or 8"),
        (lambda: RowParallelLinear(5, 8, bias=True, tp=TWO), r"dim 0 .* \(5, 8\) is 5.*nearest valid: 4 or 6"),
        (lambda: ColumnParallelLinear(4, (2, 5), split_dim=1, bias=False, tp=TWO), r"dim 1 .* \(2, 5, 4\) is 5"),
        (lambda: VocabParallelEmbedding(9, 4, tp=TWO), r"\(9, 4\) is 9.*tensor-parallel size 2"),
        (lambda: VocabParallelHead(None, 9, 4, vocab_size=8, tp=TWO), r"\(9, 4\) is 9.*tensor-parallel size 2"),
    ],
)
def test_sizes_that_do_not_divide_are_named_when_the_layer_is_made(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"vocab_size 13 is not in \[1, rows 12\]"):
        VocabParallelHead(None, 12, 4, vocab_size=13, tp=SINGLE)
    with pytest.raises(ValueError, match=r"tied head weight has shape \(12, 4\).*\(6, 4\)"):
        VocabParallelHead(torch.nn.Parameter(torch.zeros(12, 4)), 12, 4, vocab_size=12, tp=TWO)
    with pytest.raises(ValueError, match=r"split_dim 1 .* out_shape \(4,\)"):
        ColumnParallelLinear(4, 4, split_dim=1, bias=False, tp=TWO)
    with pytest.raises(ValueError, match=r"sequence_parallel=True with axis tp of size 1"):
        TensorParallel(ParallelAxis.single("tp"), sequence_parallel=True)


def test_tokens_that_do_not_divide_are_named_before_anything_travels():
    x = torch.zeros(7, 4)
    message = r"7 tokens .*--micro-batch-size x --seq-length.* size 2, .*--sequence-parallel.*nearest valid: 6 or 8"
    for mapping in (
        mappings.scatter_to_sequence_parallel_region,
        mappings.reduce_scatter_to_sequence_parallel_region,
    ):
        with pytest.raises(ConfigError, match=message):
            mapping(x, axis=TWO.axis)


def test_nothing_is_kept_under_no_grad():
    kept = []
    weight = torch.ones(5, 4, requires_grad=True)
    with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(kept.append, lambda saved: saved):
        out = column_linear(torch.ones(3, 4), weight, None, tp=TWO)
    assert kept == [] and out.grad_fn is None
