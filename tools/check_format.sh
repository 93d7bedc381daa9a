#!/bin/bash
# check_format.sh [--fix]: clang-format 14 over every C file of the tree.
set -euo pipefail
cd "$(dirname "$0")/.."
format=$(command -v clang-format-14 || true)
if [ -z "$format" ] && clang-format --version 2>/dev/null | grep -q 'version 14\.'; then format=clang-format; fi
if [ -z "$format" ]; then
    echo "skipped: clang-format 14 is missing"
    exit 77
fi
mode=(--dry-run --Werror)
if [ "${1:-}" = --fix ]; then mode=(-i); fi
find include src tests examples bench \( -name '*.c' -o -name '*.h' \) -print0 | xargs -0 "$format" "${mode[@]}"
