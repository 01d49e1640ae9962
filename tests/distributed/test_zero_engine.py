"""Every ZeRO stage gives the gradients and weights of one unsharded process, with tied weights and recompute."""

import pytest
import torch
import torch.nn.functional as F
from helpers.spawn import DistributedPool, run_distributed
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from megatron_zero.distributed.context import ParallelAxis
from megatron_zero.zero.engine import ZeroEngine
from megatron_zero.zero.grad_reduce import BackwardState, GradientCountError, UnitGradients
from megatron_zero.zero.sharding import lay_out_unit
from megatron_zero.zero.unit import ShardState, ShardStateError

MICRO_BATCHES = 3
SEED = 11


class Block(nn.Module):
    def __init__(self, width, recompute):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)
        self.recompute = recompute

    def body(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))

    def forward(self, x):
        return checkpoint(self.body, x, use_reentrant=False) if self.recompute else self.body(x)


class Head(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return F.linear(x, self.weight)


class TiedNet(nn.Module):
    """Embedding, two blocks, an output head that shares the embedding's weight."""

    def __init__(self, recompute=False, vocab=37, width=24):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList([Block(width, recompute) for _ in range(2)])
        self.head = Head(self.embedding.weight)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.roll(-1, 1).flatten())

    def groups(self):
        yield "embedding", (self.embedding, self.head)
        for index, block in enumerate(self.blocks):
            yield f"blocks.{index}", (block,)


def initial(name, start, out):
    """Values that depend on the name and the element alone."""
    index = torch.arange(start, start + out.numel(), dtype=torch.float64)
    out.copy_(torch.sin(index * 0.7 + len(name)) * 0.2 + (1.0 if name.endswith("norm.weight") else 0.0))


def tokens_of(micro_batch, rank, vocab=37):
    return torch.randint(0, vocab, (2, 9), generator=torch.Generator().manual_seed(100 * micro_batch + rank))


def reference_step(world_size, dtype=torch.float32):
    """(gradients, weights after w -= 0.1 g) of the global batch's mean loss, in one process without the engine."""
    net = TiedNet().to(dtype)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            values = torch.empty(parameter.numel())
            initial(name, 0, values)
            parameter.copy_(values.view_as(parameter))
    for micro_batch in range(MICRO_BATCHES):
        for rank in range(world_size):
            (net(tokens_of(micro_batch, rank)) / (MICRO_BATCHES * world_size)).backward()
    grads = {name: p.grad.clone() for name, p in net.named_parameters()}
    return grads, {name: (p - 0.1 * p.grad).detach() for name, p in net.named_parameters()}


def build(dp, stage, recompute=False):
    with torch.device("meta"):
        net = TiedNet(recompute)
    engine = ZeroEngine(
        net,
        net.groups(),
        stage=stage,
        dp=dp,
        dtype=torch.float32,
        device=torch.device("cpu"),
        init=initial,
    )
    return net, engine


def sgd_steps(net, engine, dp, steps=1):
    """Run steps of plain SGD through the engine's shards; weights whole afterwards, by name, and the last gradients."""
    for _ in range(steps):
        engine.begin_step()
        for micro_batch in range(MICRO_BATCHES):
            (net(tokens_of(micro_batch, dp.rank)) / (MICRO_BATCHES * dp.size)).backward()
            engine.finish_micro_batch()
        engine.finish_backward()
        with torch.no_grad():
            for shard, grad in zip(engine.weight_shards, engine.grad_shards, strict=True):
                shard.sub_(grad.to(shard.dtype), alpha=0.1)
        engine.after_step()
    with engine.summon_full_parameters() as parameters:
        return {name: p.clone() for name, p in parameters.items()}


