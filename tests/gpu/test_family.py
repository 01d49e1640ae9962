"""Grouped queries and Llama's parts on the device: the same as on the CPU, and by a kernel made for groups."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from megatron_zero.config.model import ModelConfig
from megatron_zero.distributed.rng import RngStreams
from megatron_zero.model.attention import Rows, SelfAttention, attention_reference
from megatron_zero.model.gpt import GPTStage
from megatron_zero.model.initialization import ParameterInitializer
from megatron_zero.tensor_parallel.group import TensorParallel

pytestmark = pytest.mark.gpu
SEQ = 256


def config(**more):
    return ModelConfig(
        num_layers=2,
        hidden_size=256,
        num_attention_heads=8,
        num_key_value_heads=2,
        seq_length=SEQ,
        max_position_embeddings=SEQ,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        init_method_std=0.05,
        use_rotary_position_embeddings=True,
        normalization="rmsnorm",
        swiglu=True,
        add_bias_linear=False,
        untie_embeddings_and_output_weights=True,
        **more,
    )


def build(device):
    stage = GPTStage(config(), vocab_size=50, padded_vocab_size=64)
    fill = ParameterInitializer(config(), seed=3)
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            fill(name, 0, parameter.view(-1))
    return stage.to(device)


def test_llama_in_fp32_is_that_of_the_cpu(cuda):
    """Sums come in another order, and cos and sin of another library: 1e-4 of the largest gradient."""
    tokens = torch.randint(0, 50, (2, SEQ), generator=torch.Generator().manual_seed(0))
    results = []
    for device in ("cpu", cuda):
        stage = build(device)
        loss = stage(tokens.to(device), labels=tokens.roll(-1, 1).to(device))
        loss.backward()
        results.append((loss.detach().cpu(), {name: p.grad.cpu() for name, p in stage.named_parameters()}))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=1e-5, atol=0)
    for name, gradient in results[0][1].items():
        largest = float(gradient.abs().max())
        torch.testing.assert_close(results[1][1][name], gradient, rtol=0, atol=1e-4 * largest, msg=name)


def attention(cuda, dtype):
    made = SelfAttention(config(), tp=TensorParallel.single(), streams=RngStreams.plain(cuda)).to(device=cuda, dtype=dtype)
    with torch.no_grad():
        for index, parameter in enumerate(made.parameters()):
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index))
            parameter.copy_(drawn * 0.05)
    return made


def test_grouped_queries_in_bf16_run_in_flash_attention(cuda):
    """Elsewhere the inside of attention would be written out; the kernel is forced, so another one raises."""
    made = attention(cuda, torch.bfloat16)
    x = torch.randn(2 * SEQ, 256, generator=torch.Generator().manual_seed(9)).to(device=cuda, dtype=torch.bfloat16)
    x.requires_grad_()
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
        found = made(x, Rows(2, SEQ))
        found.float().square().sum().backward()
    assert torch.isfinite(x.grad).all()
    heads = made.qkv(x).view(2, SEQ, 2, 6, 32).float()
    query = heads[:, :, :, :4].flatten(2, 3).transpose(1, 2)
    key, value = heads[:, :, :, 4].transpose(1, 2), heads[:, :, :, 5].transpose(1, 2)
    context = attention_reference(query, key, value).transpose(1, 2).reshape(2 * SEQ, 256)
    expected = made.dense(context.bfloat16())
    torch.testing.assert_close(found, expected, rtol=0, atol=2**-7 * float(expected.detach().abs().max()))


@pytest.mark.parametrize("backend", [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
def test_grouped_queries_in_fp32_run_in_the_kernels_of_fp32(cuda, backend):
    made = attention(cuda, torch.float32)
    x = torch.randn(2 * SEQ, 256, generator=torch.Generator().manual_seed(9)).to(cuda)
    with sdpa_kernel([backend]), torch.no_grad():
        found = made(x, Rows(2, SEQ))
    with torch.no_grad():
        expected = made.cpu()(x.cpu(), Rows(2, SEQ))
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-5 * float(expected.detach().abs().max()))
