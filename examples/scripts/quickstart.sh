#!/bin/bash
# From a fresh machine to a trained tiny GPT with one command:
#
#   bash examples/scripts/quickstart.sh                      makes .venv here and uses it
#   PYTHON=/path/to/python bash examples/scripts/quickstart.sh      uses that environment
#
# Text is the Python standard library's own source. A first run trains half of the schedule, a second one resumes and
# trains the other half, a third one has nothing left to do. A run that was interrupted is resumed by the next.
#
#   MZ_QUICKSTART_DIR   where everything goes (quickstart_output in the project)
#   STEPS_PER_RUN       optimizer steps of one run; and every variable of ds_pretrain_gpt_tiny.sh
set -euo pipefail
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

# What the caller has set, for the command that is shown at the end.
given=''
for name in PYTHON MZ_QUICKSTART_DIR STEPS_PER_RUN; do
    [[ -z ${!name:-} ]] || printf -v given '%s%s=%q ' "${given}" "${name}" "${!name}"
done

STEPS_PER_RUN=${STEPS_PER_RUN:-600}
require_integers STEPS_PER_RUN
[[ ${STEPS_PER_RUN} -gt 0 ]] || die "STEPS_PER_RUN=${STEPS_PER_RUN} must be 1 or more"

work=${MZ_QUICKSTART_DIR:-${MZ_ROOT}/quickstart_output}
mkdir -p -- "${work}/data" || die "cannot make MZ_QUICKSTART_DIR=${work}"
work=$(CDPATH='' cd -- "${work}" && pwd)
export NAME=gpt-tiny OUTPUT_BASEPATH=${work} MZ_QUICKSTART_DIR=${work}
export CHECKPOINT_PATH=${CHECKPOINT_PATH:-${work}/checkpoint/${NAME}}

# Two of these in one folder would overwrite each other; the lock goes when the last process that holds it ends.
if command -v flock >/dev/null; then
    exec {lock_fd}>"${work}/.lock"
    flock -n "${lock_fd}" || die "another quickstart is running in ${work}; wait for it, or set MZ_QUICKSTART_DIR"
fi

say() { printf '\n== %s\n' "$*"; }

# finished_steps: iteration of the newest checkpoint, 0 where there is none.
finished_steps() {
    local pointer=${CHECKPOINT_PATH}/latest_checkpointed_iteration.txt iteration=0
    if [[ -f ${pointer} ]]; then
        iteration=$(<"${pointer}")
        [[ ${iteration} =~ ^[0-9]+$ ]] || die "${pointer} holds '${iteration}', not a number; remove ${work}/checkpoint to start over"
    fi
    printf '%s' "$((10#${iteration}))"
}

# step TITLE OUTPUT... -- COMMAND...: run COMMAND unless every OUTPUT is there (the tools publish only complete files).
step() {
    local title=$1 output missing=0
    shift
    local -a outputs=()
    while [[ $1 != -- ]]; do
        outputs+=("$1")
        shift
    done
    shift
    for output in "${outputs[@]}"; do
        [[ -f ${output} ]] || missing=1
    done
    if [[ ${missing} == 0 ]]; then
        say "${title}: done before (${outputs[0]})"
        return
    fi
    say "${title}"
    run_forwarding "$@"
}

say "1/5 environment"
source "${MZ_SCRIPTS}/setup_env.sh"

text=${work}/data/python.jsonl
tokenizer=${work}/data/tokenizer.model
dataset=${work}/data/python_text_document
step "2/5 text: the standard library's source" "${text}" -- \
    "${MZ_PYTHON}" "${MZ_ROOT}/tools/collect_python_sources.py" --output "${text}"
step "3/5 tokenizer: 4096 pieces" "${tokenizer}" -- \
    "${MZ_PYTHON}" "${MZ_ROOT}/tools/train_sentencepiece.py" --input "${text}" --output "${tokenizer}" \
    --vocab-size 4096 --max-characters 5000000
step "4/5 dataset: .bin and .idx" "${dataset}.bin" "${dataset}.idx" -- \
    "${MZ_PYTHON}" "${MZ_ROOT}/tools/preprocess_data.py" --input "${text}" --output-prefix "${work}/data/python" \
    --tokenizer-type GPTSentencePieceTokenizer --tokenizer-model "${tokenizer}" --append-eod --workers 2

done_before=$(finished_steps)
if [[ ${done_before} -ge $((2 * STEPS_PER_RUN)) ]]; then
    say "5/5 training: complete"
    printf 'Both runs are complete (%s steps); nothing is left to do. To start over: rm -r %q %q %q\n' \
        "${done_before}" "${work}/checkpoint" "${work}/tensorboard" "${work}/log"
    exit 0
fi
target=$(((done_before / STEPS_PER_RUN + 1) * STEPS_PER_RUN))
say "5/5 training: steps $((done_before + 1)) to ${target} of $((2 * STEPS_PER_RUN))"
TRAIN_STEPS=${target} SCHEDULE_STEPS=$((2 * STEPS_PER_RUN)) TOKENIZER_MODEL=${tokenizer} DATA_PATH=${dataset} \
    run_forwarding bash "${MZ_SCRIPTS}/ds_pretrain_gpt_tiny.sh"

reached=$(finished_steps)
printf -v again '%sbash %q' "${given}" "$0"
if [[ ${reached} -lt ${target} ]]; then
    next="the run stopped at step ${reached} of ${target}; the same command goes on from there: ${again}"
elif [[ ${reached} -lt $((2 * STEPS_PER_RUN)) ]]; then
    next="${again}   (resumes at step ${reached} and trains ${STEPS_PER_RUN} more)"
else
    printf -v next 'DRY_RUN=1 %sbash %q   (shows how the same script trains 2.7B)' \
        "${PYTHON:+PYTHON=${PYTHON@Q} }" "${MZ_SCRIPTS}/ds_pretrain_gpt_2.7B.sh"
fi
say "finished"
printf 'Made:      %s: checkpoint of step %s, TensorBoard events, log/%s.jsonl, data\n' "${work}" "${reached}" "${NAME}"
printf 'Dashboard: %q -m tensorboard.main --logdir %q\n' "${MZ_PYTHON}" "${work}/tensorboard"
printf 'Next:      %s\n' "${next}"
