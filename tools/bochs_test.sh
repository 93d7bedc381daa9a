#!/bin/bash
# bochs_test.sh BUILD: the native kernels of the instruction sets that this processor lacks, on an emulated one: static builds of
# test_block and test_block_bf16 in BUILD, run by Bochs, which is unpacked there, too. Exit status 77 where it cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
skip() {
    echo "skipped: $1"
    exit 77
}
for tool in gcc ld objcopy python3; do command -v $tool >/dev/null || skip "$tool is missing"; done
mkdir -p "$build"
cmake -S . -B "$build" -DCMAKE_C_COMPILER=gcc -DRA_MPI=OFF -DRA_BLAS=OFF -DRA_OPENMP=OFF -DRA_TEST_ONLY=test_block \
    -DCMAKE_EXE_LINKER_FLAGS="-static -no-pie" -DCMAKE_C_FLAGS="-include $PWD/tools/bochs/cvtne2ps.h" >"$build/log" 2>&1 &&
    cmake --build "$build" --target isa_run test_block test_block_bf16 >>"$build/log" 2>&1 || { tail -30 "$build/log"; exit 1; }
levels=()
for level in avx512 avx512bf16 amx; do
    if "$build/isa_run" $level /bin/true >/dev/null; then echo "$level: runs on this processor"; else levels+=($level); fi
done
[ ${#levels[@]} -gt 0 ] || skip "this processor has every instruction set"
tools/bochs_setup.sh "$build/emulator" || { status=$?; echo "Bochs is not set up"; exit $status; }

failed=0
for level in "${levels[@]}"; do
    program=test_block_bf16
    [ $level != avx512 ] || program=test_block
    echo "==> $program, $level, on Bochs"
    tools/bochs_run.py "$build/emulator" "$build/$program" RA_TEST_SMALL=1 RA_ISA=$level | tee "$build/output" || failed=1
    grep -q "^$level:" "$build/output" || { echo "the kernels of $level were not chosen"; failed=1; }
done
exit $failed
