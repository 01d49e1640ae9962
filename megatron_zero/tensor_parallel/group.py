"""TensorParallel: how the layers of this package communicate, as a value that a model passes down."""

from __future__ import annotations

from dataclasses import dataclass

from megatron_zero.distributed.context import ParallelAxis


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """The axis that weights are divided over, and what travels on it.

    sequence_parallel: between the divided layers each rank holds 1/size of the tokens (Korthikanti et al. 2022,
        arXiv:2205.05198). Raises ValueError with an axis of one rank, which has nothing to divide.
    overlap: communicate beside the GEMM of the weight gradient; the results have the same bits without it.
    """

    axis: ParallelAxis
    sequence_parallel: bool = False
    overlap: bool = True

    def __post_init__(self) -> None:
        if self.sequence_parallel and self.axis.size == 1:
            raise ValueError(
                f"sequence_parallel=True with axis {self.axis.name} of size 1: pass sequence_parallel and axis.size > 1"
            )

    @staticmethod
    def single() -> TensorParallel:
        """One rank: every layer is the ordinary one and nothing travels."""
        return TensorParallel(ParallelAxis.single("tp"))
