"""save_checkpoint and load_checkpoint in one process: bit-exact, and whole or absent whatever fails."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from megatron_zero.checkpoint import folder as folder_module
from megatron_zero.checkpoint.errors import CheckpointError
from megatron_zero.checkpoint.folder import latest_iteration
from megatron_zero.checkpoint.load import Loaded, load_checkpoint
from megatron_zero.checkpoint.save import SaveReport, save_checkpoint
from megatron_zero.checkpoint.store import ChunkedWriter
from megatron_zero.checkpoint.tensors import TensorSlice
from megatron_zero.config.fields import ConfigError
from megatron_zero.distributed.context import ParallelAxis

AXIS = ParallelAxis.single("world")
COMMON = {"iteration": 3, "learning_rate": 1e-4 / 3}
ODD_BITS = (0x7FC00001, 0xFF800000, 0x00000001, 0x80000000, 0x7F7FFFFF)  # a NaN with payload, -inf, denormal, -0, max


class Killed(BaseException):
    """Stands for SIGKILL: no handler of ours may act on it."""


def numbers(seed: int, numel: int = 1000) -> Tensor:
    values = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    values[: len(ODD_BITS)] = torch.tensor(ODD_BITS, dtype=torch.int64).to(torch.int32).view(torch.float32)
    return values


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def save(root: Path, iteration: int = 3, *, seed: int = 0, rank_state: dict[str, Tensor] | None = None) -> SaveReport:
    """One tensor of 25 x 40 in three slices, and its moment in one."""
    whole = numbers(seed)
    slices = [TensorSlice("master/w", (25, 40), a, whole[a:b]) for a, b in ((0, 333), (333, 333), (333, 1000))]
    slices.append(TensorSlice("exp_avg/w", (25, 40), 0, numbers(seed + 1)))
    return save_checkpoint(root, iteration, slices=slices, common=COMMON, rank_state=rank_state or {}, axis=AXIS)


def load(root: Path, iteration: int = 3, *, cuts: tuple[int, ...] = (0, 1000)) -> tuple[Tensor, Loaded]:
    out = torch.zeros(1000)
    wanted = [TensorSlice("master/w", (25, 40), a, out[a:b]) for a, b in pairwise(cuts)]
    return out, load_checkpoint(root, iteration, wanted=wanted, axis=AXIS)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def write_failing_after(num_calls: int, code: int) -> Callable[[int, bytes], int]:
    real, calls = os.write, iter(range(10**6))

    def write(fd: int, data: bytes) -> int:
        if next(calls) >= num_calls:
            raise OSError(code, os.strerror(code))
        return real(fd, data)

    return write


@pytest.mark.parametrize("cuts", [(0, 1000), (0, 1, 333, 334, 999, 1000), (0, 500, 500, 1000)])
def test_other_cuts_load_bit_equal(tmp_path: Path, cuts: tuple[int, ...]) -> None:
    save(tmp_path)
    out, loaded = load(tmp_path, cuts=cuts)
    assert torch.equal(bits(out), bits(numbers(0)))
    assert loaded.common == COMMON
    assert loaded.unread_keys == ("exp_avg/w",)
    assert loaded.saved_world_size == 1


@pytest.mark.parametrize("chunk_bytes", [8, 24, 1024])
def test_slices_across_chunk_edges_load_bit_equal(tmp_path: Path, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChunkedWriter.__init__, "__kwdefaults__", {"chunk_bytes": chunk_bytes})
    save(tmp_path)
    out, _ = load(tmp_path, cuts=(0, 7, 600, 1000))
    assert torch.equal(bits(out), bits(numbers(0)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.uint8, torch.int64])
def test_every_dtype_of_a_slice_is_bit_equal(tmp_path: Path, dtype: torch.dtype) -> None:
    saved = numbers(7, 4096).view(torch.uint8).view(dtype)
    out = torch.zeros_like(saved)
    shape = (saved.numel(),)
    save_checkpoint(tmp_path, 1, slices=[TensorSlice("master/w", shape, 0, saved)], common={}, rank_state={}, axis=AXIS)
    load_checkpoint(tmp_path, 1, wanted=[TensorSlice("master/w", shape, 0, out)], axis=AXIS)
    assert torch.equal(bits(out), bits(saved))


def test_rank_state_comes_back_with_shape_and_dtype(tmp_path: Path) -> None:
    state = {
        "cpu": torch.get_rng_state(),
        "scalar": torch.tensor(2**62 + 1),
        "strided": torch.arange(12).reshape(3, 4).t(),
        "bf16": torch.randn(5, 2).bfloat16(),
        "empty": torch.empty(0, dtype=torch.bool),
    }
    save(tmp_path, rank_state=state)
    _, loaded = load(tmp_path)
    assert loaded.rank_state.keys() == state.keys()
    for name, expected in state.items():
        torch.testing.assert_close(loaded.rank_state[name], expected, rtol=0, atol=0)


def test_report_counts_the_bytes_on_disk(tmp_path: Path) -> None:
    report = save(tmp_path)
    assert report.bytes == sum(path.stat().st_size for path in (tmp_path / "global_step3").glob("rank_*"))
    assert report.seconds > 0


def test_pointer_moves_and_older_checkpoints_stay(tmp_path: Path) -> None:
    save(tmp_path, 3, seed=3)
    save(tmp_path, 6, seed=6)
    assert latest_iteration(tmp_path) == 6
    for iteration in (3, 6):
        out, _ = load(tmp_path, iteration)
        assert torch.equal(bits(out), bits(numbers(iteration)))
    assert names(tmp_path) == ["global_step3", "global_step6", "latest_checkpointed_iteration.txt"]


def test_saving_an_iteration_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, seed=1)
    save(tmp_path, seed=2)
    out, _ = load(tmp_path)
    assert torch.equal(bits(out), bits(numbers(2)))
    assert names(tmp_path) == ["global_step3", "latest_checkpointed_iteration.txt"]


@pytest.mark.parametrize("calls_before", range(5))
def test_full_disk_raises_and_leaves_the_former_checkpoint(
    tmp_path: Path, calls_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 3)
    monkeypatch.setattr(os, "write", write_failing_after(calls_before, errno.ENOSPC))
    with pytest.raises(OSError, match="No space left on device") as caught:
        save(tmp_path, 6)
    monkeypatch.undo()
    assert caught.value.errno == errno.ENOSPC
    assert names(tmp_path) == ["global_step3", "latest_checkpointed_iteration.txt"]
    assert latest_iteration(tmp_path) == 3
    load(tmp_path, 3)


def test_full_disk_while_replacing_keeps_the_iteration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, seed=1)
    monkeypatch.setattr(os, "write", write_failing_after(2, errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, seed=2)
    monkeypatch.undo()
    out, _ = load(tmp_path)
    assert torch.equal(bits(out), bits(numbers(1)))
    assert names(tmp_path) == ["global_step3", "latest_checkpointed_iteration.txt"]


def test_failed_rename_gives_the_replaced_checkpoint_its_name_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, seed=1)
    real = os.rename

    def rename(source: Path, target: Path) -> None:
        if source.name.endswith(".tmp"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))
        real(source, target)

    monkeypatch.setattr(folder_module.os, "rename", rename)
    with pytest.raises(OSError, match="Input/output error"):
        save(tmp_path, seed=2)
    monkeypatch.undo()
    out, _ = load(tmp_path)
    assert torch.equal(bits(out), bits(numbers(1)))
    assert names(tmp_path) == ["global_step3", "latest_checkpointed_iteration.txt"]


@pytest.mark.parametrize("moment", range(12))
def test_killed_at_any_file_operation_the_latest_loads_and_the_next_save_clears(
    tmp_path: Path, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dies at the moment-th fsync, rename or removal while iteration 3 is saved again (the hardest case)."""
    save(tmp_path, seed=1)
    calls = iter(range(10**6))

    def dying(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if next(calls) == moment:
                raise Killed
            return real(*args, **kwargs)

        return call

    for module, name in ((os, "fsync"), (os, "rename"), (os, "replace"), (shutil, "rmtree")):
        monkeypatch.setattr(module, name, dying(getattr(module, name)))
    with pytest.raises(Killed):
        save(tmp_path, seed=2)
    monkeypatch.undo()
    assert latest_iteration(tmp_path) == 3
    out, _ = load(tmp_path)
    assert any(torch.equal(bits(out), bits(numbers(seed))) for seed in (1, 2))
    save(tmp_path, 9, seed=9)
    assert names(tmp_path) == ["global_step3", "global_step9", "latest_checkpointed_iteration.txt"]
    again, _ = load(tmp_path, 3)
    assert torch.equal(bits(again), bits(out))


def test_killed_save_is_said_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "global_step2.tmp").mkdir()
    assert save(tmp_path).notes == (f"{tmp_path / 'global_step2.tmp'} removed: left by a killed save",)


