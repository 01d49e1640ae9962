"""Pretrain a GPT: parse -> launch -> build -> run. The only executable most people read.

    mz launch pretrain_gpt.py --num-layers 4 ... --deepspeed --deepspeed_config ds_config.json

Exit code 0: the run reached its end. 1: a setting or an input is wrong (nothing was trained, nothing was written), or
training could not go on; the last lines say why.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from datetime import timedelta

from megatron_zero.config.derive import data_parallel_size
from megatron_zero.config.fields import ConfigError
from megatron_zero.config.load import LoadedConfig, load_run_config
from megatron_zero.distributed.collectives import PeerLost
from megatron_zero.distributed.context import ParallelContext
from megatron_zero.distributed.launch import (
    LaunchEnvironment,
    choose_device,
    end_group_threads,
    process_group,
    read_launch_environment,
)
from megatron_zero.training.build import build_trainer
from megatron_zero.training.determinism import determinism
from megatron_zero.training.trainer import TrainingFailed


def run(loaded: LoadedConfig, env: LaunchEnvironment) -> None:
    """Meet the other ranks, build, train, part."""
    parallel = loaded.config.parallel
    # Sizes that do not fit this world are told before the ranks meet, by all of them.
    data_parallel_size(
        world_size=env.world_size,
        tp=parallel.tensor_model_parallel_size,
        pp=parallel.pipeline_model_parallel_size,
    )
    device, backend = choose_device(env, parallel.distributed_backend)
    timeout = timedelta(minutes=parallel.distributed_timeout_minutes)
    with (
        process_group(env, backend=backend, device=device, timeout=timeout),
        determinism(loaded.config.train.deterministic_mode),
    ):
        context = ParallelContext.create(
            parallel, rank=env.rank, world_size=env.world_size, device=device, timeout=timeout
        )
        with build_trainer(loaded, context, env) as trainer:
            trainer.run()


def main(argv: Sequence[str]) -> int:
    code, where = 0, ""
    # A path that is no text in this locale must not end a run where it is printed.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        loaded = load_run_config(argv)
        env = read_launch_environment(local_rank=loaded.config.parallel.local_rank)
        where = f" (rank {env.rank} of {env.world_size})" if env.world_size > 1 else ""
        run(loaded, env)
    except (ConfigError, TrainingFailed, PeerLost, OSError) as error:
        print(f"error{where}: {error}", file=sys.stderr, flush=True)
        code = 1
    end_group_threads()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
