#!/usr/bin/env python3
"""The speed of `ringattn bench` beside that of other implementations, in one run.

    bench/compare.py [--program build/ringattn] [--venv build/compare-venv] [--rounds 5] [--only pytorch|original] [--isa avx2]
                     [--json FILE]

pytorch   PyTorch's scaled_dot_product_attention against one rank, one thread each.
original  The JAX library by the authors of the paper (PyPI: ringattention 0.1.2) on two host devices against two ranks of one thread.

Both are installed into a scratch environment; PyTorch's wheel for Linux brings some gigabytes of GPU libraries along, without which it does
not load. What cannot be installed is left out with a note. The implementations take turns, one pass each after one that is not
counted; figures are medians of the rounds, ratios medians of each round's ratio. Percent are of the multiply-add peak of the cores used,
measured in the same rounds. The ratio's spread is from the lowest to the highest round. --isa avx2 caps the instruction set of all sides:
RA_ISA, and ATEN_CPU_CAPABILITY and ONEDNN_MAX_CPU_ISA for PyTorch, XLA's --xla_cpu_max_isa for JAX. Useful operations are counted: 4 S S D a head forward, half of them under a causal mask, 3.5 times as many for
both passes.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import venv

S, HEADS = 4096, 4
PACKAGES = {
    "pytorch": ["torch", "numpy"],
    "original": ["ringattention==0.1.2", "jax==0.4.35", "jaxlib==0.4.35", "numpy<2.2"],
}


# ---- the others: processes that time one case a line ----

def pytorch():
    """Returns the names of versions, and a function that makes of a case its two timed functions."""
    import torch
    torch.set_num_threads(1)

    def make(D, causal, dtype):
        torch.manual_seed(0)
        kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
        q, k, v, dout = [torch.randn(1, HEADS, S, D).to(kind) for _ in range(4)]
        attention = torch.nn.functional.scaled_dot_product_attention

        def forward():
            with torch.no_grad():
                attention(q, k, v, is_causal=causal)

        def both():
            x = [t.detach().requires_grad_() for t in (q, k, v)]
            attention(*x, is_causal=causal).backward(dout)
        return forward, both
    return "PyTorch " + torch.__version__, make


def original():
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2" + (
        " --xla_cpu_max_isa=AVX2" if os.environ.get("RA_ISA") == "avx2" else "")
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    from ringattention import ringattention

    def functions(x, causal, dtype, chunk):
        options = dict(causal_block_size=1 if causal else None, query_chunk_size=chunk, key_chunk_size=chunk, deterministic=True,
                       dropout_rng=None, attn_pdrop=0.0, dtype=dtype, policy=jax.checkpoint_policies.nothing_saveable, precision=None,
                       prevent_cse=False)

        def attention(q, k, v):
            return ringattention(q, k, v, None, None, None, "sequence", True, options)

        def gradients(q, k, v, dout):
            out, back = jax.vjp(attention, q, k, v)
            return (out, *back(dout))
        forward, both = jax.pmap(attention, "sequence"), jax.pmap(gradients, "sequence")
        return lambda: jax.block_until_ready(forward(*x[:3])), lambda: jax.block_until_ready(both(*x))

    def make(D, causal, dtype):
        kind = {"f32": jnp.float32, "bf16": jnp.bfloat16}[dtype]
        keys = jax.random.split(jax.random.PRNGKey(0), 4)
        x = [jax.device_put_sharded(list(jax.random.normal(key, (2, 1, S // 2, HEADS, D), kind)), jax.devices()) for key in keys]
        best = [None, None]
        for chunk in (512, 1024, 2048):  # whichever suits it best, for each pass
            for i, f in enumerate(functions(x, causal, kind, chunk)):
                f()
                seconds = timed(f)
                if best[i] is None or seconds < best[i][0]:
                    best[i] = (seconds, f)
        return best[0][1], best[1][1]
    return "ringattention 0.1.2, JAX " + jax.__version__, make


def timed(f):
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def work(name):
    version, make = {"pytorch": pytorch, "original": original}[name]()
    print(json.dumps(version), flush=True)
    made = {}
    for line in sys.stdin:
        case = json.loads(line)
        if line not in made:
            made = {line: make(**case)}  # one case at a time, to keep memory free
        result = []
        for f in made[line]:
            f()
            result.append(timed(f))
        print(json.dumps(result), flush=True)


class Other:
    def __init__(self, python, name):
        self.process = subprocess.Popen([python, os.path.abspath(__file__), "--work", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.version = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the process ended with status %s" % self.process.wait())
        return json.loads(line)

    def seconds(self, case):
        self.process.stdin.write(json.dumps(case) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


# ---- ours ----

def ours(program, case, ranks):
    command = [program, "bench", "--S", str(S), "--H", str(HEADS), "--D", str(case["D"]), "--dtype", case["dtype"], "--ring", str(ranks),
               "--threads", "1", "--repeat", "1", "--json"]
    if case["causal"]:
        command += ["--causal"] + (["--layout", "zigzag"] if ranks > 1 else [])
    x = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)["results"][0]
    return [x["seconds_forward"], x["seconds_forward"] + x["seconds_backward"]], x["peak_gflops"]


# ---- side by side ----

def install(folder, names):
    """The interpreter of the scratch environment, and which of the names it can offer."""
    python = os.path.join(folder, "bin", "python")
    if not os.path.exists(python):
        venv.create(folder, with_pip=True)
    ready = []
    for name in names:
        pip = subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES[name]])
        if pip.returncode == 0:
            ready.append(name)
        else:
            print("%s is left out: it cannot be installed on this Python" % name, file=sys.stderr)
    return python, ready


def compare(program, other, name, dtypes, rounds):
    ranks = 2 if name == "original" else 1
    results = []
    for dtype in dtypes:
        for D in (64, 128):
            for causal in (False, True):
                case = {"D": D, "causal": causal, "dtype": dtype}
                mine, theirs, peaks = [], [], []
                other.seconds(case)
                for _ in range(rounds):
                    seconds, peak = ours(program, case, ranks)
                    mine.append(seconds)
                    peaks.append(peak)
                    theirs.append(other.seconds(case))
                for i, which in enumerate(("forward", "forward+backward")):
                    work_done = 4 * HEADS * S * S * D * (0.5 if causal else 1) * (3.5 if i else 1) * 1e-9
                    a, b = [statistics.median(x[i] for x in times) for times in (mine, theirs)]
                    r = {"against": other.version, **case, "pass": which, "ranks": ranks, "seconds": a, "seconds_other": b,
                         "gflops": work_done / a, "gflops_other": work_done / b, "peak_gflops": max(peaks),
                         "ratio": statistics.median(y[i] / x[i] for x, y in zip(mine, theirs)),
                         "ratios": sorted(y[i] / x[i] for x, y in zip(mine, theirs))}
                    results.append(r)
                    print("%-5s %4d %-7s %-17s %9.4f %8.1f %6.1f   %9.4f %8.1f %6.1f   %7.2f  %.2f to %.2f" % (
                        dtype, D, "causal" if causal else "full", which, a, r["gflops"], 100 * r["gflops"] / r["peak_gflops"], b,
                        r["gflops_other"], 100 * r["gflops_other"] / r["peak_gflops"], r["ratio"], r["ratios"][0], r["ratios"][-1]), flush=True)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/ringattn")
    parser.add_argument("--venv", default="build/compare-venv")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=sorted(PACKAGES))
    parser.add_argument("--isa", choices=["avx2"], help="cap the instruction set of all sides")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to FILE")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    o = parser.parse_args()
    if o.work:
        return work(o.work)
    if o.isa:  # for the processes started below
        os.environ.update(RA_ISA="avx2", ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2", DNNL_MAX_CPU_ISA="AVX2")
    if not os.path.exists(o.program):
        sys.exit("compare: %s is not there: build it, or name it by --program" % o.program)
    python, names = install(o.venv, [o.only] if o.only else ["pytorch", "original"])
    results = []
    for name in names:
        try:
            other = Other(python, name)
            print("\n%s, %d heads, %d tokens, %s%s; median of %d\n" % (
                other.version, HEADS, S, "one thread" if name == "pytorch" else "two devices against two ranks",
                ", all capped at AVX2" if o.isa else "", o.rounds))
            print("%-5s %4s %-7s %-17s %9s %8s %6s   %9s %8s %6s   %7s" % (
                "type", "D", "mask", "pass", "ours s", "GFLOP/s", "%", "theirs s", "GFLOP/s", "%", "x theirs (spread)"))
            results += compare(o.program, other, name, ["f32", "bf16"], o.rounds)
            other.close()
        except RuntimeError as e:
            print("%s is left out: %s" % (name, e), file=sys.stderr)
    if o.json:
        with open(o.json, "w") as f:
            json.dump({"results": results}, f, indent=1)
    return 0 if results else 1


if __name__ == "__main__":
    sys.exit(main())
