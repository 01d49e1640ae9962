"""The plain-torch AdamW on CUDA against the C++ kernel on the CPU: bit for bit."""

from __future__ import annotations

import pytest
import torch

from megatron_zero.ops.cpu_adam import AdamScalars, adamw_step_, adamw_step_reference_

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("size", [1e-3, 1e-22])  # the second makes denormal moments
@pytest.mark.parametrize("grad_dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("numel", [1, 1023, 1_000_003])
def test_reference_on_cuda_equals_kernel_bit_for_bit(numel: int, grad_dtype: torch.dtype, size: float) -> None:
    generator = torch.Generator().manual_seed(numel)
    master = torch.randn(numel, generator=generator) * 0.02
    host = [master, torch.zeros(numel), torch.zeros(numel)]
    device = [tensor.cuda() for tensor in host]
    host_working, device_working = torch.zeros(numel).bfloat16(), torch.zeros(numel).bfloat16().cuda()
    for step in range(1, 21):
        grad = (torch.randn(numel, generator=generator) * size).to(grad_dtype)
        scalars = AdamScalars.of(step=step, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, grad_scale=0.37)
        adamw_step_(*host, grad, host_working, scalars=scalars)
        adamw_step_reference_(*device, grad.cuda(), device_working, scalars=scalars)
    for ours, expected in zip(device, host, strict=True):
        torch.testing.assert_close(ours.cpu().view(torch.int32), expected.view(torch.int32), rtol=0, atol=0)
    torch.testing.assert_close(device_working.cpu().view(torch.int16), host_working.view(torch.int16), rtol=0, atol=0)
