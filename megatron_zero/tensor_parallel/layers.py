"""The divided layers: linear by columns and by rows, word embedding and head.

Activations are [tokens, hidden]: the rows of a micro-batch one after the other. "(/size)" below: under sequence parallel
a rank holds tokens [rank * tokens / size, (rank + 1) * tokens / size). Every layer declares in `splits` how its
parameters are divided; their values are not set here. Over an axis of one rank each is the ordinary layer and calls
torch's function directly. Sizes that do not divide raise ConfigError when the layer is made.

Shoeybi et al. 2019 (arXiv:1909.08053), section 3; Korthikanti et al. 2022 (arXiv:2205.05198), section 4.2.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .column_linear import column_linear
from .group import TensorParallel
from .mappings import reduce_from_tensor_model_parallel_region_, reduce_scatter_to_sequence_parallel_region
from .splits import TensorSplit


def _empty(split: TensorSplit) -> nn.Parameter:
    return nn.Parameter(torch.empty(split.local_shape))


class ColumnParallelLinear(nn.Module):
    """x W^T + b, the output features divided. [tokens (/size), in] -> [tokens, prod(local out_shape)].

    weight: [*out_shape, in], cut along split_dim of out_shape.   bias: [*out_shape], cut the same way; None without.
    out_shape of two dims: SwiGLU's gate and up, [2, ffn], cut along dim 1; a rank's output is its gates, then its ups.
    """

    def __init__(
        self,
        in_features: int,
        out_shape: int | tuple[int, ...],
        *,
        split_dim: int = 0,
        bias: bool,
        tp: TensorParallel,
    ) -> None:
        super().__init__()
        shape = (out_shape,) if isinstance(out_shape, int) else out_shape
        if not 0 <= split_dim < len(shape):
            raise ValueError(f"split_dim {split_dim} is not a dim of out_shape {shape}")
        self._tp = tp
        self.splits = {"weight": TensorSplit((*shape, in_features), split_dim, tp.axis.rank, tp.axis.size)}
        self.weight = _empty(self.splits["weight"])
        self.bias: nn.Parameter | None = None
        if bias:
            self.splits["bias"] = TensorSplit(shape, split_dim, tp.axis.rank, tp.axis.size)
            self.bias = _empty(self.splits["bias"])

    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if weight.dim() > 2:
            weight, bias = weight.flatten(0, -2), None if bias is None else bias.flatten()
        return column_linear(x, weight, bias, tp=self._tp)


class RowParallelLinear(nn.Module):
    """x W + b, the input features divided. [tokens, in / size] -> [tokens (/size), out].

    weight: [in, out], the transpose of torch's, so that the cut along dim 0 is contiguous.   bias: [out], whole on every
    rank and added after the sum; None without. Its gradient is partial under sequence parallel: that of this rank's tokens.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool, tp: TensorParallel) -> None:
        super().__init__()
        self._tp = tp
        self.splits = {"weight": TensorSplit((in_features, out_features), 0, tp.axis.rank, tp.axis.size)}
        self.weight = _empty(self.splits["weight"])
        self.bias: nn.Parameter | None = None
        if bias:
            self.splits["bias"] = TensorSplit((out_features,), None, tp.axis.rank, tp.axis.size)
            self.bias = _empty(self.splits["bias"])

    def forward(self, x: Tensor) -> Tensor:
        if self._tp.axis.size == 1:
            return torch.mm(x, self.weight) if self.bias is None else torch.addmm(self.bias, x, self.weight)
        total = sum_parts_(torch.mm(x, self.weight), tp=self._tp)
        return total if self.bias is None else total.add_(self.bias)


def sum_parts_(partial: Tensor, *, tp: TensorParallel) -> Tensor:
    """The sum over the ranks of [tokens, out]: [tokens (/size), out]. partial: may be mutated and returned."""
    if tp.sequence_parallel:
        return reduce_scatter_to_sequence_parallel_region(partial, axis=tp.axis)
    return reduce_from_tensor_model_parallel_region_(partial, axis=tp.axis)


class VocabParallelEmbedding(nn.Module):
    """Rows looked up by index, the rows divided. [tokens] int64, all tokens on every rank -> [tokens (/size), hidden].

    weight: [rows, hidden], cut along dim 0. An index outside of [0, rows) fails on every rank, as it does in torch.
    """

    def __init__(self, rows: int, hidden: int, *, tp: TensorParallel) -> None:
        super().__init__()
        self._tp = tp
        self.splits = {"weight": TensorSplit((rows, hidden), 0, tp.axis.rank, tp.axis.size)}
        self.weight = _empty(self.splits["weight"])

    def forward(self, tokens: Tensor) -> Tensor:
        axis = self._tp.axis
        if axis.size == 1:
            return F.embedding(tokens, self.weight)
        # Other ranks' rows are looked up at the same offset here and zeroed: all of them in one row would make its
        # gradient a sum over most tokens. What no rank has stays out of range.
        owner = tokens.div(self.weight.shape[0], rounding_mode="floor").clamp(0, axis.size - 1)
        rows = F.embedding(tokens - owner * self.weight.shape[0], self.weight)
        return sum_parts_(rows.masked_fill_((owner != axis.rank).unsqueeze(1), 0.0), tp=self._tp)


class VocabParallelHead(nn.Module):
    """Logits of this rank's part of the vocabulary. [tokens (/size), hidden] -> [tokens, num_valid].

    weight: [rows, hidden], cut along dim 0; the embedding's own nn.Parameter (tied; local) or, given None, a new one.
    Rows from vocab_size on are padding: their logits are cut off, so their gradient is exactly 0.
    first_id: vocabulary id of the first column.   num_valid: columns; 0 on a rank that holds nothing but padding.
    valid_widths: num_valid of every rank, in axis order. Raises ConfigError when rows do not divide, ValueError when a
    tied weight has another shape or the vocabulary is larger than the rows.
    """

    def __init__(self, weight: nn.Parameter | None, rows: int, hidden: int, *, vocab_size: int, tp: TensorParallel) -> None:
        super().__init__()
        split = TensorSplit((rows, hidden), 0, tp.axis.rank, tp.axis.size)
        if weight is not None and tuple(weight.shape) != split.local_shape:
            raise ValueError(
                f"a tied head weight has shape {tuple(weight.shape)}, but its split {split} {split.local_shape}"
            )
        if not 0 < vocab_size <= rows:
            raise ValueError(f"vocab_size {vocab_size} is not in [1, rows {rows}]")
        self._tp = tp
        self.splits = {"weight": split}
        self.weight = _empty(split) if weight is None else weight
        local = split.local_shape[0]
        self.first_id = tp.axis.rank * local
        self.valid_widths = tuple(min(max(vocab_size - rank * local, 0), local) for rank in range(tp.axis.size))
        self.num_valid = self.valid_widths[tp.axis.rank]

    def forward(self, hidden: Tensor) -> Tensor:
        # The product has all rows, padding is a few columns of it: a cut weight would not be aligned for the GEMMs.
        logits = column_linear(hidden, self.weight, None, tp=self._tp)
        return logits if self.num_valid == self.weight.shape[0] else logits[:, : self.num_valid]
