"""Initial values on a GPU have the CPU's bits, already in fp64, before rounding to fp32 could hide a difference."""

import pytest
import torch

from megatron_zero.model.initialization import CHUNK_NUMEL, parameter_key, standard_normal

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("start", [0, 40_000_000_000])
def test_normals_have_the_bits_of_the_cpu(cuda, start):
    key = parameter_key(1234, "embedding.word.weight")
    for first in range(start, start + 16 * CHUNK_NUMEL, CHUNK_NUMEL):
        on_gpu = standard_normal(key, first, CHUNK_NUMEL, device=cuda).cpu()
        on_cpu = standard_normal(key, first, CHUNK_NUMEL, device=torch.device("cpu"))
        torch.testing.assert_close(on_gpu, on_cpu, rtol=0, atol=0)
