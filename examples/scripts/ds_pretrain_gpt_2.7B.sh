#!/bin/bash
# GPT-3 2.7B with ZeRO stage 3 and the optimizer partly on the CPU (OFFLOAD_RATIO of its elements).
#
#   bash ds_pretrain_gpt_2.7B.sh                      train
#   DRY_RUN=1 bash ds_pretrain_gpt_2.7B.sh            show the filled JSON and the command, check both, start nothing
#   NUM_GPUS=2 BATCH_SIZE=4 bash ds_pretrain_gpt_2.7B.sh
#
# Every variable below can be set from the environment. EXTRA_ARGS is appended to the command line.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

###############################################################################
### Model (GPT-3 paper, table 2.1)
MODEL_SIZE=${MODEL_SIZE:-2.7}
NUM_LAYERS=${NUM_LAYERS:-32}
HIDDEN_SIZE=${HIDDEN_SIZE:-2560}
NUM_ATTN_HEADS=${NUM_ATTN_HEADS:-32}
SEQ_LEN=${SEQ_LEN:-2048}
INIT_STD=${INIT_STD:-0.011}
DROPOUT=${DROPOUT:-0.1}
ATTENTION_DROPOUT=${ATTENTION_DROPOUT:-${DROPOUT}}
HIDDEN_DROPOUT=${HIDDEN_DROPOUT:-${DROPOUT}}

###############################################################################
### Run length and learning rate. The run ends at TRAIN_TOKENS or after EXIT_DURATION minutes, whichever comes first.
### TRAIN_SAMPLES only sizes the sample index, so it is larger than needed on purpose.
TRAIN_TOKENS=${TRAIN_TOKENS:-300000000000}
require_integers TRAIN_TOKENS SEQ_LEN
TRAIN_SAMPLES=${TRAIN_SAMPLES:-$((TRAIN_TOKENS * 3 / SEQ_LEN))}
EXIT_DURATION=${EXIT_DURATION:-30000000}
LR=${LR:-1.6e-4}
MIN_LR=${MIN_LR:-1.6e-5}
WARMUP_TOKENS=${WARMUP_TOKENS:-375000000}
LR_DECAY_TOKENS=${LR_DECAY_TOKENS:-260000000000}
SEED=${SEED:-1234}

###############################################################################
### Batch and parallelism. BATCH_SIZE is the micro-batch of one GPU; "START INCREMENT SAMPLES" ramps the global
### batch up, and an empty RAMPUP_BATCH_SIZE turns that off. NUM_GPUS=-1: every visible GPU.
GLOBAL_BATCH_SIZE=${GLOBAL_BATCH_SIZE:-512}
BATCH_SIZE=${BATCH_SIZE:-2}
RAMPUP_BATCH_SIZE=${RAMPUP_BATCH_SIZE-32 32 1953125}
MP_SIZE=${MP_SIZE:-1}
PP_SIZE=${PP_SIZE:-1}
NUM_GPUS=${NUM_GPUS:-8}
EP_SIZE=${EP_SIZE:-1}
require_integers GLOBAL_BATCH_SIZE BATCH_SIZE MP_SIZE PP_SIZE NUM_GPUS EP_SIZE
EP_PARALLEL_SIZE=${EP_PARALLEL_SIZE:-$((EP_SIZE > NUM_GPUS && NUM_GPUS > 0 ? NUM_GPUS : EP_SIZE))}

### Mixture of experts: without effect while EP_SIZE is 1
MLC=${MLC:-0.01}
MOE_TRAIN_CAP_FACTOR=${MOE_TRAIN_CAP_FACTOR:-1.0}
MOE_EVAL_CAP_FACTOR=${MOE_EVAL_CAP_FACTOR:-1.0}
MOE_MIN_CAP=${MOE_MIN_CAP:-4}
MOE_DROP_TOKEN=${MOE_DROP_TOKEN:-true}
require_booleans MOE_DROP_TOKEN

### Curriculum by sequence length: acts only with a template that has its words
CL_ENABLED=${CL_ENABLED:-false}
CL_START_SEQLEN=${CL_START_SEQLEN:-80}
CL_TOKENS=${CL_TOKENS:-60000000000}
require_integers CL_START_SEQLEN CL_TOKENS
CL_STEP=${CL_STEP:-$((CL_TOKENS / (GLOBAL_BATCH_SIZE * ((CL_START_SEQLEN + SEQ_LEN) / 2))))}

