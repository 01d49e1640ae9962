"""Every launcher's variables, and what is said when they do not fit."""

import pytest
import torch

from megatron_zero.config.fields import ConfigError
from megatron_zero.distributed.launch import (
    LaunchEnvironment,
    choose_device,
    process_group,
    read_launch_environment,
    request_deterministic_cublas,
)

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29501",
}


def test_nothing_set_is_one_process():
    assert read_launch_environment({}) == LaunchEnvironment(0, 1, 0, 1, "127.0.0.1", 29500)


def test_torchrun():
    assert read_launch_environment(TORCHRUN) == LaunchEnvironment(5, 8, 1, 4, "10.0.0.1", 29501)


def test_the_environments_local_rank_wins_over_the_flag():
    assert read_launch_environment(TORCHRUN, local_rank=3).local_rank == 1
    without = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_RANK"}
    assert read_launch_environment(without, local_rank=3).local_rank == 3


def test_slurm():
    variables = {
        "SLURM_PROCID": "5",
        "SLURM_STEP_NUM_TASKS": "7",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "4,3",
        "SLURM_STEP_NODELIST": "gpu[03-04]",
        "SLURM_JOB_ID": "12345",
    }
    assert read_launch_environment(variables) == LaunchEnvironment(5, 7, 1, 3, "gpu03", 32345)


def test_open_mpi_on_one_node():
    variables = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    }
    assert read_launch_environment(variables) == LaunchEnvironment(1, 2, 1, 2, "127.0.0.1", 29500)


@pytest.mark.parametrize(
    "change, words",
    [
        ({"RANK": "8"}, "rank 8"),
        ({"RANK": "five"}, "RANK='five' is not a whole number"),
        ({"MASTER_ADDR": None}, "MASTER_ADDR is not"),
        ({"LOCAL_RANK": "4"}, "local rank 4 of 4"),
        ({"MASTER_PORT": "99999"}, "MASTER_PORT=99999"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE is not set"),
    ],
)
def test_what_does_not_fit_is_named(change, words):
    variables = {name: value for name, value in {**TORCHRUN, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=words):
        read_launch_environment(variables)


def test_a_local_rank_without_a_launcher_is_refused():
    with pytest.raises(ConfigError, match="--local_rank 2 was given, but RANK and WORLD_SIZE are not set"):
        read_launch_environment({}, local_rank=2)


def environment(local_world_size, local_rank=0):
    return LaunchEnvironment(local_rank, local_world_size, local_rank, local_world_size, "127.0.0.1", 29500)


def test_devices():
    assert choose_device(environment(2), None, num_gpus=0) == (torch.device("cpu"), "gloo")
    assert choose_device(environment(2, 1), None, num_gpus=2) == (torch.device("cuda", 1), "nccl")
    assert choose_device(environment(4), "gloo", num_gpus=2) == (torch.device("cpu"), "gloo")


def test_more_processes_than_gpus_and_nccl_without_gpus_are_refused():
    with pytest.raises(ConfigError, match=r"4 processes on this node but this one sees 2 GPU"):
        choose_device(environment(4), None, num_gpus=2)
    with pytest.raises(ConfigError, match="--distributed-backend nccl needs GPUs"):
        choose_device(environment(1), "nccl", num_gpus=0)


def test_one_process_makes_no_group():
    from datetime import timedelta

    with process_group(environment(1), backend="gloo", device=torch.device("cpu"), timeout=timedelta(seconds=5)):
        assert not torch.distributed.is_initialized()


def test_a_users_cublas_setting_stays(monkeypatch):
    import os

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    request_deterministic_cublas()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
