"""Cases of docs/cases.md that are seen from outside: the program, its files, the build; and that docs/cases.md and docs/masks.md tell the truth.

Environment as in test_cli.py.
"""
import hashlib
import itertools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import unittest

import numpy as np

from test_cli import HERE, LAYOUTS, PROGRAM, SMALL, Case, read, sample, slurp, write

ROOT = os.path.join(HERE, "..")
TYPES = {"I32": np.int32, "I64": np.int64, "F32": np.float32}
# Groups A to I and K. 3, 9, 12, ... are not in the list of cases.
NUMBERS = """1 2 4 5 6 7 8 10 11 13 14 15 16 17 20 21 22 23 24 25 25b 27 29 30 31 33 34 35 38 39 40 42 43 44 45 46 47 48 50 52 53 55 56 57 59 60
60b 62 63 64 66 67 68 69 70 71 72 73 75 76 77 78 80 81 82 83 86 87 89 90 95 96""".split()


def page(name):
    return slurp(os.path.join(ROOT, "docs", name)).decode()


def shown(weights, digits):
    """A picture of docs/masks.md: queries by keys, # or tenths where there is weight."""
    lines = ["      k " + "".join(str(j % 10) for j in range(weights.shape[1]))]
    for i, row in enumerate(weights):
        mark = lambda x: "." if x == 0 else str(min(9, int(x * 10 + 1e-4))) if digits else "#"
        lines.append("q %4d  " % i + "".join(map(mark, row)))
    return "\n".join(lines)


def pictures():
    """Of docs/masks.md: (command, tensors, C, picture) each."""
    command, tensors, code = None, {}, None
    for kind, text in re.findall(r"^```(sh|c|text)\n(.*?)\n```$", page("masks.md"), re.M | re.S):
        if kind == "sh":
            command, *rest = text.split("\n")
            tensors = {}
            for line in rest:
                name, t, shape, values = re.fullmatch(r"# in\.safetensors: (\w+) (\w+) \[([\d,]+)\] = (.*)", line).groups()
                tensors[name] = np.array([float(x) for x in values.split()]).astype(TYPES[t]).reshape([int(n) for n in shape.split(",")])
        elif kind == "c":
            code = text
        else:
            yield command, tensors, code, text