def owned_grads(engine):
    """(name, first element, values) of every span this rank owns; and that padding is exactly zero."""
    pieces = []
    for layout, grad in zip(engine.layouts, engine.grad_shards, strict=True):
        padding = torch.ones(grad.numel(), dtype=torch.bool)
        for span in layout.owned_spans(engine.shard_axis.rank):
            part = slice(span.shard_start, span.shard_start + span.numel)
            padding[part] = False
            pieces.append((span.name, span.member_start, grad[part].clone()))
        assert not grad[padding].any()
    return pieces


def stage_on_rank(ctx, stage, recompute):
    net, engine = build(ctx.dp, stage, recompute)
    weights = sgd_steps(net, engine, ctx.dp)
    states = {unit.state for unit in engine.units}
    assert states == {ShardState.SHARDED if stage == 3 and ctx.dp.size > 1 else ShardState.UNSHARDED}
    if stage == 3 and ctx.dp.size > 1:
        assert all(unit.full.untyped_storage().nbytes() == 0 for unit in engine.units)
    return weights, owned_grads(engine)


@pytest.fixture(scope="module")
def pool():
    with DistributedPool(2) as pool:
        yield pool


@pytest.mark.parametrize("world_size", [2, 3])
def test_every_stage_equals_one_process(world_size):
    """Gradients elementwise to rounding (sums change order over ranks), weights likewise; H14 for the tied weight."""
    grads, weights = reference_step(world_size)
    per_rank = run_distributed(all_stages_on_rank, world_size)
    for case in range(len(CASES)):
        seen = {name: torch.full((g.numel(),), float("nan")) for name, g in grads.items()}
        for rank in range(world_size):
            stage, recompute, (full, pieces) = per_rank[rank][case]
            for name, value in weights.items():
                torch.testing.assert_close(full[name], value, rtol=1e-5, atol=1e-7, msg=f"{stage} {recompute} {name}")
                assert torch.equal(full[name], per_rank[0][case][2][0][name]), "ranks differ"
            for name, start, values in pieces:
                seen[name][start : start + values.numel()] = values
        for name, value in grads.items():
            torch.testing.assert_close(seen[name].view_as(value), value, rtol=1e-5, atol=1e-7)


CASES = tuple((stage, recompute) for stage in (0, 1, 2, 3) for recompute in (False, True))


def all_stages_on_rank(ctx):
    return [(stage, recompute, stage_on_rank(ctx, stage, recompute)) for stage, recompute in CASES]


class ChunkedNet(TiedNet):
    """TiedNet whose blocks (and embedding) are recomputed as one chunk, around their hooks."""

    def __init__(self, early_stop):
        super().__init__()
        self.early_stop = early_stop

    def chunk(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, tokens):
        with set_checkpoint_early_stop(self.early_stop):
            x = checkpoint(self.chunk, tokens, use_reentrant=False)
        return F.cross_entropy(self.head(x).flatten(0, 1), tokens.roll(-1, 1).flatten())


def chunks_on_rank(ctx, stage):
    """Weights and gradients without recompute and with it; what each unit held when its gradients came, and at rest."""
    results = []
    for make in (TiedNet, lambda: ChunkedNet(True), lambda: ChunkedNet(False)):
        with torch.device("meta"):
            net = make()
        engine = ZeroEngine(net, net.groups(), stage=stage, dp=ctx.dp, dtype=torch.float32, device=ctx.device, init=initial)
        weights = sgd_steps(net, engine, ctx.dp, steps=2)
        results.append((weights, owned_grads(engine)))
        for unit in engine.units:
            if stage == 3:
                assert unit.state is ShardState.SHARDED
                assert unit.full.untyped_storage().nbytes() == 0
    return results


@pytest.mark.parametrize("stage", [0, 3])
def test_recompute_around_several_units_is_bit_equal_to_none(pool, stage):
    """The forwards of a chunk run inside the backward of its last block, with recompute's early stop and without."""
    for plain, *chunked in pool.run(chunks_on_rank, stage):
        for weights, pieces in chunked:
            assert all(torch.equal(weights[name], value) for name, value in plain[0].items())
            for (name, start, ours), (other, other_start, theirs) in zip(pieces, plain[1], strict=True):
                assert (name, start) == (other, other_start)
                torch.testing.assert_close(ours, theirs, rtol=0, atol=0, msg=name)


