#!/bin/bash
# bochs_setup.sh DIR: Debian trixie's Bochs 3.0, which executes AVX-512, AVX512-BF16 and AMX, unpacked into DIR/root: nothing is installed,
# no root needed. About 60 MB to load, 250 MB on disk. Exit status 77, with the reason, where that is not possible.
set -euo pipefail
dir=$(mkdir -p "$1" && cd "$1" && pwd)
skip() {
    echo "skipped: $1"
    exit 77
}
[ ! -e "$dir/root/complete" ] || exit 0
[ "$(uname -m)" = x86_64 ] || skip "not an x86-64 machine"
for tool in apt-get dpkg; do command -v $tool >/dev/null || skip "$tool is missing"; done
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e $keys ] || skip "$keys is missing"

mkdir -p "$dir"/apt/lists/partial "$dir"/apt/archives/partial "$dir/root"
: >"$dir/apt/status"
mirror=$(sed -n 's/^URIs: *\([^ ]*\/debian\/\?\) *$/\1/p' /etc/apt/sources.list.d/*.sources 2>/dev/null | head -1)
echo "deb [signed-by=$keys] ${mirror:-http://deb.debian.org/debian} trixie main" >"$dir/apt/sources.list"
cat >"$dir/apt/apt.conf" <<END
Dir::State "$dir/apt"; Dir::State::status "$dir/apt/status"; Dir::Cache "$dir/apt"; Dir::Etc::sourceparts "/dev/null";
Dir::Etc::sourcelist "$dir/apt/sources.list"; APT::Sandbox::User "";
END
export APT_CONFIG="$dir/apt/apt.conf"
apt-get update -qq || skip "no package lists of Debian trixie"
apt-get install -y -qq --download-only --no-install-recommends bochs bochs-term bochsbios vgabios syslinux-common isolinux genisoimage \
    >/dev/null || skip "Bochs could not be loaded"
for package in "$dir"/apt/archives/*.deb; do dpkg -x "$package" "$dir/root"; done
touch "$dir/root/complete"
