#!/usr/bin/env bash
# Make the environment, then reproduce everything, pass the tests, or open the lessons. See --help.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage:
  ./run_all.sh [options]              fetch the model, run every notebook, collect the figures
      --profile quick|default|full    how much to compute (default: default)
      --only NAME                     one notebook: its name, the start of it, or its number
      --device cpu|cuda|...           where to compute (default: cuda where there is one, else cpu)
      --fresh                         run again what is already finished
      --output DIR                    where runs/ and figures/ go (default: this checkout)
  ./run_all.sh test [pytest options]  pass the tests, side by side on up to four cores (-n 0: one after the other)
  ./run_all.sh lab [jupyter options]  copy the lessons to my_lessons/ (once) and open them in JupyterLab (also as
                                      root, in a container); --fresh: make a new copy beside the old one
  ./run_all.sh --help

The environment is a conda, mamba or micromamba environment called "spin" where such a tool exists, else .venv.
TEXT
}

die() { echo "run_all.sh: $*" >&2; exit "${status:-1}"; }

# Whether there is a notebook of that name, start of a name, or number (1 is 01_..., and not 10_...).
known() {
    local file name=${1##*/}
    name=${name%.ipynb}
    for file in "$here"/notebooks/*.ipynb; do
        file=${file##*/}
        case "$name:$file" in
            :*) ;;
            *[!0-9]*:"$name"*) return ;;
            *[!0-9]*:*) ;;
            *:[0-9]*) [ "$((10#$name))" != "$((10#${file%%[!0-9]*}))" ] || return 0 ;;
        esac
    done
    return 1
}

# ---- what to do: checked before anything is installed
here=$(cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command=reproduce
case "${1:-}" in
    test|lab)
        command=$1; shift
        case "${1:-}" in
            -h|--help) usage; exit 0 ;;
            test|lab|--profile|--only|--device|--fresh|--output) status=2 die "$command does not take $1; see --help" ;;
        esac ;;
    *)  options=()
        while [ $# -gt 0 ]; do
            case "$1" in
                -h|--help) usage; exit 0 ;;
                --fresh) options+=(--fresh); shift; continue ;;
                --profile|--only|--device|--output) ;;
                *) usage >&2; status=2 die "unknown option: $1" ;;
            esac
            [ $# -gt 1 ] || status=2 die "$1 needs a value"
            case "$1 $2" in
                "--profile quick"|"--profile default"|"--profile full") ;;
                "--profile "*) status=2 die "unknown profile: $2 (quick, default or full)" ;;
                "--device cpu"|"--device cuda"|"--device cuda:"[0-9]*|"--device mps") ;;
                "--device "*) status=2 die "unknown device: $2 (cpu, cuda, cuda:1, mps)" ;;
                "--only "*) known "$2" || status=2 die "no notebook $2 in notebooks/" ;;
                "--output "[!/]*) set -- "$1" "$PWD/$2" "${@:3}" ;;
            esac
            options+=("$1" "$2"); shift 2
        done
        set -- ${options[@]+"${options[@]}"} ;;       # the form that old bash, too, takes for an empty list
esac
cd "$here"

# ---- the environment: $python is its interpreter
conda_tool() {
    local tool
    for tool in micromamba mamba conda "${MAMBA_EXE:-}" "${CONDA_EXE:-}"; do
        tool=$(type -P "$tool") && echo "$tool" && return
    done
    return 1
}

suitable_python() {
    local candidate
    for candidate in python3.11 python3.12 python3.13 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate" && return
        fi
    done
    die "needs Python 3.11 or newer, and found none (tried python3.11 to python3.13, python3, python)"
}

if [ "${CONDA_DEFAULT_ENV:-}" = spin ] && [ -x "${CONDA_PREFIX:-}/bin/python" ]; then
    python=$CONDA_PREFIX/bin/python
elif tool=$(conda_tool); then
    in_env() { "$tool" run -n spin "$@"; }
    if ! in_env python --version >/dev/null 2>&1; then
        echo "Making the environment spin with $(basename "$tool") (once; some minutes) ..."
        CONDA_ALWAYS_YES=true MAMBA_ALWAYS_YES=true "$tool" env create -n spin -f environment.yml
    fi
    python=$(in_env python -c 'import sys; print(sys.executable)')
else
    python=$PWD/.venv/bin/python
    if ! "$python" -m pip --version >/dev/null 2>&1; then
        base=$(suitable_python)
        echo "Making the environment .venv with $("$base" --version) ..."
        "$base" -m venv --clear .venv
    fi
fi

# ---- the pinned packages: installed when the pins, or the place of the checkout, are not those of the last time
stamp=$("$python" -c 'import sys; print(sys.prefix)')/.spin-stamp
wanted=$(cat pyproject.toml environment.yml | cksum; pwd)
if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    echo "Installing the pinned packages into $(dirname "$stamp") (once; some minutes) ..."
    quiet=--quiet
    [ ! -t 1 ] || quiet=--progress-bar=on
    # into this environment, whatever a user's settings say of all others
    PIP_USER=0 PIP_TARGET="" PIP_PREFIX="" "$python" -m pip install --disable-pip-version-check "$quiet" -e '.[test]'
    printf '%s\n' "$wanted" > "$stamp"
fi

# ---- the work
case $command in
    test) exec "$python" -m pytest -n auto --maxprocesses 4 --dist worksteal "$@" ;;   # the last -n wins
    lab)  root=()
          if [ "$EUID" = 0 ]; then
              echo "Running JupyterLab as root: open it to yourself alone, and only in a container." >&2
              root=(--allow-root)
          fi
          JUPYTER_PREFER_ENV_PATH=1 exec "$python" -m spin_core.lab.lessons.workspace \
              ${root[@]+"${root[@]}"} "$@" ;;
    *)    "$python" -m spin_core fetch
          exec "$python" -m spin_core reproduce "$@" ;;
esac
