"""Checkpoints of several ranks: one folder or none, loads under other sizes, and never a hang when one rank fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from helpers.spawn import DistributedPool, PoolSet
from torch import Tensor

from megatron_zero.checkpoint.folder import latest_iteration
from megatron_zero.checkpoint.load import load_checkpoint
from megatron_zero.checkpoint.save import save_checkpoint
from megatron_zero.checkpoint.tensors import TensorSlice
from megatron_zero.distributed.context import ParallelAxis, ParallelContext

SHAPES = {"master/a": (17, 13), "exp_avg/a": (17, 13), "master/b": (3,)}


def whole(key: str, seed: int) -> Tensor:
    shape = torch.Size(SHAPES[key])
    index = sorted(SHAPES).index(key)
    return torch.randn(shape.numel(), generator=torch.Generator().manual_seed(1000 * seed + index))


def share(numel: int, axis: ParallelAxis) -> tuple[int, int]:
    """ZeRO's cut: equal parts, the last ones shorter or empty."""
    part = -(-numel // axis.size)
    return min(axis.rank * part, numel), min((axis.rank + 1) * part, numel)


def slices(axis: ParallelAxis, *, seed: int | None) -> list[TensorSlice]:
    """This rank's part of every tensor: its values, or zeros to be filled."""
    made = []
    for key, shape in SHAPES.items():
        values = whole(key, seed) if seed is not None else torch.zeros(torch.Size(shape).numel())
        start, stop = share(values.numel(), axis)
        made.append(TensorSlice(key, shape, start, values[start:stop]))
    return made


def save(ctx: ParallelContext, root: Path, iteration: int, seed: int) -> int:
    state = {"cpu": torch.full((4,), ctx.world.rank, dtype=torch.uint8)}
    common = {"iteration": iteration}
    report = save_checkpoint(
        root,
        iteration,
        slices=slices(ctx.world, seed=seed),
        common=common,
        rank_state=state,
        axis=ctx.world,
        layout={"dp": ctx.dp.size},
    )
    return report.bytes


def load(ctx: ParallelContext, root: Path, iteration: int, seed: int) -> tuple[bool, dict[str, Tensor], int, Any]:
    """(every element of this rank's part is bit-equal, rank state, saved world size, layout)."""
    wanted = slices(ctx.world, seed=None)
    loaded = load_checkpoint(root, iteration, wanted=wanted, axis=ctx.world)
    assert loaded.common == {"iteration": iteration}
    assert loaded.unread_keys == ()
    expected = slices(ctx.world, seed=seed)
    equal = all(torch.equal(ours.data, theirs.data) for ours, theirs in zip(wanted, expected, strict=True))
    return equal, loaded.rank_state, loaded.saved_world_size, dict(loaded.layout)


def save_with_a_full_disk_on_rank_1(ctx: ParallelContext, root: Path, iteration: int, seed: int) -> str:
    """The message that this rank's save raised."""
    real = os.write

    def write(fd: int, data: Any) -> int:
        if ctx.world.rank == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    with mock.patch.object(os, "write", write), pytest.raises(OSError) as caught:
        save(ctx, root, iteration, seed)
    return str(caught.value)


def save_with_a_failing_rename(ctx: ParallelContext, root: Path, iteration: int, seed: int) -> str:
    def rename(source: object, target: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))

    with mock.patch.object(os, "rename", rename), pytest.raises(OSError) as caught:
        save(ctx, root, iteration, seed)
    return str(caught.value)


def save_with_a_bad_slice_on_rank_1(ctx: ParallelContext, root: Path) -> str:
    bad = [TensorSlice("master/a", (17, 13), 0, torch.zeros(17 * 13)[:: 1 + ctx.world.rank])]
    with pytest.raises(RuntimeError) as caught:
        save_checkpoint(root, 1, slices=bad, common={}, rank_state={}, axis=ctx.world)
    return str(caught.value)


def failing_load(ctx: ParallelContext, root: Path, iteration: int) -> str:
    with pytest.raises(OSError) as caught:
        load(ctx, root, iteration, 0)
    return str(caught.value)


@pytest.fixture(scope="module")
def pools() -> Iterator[PoolSet]:
    pools = PoolSet()
    yield pools
    pools.close()


