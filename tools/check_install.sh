#!/bin/bash
# check_install.sh BUILD: installs into a scratch prefix and uses what is there as a stranger would: CMake package, pkg-config (shared and
# static), the README's C example, the program, its man page, an MPI job.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
build=$(cd "$1" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
prefix=$scratch/usr
cd "$scratch"

step() { printf '%s\n' "-- $*"; }
works() { # command: prints one line that names the value, 2047.5 at the end of the sequence (the last rank's last token, on one process)
    "$@" | tee out | grep -q 'output is 2047.5' || { cat out; exit 1; }
}

step "install"
cmake --install "$build" --prefix "$prefix" >install.log
pc=$(dirname "$(find "$prefix" -name ringattention.pc)")
lib=$(dirname "$pc")
export PKG_CONFIG_PATH=$pc

step "CMake package"
cmake -S "$here/examples" -B consumer -DCMAKE_PREFIX_PATH="$prefix" >cmake.log || { cat cmake.log; exit 1; }
cmake --build consumer >build.log || { cat build.log; exit 1; }
works consumer/attend
works consumer/attend_static

step "pkg-config"
read -ra flags <<<"$(pkg-config --cflags --libs ringattention)"
gcc -std=c11 "$here/examples/attend.c" "${flags[@]}" -Wl,-rpath,"$lib" -o shared
works ./shared
read -ra flags <<<"$(pkg-config --static --cflags --libs ringattention)"
gcc -std=c11 "$here/examples/attend.c" "${flags[@]/-lringattention/-l:libringattention.a}" -o static
works ./static
test "$(pkg-config --modversion ringattention)" = "$(sed -n 's/^project(ringattention VERSION \([0-9.]*\).*/\1/p' "$here/CMakeLists.txt")"

# shellcheck disable=SC2016 # the backticks are Markdown
if grep -q '^```c$' "$here/README.md" 2>/dev/null; then
    step "the README's example"
    sed -n '/^```c$/,/^```$/p' "$here/README.md" | sed '1d;/^```$/,$d' >readme.c
    read -ra flags <<<"$(pkg-config --cflags --libs ringattention)"
    gcc -std=c11 -Wall -Wextra -Werror readme.c "${flags[@]}" -lm -Wl,-rpath,"$lib" -o readme
    ./readme
fi

for mpi in openmpi mpich; do
    if [ -e "$lib/libringattention_$mpi.so" ] && command -v "mpirun.$mpi" >/dev/null; then
        step "2 processes of $mpi"
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "mpirun.$mpi" -n 2 ./shared | tee out
        grep -q 'rank 0 of 2: 2048 tokens, the last one.s output is 2047.5' out
    fi
done

if [ -e "$build/ringattn" ]; then
    step "program"
    "$prefix/bin/ringattn" --version
    "$prefix/bin/ringattn" info >info.txt
    if [ -e "$build/libfake_pjrt.so" ]; then # finds the program that loads plugins on trial
        RA_PJRT_PLUGIN=$build/libfake_pjrt.so "$prefix/bin/ringattn" info | grep -q 'libfake_pjrt.so: PJRT 0.77, fake, 2 devices'
    fi
    if [ -e "$here/man/ringattn.1" ]; then test -s "$prefix/share/man/man1/ringattn.1"; fi
fi
step "installation is in order"
