#!/bin/bash
# test_all.sh [BUILD]: builds every configuration, then one ctest run over all of them; its summary is the last thing printed.
#   BUILD         gcc, Release, warnings are errors; all tests, the checks of the sources, installation
#   BUILD/clang   the same by clang; fuzzing
#   BUILD/asan    address and undefined-behaviour sanitizers
#   BUILD/tsan    thread sanitizer; without OpenMP, whose runtime is not instrumented, and without MPI
#   BUILD/bare    without MPI, BLAS and OpenMP
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
jobs=${JOBS:-$(nproc)}

step() { printf '\n==> %s %s\n' "$(date +%H:%M:%S)" "$*"; }

configure_and_build() { # folder, cmake arguments
    local folder=$1
    shift
    step "building $folder"
    local generator=()
    if [ ! -f "$folder/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
    mkdir -p "$folder"
    cmake -S . -B "$folder" "${generator[@]}" -DRA_WERROR=ON "$@" >"$folder/configure.log" || { cat "$folder/configure.log"; exit 1; }
    grep '^-- ringattention' "$folder/configure.log"
    cmake --build "$folder" -j "$jobs"
}

tools/venv.sh "$build" || echo "test_all: no Python environment; tests that need it will be skipped"

quick='test_(block|attn|ring|api|link|ffn|safetensors|cli|cases|pjrt_client)'
configure_and_build "$build" -DRA_TEST_MORE="clang;asan;tsan;bare"
configure_and_build "$build/clang" -DRA_TEST_PREFIX=clang. -DCMAKE_C_COMPILER=clang -DRA_FUZZ=ON -DRA_TEST_ONLY="$quick|fuzz"
configure_and_build "$build/asan" -DRA_TEST_PREFIX=asan. -DRA_SANITIZE=address -DCMAKE_BUILD_TYPE=RelWithDebInfo
configure_and_build "$build/tsan" -DRA_TEST_PREFIX=tsan. -DRA_SANITIZE=thread -DCMAKE_BUILD_TYPE=RelWithDebInfo \
    -DRA_OPENMP=OFF -DRA_MPI=OFF -DRA_TEST_ONLY='test_(ring|api|link|schedule)'
configure_and_build "$build/bare" -DRA_TEST_PREFIX=bare. -DRA_MPI=OFF -DRA_BLAS=OFF -DRA_OPENMP=OFF -DRA_TEST_ONLY="$quick"

step "testing"
# ctest names skipped tests without their reasons; these are the usual ones.
[ -d ../shared/golden ] || echo "no ../shared/golden: comparisons with stored values are skipped"
for level in avx2 avx512 avx512bf16 amx; do "$build/isa_run" $level /bin/true || true; done
exec ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$jobs"
