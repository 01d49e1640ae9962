#!/usr/bin/env bash
# Sets up (or finds) the environment and runs everything that checks this project. Arguments go to pytest; if one of
# them is a file or folder, the tests of that one run instead of all.
#
#   bash tests/run.sh                         .venv at the project's root
#   PYTHON=/path/to/python bash tests/run.sh  an environment that has torch
#   MZ_SHARED=FOLDER                          reference data; tests that need it are skipped, and counted, without it
#
# A part that fails does not stop the others; the exit status tells. pytest's summary is the last line.
set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
[[ -z ${MZ_SHARED:-} ]] || MZ_SHARED=$(CDPATH='' cd -- "${MZ_SHARED}" && pwd -P)
MZ_EXTRAS="test"
export MZ_SHARED MZ_EXTRAS
source "${root}/examples/scripts/setup_env.sh"
cd -- "${root}"

# Several processes run at once in the distributed tests: one thread each.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

failed=()

part() { # part NAME COMMAND...
    local name=$1
    shift
    printf '\n== %s\n' "${name}"
    "$@" || failed+=("${name}")
}

python_tool() { # python_tool MODULE ARGUMENT...: a check whose tool may be missing in an environment named by PYTHON
    if [[ -n ${PYTHON:-} ]] && ! "${MZ_PYTHON}" -c "import $1" 2>/dev/null; then
        printf '\n== %s: NOT RUN: the package is not in the environment of %s\n' "$1" "${MZ_PYTHON}"
        return
    fi
    part "$1" "${MZ_PYTHON}" -m "$@"
}

python_tool ruff check .
python_tool mypy --strict megatron_zero
if command -v make >/dev/null; then
    part "csrc/tests" make --no-print-directory -C csrc/tests
else
    printf '\n== csrc/tests: NOT RUN: make is not installed\n'
fi

folders=()
chosen=0
for argument in "$@"; do
    [[ ! -e ${argument%%::*} ]] || chosen=1
done
for folder in tests/unit tests/architecture tests/distributed tests/end_to_end; do
    [[ ${chosen} == 1 || ! -d ${folder} ]] || folders+=("${folder}")
done
if [[ ${chosen} == 0 && -d tests/gpu ]] && "${MZ_PYTHON}" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    folders+=(tests/gpu)
fi

printf '\n== pytest %s\n' "${folders[*]} $*"
status=0
MZ_FAILED_PARTS="${failed[*]}" "${MZ_PYTHON}" -m pytest "${folders[@]}" "$@" || status=$?
[[ ${#failed[@]} == 0 ]] || exit 1
exit "${status}"
