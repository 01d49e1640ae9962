"""DATA: the flags of the peers that are not knobs here, each with the sentence that says what to use.

Every flag of Megatron-DeepSpeed and the Megatron-core names people copy into scripts stand here or on a field of a
section, so the answer to a known flag is never "unknown". Two tables: REFUSED flags stop the run, all in one message;
NO_EFFECT flags are accepted and said once.

Notation of the flags column, one word a flag:
    --name          a switch          --name=         takes one value       --name=a|b      ... and a or b mean "off":
    --name?         value optional    --name*         takes any number      --name*=1       they ask for what is done
                                                                                            anyway and are accepted
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from .values import same_text

LATER: Final = "not built yet"
GPT_ONLY: Final = "out of scope: only GPT is trained here"
JSON_ONLY: Final = "not read from the command line"

REFUSED: Final[tuple[tuple[str, str], ...]] = (
    # Network
    (f"{LATER}: every layer is dense; use --num-experts 1", "--num-experts*=1 --moe-expert-parallel-size=1"),
    (f"{LATER}: every layer is dense; use --mlp-type standard", "--mlp-type=standard"),
    (f"{LATER}: every layer is dense", "--topk=1 --enable-expert-tensor-parallelism"),
    (
        f"{LATER}: the residual is taken before the norm; leave it out",
        "--apply-residual-connection-post-layernorm --fp32-residual-connection",
    ),
    (f"{LATER}: leave it out", "--embedding-weights-in-fp32"),
    ("out of scope: this is a decoder; use --num-layers", "--encoder-num-layers= --decoder-num-layers="),
    ("an old name: use --num-experts", "--num-experts-switch="),
    ("out of scope: export to Hugging Face first, then to ONNX from there", "--onnx-safe="),
    ("out of scope: there is no BERT here", "--bert-no-binary-head --output-bert-embeddings --bert-embedder-type="),
    # Attention kernels
    (
        f"{LATER}: scaled_dot_product_attention takes the best kernel present; leave it out",
        "--use-flash-attn --use-flash-attn-v1 --use-flash-attn-v2 --use-flash-attn-triton --use-flash-attn-builder"
        " --attention-backend=auto --attention-softmax-in-fp32",
    ),
    # Logging
    (f"{LATER}: use --log-jsonl, which has the gradient norm", "--log-params-norm --log-num-zeros-in-grad"),
    (
        f"{LATER}: use --timing-log-level alone",
        "--no-barrier-with-level-1-timing --timing-log-option=minmax",
    ),
    (f"{LATER}: every step is written", "--tensorboard-log-interval=1"),
    (
        f"{LATER}: leave it out",
        "--no-log-learnig-rate-to-tensorboard --no-log-learning-rate-to-tensorboard --no-log-loss-scale-to-tensorboard",
    ),
    (
        f"{LATER}: use --log-jsonl, which has memory by tier",
        "--log-optimizer-states-to-tensorboard --log-memory-to-tensorboard --log-world-size-to-tensorboard",
    ),
    (
        f"{LATER}: use --tensorboard-dir or --log-jsonl",
        "--wandb-project= --wandb-exp-name= --wandb-save-dir=",
    ),
    # Optimizer and schedule
    (f"{LATER}: use --optimizer adam", "--optimizer=adam"),
    (f"{LATER}: the optimizer is Adam", "--sgd-momentum=0.9"),
    (
        f"{LATER}: use --weight-decay, which is constant",
        "--start-weight-decay= --end-weight-decay= --weight-decay-incr-style=constant",
    ),
    (
        f"{LATER}: the host's Adam is always the native kernel; leave it out",
        "--cpu_torch_adam",
    ),
    (f"{LATER}: use --lr-decay-tokens", "--lr-decay-iters= --lr-decay-samples="),
    (f"{LATER}: use --lr-warmup-tokens", "--lr-warmup-fraction= --lr-warmup-iters=0 --lr-warmup-samples=0"),
    ("a removed name: use --lr-warmup-tokens", "--warmup="),
    (
        f"{LATER}: use --override-opt_param-scheduler or leave it out",
        "--use-checkpoint-opt_param-scheduler --use-checkpoint-opt-param-scheduler",
    ),
    # Training
    ("a removed name: use --micro-batch-size", "--batch-size="),
    (
        f"{LATER}: leave it out",
        "--contigious-checkpointing --contiguous-checkpointing --synchronize-each-layer --profile-backward",
    ),
    ("out of scope: use --checkpoint-activations", "--split-transformers"),
    (f"{LATER}: pipeline parallelism comes later", "--enable-zbh1-pipeline --enable-zbh1-exact-semantics"),
    (f"{LATER}: leave it out", "--random-ltd --data-efficiency-curriculum-learning"),
    (
        f"{LATER}: use --exit-duration-in-mins or --exit-interval",
        "--exit-signal-handler --exit-signal= --kill-switch-file=",
    ),
    ("out of scope: use --exit-duration-in-mins", "--adlr-autoresume --adlr-autoresume-interval="),
    ("out of scope: it is for inference", "--ds-inference"),
    ("out of scope: its numbers differ from the plain MoE layer", "--use-tutel"),
    (f"{LATER}: this trains only", "--inference --skip-train"),
    ("out of scope: import megatron_zero.data from your own trainer", "--use-dataset-only=False"),
    # Tensor and sequence parallelism
    (f"{LATER}: use --ds-sequence-parallel-size 1", "--ds-sequence-parallel-size=1 --force-ds-sequence-parallel"),
    (
        f"{LATER}: sequences stay whole on one rank; leave it out",
        "--ds-sequence-parallel-fpdt --ds-sequence-parallel-fpdt-chunk-size=65536"
        " --ds-sequence-parallel-fpdt-offloading",
    ),
    # Initialisation
    (
        f"{LATER}: weights are normal with --init-method-std; leave it out",
        "--init-method-xavier-uniform --data-parallel-random-init",
    ),
    # Checkpoints
    (f"{LATER}: a checkpoint is always whole; leave it out", "--no-save-optim --no-save-rng --async-save"),
    (f"{LATER}: --load takes the newest checkpoint", "--load-tag="),
    (
        f"{LATER}: --load restores everything; leave it out",
        "--no-load-optim --no-load-rng --no-load-lr-state --finetune --reset-iteration --no-initialization"
        " --use-checkpoint-args --universal-checkpoint",
    ),
    (f"{LATER}: a missing --load folder starts a fresh run and says so", "--exit-on-missing-checkpoint"),
    (f"{LATER}: every checkpoint is kept", "--keep-last= --keep-every="),
    # Precision
    (
        f"{LATER}: fp16 training comes later, use --bf16",
        "--loss-scale= --initial-loss-scale=4294967296 --min-loss-scale=1.0 --loss-scale-window=1000"
        " --fp16-lm-cross-entropy",
    ),
    (f"{LATER}: use --bf16", "--fp8"),
    (
        "out of scope: it needs transformer_engine; use --bf16 (--fp8 comes later)",
        "--fp8-e4m3 --fp8-hybrid --no-fp8-wgrad --fp8-margin=0 --fp8-interval=1 --fp8-amax-history-len=1"
        " --fp8-amax-compute-algo=most_recent",
    ),
    ("out of scope: use --transformer-impl local", "--transformer-impl=local"),
    # Distributed
    ("out of scope: this is a decoder; use --pipeline-model-parallel-size", "--pipeline-model-parallel-split-rank="),
    ("a removed name: use --tensor-model-parallel-size", "--model-parallel-size="),
    (
        f"{LATER}: the pipeline size is 1",
        "--num-layers-per-virtual-pipeline-stage= --overlap-p2p-communication --no-scatter-gather-tensors-in-pipeline"
        " --standalone-embedding-stage",
    ),
    ("there is one engine: use --zero-stage", "--DDP-impl=local"),
    ("use --zero-stage 1", "--use-distributed-optimizer"),
    ("out of scope: messages between stages use the default path; leave it out", "--use-ring-exchange-p2p"),
    ("out of scope: use the package as a library", "--lazy-mpu-init="),
    (f"{LATER}: leave it out", "--empty-unused-memory-level=0"),
    # Data and tokenizer
    ("out of scope: give the full path in --data-path", "--aml-data-download-path="),
    (
        f"{LATER}: use --data-path with --split",
        "--train-data-exact-num-epochs= --train-idx-path= --train-desc-path= --train-doc-idx-path="
        " --train-sample-idx-path= --train-shuffle-idx-path=",
    ),
    (f"{LATER}: leave it out", "--vocab-extra-ids=0 --mmap-warmup --return-data-index"),
    ("a decoder has one length: use --seq-length", "--encoder-seq-length= --decoder-seq-length="),
    ("out of scope: there is no retriever here", "--retriever-seq-length="),
    ("out of scope: use blend weights in --data-path", "--sample-rate=1.0"),
    ("out of scope: there is no BERT here", "--mask-prob= --short-seq-prob="),
    # ZeRO and memory
    (
        f"{JSON_ONLY}, {LATER} there either: leave it out",
        "--zero-reduce-bucket-size=0 --zero-allgather-bucket-size=0",
    ),
    (f"{LATER}: weights rest on the GPU; leave it out", "--remote-device=none --use-pin-memory"),
    ("out of scope: leave it out", "--scattered-embeddings"),
    (f"{LATER}: leave it out", "--memory-centric-tiled-linear --tile-factor=1"),
    # Distillation
    (
        f"{LATER}: distillation comes last",
        "--mos --kd --kd-alpha-ce=1 --kd-beta-ce=1 --kd-temp=1 --load-teacher= --num-layers-teacher="
        " --num-experts-teacher*=1 --hidden-size-teacher= --num-attention-heads-teacher=",
    ),
    # Profiler, inference
    (f"{LATER}: use --timing-log-level", "--profile? --profile_steps= --profile-steps= --profile-ranks*"),
    (f"{LATER}: use --timing-log-level", "--trace-step="),
    (f"{LATER}: this trains only", "--inference-batch-times-seqlen-threshold=512 --max-tokens-to-oom=12000"),
    (f"{LATER}: comments in the JSON are tolerated and overrides are warnings", "--strict-config"),
    # Other models
    (
        f"{GPT_ONLY}; use Megatron-LM for RETRO",
        "--retro-workdir= --retro-add-retriever --retro-cyclic-train-iters= --retro-encoder-layers="
        " --retro-encoder-hidden-dropout= --retro-encoder-attention-dropout= --retro-num-neighbors="
        " --retro-num-retrieved-chunks= --retro-return-doc-ids",
    ),
    (
        f"{GPT_ONLY}; there is no retriever",
        "--ict-head-size= --biencoder-projection-dim=0 --biencoder-shared-query-context-model --ict-load= --bert-load="
        " --titles-data-path= --query-in-block-prob= --use-one-sent-docs --evidence-data-path="
        " --retriever-report-topk-accuracies* --retriever-score-scaling --block-data-path= --embedding-path="
        " --indexer-batch-size= --indexer-log-interval=",
    ),
    (
        f"{GPT_ONLY}; there is no vision model",
        "--num-classes= --img-h= --img-w= --num-channels= --patch-dim= --classes-fraction= --data-per-class-fraction="
        " --no-data-sharding --head-lr-mult= --vision-pretraining --vision-pretraining-type= --vision-backbone-type="
        " --swin-backbone-type= --mask-type= --mask-factor= --iter-per-epoch= --dino-local-img-size="
        " --dino-local-crops-number= --dino-head-hidden-size= --dino-bottleneck-size= --dino-freeze-last-layer="
        " --dino-norm-last-layer --dino-warmup-teacher-temp= --dino-teacher-temp= --dino-warmup-teacher-temp-epochs=",
    ),
    # DeepSpeed's first names
    ("a name of 2020: use --deepspeed", "--deepscale"),
    ("a name of 2020: use --deepspeed_config", "--deepscale_config="),
    # Names of Megatron-core
    (
        f"a Megatron-core name: experts are {LATER}; use 1",
        "--expert-model-parallel-size=1 --expert-tensor-parallel-size=1",
    ),
    (f"a Megatron-core name: sequences stay whole on one rank, this is {LATER}; use 1", "--context-parallel-size=1"),
    (f"a Megatron-core name: context parallelism is {LATER}; leave it out", "--cp-comm-type*"),
    (
        "a Megatron-core name: set zero_optimization.offload_optimizer.ratio in the JSON (the same share on the CPU)",
        "--optimizer-offload-fraction=",
    ),
    (
        "a Megatron-core name: set zero_optimization.offload_optimizer.pin_memory to false in the JSON",
        "--no-pin-cpu-grads --no-pin-cpu-params",
    ),
    (
        f"a Megatron-core name: the host's Adam is always the native kernel, others are {LATER}; leave it out",
        "--use-torch-optimizer-for-cpu-offload",
    ),
    (
        "a Megatron-core name: use --zero-stage 0, 1, 2 or 3 for no_shard, optim, optim_grads, optim_grads_params",
        "--use-megatron-fsdp --use-torch-fsdp2 --data-parallel-sharding-strategy=",
    ),
    (
        f"a Megatron-core name: overlap and bucket sizes are {LATER}; leave it out",
        "--overlap-grad-reduce --overlap-param-gather --ddp-bucket-size= --overlap-cpu-optimizer-d2h-h2d",
    ),
    (f"a Megatron-core name, {LATER}: --load takes the newest checkpoint", "--ckpt-step="),
    (
        f"a Megatron-core name, {LATER}: there is one checkpoint format, saved every --save-interval",
        "--ckpt-format= --non-persistent-save-interval=",
    ),
    ("a Megatron-core name: it needs transformer_engine; use --bf16 (--fp8 comes later)", "--fp8-format="),
    ("a Megatron-core name: data is always memory-mapped; leave it out", "--no-mmap-bin-files"),
    (
        f"a Megatron-core name, {LATER}: use --timing-log-level",
        "--use-pytorch-profiler --profile-step-start= --profile-step-end=",
    ),
    (f"a Megatron-core name: the 1/layer scaling of query times key is {LATER}", "--apply-query-key-layer-scaling"),
    (
        f"a Megatron-core name, {LATER}: use --lr-decay-style cosine with --lr-warmup-tokens",
        "--lr-wsd-decay-style= --lr-wsd-decay-iters= --lr-wsd-decay-samples= --lr-warmup-init=0",
    ),
    (
        f"a Megatron-core name, {LATER}: leave it out",
        "--eval-global-batch-size= --start-eval-at-iter=",
    ),
    (
        f"a Megatron-core name, {LATER}: use --rampup-batch-size",
        "--step-batch-size-schedule* --decrease-batch-size-if-needed",
    ),
    (
        f"a Megatron-core name, {LATER}: the pipeline size is 1",
        "--num-virtual-stages-per-pipeline-rank= --decoder-first-pipeline-num-layers="
        " --decoder-last-pipeline-num-layers=",
    ),
    # Flags of other programs, put after the wrong one
    (
        "belongs to the launcher: put it before pretrain_gpt.py",
        "--hostfile= --include= --exclude= --num_nodes= --num_gpus= --num_accelerators= --master_port= --master_addr="
        " --node_rank= --no_local_rank --module --no_python --launcher= --launcher_args= --force_multi --ssh_port="
        " --save_pid --enable_each_rank_log= --bind_cores_to_rank --bind_core_list= --no_ssh --no_ssh_check"
        " --log_level= --quiet --dry-run --install-shim= --nproc_per_node= --nnodes=",
    ),
    (
        "belongs to the launcher and is out of scope there: resume on another number of ranks with a new launch",
        "--autotuning= --elastic_training --min_elastic_nodes= --max_elastic_nodes= --venv_script=",
    ),
    (
        "belongs to tools/preprocess_data.py",
        "--input= --json-keys* --split-sentences --keep-newlines --append-eod --lang= --output-prefix= --dataset-impl="
        " --workers= --partitions= --on-error= --no-special-tokens",
    ),
    (
        "belongs to text generation, which comes later as `mz generate`",
        "--temperature= --greedy --top_p= --top-p= --top_k= --top-k= --out-seq-length= --sample-input-file="
        " --sample-output-file= --num-samples= --genfile= --recompute",
    ),
    (
        "belongs to a converter, which comes later as `mz convert`",
        "--model-type= --loader= --saver= --load-dir= --save-dir= --max-queue-size= --no-checking"
        " --target-tensor-parallel-size= --target-pipeline-parallel-size= --true-vocab-size= --megatron-path="
        " --input_folder= --output_folder= --num_extract_workers= --num_merge_workers= --keep_temp_folder --no_strict"
        " --inject_missing_state --max_shard_size= --safe_serialization --tag= --exclude_frozen_parameters --debug"
        " --hf-ckpt-dir= --hf-ckpt-num-shards= --load-mode= --to-hf-ckpt --target_tp= --target_pp= --for_release",
    ),
    (
        "belongs to an evaluation tool, which is not built yet",
        "--task_list= --results_path= --adaptive_seq_len --num_fewshot= --eval_fp32 --task= --valid-data*"
        " --overlapping-eval= --strict-lambada",
    ),
    (
        "belongs to `mz bench-io`, which is not built yet",
        "--nvme_dir= --sweep_config= --read --io_size= --block_size= --queue_depth= --io_parallel= --single_submit"
        " --sequential_requests --folder_to_device_mapping= --loops= --flush_page_cache --tune",
    ),
)

NO_EFFECT: Final[tuple[tuple[str, str], ...]] = (
    (
        "no effect on a dense model",
        "--moe-loss-coeff= --moe-train-capacity-factor= --moe-eval-capacity-factor= --moe-min-capacity="
        " --create-moe-param-group --disable-moe-token-dropping --disable-moe-top2-2nd-expert-sampling"
        " --expert-interval= --moe-router-topk= --moe-layer-freq= --moe-aux-loss-coeff= --moe-expert-capacity-factor=",
    ),
    (
        "no effect: no such fused kernel is used here",
        "--no-masked-softmax-fusion --no-bias-dropout-fusion --no-persist-layer-norm --no-gradient-accumulation-fusion"
        " --disable-mem-efficient-ln --no-contiguous-buffers-in-local-ddp",
    ),
    ("no effect: queries times keys are never scaled by the layer's number", "--no-query-key-layer-scaling"),
    ("no effect: gradients are always accumulated in fp32", "--accumulate-allreduce-grads-in-fp32"),
    ("no effect: the pipeline size is 1", "--no-overlap-p2p-communication"),
    ("no effect: weights never depend on device or layout", "--use-cpu-initialization"),
    ("no effect: it is always so", "--zero-reduce-scatter --zero-contigious-gradients"),
    ("no effect: the Adam of the GPU's share is chosen by the package", "--ds_fused_adam"),
    ("no effect: master weights and moments are fp32", "--use-precision-aware-optimizer"),
    ("no effect: the log line always has it", "--log-throughput --log-device-memory-used"),
)

# Values of built knobs that upstream knows and this project does not: field path -> value -> sentence.
REFUSED_VALUES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "tokenizer.tokenizer_type": {
            "TikTokenizer": f"{LATER}: use GPT2BPETokenizer, SentencePieceTokenizer or HFTokenizer with local files",
            "BertWordPieceLowerCase": "out of scope: there is no BERT here",
            "BertWordPieceCase": "out of scope: there is no BERT here",
        },
        "model.position_embedding_type": {
            "yarn": "out of scope: use rope, learned_absolute or none",
            "mrope": "out of scope, it is for images: use rope, learned_absolute or none",
            "relative": "out of scope, it is T5's: use rope, learned_absolute or none",
        },
        "schedule.lr_decay_style": {
            "inverse-square-root": f"{LATER}: use constant, linear or cosine",
            "WSD": f"{LATER}: use constant, linear or cosine",
        },
        "data.dataloader_type": {"external": "out of scope: the program reads --data-path itself"},
        "data.data_impl": {
            "lazy": "retired: run tools/preprocess_data.py again, then use mmap",
            "cached": "retired: run tools/preprocess_data.py again, then use mmap",
        },
        "parallel.distributed_backend": {
            "ccl": "out of scope: use nccl or gloo",
            "hccl": "out of scope: use nccl or gloo",
        },
        "zero.offload_optimizer.device": {"nvme": f"{LATER}: use cpu or none"},
        "zero.offload_optimizer.ratio": {"auto": f"{LATER}: give a number from 0 to 1"},
        "zero.offload_optimizer.step_policy": {
            "deadline": f"{LATER}: use sync (all policies give the same bits)",
            "speculative": f"{LATER}: use sync (all policies give the same bits)",
        },
        "zero.prescale_gradients": {
            "true": f"{LATER}: use false (gradients are averaged in fp32, which needs no prescale)"
        },
        "adam.type": {
            "OneBitAdam": "out of scope: use Adam or AdamW",
            "OneBitLamb": "out of scope: use Adam or AdamW",
            "ZeroOneAdam": "out of scope: use Adam or AdamW",
            "Lamb": "out of scope: use Adam or AdamW",
            "Muon": "out of scope: use Adam or AdamW",
        },
    }
)


@dataclass(frozen=True, slots=True)
class ForeignFlag:
    """A known flag that is no knob. nargs: argparse's (0 = switch). off: values that ask for nothing."""

    name: str
    nargs: int | str
    off: tuple[str, ...]
    says: str
    refused: bool

    def is_refused(self, words: list[str]) -> bool:
        """Whether the flag with these words asks for something that is not here."""
        means_off = bool(words) and all(any(same_text(word, off) for off in self.off) for word in words)
        return self.refused and not means_off


def foreign_flags() -> dict[str, ForeignFlag]:
    """flag -> ForeignFlag of both tables above."""
    flags: dict[str, ForeignFlag] = {}
    for table, refused in ((REFUSED, True), (NO_EFFECT, False)):
        for says, words in table:
            for word in words.split():
                flag = _parse_notation(word, says, refused=refused)
                if flag.name in flags:
                    raise ValueError(f"{flag.name} stands twice in the tables of refused.py")
                flags[flag.name] = flag
    return flags


def _parse_notation(word: str, says: str, *, refused: bool) -> ForeignFlag:
    match = re.fullmatch(r"(--[\w-]+)([*?]?)(=?)(.*)", word)
    if match is None:
        raise ValueError(f"{word!r} is no flag in the notation of refused.py")
    name, many, takes_value, off = match.groups()
    nargs: int | str = many or (1 if takes_value else 0)
    return ForeignFlag(name, nargs, tuple(off.split("|")) if off else (), says, refused)
