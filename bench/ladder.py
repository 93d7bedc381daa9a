#!/usr/bin/env python3
"""From a plain loop to the last kernel: forward attention of 4096 tokens, 4 heads, one thread, step by step.

    bench/ladder.py [--program build/ringattn] [--rounds 5]

The steps take turns; printed are medians of the rounds in GFLOP/s, the gain over the step above, and percent of the fp32 multiply-add peak
of the best instruction set there is, measured in the same rounds. Each step is one more idea over the step before: packed operands and
register tiles in portable C, then the same source over wider vectors, then products of bf16 pairs.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

S, HEADS, ROWS = 4096, 4, 128
PLAIN = {"plain loop, cc -O3": ["-O3"], "plain loop, cc -Ofast -march=native": ["-Ofast", "-march=native"]}
LEVELS = {"packed, scalar": ("scalar", "f32"), "avx2": ("avx2", "f32"), "avx512": ("avx512", "f32"), "avx512bf16, bf16": ("avx512bf16", "bf16"),
          "amx, bf16": ("amx", "bf16")}


def bench(program, level, dtype, D):
    command = [program, "bench", "--S", str(S), "--H", str(HEADS), "--D", str(D), "--threads", "1", "--repeat", "1", "--dtype", dtype, "--json"]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=dict(os.environ, RA_ISA=level)).stdout
    return json.loads(out)["results"][0]


def usable(program):
    facts = subprocess.run([program, "info"], stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()
    return next(line for line in facts if line.startswith("isa usable:")).split()[2:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/ringattn")
    parser.add_argument("--rounds", type=int, default=5)
    o = parser.parse_args()
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plain.c")
    levels = {name: x for name, x in LEVELS.items() if x[0] in usable(o.program)}
    print("%-36s %28s %28s" % ("", "D = 64", "D = 128"))
    print("%-36s %10s %8s %8s %10s %8s %8s" % (("forward",) + ("GFLOP/s", "gain", "%") * 2))
    with tempfile.TemporaryDirectory() as folder:
        speeds, backward, peaks = {}, {}, []
        for i, (name, flags) in enumerate(PLAIN.items()):
            subprocess.run([os.environ.get("CC", "cc"), "-std=c11", *flags, source, "-o", "%s/%d" % (folder, i), "-lm"], check=True)
        for D in (64, 128):
            for _ in range(o.rounds):
                for i, name in enumerate(PLAIN):
                    out = subprocess.run(["%s/%d" % (folder, i), str(S), str(HEADS), str(D), str(ROWS)], stdout=subprocess.PIPE, check=True)
                    speeds.setdefault((name, D), []).append(float(out.stdout))
                for name, (level, dtype) in levels.items():
                    x = bench(o.program, level, dtype, D)
                    speeds.setdefault((name, D), []).append(x["gflops_forward"])
                    backward.setdefault((name, D), []).append(x["gflops_backward"])
                    peaks.append(x["peak_gflops"])
    for title, found, names in (("", speeds, [*PLAIN, *levels]), ("backward", backward, list(levels))):
        if title:
            print(title)
        before = {}
        for name in names:
            line = "%-36s" % name
            for D in (64, 128):
                speed = statistics.median(found[name, D])
                gain = "%.2fx" % (speed / before[D]) if D in before else "-"
                line += " %10.2f %8s %8.1f" % (speed, gain, 100 * speed / max(peaks))
                before[D] = speed
            print(line)
    print("peak %.1f GFLOP/s" % max(peaks))


if __name__ == "__main__":
    sys.exit(main())
