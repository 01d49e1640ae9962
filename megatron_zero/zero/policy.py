"""Pure: the ZeRO stages as data. One engine reads these three answers; there are no stage subclasses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StagePolicy:
    """What is sharded over data parallel (Rajbhandari et al. 2020, arXiv:1910.02054, section 5).

    optimizer: each rank steps its own shard only, and new weights are gathered (stage >= 1).
    gradients: a unit's gradient is reduce-scattered in every micro-batch (stage >= 2); otherwise the whole gradient
               is accumulated and reduced once a step.
    parameters: weights rest as shards and are gathered for each use (stage 3).
    """

    optimizer: bool
    gradients: bool
    parameters: bool


def stage_policy(stage: int) -> StagePolicy:
    """The policy of ZeRO stage 0, 1, 2 or 3; ValueError otherwise."""
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"ZeRO stage {stage} does not exist: 0, 1, 2 or 3")
    return StagePolicy(optimizer=stage >= 1, gradients=stage >= 2, parameters=stage >= 3)
