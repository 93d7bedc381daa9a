#!/bin/bash
# check_symbols.sh BUILD: the shared libraries export only ra_ names and no writable data; static libraries have only ra_ names to clash with
# the caller's; no object of the library holds writable data (case 60b).
set -euo pipefail
build=$1
ls "$build/libringattention.so" "$build/libringattention.a" >/dev/null
bad=0
complain() {
    echo "$1"
    bad=1
}
for library in "$build"/libringattention*.so; do
    while read -r kind name; do
        case $name in ra_[a-z]*) ;; *) complain "$library exports $name" ;; esac
        case $kind in B | D | C | b | d) complain "$library exports writable data: $name" ;; esac
    done < <(nm -D --defined-only --format=posix "$library" | awk '{print $2, $1}')
done
while read -r kind name; do
    case $name in ra_*) ;; *) complain "libringattention.a defines $name ($kind)" ;; esac
done < <(nm -g --defined-only --format=posix "$build/libringattention.a" | awk 'NF > 2 {print $2, $1}')
# Writable objects: OBJECT symbols in sections named .data or .bss; not .data.rel.ro, which is read-only after loading, and not .tbss, of
# which each thread has its own.
for library in "$build"/libringattention*.a; do
    while read -r name; do
        complain "$library holds writable data: $name"
    done < <(objdump -t "$library" | awk '(/ O \.(data|bss)/ && !/\.data\.rel\.ro/) || / O \*COM\*/ {print $NF}')
done
[ $bad -eq 0 ] && echo "symbols are in order"
exit $bad
