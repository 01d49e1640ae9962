"""Document masks work on the device as on the CPU."""

import numpy as np
import pytest
import torch

from megatron_zero.config.model import ModelConfig
from megatron_zero.config.training import RecomputeConfig
from megatron_zero.data.document_masks import DocumentRules
from megatron_zero.data.loader import BatchLoader
from megatron_zero.data.sample_walk import ShuffledEpochs
from megatron_zero.model.attention import document_mask
from megatron_zero.model.gpt import GPTStage
from megatron_zero.model.initialization import ParameterInitializer
from megatron_zero.model.recompute import plan_recompute
from megatron_zero.training.determinism import determinism

pytestmark = pytest.mark.gpu
SEQ, EOD = 512, 7


class Samples:
    """Sample i: random ids of seed i, some of them EOD."""

    name = "train"

    def __len__(self):
        return 400

    def __getitem__(self, index):
        return np.random.RandomState(index).randint(0, 50, size=SEQ + 1)


def loader_of(device, num_workers):
    return BatchLoader(
        Samples(),
        micro_batch_size=4,
        dp_rank=0,
        dp_size=1,
        device=torch.device(device),
        num_workers=num_workers,
        wrap=True,
        walk=ShuffledEpochs(400, seed=3),
        documents=DocumentRules(EOD, reset_position_ids=True, reset_attention_mask=True, eod_mask_loss=True),
    )


def build(device, dtype, recompute):
    config = ModelConfig(num_layers=2, hidden_size=256, num_attention_heads=4, seq_length=SEQ, max_position_embeddings=SEQ)
    plan = plan_recompute(RecomputeConfig(checkpoint_activations=recompute), num_layers=2)
    stage = GPTStage(config, vocab_size=50, padded_vocab_size=64, plan=plan)
    fill = ParameterInitializer(config, seed=3)
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            fill(name, 0, parameter.view(-1))
    return stage.to(device=device, dtype=dtype).eval()


@pytest.mark.parametrize("recompute", [False, True])
def test_masked_model_is_that_of_the_cpu(cuda, recompute):
    with loader_of("cpu", 0) as loader, determinism(True):
        (batch,) = loader.next_microbatches(0, 1)
        results = []
        for device in ("cpu", cuda):
            stage = build(device, torch.float32, recompute)
            moved = {
                name: getattr(batch, name).to(device) for name in ("position_ids", "document_ids", "labels", "loss_mask")
            }
            loss = stage(batch.tokens.to(device), **moved)
            loss.backward()
            results.append((loss.detach().cpu(), {name: p.grad.cpu() for name, p in stage.named_parameters()}))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-5, atol=0)
    for name, gradient in results[0][1].items():
        torch.testing.assert_close(results[1][1][name], gradient, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tokens_see_their_own_document_only(cuda, dtype):
    with loader_of(cuda, 0) as loader:
        (batch,) = loader.next_microbatches(0, 1)
    stage = build(cuda, dtype, False)
    changed = torch.where(batch.document_ids == 0, (batch.tokens + 1) % 50, batch.tokens)
    with torch.no_grad():
        before, after = (
            stage(tokens, position_ids=batch.position_ids, document_ids=batch.document_ids)
            for tokens in (batch.tokens, changed)
        )
    later = batch.document_ids > 0
    assert later.any()
    torch.testing.assert_close(before[later], after[later], rtol=0, atol=0)
    assert document_mask(batch.document_ids).device == torch.device(cuda)