class Documents(Case):
    def test_masks_by_command(self):
        seen = 0
        for command, tensors, _, picture in pictures():
            Sq, Skv = picture.count("\n"), len(picture.split("\n")[0]) - 8
            t = {"q": np.ones((1, Sq, 1, 1), np.float32), "k": np.zeros((1, Skv, 1, 1), np.float32),
                 "v": np.eye(Skv, dtype=np.float32).reshape(1, Skv, 1, Skv)}
            write(self.input, {**t, **tensors})
            self.assertTrue(command.startswith("ringattn attend in.safetensors -o out.safetensors"), command)
            options = command.split()[5:]
            for P, layout in ((1, "contiguous"), *itertools.product([7], LAYOUTS)):
                with self.subTest(command, P=P, layout=layout):
                    x = subprocess.run([PROGRAM, "attend", self.input, "-o", self.output, "-q", "--ring", str(P), "--layout", layout,
                                        "--threads", "1", *options], capture_output=True, text=True, timeout=60)
                    if x.returncode == 3 and "yet" in x.stderr:
                        print("skipped:", command, x.stderr.strip())
                        break
                    self.assertEqual((x.returncode, x.stderr), (0, ""))
                    got = read(self.output)["out"].reshape(Sq, Skv)
                    self.assertEqual(shown(got, "#" not in picture), picture)
                    seen += P == 7
        self.assertGreater(seen, 30)

    def test_masks_in_c(self):
        """The pieces of C, compiled into one program that draws their pictures."""
        library = os.path.dirname(PROGRAM)
        if SMALL or not shutil.which("cc") or not os.path.exists(os.path.join(library, "libringattention.so")):
            self.skipTest("needs cc, a shared library and a build without sanitizers")
        parts, runs, wanted = [], [], []
        for n, (_, _, code, picture) in enumerate(pictures()):
            parts.append("static void set_%d(ra_problem *problem, ra_attention_args *args) {\n#define p (*problem)\n#define a (*args)\n(void)args;\n%s\n"
                         "#undef p\n#undef a\n}\n" % (n, code))
            runs.append("draw(%d, %d, %d, set_%d);\n" % (picture.count("\n"), len(picture.split("\n")[0]) - 8, "#" not in picture, n))
            wanted.append(picture)
        source, program = os.path.join(self.dir, "masks.c"), os.path.join(self.dir, "masks")
        with open(source, "w") as file:
            file.write("""#include <math.h>
#include <ringattention.h>
#include <stdio.h>
static void draw(int Sq, int Skv, int digits, void (*set)(ra_problem *, ra_attention_args *)) {
    float q[16], k[16] = {0}, v[256] = {0}, out[256];
    ra_problem p;
    ra_comm *comm;
    for (int i = 0; i < 16; i++)
        q[i] = 1;
    for (int j = 0; j < Skv; j++)
        v[j * Skv + j] = 1;
    ra_problem_init(&p);
    p.Sq = Sq, p.Skv = Skv, p.D = 1, p.Dv = Skv;
    ra_attention_args a = {.q = ra_tensor_bshd(q, RA_F32, Sq, 1, 1), .k = ra_tensor_bshd(k, RA_F32, Skv, 1, 1),
                           .v = ra_tensor_bshd(v, RA_F32, Skv, 1, Skv), .out = ra_tensor_bshd(out, RA_F32, Sq, 1, Skv)};
    set(&p, &a);
    ra_comm_create_self(NULL, &comm);
    if (ra_attention(comm, &p, &a)) {
        printf("%s", ra_last_error());
    } else {
        printf("      k ");
        for (int j = 0; j < Skv; j++)
            printf("%d", j % 10);
        for (int i = 0; i < Sq; i++) {
            printf("\\nq %4d  ", i);
            for (int j = 0; j < Skv; j++) {
                const float x = out[i * Skv + j];
                const int tenth = (int)(x * 10 + 1e-4f);
                printf("%c", x == 0 ? '.' : !digits ? '#' : '0' + (tenth > 9 ? 9 : tenth));
            }
        }
    }
    printf("\\f");
    ra_comm_destroy(comm);
}
""" + "".join(parts) + "int main(void) {\n" + "".join(runs) + "}\n")
        subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", "-I", os.path.join(ROOT, "include"), source, "-o", program, "-L", library,
                        "-lringattention", "-Wl,-rpath," + library], check=True)
        drawn = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split("\f")[:-1]
        self.assertEqual(len(drawn), len(wanted))
        for got, picture in zip(drawn, wanted):
            if "yet" in got:
                print("skipped:", got)
            else:
                self.assertEqual(got, picture)

    def test_mass_of_keys(self):
        """docs/masks.md's recipe: by command, in C, and for masks and modifiers together, against probabilities summed one by one."""
        section = re.search(r"^### What each key receives\n(.*?)^## ", page("masks.md"), re.M | re.S)[1]
        command = re.search(r"^```bash\n(.*)\n#", section, re.M)[1].split()
        code = re.search(r"^```C\n(.*?)^```", section, re.M | re.S)[1]
        shown = re.search(r"^mass +(.*)$", section, re.M)[1].split()
        ones = np.ones((1, 10, 1, 1), np.float32)
        self.assertEqual(command[:5], "ringattn attend in.safetensors -o out.safetensors".split())
        for P, layout in itertools.product((1, 3, 7), LAYOUTS):
            write(self.input, {"q": ones, "k": 0 * ones, "v": 0 * ones, "dout": ones})
            got = self.attend(*command[5:], "--ring", P, "--layout", layout)["dv"]
            self.assertEqual(["%.2f" % x for x in got.ravel()], shown)
        for P, options in itertools.product((1, 3), ([], ["--causal", "--window", "9,-1"], ["--softcap", "2", "--alibi"], ["--dropout", "0.4", "--seed", "5"])):
            S, H, G = 40, 4, 2
            t = {**sample(S=S, H=H, G=G, D=8), "sinks": np.linspace(-1, 2, H).astype(np.float32)}
            unit = np.broadcast_to(np.eye(S, dtype=np.float32)[None, :, None, :], (1, S, G, S))
            write(self.input, {**{x: t[x] for x in ("q", "k", "sinks")}, "v": np.ascontiguousarray(unit)})
            p = self.attend("--ring", P, *options)["out"].astype(np.float64)  # [1,Sq,H,Skv]
            write(self.input, {**{x: t[x] for x in ("q", "k", "sinks")}, "v": np.full((1, S, G, 1), 7, np.float32), "dout": np.ones((1, S, H, 1), np.float32)})
            mass = self.attend("--backward", "--ring", P, *options)["dv"]
            np.testing.assert_allclose(mass[0, :, :, 0], p[0].sum(0).T.reshape(S, G, H // G).sum(2), rtol=2e-6, atol=1e-6)
        library = os.path.dirname(PROGRAM)
        if SMALL or not shutil.which("cc") or not os.path.exists(os.path.join(library, "libringattention.so")):
            return
        source, program = os.path.join(self.dir, "mass.c"), os.path.join(self.dir, "mass")
        with open(source, "w") as file:
            file.write("""#include <ringattention.h>
#include <stdio.h>
int main(void) {
    float q[10], k[10] = {0}, out[10];
    ra_problem p;
    ra_comm *comm;
    for (int i = 0; i < 10; i++)
        q[i] = 1;
    ra_problem_init(&p);
    p.Sq = p.Skv = 10, p.D = 1;
    ra_attention_args a = {.q = ra_tensor_bshd(q, RA_F32, 10, 1, 1), .k = ra_tensor_bshd(k, RA_F32, 10, 1, 1), .out = ra_tensor_bshd(out, RA_F32, 10, 1, 1)};
""" + code + """
    ra_comm_create_self(NULL, &comm);
    if (ra_attention(comm, &p, &a))
        printf("%s", ra_last_error());
    for (int j = 0; j < 10; j++)
        printf("%.2f ", mass[j]);
    ra_comm_destroy(comm);
}
""")
        subprocess.run(["cc", "-std=c11", "-Wall", "-Werror", "-I", os.path.join(ROOT, "include"), source, "-o", program, "-L", library,
                        "-lringattention", "-Wl,-rpath," + library], check=True)
        self.assertEqual(subprocess.run([program], capture_output=True, text=True, check=True).stdout.split(), shown)

    def test_every_case_is_accounted_for(self):
        """docs/cases.md has a row for each number, and each test that it names exists."""
        rows = dict(re.findall(r"^\| (\d+b?) \|(.*)\|$", page("cases.md"), re.M))
        self.assertEqual([n for n in NUMBERS if n not in rows], [])
        sources = "".join(slurp(os.path.join(HERE, name)).decode() for name in os.listdir(HERE) if name.endswith((".c", ".py")))
        tests = set(re.findall(r"\b(?:def|static void) (\w+)\(", sources))
        files = {"isa_tests", "harness.h", *os.listdir(HERE), *(x.rsplit(".", 1)[0] for x in os.listdir(HERE) + os.listdir(os.path.join(ROOT, "tools")))}
        for number, row in rows.items():
            named = re.findall(r"`([\w.]+)`", row.split("|")[-1])
            self.assertTrue(named or row.split("|")[-1].strip().startswith("not here: "), (number, row))
            self.assertEqual([x for x in named if x not in tests and x not in files], [], number)


class Program(Case):
    def test_case_022_corner(self):
        write(self.input, sample(S=2, Skv=5))
        for options in (["--causal"], ["--causal-block", "4"], ["--window", "1,-1"], ["--window", "-1,1"], ["--alibi"]):
            text = self.refused(2, "", "attend", self.input, "-o", self.output, *options)
            self.assertRegex(text, "top-left.*bottom-right|corner|alignment")

    def test_case_023_068_window(self):
        """Token-exact in every layout: the mean of what is seen."""
        S = 41
        t = sample(S=S)
        t["k"][:] = 0
        t["v"][:] = np.arange(S, dtype=np.float32)[None, :, None, None]
        write(self.input, t)
        for left, right, causal in ((3, -1, 1), (0, -1, 1), (5, 2, 0), (-1, 0, 0), (100, 100, 0)):
            want = []
            for i in range(S):
                keys = [j for j in range(S) if (left < 0 or j >= i - left) and (right < 0 or j <= i + right) and (not causal or j <= i)]
                want.append(np.mean(keys))
            for P, layout in itertools.product((1, 4, 7), LAYOUTS):
                got = self.attend("--ring", P, "--layout", layout, "--window", "%d,%d" % (left, right), *(["--causal"] if causal else []))
                np.testing.assert_allclose(got["out"][0, :, 0, 0], want, rtol=1e-6)

    def test_case_033_input_is_only_read(self):
        write(self.input, {**sample(S=30), "kv_lens": np.array([21], np.int32)})
        os.chmod(self.input, 0o444)
        before = hashlib.sha256(slurp(self.input)).hexdigest()
        for P in range(1, 9):
            self.attend("--backward", "--causal", "--ring", P, "--layout", LAYOUTS[P % 3])
        self.assertEqual(hashlib.sha256(slurp(self.input)).hexdigest(), before)

    def test_case_043_064_every_instruction_set(self):
        """What one set of kernels does, all do: the same problems are exact, the same are refused."""
        outcomes = set()
        facts = dict(line.split(": ", 1) for line in self.ringattn("info").stdout.splitlines())
        for isa in facts["isa usable"].split():
            x = json.loads(self.ringattn("verify", "--random", 10 if SMALL else 60, "--seed", 64, "--json", env={**os.environ, "RA_ISA": isa}).stdout)
            self.assertEqual(x["failures"], 0)
            outcomes.add((x["exact"], x["refused"], tuple(sorted(x["reasons"].items()))))
        self.assertEqual(len(outcomes), 1, outcomes)

    def test_case_073_the_same_file_again(self):
        write(self.input, sample(S=300, H=4, G=2, D=16))
        files = set()
        for n in range(6 if SMALL else 20):
            self.attend("--causal", "--backward", "--ring", 2, "--layout", "zigzag", "--threads", (1, 4, 16)[n % 3])
            files.add(slurp(self.output))
        self.assertEqual(len(files), 1)

    def test_case_096_refusals_have_reasons(self):
        """Whatever is not done says so, in the table and when it is asked for; the kernels in use are named."""
        for x in json.loads(self.ringattn("info", "--matrix", "--json").stdout)["matrix"]:
            self.assertEqual(x["supported"], not x["reason"], x)
            self.assertTrue(x["supported"] or len(x["reason"]) > 20, x)
        options = {"softcap": ["--softcap", "3"], "alibi": ["--alibi"], "dropout": ["--dropout", "0.5"]}
        write(self.input, sample())
        for name, option in options.items():
            x = subprocess.run([PROGRAM, "attend", self.input, "-o", self.output, *option], capture_output=True, text=True)
            self.assertIn(x.returncode, (0, 3), name)
            if x.returncode:
                self.assertIn(name, x.stderr)
        facts = dict(line.split(": ", 1) for line in self.ringattn("info").stdout.splitlines())
        self.assertIn(facts["isa"], facts["isa usable"].split())
        self.assertIn("avx512" if facts["isa"] == "avx512bf16" else facts["isa"], self.ringattn("attend", self.input, "-o", self.output, "-v").stderr)


class Build(Case):
    def test_case_095_what_is_there_is_said(self):
        self.assertRegex(self.ringattn("--version").stdout, r"^ringattn \d+\.\d+\.\d+\n$")
        facts = self.ringattn("info").stdout
        for fact in ("version", "compiler", "isa", "isa usable", "openmp", "blas", "onednn", "mpi links"):
            self.assertRegex(facts, "(?m)^%s: " % fact)

    def test_case_095_nothing_is_linked_that_may_be_missing(self):
        """MPI is found at run time; no GPU library is wanted at all."""
        if not shutil.which("readelf"):
            self.skipTest("readelf is missing")
        for file in (PROGRAM, os.path.join(os.path.dirname(PROGRAM), "libringattention.so")):
            needed = subprocess.run(["readelf", "-d", file], capture_output=True, text=True, check=True).stdout
            self.assertNotRegex(needed, r"NEEDED.*(libmpi|libmpich|libcuda|libcudart|libtorch|libpython)")

    def test_case_095_builds_from_nothing(self):
        """Without MPI, BLAS, oneDNN and OpenMP, by cc -O2, in a minute of processor time and a GiB."""
        if SMALL or not shutil.which("cmake"):
            self.skipTest("needs cmake, and a build without sanitizers")
        options = ["-DRA_MPI=OFF", "-DRA_BLAS=OFF", "-DRA_OPENMP=OFF", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_C_FLAGS=-O2"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for command in (["cmake", "-S", ROOT, "-B", self.dir, *options], ["cmake", "--build", self.dir, "--target", "ringattention_static"]):
            x = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(x.returncode, 0, x.stdout[-2000:] + x.stderr[-2000:])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print("built in %.1f s of processor time, at most %.0f MiB a process" % (seconds, after.ru_maxrss / 1024))
        self.assertLess(seconds, 60)
        self.assertLess(after.ru_maxrss, 1 << 20)


if __name__ == "__main__":
    if not os.access(PROGRAM, os.X_OK):
        print("skipped: there is no program", PROGRAM)
        sys.exit(77)
    unittest.main()
