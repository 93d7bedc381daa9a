#!/bin/bash
# check_kernels_asm.sh FLAGS [LEVEL=FLAGS]...: compiles the kernel files of each level by gcc and clang, whichever are there, with the build's
# flags, and looks at the machine code of the loops along k of gemm and gemm_rows. 77: nothing to look at.
#
# These loops are nearly all of attention's time, and what a compiler makes of the same source reached 45 to 100 % of the multiply-add peak
# in trials: accumulators that are spilled or moved about, or loads of B folded into the multiply-adds so that each vector of B is read
# once per row (16 loads for 12 multiply-adds in place of 7), cost a sixth to a half of it. So in every loop that multiplies:
#   * no vector is stored to or loaded from the stack, and none is copied from register to register;
#   * no multiply-add has an operand in memory. Broadcasts of A would be allowed by the load ports, but no compiler folds them either, so
#     the rule stays simple.
# That is what gcc 12 and clang 14 do at -O2 and -O3; a compiler that does not needs another form of the loops, not another rule.
set -euo pipefail
cd "$(dirname "$0")/.."
flags=$1
shift
case " $flags " in *" -O2 "* | *" -O3 "*) ;; *) echo "skipped: this build is not optimised"; exit 77 ;; esac
[ $# -gt 0 ] || { echo "skipped: this build has no vector kernels"; exit 77; }
command -v objdump >/dev/null || { echo "skipped: no objdump"; exit 77; }
compilers=()
for compiler in gcc clang; do if command -v $compiler >/dev/null; then compilers+=($compiler); fi; done
[ ${#compilers[@]} -gt 0 ] || { echo "skipped: neither gcc nor clang"; exit 77; }
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT

# Innermost loops: from a jump backwards to where it leads, without another one between.
look='
function loops(   i, j, l, first, inner, fma, folded, spilled, moved, where) {
    for (i = 0; i < n; i++) {
        if (op[i] !~ /^j/ || !(arg[i] in at) || at[arg[i]] > i)
            continue
        first = at[arg[i]]
        inner = 1
        for (l = first; l < i; l++)
            inner = inner && !(op[l] ~ /^j/ && arg[l] in at && at[arg[l]] >= first && at[arg[l]] <= l)
        fma = folded = spilled = moved = 0
        for (l = first; l <= i; l++) {
            if (op[l] ~ /^(vfn?m|vdpbf16)/) {
                fma++
                folded += arg[l] ~ /\(/
            } else if (op[l] ~ /^v/) {
                spilled += arg[l] ~ (framed ? "\\(%r[sb]p" : "\\(%rsp")
                moved += op[l] ~ /^vmov/ && arg[l] ~ /^%[xyz]mm[0-9]+,%[xyz]mm[0-9]+$/
            }
        }
        if (!inner || !fma)
            continue
        printf "%-6s %-12s %-9s %4d multiply-adds, %d in memory, %d spills, %d moves\n", compiler, level, name, fma, folded, spilled, moved
        bad = bad || folded || spilled || moved
        seen[name] = 1
    }
}
/^[0-9a-f]+ <.*>:$/ {
    if (name)
        loops()
    match($0, /<[^>.]*/)
    name = substr($0, RSTART + 1, RLENGTH - 1)
    name = name == "gemm" || name == "gemm_rows" ? name : ""
    n = framed = 0
    delete at
    next
}
name && /^ *[0-9a-f]+:/ {
    sub(":", "", $1)
    at[$1] = n
    op[n] = $2
    arg[n++] = $3
    framed = framed || ($2 == "mov" && $3 == "%rsp,%rbp") # else %rbp is a register like any other
}
END {
    if (name)
        loops()
    if (!seen["gemm"] || !seen["gemm_rows"]) {
        print compiler, level ": the loops of gemm and gemm_rows were not found"
        bad = 1
    }
    exit bad
}'

bad=0
read -ra common <<<"$flags"
for pair in "$@"; do
    level=${pair%%=*}
    read -ra own <<<"${pair#*=}"
    for compiler in "${compilers[@]}"; do
        if ! "$compiler" -std=c11 -fPIC "${common[@]}" "${own[@]}" -Iinclude -Isrc -c "src/block/kernels_$level.c" -o "$folder/kernels.o" \
            2>"$folder/messages"; then
            if "$compiler" "${own[@]}" -xc -fsyntax-only /dev/null 2>/dev/null; then
                cat "$folder/messages"
                bad=1
            else
                echo "$compiler does not know $level"
            fi
            continue
        fi
        objdump -d --no-show-raw-insn "$folder/kernels.o" | awk -v compiler="$compiler" -v level="$level" "$look" || bad=1
    done
done
exit $bad
