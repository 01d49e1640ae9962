# shellcheck shell=bash
# What every training script shares: find the project and its python, fill the JSON template by sed, launch, keep a log.
# Sourced, never run. A script sets its variables, then calls fill_template and run_training; see ds_pretrain_gpt_2.7B.sh.

MZ_SCRIPTS=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
MZ_ROOT=$(CDPATH='' cd -- "${MZ_SCRIPTS}/../.." && pwd)

# Placeholder word of a template : shell variable whose value replaces it. A word that a template lacks is not needed.
TEMPLATE_WORDS=(
    CONFIG_BATCH_SIZE:GLOBAL_BATCH_SIZE
    CONFIG_MBSIZE:BATCH_SIZE
    LOG_INTERVAL:LOG_INTERVAL
    ZERO_STAGE:ZERO_STAGE
    PRESCALE_GRAD:PRESCALE_GRAD
    CONFIG_FP16_ENABLED:FP16_ENABLED
    CONFIG_BF16_ENABLED:BF16_ENABLED
    CONFIG_OFFLOAD_DEVICE:OFFLOAD_DEVICE
    CONFIG_OFFLOAD_RATIO:OFFLOAD_RATIO
    CONFIG_CL_ENABLED:CL_ENABLED
    CONFIG_CL_MIN:CL_START_SEQLEN
    CONFIG_CL_MAX:SEQ_LEN
    CONFIG_CL_DURATION:CL_STEP
)

die() {
    printf '%s: %s\n' "$(basename -- "$0")" "$*" >&2
    exit 2
}

# require_integers NAME...: each named variable holds a whole number, since bash arithmetic would misread "3e9" or "08".
require_integers() {
    local name
    for name in "$@"; do
        [[ ${!name:-} =~ ^(-?[1-9][0-9]*|0)$ ]] || die "${name}='${!name:-}' is not a whole number (digits only)"
    done
}

# require_booleans NAME...: each named variable is true or false; "True" or "1" would quietly mean false.
require_booleans() {
    local name
    for name in "$@"; do
        [[ ${!name:-} == true || ${!name:-} == false ]] || die "${name}='${!name:-}' is neither true nor false"
    done
}

# is_dry_run: DRY_RUN is set to anything but 0, false or nothing.
is_dry_run() {
    case ${DRY_RUN:-0} in
        0 | false) return 1 ;;
        *) return 0 ;;
    esac
}

# find_python: sets MZ_PYTHON to the python that has megatron_zero: MZ_PYTHON, PYTHON, an active one, then .venv.
find_python() {
    MZ_PYTHON=${MZ_PYTHON:-${PYTHON:-}}
    [[ -z ${MZ_PYTHON} ]] || return 0
    local candidate
    for candidate in python3 "${MZ_ROOT}/.venv/bin/python"; do
        # -I keeps the current folder off sys.path: a checkout that is not installed must not count.
        if "${candidate}" -I -c 'import importlib.util as u, sys; sys.exit(u.find_spec("megatron_zero") is None)' \
            2>/dev/null; then
            MZ_PYTHON=$(command -v "${candidate}")
            return 0
        fi
    done
    die "no python with megatron_zero was found. Run: bash ${MZ_SCRIPTS}/quickstart.sh, or name one: PYTHON=/path/to/python"
}

# find_mz: sets the arrays MZ_LAUNCH and MZ_CHECK: `mz launch` and `mz check-config` of MZ_PYTHON's environment.
find_mz() {
    find_python
    local beside
    beside=$(dirname -- "$(command -v "${MZ_PYTHON}" || printf '%s' "${MZ_PYTHON}")")/mz
    if [[ -x ${beside} ]]; then
        MZ_LAUNCH=("${beside}" launch)
        MZ_CHECK=("${beside}" check-config)
    else
        MZ_LAUNCH=("${MZ_PYTHON}" -m megatron_zero.launcher)
        MZ_CHECK=("${MZ_PYTHON}" -m megatron_zero.commands check-config)
    fi
}

