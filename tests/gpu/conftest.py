"""Tests that need a CUDA device say so where there is none."""

import pytest
import torch


@pytest.fixture(scope="session")
def cuda():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device: run this folder on a GPU machine (PYTHON=python3 bash tests/run.sh tests/gpu)")
    return torch.device("cuda", 0)