def resident_units_on_rank(ctx):
    """Inside the backward of a chunk: (unit whose gradient just came, units with weights on the device), in order."""
    with torch.device("meta"):
        net = ChunkedNet(False)
    engine = ZeroEngine(net, net.groups(), stage=3, dp=ctx.dp, dtype=torch.float32, device=ctx.device, init=initial)
    seen = []
    for unit in engine.units:
        for parameter in unit.parameters.values():
            parameter.register_post_accumulate_grad_hook(
                lambda _, unit=unit: seen.append(
                    (unit.name, [u.name for u in engine.units if u.full.untyped_storage().nbytes()])
                )
            )
    engine.begin_step()
    net(tokens_of(0, ctx.dp.rank)).backward()
    engine.finish_micro_batch()
    return seen


def test_only_units_in_backward_hold_weights_after_a_recompute(pool):
    """The tied embedding is in backward throughout; of the blocks only the one whose gradients are outstanding."""
    for seen in pool.run(resident_units_on_rank):
        held = {name: {tuple(units) for unit, units in seen if unit == name} for name, _ in seen}
        assert list(held) == ["blocks.1", "blocks.0", "embedding"]
        assert held["blocks.1"] == {("embedding", "blocks.1"), ("embedding",)}  # the last gradient releases
        assert held["blocks.0"] == {("embedding", "blocks.0"), ("embedding",)}
        assert held["embedding"] == {()}


def test_backward_states_follow_the_gradients():
    layout = lay_out_unit("u", [("a", (2,)), ("b", (3,))], num_shards=1)
    alone = ParallelAxis.single("dp")
    gradients = UnitGradients(
        layout, shard_axis=alone, replica_axis=alone, scatters_each_micro_batch=False, device=torch.device("cpu")
    )
    states = []
    for move in (
        gradients.begin_backward,
        lambda: gradients.add("a", torch.ones(2)),
        gradients.begin_backward,  # a second module of the unit
        lambda: gradients.add("b", torch.ones(3)),
        gradients.finish_micro_batch,
        gradients.begin_backward,  # nothing is outstanding any more
        gradients.check_micro_batch,
        lambda: gradients.add("a", torch.ones(2)),  # no output of this unit was hooked
        gradients.begin_step,  # a step that was cut short
    ):
        move()
        states.append(gradients.state)
    begun, counted, rest = BackwardState.BEGUN, BackwardState.COUNTED, BackwardState.AT_REST
    assert states == [begun, begun, begun, begun, counted, counted, rest, begun, rest]


def reduced_on_rank(ctx, stage):
    """Gradients with and without a reduction that doubles replicated ranges; what the reduction was given."""
    replicated = frozenset({"blocks.0.norm.weight", "blocks.0.down.bias", "blocks.1.norm.bias"})
    results, calls = [], []

    def double(shards, ranges):
        calls.append((len(shards), tuple(ranges)))
        for shard, (start, stop) in zip(shards, ranges, strict=True):
            assert shard.dtype == torch.float32
            shard[start:stop] *= 2.0

    for reduction in (None, double):
        with torch.device("meta"):
            net = TiedNet()
        engine = ZeroEngine(
            net,
            net.groups(),
            stage=stage,
            dp=ctx.dp,
            dtype=torch.float32,
            device=ctx.device,
            init=initial,
            replicated=replicated,
            shard_reduction=reduction,
        )
        pieces = []
        for _ in range(2):
            sgd_steps(net, engine, ctx.dp)
            pieces.append(owned_grads(engine))
            break_even(engine)
        results.append(pieces)
        ranges = engine.replicated_ranges
    return replicated, results, calls == [(len(engine.units), ranges)] * 2


