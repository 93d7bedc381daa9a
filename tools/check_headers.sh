#!/bin/bash
# check_headers.sh: every public header compiles alone as C11 and C++11, every internal header as C11 (kernel bodies and vector headers excepted,
# which are included by one kernel file with its own flags).
set -euo pipefail
cd "$(dirname "$0")/.."
strict=(-Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude)
checked=0
compile() { # header, compiler, arguments
    local header=$1
    shift
    if ! "$@" "${strict[@]}" - <<<"#include \"$header\""; then
        echo "$header does not compile alone with $1"
        exit 1
    fi
    checked=$((checked + 1))
}
for pair in gcc:g++ clang:clang++; do
    for header in include/*.h; do
        flags=()
        if grep -q '<mpi.h>' "$header"; then
            pkg-config --exists ompi-c || continue
            read -ra flags <<<"$(pkg-config --cflags-only-I ompi-c | sed 's/-I */-isystem /g')"
        fi
        for language in "${pair%:*} -std=c11 -xc" "${pair#*:} -std=c++11 -xc++"; do
            read -ra command <<<"$language"
            if command -v "${command[0]}" >/dev/null; then compile "$(basename "$header")" "${command[@]}" "${flags[@]}"; fi
        done
    done
done
while IFS= read -r header; do
    case $header in *kernels_*.h | */vec_*.h) continue ;; esac
    compile "${header#src/}" gcc -std=c11 -xc -Isrc
done < <(find src -name '*.h')
echo "$checked compilations"
