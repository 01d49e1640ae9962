#!/usr/bin/env bash
# Makes, or finds, the Python environment that runs this project. The second run of an unchanged checkout is quick.
#
#   source examples/scripts/setup_env.sh      sets and exports MZ_PYTHON, the interpreter to use; fails with a status
#   bash examples/scripts/setup_env.sh        does the same and prints MZ_PYTHON=...
#
# Variables:
#   PYTHON                 an interpreter whose environment has torch already: used as it is, without network, and given
#                          nothing but this package. Unset: .venv at the project's root, made when it is not there.
#   MZ_TORCH_REQUIREMENT   what to ask pip for, instead of torch==2.13.0; only for .venv
#   MZ_EXTRAS              optional dependencies of pyproject.toml: test
#   MZ_MIN_FREE_GIB        disk space asked for before torch is installed, instead of 4
#
# Progress goes to stderr. Sourcing changes nothing in the caller but MZ_PYTHON: the work is done by a child process.

if [[ ${BASH_SOURCE[0]} != "$0" ]]; then
    MZ_PYTHON=$(bash -- "${BASH_SOURCE[0]}") || return
    MZ_PYTHON=${MZ_PYTHON#MZ_PYTHON=}
    export MZ_PYTHON
    return 0
fi

set -euo pipefail

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd -P)
probe=${root}/examples/scripts/setup_probe.py
venv=${root}/.venv
given=${PYTHON:-}
extras=${MZ_EXTRAS:-}
torch_requirement=${MZ_TORCH_REQUIREMENT:-}
default_torch=torch==2.13.0
min_free_gib=${MZ_MIN_FREE_GIB:-4}
build_free_gib=1 # enough for the extension and pip's files when torch is there already

# One entry for each thing that is missing, and the names of packages that bring it.
missing=()
packages=()
debian=()
fedora=()
conda=()

say() { printf 'setup: %s\n' "$*" >&2; }

die() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

lacks() { # lacks WHAT DEBIAN FEDORA CONDA: notes a missing thing; an empty package name means none
    missing+=("$1")
    [[ -z $2 ]] || debian+=("$2")
    [[ -z $3 ]] || fedora+=("$3")
    [[ -z $4 ]] || conda+=("$4")
}

