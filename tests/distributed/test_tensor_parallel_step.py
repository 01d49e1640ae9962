"""Under tensor parallelism a step has the gradients, the norm and the loss of one process; each element counts once."""

import math

import pytest
import torch
from helpers.spawn import DistributedPool
from helpers.tensor_net import TOKENS, VOCABULARY, build_net, num_real_elements, real_shape

from megatron_zero.config.parallel import ParallelConfig
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.training.train_step import agree_on_scalars

MICRO_BATCHES = 2
GLOBAL_BATCH = 8  # micro-batches of all ranks together: divides by every mesh here


@pytest.fixture(scope="module")
def pools():
    with DistributedPool(2) as two, DistributedPool(4) as four:
        yield {2: two, 4: four}


def tokens_of(index):
    return torch.randint(0, VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(index))


def own_micro_batches(ctx):
    share = GLOBAL_BATCH // ctx.dp.size
    return range(ctx.dp.rank * share, (ctx.dp.rank + 1) * share)


def run_step(ctx, net, engine):
    """The losses of one global batch; gradients are final afterwards."""
    losses = []
    engine.begin_step()
    for index in own_micro_batches(ctx):
        loss = net(tokens_of(index))
        (loss / GLOBAL_BATCH).backward()
        engine.finish_micro_batch()
        losses.append(loss.detach())
    engine.finish_backward()
    return losses


def all_ones_on_rank(ctx, stages, sequence_parallel):
    """Norms when every gradient of a real element is 1; the number of real elements."""
    norms = []
    for stage in stages:
        net, engine, splits = build_net(ctx, stage=stage, sequence_parallel=sequence_parallel)
        for name, parameter in net.named_parameters():
            rows = net.head.num_valid if name == "embedding.word.weight" else parameter.shape[0]
            # What is replicated gets partial gradients under sequence parallelism.
            share = ctx.tp.size if splits[name].replicated and sequence_parallel else 1

            def ones(grad, rows=rows, share=share):
                grad = torch.zeros_like(grad)
                grad[:rows] = 1.0 / share
                return grad

            parameter.register_hook(ones)
        engine.begin_step()
        for index in range(MICRO_BATCHES):
            loss = net(tokens_of(index))
            loss.backward()
            engine.finish_micro_batch()
        engine.finish_backward()
        agreed = agree_on_scalars([loss.detach()], engine=engine, context=ctx, wants_exit=ctx.world.is_last)
        assert agreed.wants_exit
        norms.append(agreed.grad_norm / (MICRO_BATCHES * ctx.dp.size))
        assert set(splits) == {member.name for layout in engine.layouts for member in layout.members}
    return norms, num_real_elements(splits)


STAGES = (0, 1, 2, 3)
# (processes, tensor-parallel size, sequence parallel); the rest is data parallel. At size 4 the last rank's rows of the
# vocabulary are all padding.
WITHOUT = [(1, 1, False), (2, 1, False), (2, 2, False), (4, 1, False), (4, 2, False)]
MESHES = [*WITHOUT, (2, 2, True), (4, 2, True), (4, 4, True)]


def run_on_mesh(pools, world, tp, function, *args):
    if world == 1:
        return [function(ParallelContext.single_process(), *args)]
    return pools[world].run(function, *args, parallel=ParallelConfig(tensor_model_parallel_size=tp))


@pytest.mark.parametrize("world, tp, sequence_parallel", MESHES)
def test_gradients_of_one_have_the_norm_of_the_number_of_parameters(pools, world, tp, sequence_parallel):
    """H18: sqrt(distinct real elements), exactly, at every stage; neither copies nor padding count."""
    for norms, numel in run_on_mesh(pools, world, tp, all_ones_on_rank, STAGES, sequence_parallel):
        assert numel == num_real_elements(build_net(ParallelContext.single_process(), stage=0)[2])
        assert norms == [math.sqrt(numel)] * len(STAGES)


def steps_on_rank(ctx, stages, sequence_parallel):
    """Per stage: (agreed scalars, [(name, logical start, gradient)] of what this rank owns)."""
    results = []
    for stage in stages:
        net, engine, splits = build_net(ctx, stage=stage, sequence_parallel=sequence_parallel)
        losses = run_step(ctx, net, engine)
        agreed = agree_on_scalars(losses, engine=engine, context=ctx, wants_exit=False)
        pieces = []
        for layout, grad in zip(engine.layouts, engine.grad_shards, strict=True):
            for span in layout.owned_spans(engine.shard_axis.rank):
                done = span.shard_start
                for run in splits[span.name].runs(span.member_start, span.numel):
                    pieces.append((span.name, run.start, grad[done : done + run.numel].clone()))
                    done += run.numel
        results.append((agreed, pieces))
    return results


@pytest.mark.parametrize("world, tp, sequence_parallel", MESHES[1:])
def test_gradients_norm_and_loss_are_those_of_one_process(pools, world, tp, sequence_parallel):
    """fp32 throughout, so only the order of sums differs. Replicated gradients have the same bits on every rank."""
    (reference,) = steps_on_rank(ParallelContext.single_process(), (0,), False)
    expected, whole = reference[0], {name: grad for name, _, grad in reference[1]}
    splits = build_net(ParallelContext.single_process(), stage=0)[2]
    per_rank = run_on_mesh(pools, world, tp, steps_on_rank, STAGES, sequence_parallel)
    for index in range(len(STAGES)):
        assert len({result[index][0] for result in per_rank}) == 1, "ranks differ"
        agreed = per_rank[0][index][0]
        assert agreed.loss == pytest.approx(expected.loss, rel=1e-6)
        assert agreed.grad_norm == pytest.approx(expected.grad_norm, rel=1e-6)
        seen = {name: torch.full((math.prod(real_shape(name, split)),), float("nan")) for name, split in splits.items()}
        for result in per_rank:
            for name, start, grad in result[index][1]:
                real = max(0, seen[name].numel() - start)
                assert not grad[real:].any(), f"padding of {name} has a gradient"
                target = seen[name][start : start + grad.numel()]
                if splits[name].replicated:
                    known = ~target.isnan()
                    torch.testing.assert_close(grad[:real][known], target[known], rtol=0, atol=0)
                target.copy_(grad[:real])
        for name, grad in seen.items():
            torch.testing.assert_close(grad, whole[name][: grad.numel()], rtol=2e-5, atol=1e-7, msg=name)