# leftovers TEMPLATE: prints "line WORD" for each word that looks like a placeholder and is not in TEMPLATE_WORDS:
# bare capitals where a value belongs, or a quoted CONFIG_... or A_B word. Comments (# and //) do not count.
leftovers() {
    awk -v known=" ${TEMPLATE_WORDS[*]%%:*} " '
        function report(word) { if (index(known, " " word " ") == 0) print FNR, word }
        {
            pieces = split($0, piece, "\"")
            for (i = 1; i <= pieces; i++) {
                text = piece[i]
                quoted = i % 2 == 0
                comment = quoted ? 0 : match(text, /#|\/\//)
                if (comment) text = substr(text, 1, comment - 1)
                words = split(text, word, /[^A-Za-z0-9_]+/)
                for (j = 1; j <= words; j++) {
                    if (word[j] !~ /^([A-Z][A-Z0-9_]+|CL_[12][a-z][a-z]_[A-Z_]+)$/ || length(word[j]) < 4) continue
                    if (!quoted || word[j] ~ /^CONFIG_/ || (text == word[j] && word[j] ~ /_/)) report(word[j])
                }
                if (comment) next
            }
        }' "$1"
}

# fill_template TEMPLATE OUTPUT: every placeholder of TEMPLATE replaced; stops, and names the placeholder and its
# shell variable, when one cannot be. Any value is taken literally (/ and & too); CRLF line ends become LF.
fill_template() {
    local template=$1 output=$2 pair word variable value line
    local -a expressions=(-e 's/\r$//')
    [[ -f ${template} ]] || die "TEMPLATE_JSON=${template} does not exist"
    for pair in "${TEMPLATE_WORDS[@]}"; do
        word=${pair%%:*}
        variable=${pair#*:}
        line=$(grep -nw -m 1 -- "${word}" "${template}" | cut -d: -f1) || true
        [[ -n ${line} ]] || continue
        value=${!variable:-}
        [[ -n ${value} ]] ||
            die "${template} line ${line}: placeholder ${word} needs the shell variable ${variable}, which is unset or empty"
        [[ ${value} != *[$'\n\r']* ]] || die "${variable} (for placeholder ${word}) holds a line end: '${value@Q}'"
        value=$(printf '%s' "${value}" | sed 's/[\/&\\]/\\&/g')
        expressions+=(-e "s/\\b${word}\\b/${value}/g")
    done
    line=$(leftovers "${template}" | while read -r number word; do printf ' %s (line %s)' "${word}" "${number}"; done)
    [[ -z ${line} ]] ||
        die "${template}: no shell variable fills:${line}. Write the value there, or add the word to TEMPLATE_WORDS in common.sh"
    sed "${expressions[@]}" -- "${template}" >"${output}" || die "cannot write ${output}"
}

# make_config TEMPLATE: sets CONFIG_JSON to a filled file that no other run shares. Kept beside the logs as a record
# of the run; under DRY_RUN=1 it is a temporary file, and OUTPUT_BASEPATH is not touched.
make_config() {
    if is_dry_run; then
        MZ_SCRATCH=$(mktemp -d) || die "cannot make a temporary folder"
        trap 'rm -rf -- "${MZ_SCRATCH}"' EXIT
        CONFIG_JSON=${MZ_SCRATCH}/ds_config_gpt_${NAME}.json
    else
        mkdir -p -- "${OUTPUT_BASEPATH}/config" "${OUTPUT_BASEPATH}/log" ||
            die "cannot make folders below OUTPUT_BASEPATH=${OUTPUT_BASEPATH}"
        CONFIG_JSON=$(mktemp "${OUTPUT_BASEPATH}/config/ds_config_gpt_${NAME}_XXXXXX.json") ||
            die "cannot write below OUTPUT_BASEPATH=${OUTPUT_BASEPATH}"
    fi
    fill_template "$1" "${CONFIG_JSON}"
}

# show_command WORD...: the command as a shell would take it, a new line at each flag.
show_command() {
    local word shown separator=''
    for word in "$@"; do
        shown=${word}
        [[ ${word} =~ ^[A-Za-z0-9_./:,=+@%-]+$ ]] || printf -v shown '%q' "${word}"
        if [[ ${word} == --?* ]]; then separator=${separator:+$' \\\n    '}; fi
        printf '%s%s' "${separator}" "${shown}"
        separator=' '
    done
    printf '\n'
}

# run_forwarding COMMAND...: run it and return its exit code. TERM, INT and HUP reach it as TERM (bash starts it with INT
# ignored, and by itself would leave it running), and this shell waits for it to end.
run_forwarding() {
    local pid='' signalled='' code
    # Set before the start: a signal may come as soon as the command runs.
    trap 'signalled=1; [[ -z ${pid} ]] || kill -TERM "${pid}" 2>/dev/null || true' TERM INT HUP
    "$@" &
    pid=$!
    [[ -z ${signalled} ]] || kill -TERM "${pid}" 2>/dev/null || true
    while true; do
        signalled='' code=0
        wait "${pid}" || code=$?
        # A trap ends wait with the signal's code, and the command may end just then: only a wait that no trap has
        # ended tells the command's own code.
        [[ -n ${signalled} ]] || break
    done
    trap - TERM INT HUP
    return "${code}"
}

# run_logged LOG COMMAND...: run_forwarding, with the output on the terminal and in LOG.
run_logged() {
    local log=$1 log_fd tee_pid code=0
    shift
    # tee ignores the signals, so that the last lines (a checkpoint being saved) are kept.
    exec {log_fd}> >(trap '' TERM INT HUP && exec tee -- "${log}")
    tee_pid=$!
    run_forwarding "$@" >&"${log_fd}" 2>&1 {log_fd}>&- || code=$?
    exec {log_fd}>&-
    wait "${tee_pid}" || true
    return "${code}"
}

# run_training FLAG...: launch pretrain_gpt.py with these flags, or, under DRY_RUN=1, show and check what would run.
# Exits with the code of the launcher or of the check. LAUNCHER (words) and LAUNCHER_ARGS replace `mz launch` and its
# flags, for example LAUNCHER=torchrun LAUNCHER_ARGS="--nproc_per_node 8".
run_training() {
    local code=0
    local -a launch launch_args
    if [[ -n ${LAUNCHER:-} ]]; then
        read -r -a launch <<<"${LAUNCHER}"
    else
        find_mz
        launch=("${MZ_LAUNCH[@]}")
    fi
    read -r -a launch_args <<<"${LAUNCHER_ARGS---num_gpus ${NUM_GPUS}}"
    local -a command=("${launch[@]}" "${launch_args[@]}" "${MZ_ROOT}/pretrain_gpt.py" "$@")
    if is_dry_run; then
        printf '# %s\n' "${CONFIG_JSON}"
        cat -- "${CONFIG_JSON}"
        printf '\n# command\n'
        show_command "${command[@]}"
        printf '\n# check\n'
        find_mz
        "${MZ_CHECK[@]}" --config "${CONFIG_JSON}" -- "$@" || code=$?
        exit "${code}"
    fi
    local log
    log=${OUTPUT_BASEPATH}/log/$(basename -- "${CONFIG_JSON}" .json | sed 's/^ds_config_gpt_//')_${CURRENT_TIME}.log
    show_command "${command[@]}"
    run_logged "${log}" "${command[@]}" || code=$?
    [[ ${code} == 0 ]] || printf '%s: the run ended with code %s; its output is in %s\n' "$(basename -- "$0")" "${code}" "${log}" >&2
    exit "${code}"
}