def test_flipped_byte_in_a_rank_file_is_found(tmp_path: Path) -> None:
    save(tmp_path)
    path = tmp_path / "global_step3" / "rank_00000.bin"
    content = bytearray(path.read_bytes())
    content[100] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"rank_00000\.bin: bytes \[0, \d+\) have crc32 .*, expected"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["rank_00000.json", "common.json", "manifest.json"])
def test_flipped_byte_in_a_document_is_found(tmp_path: Path, name: str) -> None:
    save(tmp_path)
    path = tmp_path / "global_step3" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=name):
        load(tmp_path)


@pytest.mark.parametrize("name", ["rank_00000.bin", "rank_00000.json", "common.json"])
def test_truncated_file_is_found(tmp_path: Path, name: str) -> None:
    save(tmp_path)
    path = tmp_path / "global_step3" / name
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CheckpointError, match=rf"{name}: has \d+ bytes, expected \d+"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["rank_00000.bin", "rank_00000.json", "common.json", "manifest.json"])
def test_missing_file_is_named(tmp_path: Path, name: str) -> None:
    save(tmp_path)
    (tmp_path / "global_step3" / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: missing"):
        load(tmp_path)


def test_pointer_to_a_missing_folder_names_what_is_there(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("8")
    iteration = latest_iteration(tmp_path)
    assert iteration == 8
    with pytest.raises(CheckpointError, match="global_step8: no such checkpoint; complete checkpoints there: 3;"):
        load(tmp_path, iteration)


def test_folder_renamed_by_hand_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "global_step3").rename(tmp_path / "global_step4")
    with pytest.raises(CheckpointError, match="holds iteration 3, expected 4"):
        load(tmp_path, 4)


def test_incomplete_coverage_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    part = [TensorSlice("master/w", (25, 40), 0, torch.zeros(999))]
    with pytest.raises(ValueError, match=r"master/w: no rank saves elements \[999, 1000\)"):
        save_checkpoint(tmp_path / "root", 1, slices=part, common={}, rank_state={}, axis=AXIS)
    assert not (tmp_path / "root").exists()


def test_strided_slice_is_refused_by_name(tmp_path: Path) -> None:
    strided = [TensorSlice("master/w", (500,), 0, torch.zeros(1000)[::2])]
    with pytest.raises(ValueError, match="master/w: a slice must be 1-D and contiguous"):
        save_checkpoint(tmp_path, 1, slices=strided, common={}, rank_state={}, axis=AXIS)


def test_other_model_size_is_refused_naming_both(tmp_path: Path) -> None:
    save(tmp_path)
    wanted = [TensorSlice("master/w", (40, 25), 0, torch.zeros(1000))]
    with pytest.raises(ConfigError, match=r"shape \(25, 40\), this model wants \(40, 25\)"):
        load_checkpoint(tmp_path, 3, wanted=wanted, axis=AXIS)


def test_root_below_a_file_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        save(tmp_path / "file" / "root")


def test_tensors_that_need_gradients_are_saved_and_filled(tmp_path: Path) -> None:
    saved, out = numbers(4).requires_grad_(), torch.zeros(1000, requires_grad=True)
    save_checkpoint(tmp_path, 1, slices=[TensorSlice("master/w", (1000,), 0, saved)], common={}, rank_state={}, axis=AXIS)
    load_checkpoint(tmp_path, 1, wanted=[TensorSlice("master/w", (1000,), 0, out)], axis=AXIS)
    assert torch.equal(bits(out.detach()), bits(saved.detach()))
