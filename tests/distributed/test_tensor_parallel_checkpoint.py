"""A checkpoint is of the logical model: what one tensor-parallel size saved, another loads, bit for bit."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from helpers.spawn import DistributedPool
from helpers.tensor_net import build_net, num_real_elements, real_shape

from megatron_zero.checkpoint.load import stored_tensors
from megatron_zero.checkpoint.manifest import Manifest, header_name
from megatron_zero.config.fields import ConfigError
from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.distributed.rng import RngStreams
from megatron_zero.model.initialization import VOCABULARY_TABLES, parameter_key, standard_normal
from megatron_zero.offload.optimizer import AdamHyperparameters, OffloadedAdam
from megatron_zero.offload.placement import plan_twin_flow
from megatron_zero.optim.lr_schedule import LrSchedule
from megatron_zero.optim.subgroup import Span, plan_subgroups
from megatron_zero.training.checkpointing import CheckpointParts, load_training, save_training
from megatron_zero.training.state import TrainState

GPT2 = {"vocabulary": 50257, "width": 4, "divisible_by": 128}  # 50304, 50432 and 50688 rows at sizes 1, 2 and 4
WORLD = 4


def mesh(tp):
    return ParallelConfig(tensor_model_parallel_size=tp)


@pytest.fixture(scope="module")
def pool():
    with DistributedPool(WORLD) as pool:
        yield pool


def parts_of(ctx, *, stage, vocabulary=GPT2["vocabulary"]):
    """The state of a run on this mesh, half of it on the host, in small sub-groups."""
    _, engine, splits = build_net(ctx, stage=stage, **{**GPT2, "vocabulary": vocabulary})
    spans = [
        [
            (Span(span.name, span.shape, span.member_start, span.shard_start, span.numel), True)
            for span in layout.owned_spans(engine.shard_axis.rank)
        ]
        for layout in engine.layouts
    ]
    optimizer = OffloadedAdam(
        plan_twin_flow(plan_subgroups(spans, sub_group_size=7001), ratio=0.5),
        weight_shards=engine.weight_shards,
        hyperparameters=AdamHyperparameters(beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1),
        device=ctx.device,
        pin_memory=False,
        num_threads=1,
    )
    return CheckpointParts(
        context=ctx,
        streams=RngStreams.plain(ctx.device),
        engine=engine,
        optimizer=optimizer,
        lr_schedule=LrSchedule(max_lr=1e-3, min_lr=0.0, warmup_tokens=0, decay_tokens=100, style="constant"),
        override_schedule=False,
        identity={"vocabulary size": vocabulary},
        settings=(),
        watched={},
        table_rows=dict.fromkeys(VOCABULARY_TABLES, vocabulary),
        splits=splits,
    )


def logical_values(piece, parts, *, generation):
    """What a piece of state should hold: a function of the logical element alone; 0 where it is padding."""
    split, vocabulary = parts.splits[piece.name], parts.identity["vocabulary size"]
    key = parameter_key(generation, f"{piece.key}/{piece.name}")
    values = [
        standard_normal(key, run.start, run.numel, device=torch.device("cpu"))
        for run in split.runs(piece.start, piece.data.numel())
    ]
    elements = [torch.arange(run.start, run.start + run.numel) for run in split.runs(piece.start, piece.data.numel())]
    real = torch.cat(elements) < math.prod(real_shape(piece.name, split, vocabulary=vocabulary))
    return torch.where(real, torch.cat(values).float(), 0.0), real


def save_on_rank(ctx, folder, stage, generation=1):
    """What each rank's own generator would draw next, after the save."""
    parts = parts_of(ctx, stage=stage)
    for piece in parts.optimizer.state_slices():
        piece.data.copy_(logical_values(piece, parts, generation=generation)[0])
    state = TrainState()
    state.advance(samples=8, tokens=80, skipped=False)
    torch.default_generator.manual_seed(100 + ctx.world.rank)
    save_training(Path(folder), parts, state)
    return torch.rand(3).tolist()