@pytest.fixture(scope="module")
def pair(pools: PoolSet) -> DistributedPool:
    return pools(2)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def single(root: Path, iteration: int, seed: int) -> tuple[bool, dict[str, Tensor], int, Any]:
    return load(ParallelContext.single_process(), root, iteration, seed)


def test_same_world_size_is_bit_equal_with_every_ranks_own_state(pair: DistributedPool, tmp_path: Path) -> None:
    sizes = pair.run(save, tmp_path, 5, 1)
    assert sizes[0] == sizes[1] > 0
    assert names(tmp_path) == ["global_step5", "latest_checkpointed_iteration.txt"]
    for rank, (equal, state, world_size, layout) in enumerate(pair.run(load, tmp_path, 5, 1)):
        assert equal
        assert state["cpu"].tolist() == [rank] * 4
        assert (world_size, layout) == (2, {"dp": 2})


def test_fewer_ranks_load_what_more_saved(pair: DistributedPool, tmp_path: Path) -> None:
    """H20: other world size."""
    pair.run(save, tmp_path, 5, 2)
    equal, state, world_size, _ = single(tmp_path, 5, 2)
    assert equal
    assert world_size == 2
    assert state["cpu"].tolist() == [0] * 4


def test_more_ranks_load_what_fewer_saved_and_see_no_state_of_their_own(pair: DistributedPool, tmp_path: Path) -> None:
    """H20: other world size; the caller is told by saved_world_size and an empty state."""
    save(ParallelContext.single_process(), tmp_path, 5, 3)
    first, second = pair.run(load, tmp_path, 5, 3)
    assert first[0]
    assert second[0]
    assert first[1].keys() == {"cpu"}
    assert second[1] == {}
    assert second[2] == 1


def test_full_disk_on_one_rank_fails_all_and_the_former_checkpoint_loads(pair: DistributedPool, tmp_path: Path) -> None:
    pair.run(save, tmp_path, 5, 4)
    for message in pair.run(save_with_a_full_disk_on_rank_1, tmp_path, 6, 5, timeout_s=30.0):
        assert "saving checkpoint at iteration 6" in message
        assert "failed on rank 1" in message
        assert "No space left on device" in message
        assert "rank_00001.bin" in message
    assert names(tmp_path) == ["global_step5", "latest_checkpointed_iteration.txt"]
    assert latest_iteration(tmp_path) == 5
    assert all(equal for equal, *_ in pair.run(load, tmp_path, 5, 4))


def test_failed_publication_fails_all_and_leaves_nothing(pair: DistributedPool, tmp_path: Path) -> None:
    pair.run(save, tmp_path, 5, 4)
    for message in pair.run(save_with_a_failing_rename, tmp_path, 6, 5, timeout_s=30.0):
        assert "failed on rank 0: [Errno 5] Input/output error" in message
    assert names(tmp_path) == ["global_step5", "latest_checkpointed_iteration.txt"]
    assert single(tmp_path, 5, 4)[0]


def test_bad_slice_on_one_rank_fails_all_before_anything_is_made(pair: DistributedPool, tmp_path: Path) -> None:
    for message in pair.run(save_with_a_bad_slice_on_rank_1, tmp_path / "root", timeout_s=30.0):
        assert "failed on rank 1: ValueError: tensor master/a: a slice must be 1-D and contiguous" in message
    assert not (tmp_path / "root").exists()


def test_missing_rank_file_fails_all_naming_it(pair: DistributedPool, tmp_path: Path) -> None:
    pair.run(save, tmp_path, 5, 4)
    (tmp_path / "global_step5" / "rank_00001.bin").unlink()
    for message in pair.run(failing_load, tmp_path, 5, timeout_s=30.0):
        assert "rank_00001.bin: missing; expected a file of" in message


def test_byte_that_only_one_rank_reads_fails_all_when_damaged(pair: DistributedPool, tmp_path: Path) -> None:
    pair.run(save, tmp_path, 5, 4)
    path = tmp_path / "global_step5" / "rank_00001.bin"
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    for message in pair.run(failing_load, tmp_path, 5, timeout_s=30.0):
        assert "failed on rank 1: " in message
        assert "rank_00001.bin: bytes [0, " in message
