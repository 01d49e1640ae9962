#!/bin/bash
# ds_pretrain_gpt_2.7B.sh shrunk by its variables: about 1.3 million weights, minutes on two cores.
# One process per GPU; without a GPU two processes on the CPU. Each variable can be set from the environment.
#
# It wants data: quickstart.sh makes some and then runs this script. By itself it reads what quickstart.sh left.
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

[[ ${NAME:-} != "${HOSTNAME:-}" ]] || NAME=''  # as in the 2.7B script
export MODEL_SIZE=${MODEL_SIZE:-0.001} NAME=${NAME:-gpt-tiny}
export NUM_LAYERS=${NUM_LAYERS:-4}
export HIDDEN_SIZE=${HIDDEN_SIZE:-128}
export NUM_ATTN_HEADS=${NUM_ATTN_HEADS:-4}
export SEQ_LEN=${SEQ_LEN:-128}
export INIT_STD=${INIT_STD:-0.02}
export DROPOUT=${DROPOUT:-0.0}

# A small model takes a large learning rate.
export LR=${LR:-2.0e-3}
export MIN_LR=${MIN_LR:-2.0e-4}

# Processes, and the smallest global batch of at least 16 samples that they can share evenly.
if [[ -z ${NUM_GPUS:-} ]]; then
    find_python
    export MZ_PYTHON
    NUM_GPUS=$("${MZ_PYTHON}" -m megatron_zero.launcher.machine)
    [[ ${NUM_GPUS} != 0 ]] || NUM_GPUS=2
fi
export NUM_GPUS BATCH_SIZE=${BATCH_SIZE:-4}
require_integers NUM_GPUS BATCH_SIZE SEQ_LEN
[[ ${NUM_GPUS} -gt 0 ]] || die "NUM_GPUS=${NUM_GPUS}: leave it unset for one process per GPU, or give 1 or more"
samples_at_once=$((NUM_GPUS * BATCH_SIZE))
export GLOBAL_BATCH_SIZE=${GLOBAL_BATCH_SIZE:-$(((15 / samples_at_once + 1) * samples_at_once))}
export RAMPUP_BATCH_SIZE=${RAMPUP_BATCH_SIZE-}

# The schedule covers SCHEDULE_STEPS, and the run ends after TRAIN_STEPS of them: a run that stops half way and one that
# resumes it see the same learning rates and the same data order as one long run.
TRAIN_STEPS=${TRAIN_STEPS:-600}
SCHEDULE_STEPS=${SCHEDULE_STEPS:-$((2 * TRAIN_STEPS))}
require_integers TRAIN_STEPS SCHEDULE_STEPS GLOBAL_BATCH_SIZE
tokens_per_step=$((GLOBAL_BATCH_SIZE * SEQ_LEN))
export TRAIN_TOKENS=${TRAIN_TOKENS:-$((TRAIN_STEPS * tokens_per_step))}
export TRAIN_SAMPLES=${TRAIN_SAMPLES:-$((SCHEDULE_STEPS * GLOBAL_BATCH_SIZE))}
export LR_DECAY_TOKENS=${LR_DECAY_TOKENS:-$((SCHEDULE_STEPS * tokens_per_step))}
export WARMUP_TOKENS=${WARMUP_TOKENS:-$((SCHEDULE_STEPS * tokens_per_step / 20))}

export ZERO_STAGE=${ZERO_STAGE:-3} OFFLOAD_DEVICE=${OFFLOAD_DEVICE:-cpu} OFFLOAD_RATIO=${OFFLOAD_RATIO:-0.5}
export ACTIVATION_CHECKPOINT=${ACTIVATION_CHECKPOINT:-false}
export PRECISION=${PRECISION:-bf16}
if [[ ${PRECISION} == bf16 ]]; then
    export PRECISION_FLAG=${PRECISION_FLAG---bf16}
fi

export LOG_INTERVAL=${LOG_INTERVAL:-10} EVAL_INTERVAL=${EVAL_INTERVAL:-100} EVAL_ITERS=${EVAL_ITERS:-10}
export SAVE_INTERVAL=${SAVE_INTERVAL:-200}

quickstart=${MZ_QUICKSTART_DIR:-${MZ_ROOT}/quickstart_output}
export TOKENIZER_TYPE=${TOKENIZER_TYPE:-GPTSentencePieceTokenizer}
if [[ ${TOKENIZER_TYPE} == GPTSentencePieceTokenizer ]]; then
    export TOKENIZER_MODEL=${TOKENIZER_MODEL:-${quickstart}/data/tokenizer.model}
fi
export DATA_PATH=${DATA_PATH:-${quickstart}/data/python_text_document}
export OUTPUT_BASEPATH=${OUTPUT_BASEPATH:-${quickstart}}
# One folder and one file for all runs, so that a resumed run goes on with the same curves.
export TENSORBOARD_DIR=${TENSORBOARD_DIR:-${OUTPUT_BASEPATH}/tensorboard/${NAME}}
export LOG_JSONL=${LOG_JSONL:-${OUTPUT_BASEPATH}/log/${NAME}.jsonl}

exec bash "${MZ_SCRIPTS}/ds_pretrain_gpt_2.7B.sh"
