#!/usr/bin/env python3
"""demo_report.py DIRECTORY: the table of `make demo`. Compares every NAME.safetensors, NAME.json with one-rank and with fp64.

The fp64 values are computed here: out, lse, dq of 128 rows spread over the sequence and of the last 128; dk, dv of the last 128 keys,
which under a causal mask only those rows see. Differences are relative to the largest value of the tensor. Fails above 1e-5.
"""
import json
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

TAIL = 128


def fp64(x):
    q, k, v, dout = (x[n][0].astype(np.float64) for n in ("q", "k", "v", "dout"))
    S, H, D = q.shape
    group = H // k.shape[1]
    rows = np.unique(np.r_[np.linspace(0, S - 1, 128).astype(int), max(0, S - TAIL):S])
    tail = slice(max(0, S - TAIL), S)
    last = rows >= tail.start
    r = {"out": np.empty((len(rows), H, v.shape[2])), "lse": np.empty((H, len(rows))), "dq": np.empty((len(rows), H, D)),
         "dk": np.zeros((S - tail.start, *k.shape[1:])), "dv": np.zeros((S - tail.start, *v.shape[1:]))}
    for h in range(H):
        K, V, d = k[:, h // group], v[:, h // group], dout[rows, h]
        s = q[rows, h] @ K.T / np.sqrt(D)
        s[np.arange(S) > rows[:, None]] = -np.inf
        r["lse"][h] = np.logaddexp.reduce(s, 1)
        p = np.exp(s - r["lse"][h][:, None])
        r["out"][:, h] = p @ V
        ds = p * (d @ V.T - (d * r["out"][:, h]).sum(1, keepdims=True)) / np.sqrt(D)
        r["dq"][:, h] = ds @ K
        r["dk"][:, h // group] += ds[last][:, tail].T @ q[rows[last], h]
        r["dv"][:, h // group] += p[last][:, tail].T @ d[last]
    return rows, tail, r


def sampled(y, rows, tail):
    return {"out": y["out"][0, rows], "lse": y["lse"][0][:, rows], "dq": y["dq"][0, rows], "dk": y["dk"][0, tail], "dv": y["dv"][0, tail]}


def difference(a, b):
    return max(np.abs(a[n] - b[n]).max() / np.abs(b[n]).max() for n in ("out", "lse", "dq", "dk", "dv"))


def main():
    directory = Path(sys.argv[1])
    rows, tail, exact = fp64(load_file(directory / "qkv.safetensors"))
    one = load_file(directory / "one-rank.safetensors")
    mib = 1 / 2**20
    head = ("", "ranks", "threads", "forward", "backward", "workspace", "resident", "sent", "overlap", "to one rank", "to fp64")
    table, worst = [], 0.0
    for path in sorted(directory.glob("*.json"), key=lambda p: (json.loads(p.read_text())["ranks"], p.stem)):
        j, y = json.loads(path.read_text()), load_file(path.with_suffix(".safetensors"))
        to_one, to_exact = difference(y, one), difference(sampled(y, rows, tail), exact)
        worst = max(worst, to_one, to_exact)
        overlap = "-" if j["ranks"] == 1 or j["overlap"] is None else f"{100 * j['overlap']:.0f} %"
        table.append((path.stem, str(j["ranks"]), str(j["threads"]), f"{j['seconds_forward']:.2f} s", f"{j['seconds_backward']:.2f} s",
                      f"{j['workspace_bytes'] * mib:.1f} MiB", f"{j['resident_bytes'] * mib:.1f} MiB", f"{j['bytes_sent'] * mib:.1f} MiB",
                      overlap, f"{to_one:.1e}", f"{to_exact:.1e}"))
    widths = [max(len(row[i]) for row in [head, *table]) for i in range(len(head))]
    for row in [head, *table]:
        print("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))))
    print("\nThreads, workspace and bytes sent are per rank, the largest of any; resident memory is per process: ring-of-4 is one process.\n"
          "Differences: the largest of out, lse, dq, dk, dv, each relative to the tensor's largest value; to fp64: at "
          f"{len(rows)} queries\nand the last {TAIL} keys.")
    if worst > 1e-5:
        sys.exit(f"FAILED: a difference of {worst:.1e} is more than 1e-5")
    print("All agree within 1e-5.")


if __name__ == "__main__":
    main()