def break_even(engine):
    """Weights as they were at first: both engines go on from the same place."""
    for layout, shard in zip(engine.layouts, engine.weight_shards, strict=True):
        for span in layout.owned_spans(engine.shard_axis.rank):
            initial(span.name, span.member_start, shard[span.shard_start : span.shard_start + span.numel])
    engine.after_step()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_shard_reduction_runs_once_a_step_before_gradients_are_read(pool, stage):
    """It sees every unit's final fp32 shard; exactly the replicated parameters' gradients are what it made of them."""
    for replicated, (plain, doubled), called_right in pool.run(reduced_on_rank, stage):
        assert called_right
        for step in range(2):
            for (name, start, before), (_, other_start, after) in zip(plain[step], doubled[step], strict=True):
                assert start == other_start
                factor = 2.0 if name in replicated else 1.0
                torch.testing.assert_close(after, before * factor, rtol=0, atol=0, msg=name)


def test_replicated_names_must_be_parameters():
    with torch.device("meta"):
        net = TiedNet()
    with pytest.raises(ValueError, match=r"replicated, but no parameters of the module: blocks\.9\.norm\.bias"):
        ZeroEngine(
            net,
            net.groups(),
            stage=1,
            dp=ParallelAxis.single("dp"),
            dtype=torch.float32,
            device=torch.device("cpu"),
            init=initial,
            replicated=frozenset({"blocks.9.norm.bias", "blocks.0.norm.bias"}),
        )


def test_one_rank_is_bit_equal_to_no_engine():
    grads, _ = reference_step(1)
    for stage in (0, 1, 2, 3):
        dp = ParallelAxis.single("dp")
        net, engine = build(dp, stage)
        sgd_steps(net, engine, dp)
        pieces = {name: values for name, _, values in owned_grads(engine)}
        for name, grad in grads.items():
            torch.testing.assert_close(pieces[name].view_as(grad), grad, rtol=0, atol=0)


def test_two_runs_are_bit_equal():
    dp = ParallelAxis.single("dp")
    runs = []
    for _ in range(2):
        net, engine = build(dp, 3, recompute=True)
        runs.append(sgd_steps(net, engine, dp, steps=3))
    for name in runs[0]:
        assert torch.equal(runs[0][name], runs[1][name])


def test_a_parameter_without_gradient_is_named():
    dp = ParallelAxis.single("dp")
    net, engine = build(dp, 2)
    engine.begin_step()
    net.blocks[1](torch.randn(2, 24)).sum().backward()
    with pytest.raises(GradientCountError, match=r"unit embedding: no gradient for embedding.weight"):
        engine.finish_micro_batch()


def test_a_second_backward_in_one_micro_batch_is_refused():
    dp = ParallelAxis.single("dp")
    net, engine = build(dp, 2)
    engine.begin_step()
    net(tokens_of(0, 0)).backward()
    with pytest.raises(GradientCountError, match="a second gradient in one micro-batch"):
        net(tokens_of(0, 0)).backward()


def test_units_must_cover_every_parameter_once():
    with torch.device("meta"):
        net = TiedNet()
    common = {
        "stage": 1,
        "dp": ParallelAxis.single("dp"),
        "dtype": torch.float32,
        "device": torch.device("cpu"),
        "init": initial,
    }
    with pytest.raises(ValueError, match=r"parameters in no unit: blocks.1.down.bias"):
        ZeroEngine(net, list(net.groups())[:-1], **common)
    with pytest.raises(ValueError, match=r"parameter embedding.weight is in unit embedding and in unit again"):
        ZeroEngine(net, [*net.groups(), ("again", (net.head,))], **common)


def test_wrong_transitions_name_unit_and_states():
    _, engine = build(ParallelAxis.single("dp"), 3)
    with pytest.raises(ShardStateError, match="unit embedding stays whole"):
        engine.units[0].release()
    with pytest.raises(ShardStateError, match="unit embedding is unsharded: it can only become gathering from sharded"):
        engine.units[0].start_gather()