def load_on_rank(ctx, folder, stage):
    """(notes, elements of the state that are wrong, elements of the weights that are not the masters, next draws)."""
    parts = parts_of(ctx, stage=stage)
    for piece in parts.optimizer.state_slices():
        piece.data.copy_(torch.where(logical_values(piece, parts, generation=1)[1], float("nan"), 0.0))
    torch.default_generator.manual_seed(7)
    notes = load_training(Path(folder), 1, parts, TrainState())
    draws = torch.rand(3).tolist()
    wrong = sum(
        int((piece.data.view(torch.int32) != logical_values(piece, parts, generation=1)[0].view(torch.int32)).sum())
        for piece in parts.optimizer.state_slices()
    )
    other_weights = 0
    with parts.engine.summon_full_parameters() as parameters:
        for piece in parts.optimizer.state_slices():
            if piece.key == "master":
                weights = parameters[piece.name].flatten()[piece.start : piece.start + piece.data.numel()]
                other_weights += int((weights != piece.data).sum())
    return notes, wrong, other_weights, draws


@pytest.mark.parametrize("stage", [0, 3])
def test_every_size_loads_what_every_size_saved(pool, tmp_path, stage):
    """H33: 50257 ids in 50304, 50432 and 50688 rows. The three sizes write tensors of the same real shapes."""
    for saved in (1, 2, 4):
        pool.run(save_on_rank, str(tmp_path / f"tp{saved}"), stage, parallel=mesh(saved))
    for saved, loading in itertools.product((1, 2, 4), repeat=2):
        results = pool.run(load_on_rank, str(tmp_path / f"tp{saved}"), stage, parallel=mesh(loading))
        assert [result[1:3] for result in results] == [(0, 0)] * WORLD, f"saved at {saved}, loaded at {loading}"
    _, wrong, other_weights, _ = load_on_rank(ParallelContext.single_process(), tmp_path / "tp4", 1)
    assert (wrong, other_weights) == (0, 0)
    shapes = [stored_tensors(tmp_path / f"tp{saved}", 1) for saved in (1, 2, 4)]
    assert shapes[0] == shapes[1] == shapes[2]
    assert shapes[0]["exp_avg/embedding.word.weight"] == (50257, 4)


@pytest.mark.parametrize("stage", [0, 2])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_no_element_is_written_twice(pool, tmp_path, stage, tp):
    pool.run(save_on_rank, str(tmp_path), stage, parallel=mesh(tp))
    splits = parts_of(ParallelContext.single_process(), stage=0).splits
    elements = 3 * num_real_elements(splits, vocabulary=GPT2["vocabulary"])
    folder = tmp_path / "global_step1"
    headers = [(folder / header_name(rank)).read_text() for rank in range(WORLD)]
    written = sum(each["numel"] for header in headers for each in json.loads(header)["slices"])
    assert written == elements
    assert dict(Manifest.read(folder).layout) == {"pp": 1, "dp": WORLD // tp, "tp": tp}


def test_random_state_is_taken_over_only_on_the_same_layout(pool, tmp_path):
    """Four processes each time: it is the mesh that tells whose state is whose."""
    drawn = pool.run(save_on_rank, str(tmp_path), 1, parallel=mesh(2))
    same = pool.run(load_on_rank, str(tmp_path), 1, parallel=mesh(2))
    assert [result[0] for result in same] == [()] * WORLD
    assert [result[3] for result in same] == drawn
    other = pool.run(load_on_rank, str(tmp_path), 1, parallel=mesh(4))
    for (note,), _, _, draws in other:
        assert (
            "the checkpoint is of tensor 2 x pipeline 1 x data 2 = 4 processes and this run has "
            "tensor 4 x pipeline 1 x data 1 = 4 processes" in note
        )
        assert draws == other[0][3], "this run's own seed, the same on every rank in this test"
        assert draws not in drawn


def refused_on_rank(ctx, folder):
    parts = parts_of(ctx, stage=1, vocabulary=50258)
    try:
        load_training(Path(folder), 1, parts, TrainState())
    except ConfigError as error:
        return str(error)
    return "loaded"


def test_another_vocabulary_is_refused_though_the_padded_size_is_the_same(pool, tmp_path):
    pool.run(save_on_rank, str(tmp_path), 1, parallel=mesh(2))
    for message in pool.run(refused_on_rank, str(tmp_path), parallel=mesh(2)):
        assert "vocabulary size 50257 there and 50258 here" in message
