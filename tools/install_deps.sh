#!/bin/bash
# install_deps.sh [test]: installs, from Debian packages, what the build and the demonstration need; with `test` also what the tests need.
# Does nothing, and needs no network, when everything is there.
set -euo pipefail
# libdnnl-dev (oneDNN) does the feed-forward's products; libopenblas, with OpenMP's threads like the library itself, where oneDNN is switched
# off. The two variants of OpenBLAS may be installed side by side; if both are, the system's alternatives decide (update-alternatives).
packages=(cmake ninja-build gcc g++ libc6-dev pkg-config librandom123-dev libjansson-dev libdnnl-dev libopenblas-openmp-dev
    libopenmpi-dev openmpi-bin libmpich-dev mpich python3 python3-venv ca-certificates)
if [ "${1:-}" = test ]; then
    packages+=(binutils clang libclang-rt-14-dev libomp-dev clang-format-14)
fi

if ! command -v apt-get >/dev/null; then
    echo "install_deps: not a Debian system; these packages or their like are needed: ${packages[*]}" >&2
    exit 0
fi
missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$status" = "install ok installed" ] || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
    echo "install_deps: all ${#packages[@]} packages are there"
    exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
        echo "install_deps: missing: ${missing[*]}" >&2
        echo "install_deps: neither root nor sudo; as root: apt-get install ${missing[*]}" >&2
        exit 1
    fi
    as_root=(sudo)
fi
echo "install_deps: installing ${missing[*]}"
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o Acquire::Retries=3 "$@"; }
apt update
apt install -y --no-install-recommends "${missing[@]}"
