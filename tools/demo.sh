#!/bin/bash
# demo.sh [BUILD]: exact attention of a real model over a real text, on one rank, on a ring of 4 local ranks and under mpirun -n 2.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(cd "${1:-build}" && pwd)
work=$build/demo
cores=$(nproc)
step() { printf '\n==> %s\n' "$*"; }
threads_for() { echo $((cores > $1 ? cores / $1 : 1)); }

tools/venv.sh "$build"
mkdir -p "$work"
rm -f "$work"/*

step "q, k, v of layer 0 of SmolLM2-135M on the text of the GNU General Public License"
"$build/venv/bin/python" tools/real_qkv.py "$work/qkv.safetensors" --backward
options=(--causal --layout zigzag --backward --json)

attend() { # name, ranks, launcher ... -- more options
    local name=$1 ranks=$2 launch=()
    shift 2
    while [ "$1" != -- ]; do
        launch+=("$1")
        shift
    done
    shift
    local command=("$build/ringattn" attend "$work/qkv.safetensors" -o "$work/$name.safetensors" "${options[@]}"
        --threads "$(threads_for "$ranks")" "$@")
    step "$name: ${launch[*]} ringattn attend qkv.safetensors ${options[*]} $*"
    "${launch[@]}" "${command[@]}" >"$work/$name.json"
}

attend one-rank 1 -- --ring 1
attend ring-of-4 4 -- --ring 4 -v
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # needed, and harmless elsewhere, where the user is root
if command -v mpirun.openmpi >/dev/null && [ -e "$build/libringattention_openmpi.so" ]; then
    attend mpirun-n-2 2 mpirun.openmpi --oversubscribe --bind-to none -n 2 --
elif command -v mpirun.mpich >/dev/null && [ -e "$build/libringattention_mpich.so" ]; then
    attend mpirun-n-2 2 mpirun.mpich -n 2 --
else
    step "no MPI: mpirun is left out"
fi

step "the same result?"
"$build/venv/bin/python" tools/demo_report.py "$work"