###############################################################################
### Memory: ZeRO stage; which share of the optimizer is on the CPU (0 to 1; OFFLOAD_DEVICE=none: no offload)
ZERO_STAGE=${ZERO_STAGE:-3}
OFFLOAD_DEVICE=${OFFLOAD_DEVICE:-cpu}
OFFLOAD_RATIO=${OFFLOAD_RATIO:-0.3}
ACTIVATION_CHECKPOINT=${ACTIVATION_CHECKPOINT:-true}
PRESCALE_GRAD=${PRESCALE_GRAD:-false}
PRECISION=${PRECISION:-bf16}
require_booleans ACTIVATION_CHECKPOINT PRESCALE_GRAD CL_ENABLED

###############################################################################
### Logging and output
LOG_INTERVAL=${LOG_INTERVAL:-1}
EVAL_ITERS=${EVAL_ITERS:-10}
EVAL_INTERVAL=${EVAL_INTERVAL:-100}
SAVE_INTERVAL=${SAVE_INTERVAL:-1000}
CURRENT_TIME=$(date "+%Y.%m.%d-%H.%M.%S")
HOST=${HOSTNAME:-localhost}
# Windows' Linux subsystem sets NAME to the host's name: that is not a name for a run.
[[ ${NAME:-} != "${HOST}" ]] || NAME=''
NAME=${NAME:-gpt-${MODEL_SIZE}B-lr-${LR}-minlr-${MIN_LR}-bs-${GLOBAL_BATCH_SIZE}-gpus-${NUM_GPUS}-mp-${MP_SIZE}-pp-${PP_SIZE}}
OUTPUT_BASEPATH=${OUTPUT_BASEPATH:-${PWD}/output}
TENSORBOARD_DIR=${TENSORBOARD_DIR:-${OUTPUT_BASEPATH}/tensorboard/${NAME}_${HOST}_${CURRENT_TIME}}
CHECKPOINT_PATH=${CHECKPOINT_PATH:-${OUTPUT_BASEPATH}/checkpoint/${NAME}}
LOG_JSONL=${LOG_JSONL:-}

###############################################################################
### Data. DATA_PATH: prefix of one .bin/.idx pair. DATA_BLEND: words "WEIGHT PREFIX WEIGHT PREFIX ...", or one prefix.
TOKENIZER_TYPE=${TOKENIZER_TYPE:-GPT2BPETokenizer}
TOKENIZER_MODEL=${TOKENIZER_MODEL:-}
VOCAB_PATH=${VOCAB_PATH:-${MZ_ROOT}/dataset/gpt2-vocab.json}
MERGE_PATH=${MERGE_PATH:-${MZ_ROOT}/dataset/gpt2-merges.txt}
DATA_PATH=${DATA_PATH:-${MZ_ROOT}/dataset/gpt2_text_document}
DATA_BLEND=${DATA_BLEND:-}
if [[ -n ${DATA_BLEND} ]]; then
    read -r -a data_path <<<"${DATA_BLEND}"
else
    data_path=("${DATA_PATH}")
fi

case ${PRECISION} in
    # --fp16 beside a JSON that turns bf16 on is what this script has always sent; bf16 wins, and the run says so.
    bf16) FP16_ENABLED=false BF16_ENABLED=true PRECISION_FLAG=${PRECISION_FLAG---fp16} ;;
    fp16) FP16_ENABLED=true BF16_ENABLED=false PRECISION_FLAG=${PRECISION_FLAG---fp16} ;;
    fp32) FP16_ENABLED=false BF16_ENABLED=false PRECISION_FLAG=${PRECISION_FLAG-} ;;
    *) die "PRECISION=${PRECISION} is not one of bf16, fp16, fp32" ;;
esac

###############################################################################
data_options=(
    --data-path "${data_path[@]}"
    --data-impl mmap)
if [[ ${TOKENIZER_TYPE} == GPT2BPETokenizer ]]; then
    data_options+=(--vocab-file "${VOCAB_PATH}" --merge-file "${MERGE_PATH}")
else
    data_options+=(--tokenizer-type "${TOKENIZER_TYPE}")
fi
if [[ -n ${TOKENIZER_MODEL} ]]; then
    data_options+=(--tokenizer-model "${TOKENIZER_MODEL}")
