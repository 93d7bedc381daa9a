#!/bin/bash
# check_pjrt_abi.sh: src/pjrt/abi.h against the official header of PJRT, which is fetched (tools/pjrt_plugins.sh), by every compiler there is.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0
header=$(tools/pjrt_plugins.sh header) || status=$?
if [ $status -ne 0 ]; then
    echo "$header"
    exit $status
fi
checked=
for compiler in gcc clang; do
    command -v $compiler >/dev/null || continue
    $compiler -std=c11 -Wall -Werror -fsyntax-only -Isrc -Iinclude -isystem "$(dirname "$header")" tests/abi_pjrt.c
    checked+=" $compiler"
done
[ -n "$checked" ] || { echo "skipped: neither gcc nor clang"; exit 77; }
echo "src/pjrt/abi.h is that of PJRT $(sed -n 's/^#define PJRT_API_MAJOR //p' "$header").$(sed -n 's/^#define PJRT_API_MINOR //p' "$header") by$checked"