python_version() { # "3.11" of an interpreter; fails when it does not run
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

supported() { [[ $1 =~ ^3\.1[0-3]$ ]]; }

# choose_python: sets `python` to the interpreter to look at, or notes that there is none. That is PYTHON, or else
# .venv's own, or else the first supported one on PATH.
choose_python() {
    local candidate version seen=''
    python=''
    if [[ -n ${given} ]]; then
        python=$(command -v -- "${given}") || die "PYTHON=${given} is not an interpreter that can be run"
        version=$(python_version "${python}") || die "PYTHON=${given} does not run"
        [[ ${python} == /* ]] || python=${PWD}/${python}
        supported "${version}" || die "PYTHON=${given} is Python ${version}; 3.10 to 3.13 are supported"
        return
    fi
    if version=$(python_version "${venv}/bin/python"); then
        supported "${version}" ||
            die "${venv} has Python ${version}; 3.10 to 3.13 are supported. Remove that folder, or set PYTHON=..."
        python=${venv}/bin/python
        return
    fi
    for candidate in python3 python3.11 python3.12 python3.13 python3.10; do
        version=$(python_version "${candidate}") || continue
        if supported "${version}"; then
            python=$(command -v -- "${candidate}")
            return
        fi
        seen+="${candidate} is ${version}; "
    done
    lacks "Python 3.10 to 3.13 on PATH (${seen:-no python3 found; }or name one that has torch: PYTHON=...)" \
        "python3 python3-venv python3-dev" "python3 python3-devel" "python=3.11"
}

# choose_compiler: sets `compiler` (words) to a command that compiles and links C++17, or notes that there is none.
choose_compiler() {
    local scratch candidate tried=''
    local -a candidates=(g++ c++ clang++)
    [[ -z ${CXX:-} ]] || candidates=("${CXX}")
    scratch=$(mktemp -d) || die "cannot make a temporary folder in ${TMPDIR:-/tmp}"
    printf '%s\n' '#include <optional>' '#include <thread>' \
        'int f() { if (std::optional<int> x = 1; x) return *x; return 0; }' >"${scratch}/probe.cpp"
    for candidate in "${candidates[@]}"; do
        read -r -a compiler <<<"${candidate}"
        if "${compiler[@]}" -std=c++17 -fPIC -shared -pthread "${scratch}/probe.cpp" -o "${scratch}/probe.so" \
            2>/dev/null; then
            rm -rf -- "${scratch}"
            return
        fi
        tried+=" ${candidate}"
    done
    rm -rf -- "${scratch}"
    lacks "a C++17 compiler (tried:${tried}${CXX:+, from CXX})" g++ gcc-c++ cxx-compiler
}

# check_disk FOLDER GIB WHY
check_disk() {
    local free_kib free_gib
    free_kib=$(df -Pk -- "$1" | awk 'NR == 2 { print $4 }')
    free_gib=$((free_kib / 1024 / 1024)).$((free_kib / 1024 % 1024 * 10 / 1024))
    ((free_kib >= $2 * 1024 * 1024)) || lacks "disk space in $1: ${free_gib} GiB free, $2 GiB needed ($3)" '' '' ''
}

# look: fills `missing` with everything that is needed and not there, and sets `python` and `compiler`.
look() {
    local answer what version line
    choose_python
    choose_compiler
    if [[ -n ${given} ]] || torch_is_kept; then
        check_disk "${root}" "${build_free_gib}" "to build the extension"
    else
        check_disk "${root}" "${min_free_gib}" "for .venv with a CPU build of torch; a CUDA build takes about 12"
        check_disk "${TMPDIR:-/tmp}" 1 "for pip's downloads; another folder: TMPDIR=..."
    fi
    [[ -n ${python} ]] || return 0
    version=$(python_version "${python}")
    answer=$("${python}" "${probe}" missing --root "${root}" --extras "${extras}" ${given:+--given}) ||
        die "${probe} failed; its message is above"
    while IFS= read -r line; do
        what=${line#*:}
        case ${line%%:*} in
            venv) lacks "${what}" "python${version}-venv" python3 "python=${version}" ;;
            headers) lacks "${what}" "python${version}-dev" python3-devel "" ;; # conda's python has them
            package)
                lacks "the package ${what#*:}" '' '' ''
                packages+=("'${what%%:*}'")
                ;;
            system) lacks "${what}" '' '' '' ;;
            '') ;;
            *) die "unexpected answer of ${probe}: ${line}" ;;
        esac
    done <<<"${answer}"
}

torch_is_kept() { # .venv has a supported torch and none other is asked for
    [[ -x ${venv}/bin/python ]] &&
        "${venv}/bin/python" "${probe}" torch --root "${root}" --requirement "${torch_requirement}" >/dev/null 2>&1
}

report_missing() {
    say "missing${python:+ (looked at ${python})}:"
    printf '  - %s\n' "${missing[@]}" >&2
    if [[ ${#debian[@]} -gt 0 ]]; then
        printf '%s\n' "Packages that bring what is missing (as root, but for conda):" \
            "  Debian, Ubuntu:  apt-get install ${debian[*]}" \
            "  Fedora:          dnf install ${fedora[*]}" \
            "  conda:           conda install -c conda-forge ${conda[*]:-python}" >&2
    fi
    [[ ${#packages[@]} == 0 ]] || printf 'To get the packages:  %s -m pip install %s\n' "${python}" "${packages[*]}" >&2
    die "nothing was changed. Run the same command again when nothing is missing."
}

ready() { # the environment is set up for this state of the checkout
    local -a question=(ready --root "${root}" --extras "${extras}" --requirement "${torch_requirement}")
    [[ -x $1 ]] && "$1" "${probe}" "${question[@]}" ${given:+--given} 2>/dev/null
}

# One set-up at a time: two pips in one environment break it. The lock lives as long as file descriptor 9 is open.
take_lock() {
    mkdir -p -- "${root}/build" || die "cannot write below ${root}"
    exec 9>"${root}/build/setup.lock"
    "$1" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)' 2>/dev/null && return
    say "another set-up of this checkout is running; waiting for it"
    "$1" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
}

pip_install() {
    PIP_DISABLE_PIP_VERSION_CHECK=1 "${python}" -m pip install "$@" >&2 9>&- ||
        die "pip install $* failed; its message is above." \
            "Run the same command again to go on. Without a package index, name an environment with torch: PYTHON=..."
}

make_venv() {
    if ! python_version "${venv}/bin/python" >/dev/null; then
        if [[ -e ${venv} && ! -e ${venv}/pyvenv.cfg && -n $(ls -A -- "${venv}") ]]; then
            die "${venv} exists and is not a Python environment; move it away, or set PYTHON=..."
        fi
        say "making ${venv} with ${python}"
        "${python}" -m venv --clear --without-pip -- "${venv}" >&2 || die "${python} -m venv failed; see above"
    fi
    # Here and not above: while this run waited for the lock, another may have made it.
    python=${venv}/bin/python
    "${python}" -c 'import pip' 2>/dev/null || "${python}" -m ensurepip --default-pip >&2 ||
        die "${python} -m ensurepip failed; see above"
}

install_into_venv() {
    local interrupted=${venv}/mz_setup_running
    local -a words
    make_venv
    if [[ -e ${interrupted} ]]; then
        say "the last set-up was interrupted; going on"
        mapfile -t words < <("${python}" "${probe}" broken)
        [[ ${#words[@]} == 0 ]] || pip_install --ignore-installed --no-deps "${words[@]}"
    fi
    : >"${interrupted}"
    if ! torch_is_kept; then
        read -r -a words <<<"${torch_requirement:-${default_torch}}"
        say "installing ${words[*]} from your package index, whichever build that gives:" \
            "about 0.2-0.8 GB to download for a CPU build, 2.5-3.5 GB with CUDA"
        pip_install "${words[@]}"
    fi
    mapfile -t words < <("${python}" "${probe}" build-requirements --root "${root}")
    say "installing what the build needs: ${words[*]}"
    pip_install "${words[@]}"
    say "installing megatron_zero and its dependencies (compiles the extension: under a minute)"
    CC="${compiler[*]}" CXX="${compiler[*]}" pip_install --no-build-isolation -e ".${extras:+[${extras}]}"
    rm -f -- "${interrupted}"
}

install_into_given() {
    say "installing megatron_zero into the environment of ${python} (compiles the extension: under a minute)"
    CC="${compiler[*]}" CXX="${compiler[*]}" pip_install --no-build-isolation --no-deps -e .
}

main() {
    local target=${venv}/bin/python problem
    cd -- "${root}"
    [[ ${min_free_gib} =~ ^(0|[1-9][0-9]*)$ ]] || die "MZ_MIN_FREE_GIB=${min_free_gib} is not a whole number of GiB"
    if [[ -n ${given} ]]; then
        [[ -z ${torch_requirement} ]] || die "MZ_TORCH_REQUIREMENT is for .venv; unset it, or unset PYTHON (${given})"
        choose_python
        target=${python}
    fi
    if ! ready "${target}"; then
        look
        [[ ${#missing[@]} == 0 ]] || report_missing
        take_lock "${python}"
        if ! ready "${target}"; then
            if [[ -n ${given} ]]; then install_into_given; else install_into_venv; fi
            problem=$("${target}" "${probe}" finish --root "${root}" --extras "${extras}" \
                --requirement "${torch_requirement}" ${given:+--given}) || die "after installing: ${problem}"
            say "ready: ${target}"
        fi
    fi
    "${target}" "${probe}" untested >&2
    printf 'MZ_PYTHON=%s\n' "${target}"
}

main