fi

megatron_options=(
    --override-opt_param-scheduler
    --adam-beta1 0.9
    --adam-beta2 0.95
    --tensor-model-parallel-size "${MP_SIZE}"
    --moe-expert-parallel-size "${EP_PARALLEL_SIZE}"
    --num-experts "${EP_SIZE}"
    --moe-loss-coeff "${MLC}"
    --moe-train-capacity-factor "${MOE_TRAIN_CAP_FACTOR}"
    --moe-eval-capacity-factor "${MOE_EVAL_CAP_FACTOR}"
    --moe-min-capacity "${MOE_MIN_CAP}"
    --init-method-std "${INIT_STD}"
    --lr-decay-tokens "${LR_DECAY_TOKENS}"
    --lr-warmup-tokens "${WARMUP_TOKENS}"
    --micro-batch-size "${BATCH_SIZE}"
    --exit-duration-in-mins "${EXIT_DURATION}"
    --global-batch-size "${GLOBAL_BATCH_SIZE}"
    --num-layers "${NUM_LAYERS}"
    --hidden-size "${HIDDEN_SIZE}"
    --num-attention-heads "${NUM_ATTN_HEADS}"
    --seq-length "${SEQ_LEN}"
    --max-position-embeddings "${SEQ_LEN}"
    --train-tokens "${TRAIN_TOKENS}"
    --train-samples "${TRAIN_SAMPLES}"
    --lr "${LR}"
    --min-lr "${MIN_LR}"
    --lr-decay-style cosine
    --split 98,2,0
    --log-interval "${LOG_INTERVAL}"
    --eval-interval "${EVAL_INTERVAL}"
    --eval-iters "${EVAL_ITERS}"
    --save-interval "${SAVE_INTERVAL}"
    --weight-decay 0.1
    --clip-grad 1.0
    --hysteresis 2
    --num-workers 0
    --attention-dropout "${ATTENTION_DROPOUT}"
    --hidden-dropout "${HIDDEN_DROPOUT}"
    --seed "${SEED}"
    --load "${CHECKPOINT_PATH}"
    --save "${CHECKPOINT_PATH}"
    --tensorboard-queue-size 1
    --log-timers-to-tensorboard
    --timing-log-level 1
    --distributed-timeout-minutes 60
    --log-batch-size-to-tensorboard
    --log-validation-ppl-to-tensorboard
    --tensorboard-dir "${TENSORBOARD_DIR}")

if [[ -n ${RAMPUP_BATCH_SIZE} ]]; then
    read -r -a rampup <<<"${RAMPUP_BATCH_SIZE}"
    megatron_options+=(--rampup-batch-size "${rampup[@]}")
fi
if [[ -n ${PRECISION_FLAG} ]]; then
    megatron_options+=("${PRECISION_FLAG}")
fi
if [[ ${PP_SIZE} -eq 1 ]]; then
    megatron_options+=(--no-pipeline-parallel)
fi
if [[ ${OFFLOAD_DEVICE} != none ]]; then
    megatron_options+=(--cpu-optimizer)
fi
if [[ ${ACTIVATION_CHECKPOINT} == true ]]; then
    megatron_options+=(--checkpoint-activations)
fi
if [[ ${EP_SIZE} -gt 1 ]]; then
    megatron_options+=(--create-moe-param-group)
fi
if [[ ${MOE_DROP_TOKEN} == false ]]; then
    megatron_options+=(--disable-moe-token-dropping)
fi
if [[ -n ${LOG_JSONL} ]]; then
    megatron_options+=(--log-jsonl "${LOG_JSONL}")
fi

make_config "${TEMPLATE_JSON:-${MZ_SCRIPTS}/ds_config_gpt_TEMPLATE.json}"
deepspeed_options=(
    --deepspeed
    --deepspeed_config "${CONFIG_JSON}"
    --pipeline-model-parallel-size "${PP_SIZE}")
if [[ ${ACTIVATION_CHECKPOINT} == true ]]; then
    deepspeed_options+=(--deepspeed-activation-checkpointing)
fi

read -r -d '' -a extra_options <<<"${EXTRA_ARGS:-}" || true
run_training "${megatron_options[@]}" "${data_options[@]}" "${deepspeed_options[@]}" "${extra_options[@]}"
