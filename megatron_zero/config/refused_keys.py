"""DATA: the DeepSpeed JSON keys that are not knobs here, each with the values that mean "off" and what to use.

The twin of refused.py. KEYS are single keys; BLOCKS are whole objects that are off when their switch says so, whatever
else they hold; NO_EFFECT keys are accepted at any value and said once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

LATER: Final = "not built yet"


@dataclass(frozen=True, slots=True)
class RefusedKey:
    """off: values that ask for nothing (null and "auto" always do)."""

    says: str
    off: tuple[Any, ...] = ()

    def is_off(self, value: Any) -> bool:
        # type() keeps 1 and true apart, which == does not; 1 and 1.0 are the same request.
        return value in (None, "auto") or any(
            value == off and isinstance(value, bool) == isinstance(off, bool) for off in self.off
        )


@dataclass(frozen=True, slots=True)
class RefusedBlock:
    """switch: the member that turns the block on.  off: its values (or absence, if None is among them) that do not."""

    says: str
    switch: str = "enabled"
    off: tuple[Any, ...] = (False, None)


ZERO: Final = "zero_optimization."
OPTIMIZER_OFFLOAD: Final = "zero_optimization.offload_optimizer."
FALSE: Final = (False,)
TRUE: Final = (True,)

KEYS: Final[Mapping[str, RefusedKey]] = MappingProxyType(
    {
        "managed_gradient_accumulation": RefusedKey("out of scope: micro-batches are always counted here", TRUE),
        "memory_breakdown": RefusedKey(f"{LATER}: use --log-jsonl, which has memory by tier", FALSE),
        "dump_state": RefusedKey(f"{LATER}: the merged configuration is printed at start", FALSE),
        "log_level": RefusedKey(f"{LATER}: leave it out"),
        # Optimizer and gradients
        "optimizer.legacy_fusion": RefusedKey("out of scope: leave it out", FALSE),
        "optimizer.params.max_grad_norm": RefusedKey(f"{LATER} under this old name: use gradient_clipping", (0,)),
        "optimizer.params.torch_adam": RefusedKey(f"{LATER}: leave it out", FALSE),
        "optimizer.params.adam_w_mode": RefusedKey(f"{LATER}: weight decay is decoupled (AdamW)", TRUE),
        "optimizer.params.bias_correction": RefusedKey(f"{LATER}: Adam always corrects its bias", TRUE),
        "zero_force_ds_cpu_optimizer": RefusedKey(f"{LATER}: the host's Adam is always the native kernel", TRUE),
        "gradient_predivide_factor": RefusedKey(f"{LATER}: gradients are averaged in fp32", (1,)),
        "gradient_allreduce_op": RefusedKey("out of scope: gradients are averaged (mean)", ("mean",)),
        "communication_data_type": RefusedKey(f"{LATER}: leave it out"),
        "seq_parallel_communication_data_type": RefusedKey(f"{LATER}: leave it out", ("fp32",)),
        "sparse_gradients": RefusedKey("out of scope: embedding gradients are dense", FALSE),
        "disable_allgather": RefusedKey("out of scope: leave it out", FALSE),
        "data_types.grad_accum_dtype": RefusedKey(f"{LATER}: gradients are accumulated in fp32", ("fp32",)),
        "data_types.param_dtype": RefusedKey(f"{LATER}: use bf16.enabled"),
        "data_types.buffer_dtype": RefusedKey(f"{LATER}: leave it out"),
        # Precision
        "fp16.auto_cast": RefusedKey(f"{LATER}: leave it out", FALSE),
        "fp16.consecutive_hysteresis": RefusedKey(f"{LATER}: leave it out", FALSE),
        "fp16.fp16_master_weights_and_grads": RefusedKey(f"{LATER}: the master weights are fp32", FALSE),
        "bf16.check_grad_overflow": RefusedKey(f"{LATER}: gradients are always checked", TRUE),
        "bf16.immediate_grad_update": RefusedKey(f"{LATER}: leave it out", FALSE),
        "bf16.bf16_master_weights_and_grads": RefusedKey(f"{LATER}: the master weights are fp32", FALSE),
        "bf16.bf16_optimizer_states": RefusedKey(f"{LATER}: master weights and moments are fp32", FALSE),
        # ZeRO
        ZERO + "allgather_partitions": RefusedKey(f"{LATER}: weights are gathered, not broadcast", TRUE),
        ZERO + "allgather_bucket_size": RefusedKey(f"{LATER}: one layer is gathered at a time; leave it out"),
        ZERO + "reduce_scatter": RefusedKey(f"{LATER}: gradients are reduce-scattered", TRUE),
        ZERO + "reduce_bucket_size": RefusedKey(f"{LATER}: one layer is reduced at a time; leave it out"),
        ZERO + "use_multi_rank_bucket_allreduce": RefusedKey(f"{LATER}: leave it out", TRUE),
        ZERO + "overlap_comm": RefusedKey(f"{LATER}: use false or leave it out", FALSE),
        ZERO + "contiguous_gradients": RefusedKey(f"{LATER}: gradients are always contiguous", TRUE),
        ZERO + "load_from_fp32_weights": RefusedKey(f"{LATER}: checkpoints hold fp32 weights", TRUE),
        ZERO + "elastic_checkpoint": RefusedKey(f"{LATER}: a checkpoint loads in the layout that wrote it", FALSE),
        ZERO + "round_robin_gradients": RefusedKey(f"{LATER}: leave it out", FALSE),
        ZERO + "ignore_unused_parameters": RefusedKey(f"{LATER}: every parameter is used", TRUE),
        ZERO + "legacy_stage1": RefusedKey("out of scope: leave it out", FALSE),
        ZERO + "stage3_max_live_parameters": RefusedKey(f"{LATER}: one layer is live at a time; leave it out"),
        ZERO + "stage3_max_reuse_distance": RefusedKey(f"{LATER}: leave it out"),
        ZERO + "stage3_prefetch_bucket_size": RefusedKey(f"{LATER}: leave it out"),
        ZERO + "stage3_param_persistence_threshold": RefusedKey(f"{LATER}: leave it out"),
        ZERO + "stage3_model_persistence_threshold": RefusedKey(f"{LATER}: leave it out"),
        ZERO + "stage3_gather_16bit_weights_on_model_save": RefusedKey(f"{LATER}: use false", FALSE),
        ZERO + "stage3_gather_fp16_weights_on_model_save": RefusedKey(f"{LATER}: use false", FALSE),
        ZERO + "stage3_module_granularity_threshold": RefusedKey(f"{LATER}: leave it out", (0,)),
        ZERO + "stage3_use_all_reduce_for_fetch_params": RefusedKey(f"{LATER}: leave it out", FALSE),
        ZERO + "stage3_allgather_sequential": RefusedKey(f"{LATER}: leave it out", FALSE),
        ZERO + "memory_efficient_linear": RefusedKey(f"{LATER}: leave it out", FALSE),
        ZERO + "override_module_apply": RefusedKey("out of scope: leave it out"),
        ZERO + "pipeline_loading_checkpoint": RefusedKey(f"{LATER}: leave it out", FALSE),
        ZERO + "zero_hpz_partition_size": RefusedKey(f"{LATER}: use 1", (1,)),
        ZERO + "zero_quantized_weights": RefusedKey(f"{LATER}: use false", FALSE),
        ZERO + "zero_quantized_gradients": RefusedKey(f"{LATER}: use false", FALSE),
        ZERO + "zero_quantized_nontrainable_weights": RefusedKey("out of scope: every weight is trained", FALSE),
        ZERO + "mics_shard_size": RefusedKey(f"{LATER}: use -1", (-1,)),
        ZERO + "mics_hierarchical_params_gather": RefusedKey(f"{LATER}: use false", FALSE),
        ZERO + "log_trace_cache_warnings": RefusedKey(f"{LATER}: leave it out", FALSE),
        ZERO + "enable_sanity_checks": RefusedKey(f"{LATER}: the checks are always on", FALSE),
        ZERO + "save_muon_momentum_buffer_in_memory": RefusedKey("out of scope: there is no Muon here", FALSE),
        ZERO + "cpu_offload": RefusedKey('an old name: use "offload_optimizer": {"device": "cpu"}', FALSE),
        ZERO + "cpu_offload_param": RefusedKey(f"an old name of offload_param, which is {LATER}", FALSE),
        ZERO + "cpu_offload_use_pin_memory": RefusedKey("an old name: use offload_optimizer.pin_memory"),
        # Offload of the optimizer
        OPTIMIZER_OFFLOAD + "nvme_path": RefusedKey(f"{LATER}: use device cpu"),
        OPTIMIZER_OFFLOAD + "split": RefusedKey(f"{LATER}: use ratio"),
        OPTIMIZER_OFFLOAD + "speculation_buffer_bytes": RefusedKey(f"{LATER}: use step_policy sync"),
        OPTIMIZER_OFFLOAD + "state_dtype": RefusedKey(f"{LATER}: use fp32", ("fp32",)),
        OPTIMIZER_OFFLOAD + "buffer_count": RefusedKey(f"{LATER}: it belongs to NVMe, leave it out"),
        OPTIMIZER_OFFLOAD + "pipeline_read": RefusedKey(f"{LATER}: it belongs to NVMe, use false", FALSE),
        OPTIMIZER_OFFLOAD + "pipeline_write": RefusedKey(f"{LATER}: it belongs to NVMe, use false", FALSE),
        OPTIMIZER_OFFLOAD + "pipeline": RefusedKey(f"{LATER}: it belongs to NVMe, use false", FALSE),
        OPTIMIZER_OFFLOAD + "fast_init": RefusedKey(f"{LATER}: use false", FALSE),
        OPTIMIZER_OFFLOAD + "super_offload": RefusedKey(f"{LATER}: use false", FALSE),
        OPTIMIZER_OFFLOAD + "cpuadam_cores_perc": RefusedKey(f"{LATER}: leave it out"),
        # Activation checkpointing
        "activation_checkpointing.contiguous_memory_optimization": RefusedKey(f"{LATER}: use false", FALSE),
        "activation_checkpointing.number_checkpoints": RefusedKey(f"{LATER}: each layer is one; leave it out"),
        "activation_checkpointing.synchronize_checkpoint_boundary": RefusedKey(f"{LATER}: use false", FALSE),
        "activation_checkpointing.profile": RefusedKey(f"{LATER}: use false", FALSE),
        # Checkpoint and the rest
        "checkpoint.load_universal": RefusedKey(f"{LATER}: use false", FALSE),
        "checkpoint.tag_validation": RefusedKey(f"{LATER}: leave it out", ("WARN", "Warn", "warn")),
        "checkpoint.use_node_local_storage": RefusedKey(f"{LATER}: use false", FALSE),
        "checkpoint.parallel_write.pipeline_stage": RefusedKey(f"{LATER}: use false", FALSE),
        "checkpoint.writer": RefusedKey("out of scope: there is one checkpoint writer"),
        "checkpoint.datastates": RefusedKey("out of scope: there is one checkpoint writer"),
        "checkpoint.nebula": RefusedKey("out of scope: there is one checkpoint writer"),
        "datastates": RefusedKey("out of scope: there is one checkpoint writer"),
        "nebula": RefusedKey("out of scope: there is one checkpoint writer"),
        "sequence_parallel_size": RefusedKey("out of scope: widths come from the command line", (1,)),
        "graph_harvesting": RefusedKey("out of scope: leave it out", FALSE),
        "use_data_before_expert_parallelism": RefusedKey("out of scope: leave it out", FALSE),
    }
)

BLOCKS: Final[Mapping[str, RefusedBlock]] = MappingProxyType(
    {
        "amp": RefusedBlock("out of scope: use bf16"),
        "torch_autocast": RefusedBlock("out of scope: use bf16"),
        "scheduler": RefusedBlock(
            f"{LATER}: remove the block, the schedule comes from --lr-decay-style, --lr-warmup-tokens and"
            " --lr-decay-tokens",
            switch="type",
            off=(None,),
        ),
        ZERO + "offload_param": RefusedBlock(f"{LATER}: use device none", switch="device", off=("none", None)),
        ZERO + "leaf_module": RefusedBlock(f"{LATER}: remove the block", switch="classes", off=(None,)),
        ZERO + "zeropp_loco_param": RefusedBlock("out of scope: remove the block", switch="err_beta", off=(None,)),
        ZERO + "zenflow": RefusedBlock("out of scope, its numbers differ: use offload_optimizer.ratio", off=()),
        "aio": RefusedBlock(f"{LATER}: NVMe offload comes later, remove the block", off=()),
        "pipeline": RefusedBlock(f"{LATER}: the pipeline size is 1, remove the block", off=()),
        "curriculum_learning": RefusedBlock(f"{LATER}: set enabled to false"),
        "data_efficiency": RefusedBlock(f"{LATER}: set enabled to false"),
        "progressive_layer_drop": RefusedBlock("out of scope: set enabled to false"),
        "tensorboard": RefusedBlock(f"{LATER}: use --tensorboard-dir"),
        "csv_monitor": RefusedBlock(f"{LATER}: use --log-jsonl"),
        "wandb": RefusedBlock(f"{LATER}: use --log-jsonl"),
        "comet": RefusedBlock("out of scope: use --log-jsonl"),
        "flops_profiler": RefusedBlock(f"{LATER}: the log line has TFLOPs, set enabled to false"),
        "comms_logger": RefusedBlock(f"{LATER}: set enabled to false"),
        "timers": RefusedBlock(f"{LATER}: use --timing-log-level", off=()),
        "autotuning": RefusedBlock("out of scope: `mz plan` comes later, set enabled to false"),
        "elasticity": RefusedBlock("out of scope: resume from a checkpoint with a new launch"),
        "compression_training": RefusedBlock("out of scope: remove the block", off=()),
        "weight_quantization": RefusedBlock("out of scope: remove the block"),
        "quantize_training": RefusedBlock("out of scope: remove the block"),
        "sparse_attention": RefusedBlock("out of scope: attention is dense, remove the block", off=()),
        "hybrid_engine": RefusedBlock("out of scope: remove the block"),
        "tensor_parallel": RefusedBlock("out of scope: widths come from the command line", off=()),
        "expert_parallel": RefusedBlock("out of scope: widths come from the command line", off=()),
        "compile": RefusedBlock("out of scope: remove the block"),
        "eigenvalue": RefusedBlock("out of scope: set enabled to false"),
    }
)

NO_EFFECT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "vocabulary_size": "no effect: upstream only warns about alignment with it",
        "zero_allow_untested_optimizer": "no effect: the optimizer is Adam",
        "dataloader_drop_last": "no effect: batches are always whole",
        ZERO + "grad_hooks": "no effect: documented upstream, read by nobody",
    }
)
