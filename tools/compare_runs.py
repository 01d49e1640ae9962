"""Compare two runs: their losses step by step, or their checkpoints tensor by tensor. Exit code 0 if they agree, else 1.

    python tools/compare_runs.py losses a.jsonl b.jsonl --steps 20 --tolerance 0.02
    python tools/compare_runs.py weights a/checkpoint b/checkpoint        # newest iteration of each; bit by bit

`losses` reads --log-jsonl files; the difference is relative to the second. `weights` reads masters and moments, whatever
the two runs' ratio, sub_group_size, ZeRO stage or number of processes were.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from megatron_zero.checkpoint.folder import latest_iteration
from megatron_zero.checkpoint.load import load_checkpoint, stored_tensors
from megatron_zero.checkpoint.tensors import TensorSlice
from megatron_zero.data.tool_flags import ToolParser, number_from_zero, whole_number
from megatron_zero.data.tool_process import run_tool
from megatron_zero.distributed.context import ParallelAxis


def losses_of(path: Path) -> dict[int, float]:
    """Iteration -> loss; a loss that was not finite is NaN."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return {r["iteration"]: math.nan if r["lm_loss"] is None else r["lm_loss"] for r in records}


def compare_losses(first: Path, second: Path, *, steps: int, tolerance: float) -> bool:
    ours, theirs = losses_of(first), losses_of(second)
    missing = [step for step in range(1, steps + 1) if step not in ours or step not in theirs]
    if missing:
        print(f"steps {missing[0]} to {missing[-1]} are not in both files")
        return False
    differences = {step: abs(ours[step] - theirs[step]) / abs(theirs[step]) for step in range(1, steps + 1)}
    worst = max(differences, key=lambda step: (math.isnan(differences[step]), differences[step]))
    agrees = all(difference <= tolerance for difference in differences.values())
    print(
        f"{steps} steps, largest relative difference {differences[worst]:.3e} at step {worst} "
        f"({ours[worst]:.6f} and {theirs[worst]:.6f}), tolerance {tolerance:g}: {'agree' if agrees else 'DIFFER'}"
    )
    return agrees


def tensors_of(root: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the newest checkpoint below root, whole and flat, by key."""
    iteration = latest_iteration(root)
    if iteration is None:
        raise SystemExit(f"no checkpoint in {root}")
    axis = ParallelAxis.single("world")
    tensors = {key: torch.empty(math.prod(shape)) for key, shape in stored_tensors(root, iteration).items()}
    wanted = [TensorSlice(key, shape, 0, tensors[key]) for key, shape in stored_tensors(root, iteration).items()]
    load_checkpoint(root, iteration, wanted=wanted, axis=axis)
    print(f"{root}: iteration {iteration}, {len(tensors)} tensors, {sum(t.numel() for t in tensors.values())} elements")
    return tensors


def compare_weights(first: Path, second: Path) -> bool:
    ours, theirs = tensors_of(first), tensors_of(second)
    if ours.keys() != theirs.keys():
        print(f"only in one of them: {sorted(ours.keys() ^ theirs.keys())[:5]}")
        return False
    differing = [key for key in ours if not torch.equal(ours[key].view(torch.int32), theirs[key].view(torch.int32))]
    for key in differing[:5]:
        elements = int((ours[key].view(torch.int32) != theirs[key].view(torch.int32)).sum())
        print(f"{key}: {elements} of {ours[key].numel()} elements differ")
    print("bit-equal" if not differing else f"{len(differing)} of {len(ours)} tensors DIFFER")
    return not differing


def main(argv: Sequence[str] | None = None) -> int:
    parser = ToolParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    losses = commands.add_parser("losses", help="two --log-jsonl files")
    losses.add_argument("--steps", type=whole_number(1), required=True, help="compare steps 1 to this")
    losses.add_argument("--tolerance", type=number_from_zero, required=True, help="largest relative difference")
    weights = commands.add_parser("weights", help="two --save folders")
    for command in (losses, weights):
        command.add_argument("first", type=Path)
        command.add_argument("second", type=Path)
    args = parser.parse_args(argv)
    if args.command == "losses":
        agrees = compare_losses(args.first, args.second, steps=args.steps, tolerance=args.tolerance)
    else:
        agrees = compare_weights(args.first, args.second)
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(run_tool(main))
