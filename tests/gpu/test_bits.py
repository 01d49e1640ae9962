"""What a GPU computes has the bits of what the CPU computes: initial values, Adam, the norm's independence of tiers."""

import pytest
import torch

from megatron_zero.config.model import ModelConfig
from megatron_zero.model.initialization import ParameterInitializer
from megatron_zero.ops.cpu_adam import AdamScalars, adamw_step_, adamw_step_reference_

pytestmark = pytest.mark.gpu


def test_initial_values_have_the_same_bits(cuda):
    config = ModelConfig(num_layers=2, hidden_size=64, num_attention_heads=4, seq_length=8, max_position_embeddings=8)
    fill = ParameterInitializer(config, seed=1234)
    for name, start, numel in [("embedding.word.weight", 0, 3_000_001), ("layers.1.mlp.fc2.weight", 12_345, 1_000_000)]:
        on_cpu, on_gpu = torch.empty(numel), torch.empty(numel, device=cuda)
        fill(name, start, on_cpu)
        fill(name, start, on_gpu)
        torch.testing.assert_close(on_gpu.cpu(), on_cpu, rtol=0, atol=0)


@pytest.mark.parametrize("numel", [1, 7, 1023, 1_000_003])
@pytest.mark.parametrize("scale", [1e-3, 1e-22], ids=["normal", "denormal"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_adam_on_the_gpu_equals_the_host_kernel(cuda, numel, scale, dtype):
    generator = torch.Generator().manual_seed(numel)
    master = torch.randn(numel, generator=generator) * 0.02
    host = [master.clone(), torch.zeros(numel), torch.zeros(numel), torch.zeros(numel, dtype=dtype)]
    device = [tensor.to(cuda) for tensor in host]
    for step in range(1, 21):
        grad = torch.randn(numel, generator=generator) * scale
        scalars = AdamScalars.of(
            step=step, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, grad_scale=0.37
        )
        adamw_step_(*host[:3], grad, host[3], scalars=scalars, num_threads=4)
        adamw_step_reference_(*device[:3], grad.to(cuda), device[3], scalars=scalars)
    for ours, theirs in zip(device, host, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=0, atol=0)
