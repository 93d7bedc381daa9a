#!/bin/sh
# run_py.sh VENV SCRIPT: runs a Python test in the environment, or skips it when there is none.
set -eu
if [ ! -x "$1/bin/python" ]; then
    echo "skipped: no Python environment at $1 (tools/venv.sh makes it)"
    exit 77
fi
exec "$1/bin/python" "$2"
