"""The program ringattn from outside: options, errors, files, manners, and the golden outputs of the original library.

Needs Python 3.9 and numpy. Environment (CMake sets it): RA_PROGRAM or RINGATTN the program; RA_GOLDEN_DIR or RA_GOLDEN the golden files;
RA_MPIRUN_OPENMPI, RA_MPIRUN_MPICH the launchers; RA_TEST_SMALL=1 for slow, sanitized builds. What is missing is skipped, with the reason.
    RINGATTN=build/ringattn python3 tests/test_cli.py [-v] [Class[.test]]
"""
import itertools
import json
import os
import re
import resource
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import numpy as np
except ImportError:
    print("skipped: numpy is missing (Debian: python3-numpy)")
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.environ.get("RINGATTN") or os.environ.get("RA_PROGRAM") or os.path.join(HERE, "../build/ringattn")
GOLDEN = os.environ.get("RA_GOLDEN") or os.environ.get("RA_GOLDEN_DIR") or os.path.join(HERE, "../../shared/golden")
SMALL = os.environ.get("RA_TEST_SMALL") == "1"
MPIRUN = {name: os.environ.get("RA_MPIRUN_" + name.upper()) for name in ("openmpi", "mpich")}
LAYOUTS = ("contiguous", "zigzag", "striped")
TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I32": np.int32, "I64": np.int64}


class BF16(np.ndarray):
    """The bits of bfloat16 numbers, as uint16."""


def to_bf16(x):
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).view(BF16)


def widen(x):
    if isinstance(x, BF16):
        return (np.asarray(x).astype(np.uint32) << 16).view(np.float32)
    return np.asarray(x, np.float32)


def dtype_of(x):
    if isinstance(x, BF16):
        return "BF16"
    return next(name for name, t in TYPES.items() if t == x.dtype)


def write(path, tensors):
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": dtype_of(x), "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(np.ascontiguousarray(x).tobytes() for x in tensors.values()))


def slurp(path):
    with open(path, "rb") as file:
        return file.read()


def read(path):
    data = slurp(path)
    n = struct.unpack("<Q", data[:8])[0]
    header, tensors = json.loads(data[8:8 + n]), {}
    for name, x in header.items():
        if name == "__metadata__":
            tensors[name] = x
            continue
        begin, end = x["data_offsets"]
        tensors[name] = np.frombuffer(data[8 + n + begin:8 + n + end], TYPES[x["dtype"]]).reshape(x["shape"])
        if x["dtype"] == "BF16":
            tensors[name] = tensors[name].view(BF16)
    return tensors


HEADED = ("q", "k", "v", "dout", "out", "dq", "dk", "dv")


def swap(tensors):
    """B,S,H,D to B,H,S,D and back."""
    return {name: np.ascontiguousarray(x.transpose(0, 2, 1, 3)).view(type(x)) if name in HEADED else x
            for name, x in tensors.items()}


def sample(S=50, Skv=None, B=1, H=2, G=1, D=8, Dv=None, seed=1, cast=np.float32):
    rng = np.random.default_rng(seed)
    Skv, Dv = Skv or S, Dv or D
    shapes = {"q": (B, S, H, D), "k": (B, Skv, G, D), "v": (B, Skv, G, Dv), "dout": (B, S, H, Dv)}
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    tensors = {name: to_bf16(x) if cast == "bf16" else x.astype(cast) for name, x in tensors.items()}
    tensors["dlse"] = rng.standard_normal((B, H, S)).astype(np.float32)
    return tensors


def reference(t, causal=False, offset=0, block=1):
    """out, lse, dq, dk, dv in double, dense matrices, written from the formulas."""
    q, k, v, dout = (widen(t[name]).astype(np.float64) for name in ("q", "k", "v", "dout"))
    B, Sq, H, D = q.shape
    Skv, group = k.shape[1], H // k.shape[2]
    kk, vv = np.repeat(k, group, 2), np.repeat(v, group, 2)
    s = np.einsum("bihd,bjhd->bhij", q, kk) / np.sqrt(D)
    if "bias" in t:
        s = s + t["bias"]
    if causal:
        hidden = (np.arange(Sq)[:, None] + offset) // block < np.arange(Skv)[None, :] // block
        s = np.where(hidden, -np.inf, s)
    if "segment_ids" in t:
        ids = t["segment_ids"]
        s = np.where(ids[:, None, :, None] != ids[:, None, None, :], -np.inf, s)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isinf(top), 0, top))
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.where(np.isinf(top), 0, top) + np.log(total))[..., 0]
    p = p / np.where(total == 0, 1, total)
    out = np.einsum("bhij,bjhd->bihd", p, vv)
    dp = np.einsum("bihd,bjhd->bhij", dout, vv)
    delta = (dout * out).sum(-1).transpose(0, 2, 1)[..., None]
    ds = p * (dp - delta + t["dlse"][..., None]) / np.sqrt(D)
    fold = lambda x: x.reshape(B, Skv, H // group, group, -1).sum(3)
    return {"out": out, "lse": lse, "dq": np.einsum("bhij,bjhd->bihd", ds, kk),
            "dk": fold(np.einsum("bhij,bihd->bjhd", ds, q)), "dv": fold(np.einsum("bhij,bihd->bjhd", p, dout))}


class Case(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="ringattn-test-")
        self.addCleanup(shutil.rmtree, self.dir, ignore_errors=True)
        self.input, self.output = os.path.join(self.dir, "in.st"), os.path.join(self.dir, "out.st")

    def ringattn(self, *arguments, launcher=(), status=0, **more):
        result = subprocess.run([*launcher, PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120, **more)
        said = "\n".join((" ".join(map(str, arguments)), result.stdout, result.stderr))
        if launcher and status:
            self.assertNotEqual(result.returncode, 0, said)
        else:
            self.assertEqual(result.returncode, status, said)
        return result

    def attend(self, *arguments, **more):
        result = self.ringattn("attend", self.input, "-o", self.output, *arguments, **more)
        return read(self.output) if result.returncode == 0 else result.stderr

    def refused(self, status, says, *arguments, **more):
        text = self.ringattn(*arguments, status=status, **more).stderr
        self.assertIn(says, text)
        self.assertTrue(text.startswith("ringattn: "), text)
        self.assertEqual(text.count("\n"), 1, text)
        self.assertEqual([x for x in os.listdir(self.dir) if x.startswith(".")], [], "a temporary was left")
        return text

    def close(self, got, want, bound, note=""):
        for name in want:
            x, y = widen(got[name]).astype(np.float64), np.asarray(want[name], np.float64)
            self.assertEqual(x.shape, y.shape, name)
            with np.errstate(invalid="ignore"):
                error = np.where(x == y, 0, np.abs(x - y)).max(initial=0)
            size = np.abs(y[np.isfinite(y)]).max(initial=1e-30)
            self.assertLessEqual(error, bound * size, "%s %s" % (name, note))


class Options(Case):
    def test_help(self):
        self.assertIn("verify", self.ringattn("--help").stdout)
        for command in ("attend", "verify", "bench", "info"):
            self.assertIn("ringattn " + command, self.ringattn(command, "--help").stdout)
        self.assertRegex(self.ringattn("--version").stdout, r"^ringattn \d+\.\d+\.\d+\n$")

    def test_wrong_usage_names_the_nearest(self):
        for says, arguments in {
            "a command is needed": [],
            "unknown command atend, did you mean attend?": ["atend"],
            "unknown option --versoin, did you mean --version?": ["--versoin"],
            "unknown option --casual, did you mean --causal?": ["attend", "x", "--casual"],
            "unknown option --backwards, did you mean --backward?": ["attend", "x", "--backwards"],
            "unknown option --caus, did you mean --causal?": ["attend", "x", "--caus"],  # no abbreviations
            "unknown option --back, did you mean --backward?": ["attend", "x", "--back"],
            "unknown option --rin, did you mean --ring?": ["attend", "x", "--rin", "4"],
            "unknown option -x": ["attend", "-x"],
            "--segments is no option of ringattn attend": ["attend", "x", "--segments", "4"],
            "--softcap is no option of ringattn bench": ["bench", "--softcap", "4"],
            "--window: 3 is no pair L,R of whole numbers": ["attend", "x", "--window", "3"],
            "--window: 3x is no whole number": ["attend", "x", "--window", "3x,4"],
            "--window: -2 is not in -1 ..": ["attend", "x", "--window", "0,-2"],
            "--prefix: -1 is not in 0 ..": ["attend", "x", "--prefix", "-1"],
            "--prefix needs --causal": ["attend", "x", "-o", "y", "--prefix", "4"],
            "--keep-first needs a --window": ["attend", "x", "-o", "y", "--keep-first", "4", "--window", "-1,2"],
            "--softcap must not be below 0": ["attend", "x", "-o", "y", "--softcap", "-1"],
            "--softcap: nan is no finite number": ["attend", "x", "-o", "y", "--softcap", "nan"],
            "--dropout must be in 0 .. 1": ["attend", "x", "-o", "y", "--dropout", "1.01"],
            "--dbias needs --backward": ["attend", "x", "-o", "y", "--dbias"],
            "--dsinks needs --backward": ["attend", "x", "-o", "y", "--dsinks"],
            "--dbias needs --bias": ["verify", "--S", "4", "--dbias"],
            "--dsinks needs --sinks": ["verify", "--S", "4", "--dsinks"],
            "--slices: there is nothing to cover": ["verify", "--Sq", "0", "--Skv", "4", "--slices", "1"],
            "name the window's corner": ["verify", "--Sq", "4", "--Skv", "5", "--window", "1,1"],
            "name the ALiBi's corner": ["verify", "--Sq", "4", "--Skv", "5", "--alibi"],
            "--only needs --random": ["verify", "--S", "4", "--only", "window"],
            "--random draws the problems": ["verify", "--random", "4", "--causal"],
            "--only: unknown kind widow, did you mean window?": ["verify", "--random", "4", "--only", "causal,widow"],
            "option --causal takes no value": ["attend", "x", "--causal=1"],
            "option --ring needs a value": ["attend", "x", "--ring"],
            "option -o needs a value": ["attend", "x", "-o"],
            "unknown value zigzak, did you mean zigzag?": ["attend", "x", "--layout", "zigzak"],
            "unknown value 7, known are bshd, bhsd": ["attend", "x", "--order", "7"],
            "--ring: 0 is not in 1 .. 1024": ["attend", "x", "--ring", "0"],
            "--threads: 2x is no whole number": ["attend", "x", "--threads", "2x"],
            "--q-chunk: 99999999999G is no whole number": ["attend", "x", "--q-chunk", "99999999999G"],
            "--q-chunk: 1025G is not in": ["attend", "x", "--q-chunk", "1025G"],
            "--scale: nan is no finite number": ["attend", "x", "--scale", "nan"],
            "--timeout must be above 0": ["attend", "x", "--timeout", "0"],
            "exclude each other": ["attend", "x", "-o", "y", "--causal", "--causal-block", "4"],
            "--align needs --causal, --causal-block, --window or --alibi": ["verify", "--S", "4", "--align", "top-left"],
            "--align needs --causal or --causal-block": ["bench", "--align", "top-left"],
            "needs an input file": ["attend", "-o", "y"],
            "needs an output file": ["attend", "x"],
            "takes one input file": ["attend", "x", "y", "-o", "z"],
            "unknown shape d65, did you mean d64?": ["bench", "d65"],
            "ringattn bench --list names them all": ["bench", "ringg"],
            "is not a multiple of": ["verify", "--S", "4", "--H", "3", "--G", "2"],
            "the length is missing": ["verify", "--D", "4"],
            "name the causal mask's corner": ["verify", "--Sq", "4", "--Skv", "5", "--causal"],
            "takes no argument": ["info", "x"],
        }.items():
            with self.subTest(says):
                self.refused(2, says, *arguments)

    def test_instruction_set_that_is_not_there(self):
        """RA_ISA is refused with what it could be, by every command, never ignored."""
        usable = dict(x.split(": ", 1) for x in self.ringattn("info").stdout.splitlines())["isa usable"].split()
        known = ["scalar", "avx2", "avx512", "avx512bf16", "amx"]
        for isa in ["avx-512", "AVX2", "avx512 ", "0", "x" * 300, *(x for x in known if x not in usable)]:
            for command in (["info"], ["info", "--matrix"], ["verify", "--S", "4"], ["attend", "x", "-o", "y"], ["bench", "d64"],
                            ["verify", "--random", "2"]):
                text = self.refused(2, "RA_ISA=" + isa[:40] + ": ", *command, env={**os.environ, "RA_ISA": isa})
                self.assertIn(", ".join(usable), text)
                if isa not in known:
                    self.assertIn(", ".join(known), text)
        for isa in ["", *usable]:
            self.ringattn("verify", "--S", "4", env={**os.environ, "RA_ISA": isa})

    def test_every_option_is_in_the_man_page(self):
        page = os.path.join(HERE, "../man/ringattn.1")
        if not os.path.exists(page):
            self.skipTest("man/ringattn.1 is not there")
        text = slurp(page).decode()
        for command in ("attend", "verify", "bench", "info"):
            for option in re.findall(r"--([A-Za-z-]+)", self.ringattn(command, "--help").stdout):
                self.assertRegex(text, r"Fl -%s\b" % option)

    def test_a_full_stdout_is_an_error(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full here")
        with open("/dev/full", "w") as full:
            result = subprocess.run([PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
        self.assertEqual(result.returncode, 5, result.stderr)


class BadInput(Case):
    def bad(self, status, says, *options):
        return self.refused(status, says, "attend", self.input, "-o", self.output, *options)

    def test_files(self):
        write(self.input, sample())
        whole = slurp(self.input)
        for data, says in ((b"", "too few"), (whole[:7], "too few"), (whole[:100], "truncated"), (whole[:-1], "truncated"),
                           (b"\xff" * 100, "no safetensors file"), (struct.pack("<Q", 5) + b"[1,2]", "no JSON object")):
            with self.subTest(says), open(self.input, "wb") as file:
                file.write(data)
                file.close()
                self.assertIn("in.st", self.bad(4, says))
        os.remove(self.input)
        self.bad(5, "cannot open")
        self.refused(5, "not a regular file", "attend", self.dir, "-o", self.output)
        self.assertFalse(os.path.exists(self.output))

    def test_tensors(self):
        def change(**changes):
            tensors = {**sample(H=8, G=2), **changes}
            write(self.input, {name: x for name, x in tensors.items() if x is not None})
        zeros = lambda *shape, t=np.float32: np.zeros(shape, t)
        for says, changes in {
            "there is no tensor q": {"q": None},
            "there is no tensor v": {"v": None},
            "in.st: tensor k has 3 heads, q has 8: q heads must be a multiple of k heads": {"k": zeros(1, 50, 3, 8), "v": zeros(1, 50, 3, 8)},
            "tensor v has 1 heads, k has 2": {"v": zeros(1, 50, 1, 8)},
            "tensor v has 49 tokens, k has 50": {"v": zeros(1, 49, 2, 8)},
            "tensor k has head size 9, q has 8": {"k": zeros(1, 50, 2, 9)},
            "batch sizes differ": {"k": zeros(2, 50, 2, 8)},
            "must be at least 1": {"q": zeros(1, 50, 8, 0), "k": zeros(1, 50, 2, 0)},
            "must have 4 axes": {"q": zeros(1, 50, 8)},
            "q is F16, k F32, v F32: the types must be the same": {"q": zeros(1, 50, 8, 8, t=np.float16)},
            "tensor q is I32, must be F32, BF16 or F16": {"q": zeros(1, 50, 8, 8, t=np.int32)},
            "tensor segment_ids is F32, must be I32": {"segment_ids": zeros(1, 50)},
            "tensor segment_ids is [1, 51], must be [1, 50]": {"segment_ids": zeros(1, 51, t=np.int32)},
            "q_segment_ids is there without kv_segment_ids": {"q_segment_ids": zeros(1, 50, t=np.int32)},
            "segment_ids and q_segment_ids exclude": {"segment_ids": zeros(1, 50, t=np.int32), "q_segment_ids": zeros(1, 50, t=np.int32)},
            "tensor bias is [1, 3, 1, 50], must be [1 or 1, 8 or 1, 50 or 1, 50 or 1]": {"bias": zeros(1, 3, 1, 50)},
            "tensor dout is [1, 50, 8, 9], must be [1, 50, 8, 8]": {"dout": zeros(1, 50, 8, 9)},
            "tensor dlse is [1, 8, 49], must be [1, 8, 50]": {"dlse": zeros(1, 8, 49)},
            "tensor dlse is F16, must be F32": {"dlse": zeros(1, 8, 50, t=np.float16)},
        }.items():
            with self.subTest(says):
                change(**changes)
                self.bad(4, says, "--ring", "3")
        change(dout=None, dlse=None)
        self.bad(4, "--backward needs tensor dout or dlse", "--backward")
        self.attend()

    def test_corner_must_be_named(self):
        write(self.input, sample(S=5, Skv=7))
        self.bad(2, "5 queries and 7 keys: name the causal mask's corner", "--causal")
        self.bad(2, "--align needs --causal, --causal-block, --window or ALiBi", "--align", "top-left")
        self.attend("--causal", "--align", "bottom-right")
        self.attend()

    def test_ranks_fail_as_one_line(self):
        write(self.input, {name: x for name, x in sample().items() if name != "k"})
        self.assertTrue(self.bad(4, "there is no tensor k", "--ring", "4").startswith("ringattn: ranks 0-3: "))


class Output(Case):
    def test_unwritable(self):
        write(self.input, sample())
        self.refused(5, "bytes are needed", "attend", self.input, "-o", os.path.join(self.dir, "nowhere/out.st"))
        self.refused(5, "not a regular file", "attend", self.input, "-o", self.dir)
        self.refused(5, "not a regular file", "attend", self.input, "-o", "/dev/null")

    def test_existing_output_is_untouched_by_failure(self):
        write(self.input, sample())
        with open(self.output, "w") as file:
            file.write("precious")
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        text = self.refused(5, "bytes: File too large", "attend", self.input, "-o", self.output, preexec_fn=limit)
        self.assertRegex(text, r"cannot make a file of \d+ bytes")
        self.assertEqual(slurp(self.output), b"precious")

    def test_replaces_keeps_mode_and_follows_links(self):
        write(self.input, sample())
        with open(self.output, "w") as file:
            file.write("old")
        os.chmod(self.output, 0o640)
        link = os.path.join(self.dir, "link.st")
        os.symlink(self.output, link)
        self.ringattn("attend", self.input, "-o", link)
        self.assertTrue(os.path.islink(link))
        self.assertEqual(os.stat(self.output).st_mode & 0o777, 0o640)
        self.assertEqual(read(self.output)["out"].shape, (1, 50, 2, 8))

    def test_input_may_be_the_output(self):
        tensors = sample()
        write(self.input, tensors)
        self.ringattn("attend", self.input, "-o", self.input)
        self.close(read(self.input), {"out": reference(tensors)["out"]}, 1e-5)

    def interrupt(self, number):
        S = 1024 if SMALL else 4096
        write(self.input, sample(S=S, H=1, D=64))
        with open(self.output, "w") as file:
            file.write("precious")
        process = subprocess.Popen([PROGRAM, "attend", self.input, "-o", self.output, "--ring", "2", "--repeat", "1000000"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        end = time.time() + 30
        while time.time() < end and not any(x.startswith(".ringattn") for x in os.listdir(self.dir)):
            time.sleep(0.01)
        time.sleep(0.2)
        process.send_signal(number)
        process.communicate(timeout=30)
        self.assertEqual(process.returncode, -number)
        self.assertEqual(sorted(os.listdir(self.dir)), ["in.st", "out.st"])
        self.assertEqual(slurp(self.output), b"precious")

    def test_sigint(self):
        self.interrupt(signal.SIGINT)

    def test_sigterm(self):
        self.interrupt(signal.SIGTERM)

    def test_out_of_memory(self):
        if SMALL:
            self.skipTest("sanitizers need more address space")
        write(self.input, sample(S=40000, H=8, D=64))
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (190 << 20, 190 << 20))
        self.refused(8, "out of memory", "attend", self.input, "-o", self.output, "--threads", "1", preexec_fn=limit)


class Report(Case):
    KEYS = {"ranks", "layout", "isa", "threads", "seconds_forward", "seconds_backward", "flops_forward", "flops_backward", "peak_gflops",
            "bytes_sent", "workspace_bytes", "plan_bytes", "resident_bytes", "overlap"}

    def test_json(self):
        write(self.input, sample(S=100, H=4, G=2, D=16, Dv=8))
        for ring, layout, repeat in ((1, "contiguous", 1), (3, "zigzag", 4)):
            text = self.ringattn("attend", self.input, "-o", self.output, "--backward", "--causal", "--json", "--ring", ring, "--layout",
                                 layout, "--repeat", repeat).stdout
            x = json.loads(text)
            self.assertLessEqual(self.KEYS, set(x))
            self.assertEqual((x["ranks"], x["layout"]), (ring, layout))
            pairs = 4 * 100 * 101 / 2
            self.assertEqual(x["flops_forward"], pairs * (2 * 16 + 2 * 8))
            self.assertEqual(x["flops_backward"], pairs * (6 * 16 + 4 * 8))
            self.assertTrue(x["seconds_forward"] > 0 and x["seconds_backward"] > 0 and x["peak_gflops"] > 0)
            self.assertTrue(x["workspace_bytes"] > 0 and x["plan_bytes"] > 0 and x["resident_bytes"] > 1 << 20 and 0 <= x["overlap"] <= 1)
            self.assertEqual(x["bytes_sent"] > 0, ring > 1)
            self.assertEqual(len(x["per_rank"]), ring)
        x = json.loads(self.ringattn("attend", self.input, "-o", self.output, "--json", "-q").stdout)
        self.assertIsNone(x["seconds_backward"])

    def test_quiet_and_verbose(self):
        write(self.input, {**sample(), "extra": np.zeros(3, np.float32)})
        result = self.ringattn("attend", self.input, "-o", self.output, "-q")
        self.assertEqual(result.stdout + result.stderr, "")
        result = self.ringattn("attend", self.input, "-o", self.output, "-v", "--ring", "2")
        self.assertIn("tensor extra is not used", result.stderr)
        self.assertIn("schedule", result.stderr)
        self.assertIn("forward", result.stdout)

    def test_info(self):
        x = json.loads(self.ringattn("info", "--json").stdout)
        for key in ("version", "isa", "cpu", "cores", "memory_bytes"):
            self.assertIn(key, x)
        self.assertIn("isa: ", self.ringattn("info").stdout)

    def test_info_names_plugins(self):
        """A plugin of fake_pjrt.c: what it does is in its file's name."""
        def info(name):
            path = os.path.join(self.dir, name)
            shutil.copy(os.environ["RA_FAKE_PJRT"], path)
            env = {**os.environ, "RA_PJRT_PLUGIN": path}
            plugin = json.loads(self.ringattn("info", "--json", env=env).stdout)["pjrt"][0]
            self.assertEqual((plugin["path"], plugin["found_by"]), (path, "RA_PJRT_PLUGIN"))
            line = [x for x in self.ringattn("info", env=env).stdout.split("\n") if x.startswith(f"pjrt: {path}")]
            self.assertEqual(len(line), 1)
            return plugin, line[0]

        plugin, line = info("fake_good.so")
        self.assertTrue(plugin["usable"])
        self.assertEqual((plugin["why"], plugin["api"], plugin["platform"]), ("", "0.77", "fake"))
        self.assertEqual([d["id"] for d in plugin["devices"]], [7, 300])
        self.assertEqual((plugin["devices"][0]["coords"], plugin["devices"][0]["memory_bytes"]), ([1, 2, 3], 16 << 30))
        self.assertIn("PJRT 0.77, fake, 2 devices (imagined", line)
        self.assertIn("16.0 GiB each", line)
        for name, status, why in (("fake_major.so", "ERR_UNSUPPORTED", "it speaks PJRT 1.77"),
                                  ("fake_empty.so", "ERR_UNSUPPORTED", "it has no devices")):
            with self.subTest(name):
                plugin, line = info(name)
                self.assertEqual((plugin["usable"], plugin["status"], plugin["devices"]), (False, status, []))
                self.assertIn(why, plugin["why"])
                self.assertIn(f"cannot be used: {name}", line)

    def test_bench(self):
        x = json.loads(self.ringattn("bench", "d64-causal", "--S", 128, "--repeat", 3, "--json", "--ring", 2).stdout)["results"]
        self.assertEqual(len(x), 1)
        self.assertEqual((x[0]["shape"], x[0]["S"], x[0]["ranks"], x[0]["causal"]), ("d64-causal", 128, 2, True))
        self.assertTrue(x[0]["gflops_forward"] > 0 and x[0]["percent_backward"] > 0)
        self.assertIn("given", self.ringattn("bench", "--S", 64, "--D", 8, "--H", 2, "--repeat", 1).stdout)

    def test_bench_compares(self):
        shapes = "gqa tails bf16 f16 segments threads ring slow-link".split()
        x = json.loads(self.ringattn("bench", *shapes, "--S", 96, "--D", 16, "--H", 2, "--repeat", 1, "--json").stdout)["results"]
        self.assertEqual([s for s in shapes if s not in [r["group"] for r in x]], [])
        names = [r["shape"] for r in x]
        for r in x:
            with self.subTest(r["shape"]):
                self.assertTrue(r["gflops_both"] > 0 and r["percent_both"] > 0)
                self.assertTrue(r["against"] is None or r["against"] in names)
                self.assertEqual(r["against"] is None, r["ratio_forward"] is None)
        self.assertEqual([r["segments"] for r in x if r["group"] == "segments"], [0, 8, 0, 8])
        self.assertEqual({r["ranks"] for r in x if r["group"] == "ring"}, {1, 2, 4, 8})
        self.assertEqual({r["layout"] for r in x if r["shape"] == "ring-4-causal"}, {"zigzag"})
        self.assertEqual({r["slow_share"] for r in x if r["group"] == "slow-link"}, {None, 0.5, 0.9})
        self.assertEqual({r["causal"] for r in x if r["group"] == "threads"}, {False, True})
        self.refused(2, "sees all keys", "bench", "decode", "--causal")
        self.refused(2, "one rank has no link", "bench", "slow-link", "--ring", 1)

    def test_bench_decode(self):
        x = json.loads(self.ringattn("bench", "decode", "--S", 1000, "--D", 16, "--repeat", 1, "--json").stdout)["results"]
        self.assertEqual([(r["dtype"], r["H"], r["G"]) for r in x], [(t, h, 8) for t in ("f32", "bf16", "f16") for h in (8, 64)])
        for r in x:
            self.assertTrue(r["Sq"] == 1 and r["percent_bandwidth"] > 0 and r["gflops_backward"] is None)

    def test_bench_list(self):
        names = [line.split()[0] for line in self.ringattn("bench", "--list").stdout.splitlines()[:-1]]
        text = slurp(os.path.join(HERE, "../man/ringattn.1")).decode()
        for name in names:
            self.assertRegex(text, r"\b%s\b" % name)


class Verify(Case):
    def test_random(self):
        text = self.ringattn("verify", "--S", 70, "--H", 4, "--G", 2, "--D", 16, "--Dv", 24, "--causal", "--ring", 3, "--layout", "zigzag",
                             "--segments", 3, "--bias", "full", "--order", "bhsd", "--dtype", "bf16").stdout
        self.assertEqual(len(text.splitlines()), 1 + 3 * 5, text)

    def test_failure_prints_the_command(self):
        arguments = ["verify", "--S", 70, "--D", 16, "--causal", "--ring", 2, "--tolerance", "1e-12"]
        result = self.ringattn(*arguments, status=1)
        self.assertIn("ABOVE", result.stdout)
        self.assertIn("reproduce: ringattn verify --ring 2 --causal --S 70 --D 16 --tolerance 1e-12", result.stderr)

    def test_json(self):
        x = json.loads(self.ringattn("verify", "--S", 20, "--D", 4, "--json").stdout)
        self.assertEqual((x["failures"], x["checks"]), (0, 5))
        self.assertEqual({r["tensor"] for r in x["results"]}, {"out", "lse", "dq", "dk", "dv"})

    def test_matrix(self):
        if SMALL:
            self.skipTest("too long under sanitizers")
        self.assertRegex(self.ringattn("verify").stdout, r"^\d+ problems, \d+ tensors compared with fp64, 0 above")

    def test_file(self):
        tensors = sample(S=33)
        write(self.input, {**tensors, **{name: x.astype(np.float32) for name, x in reference(tensors, causal=True).items()}})
        text = self.ringattn("verify", self.input, "--causal", "--ring", 2).stdout
        self.assertIn("against the file", text)
        self.assertEqual(len(text.splitlines()), 2 * 11)
        self.ringattn("verify", self.input, "--ring", 2, status=1)  # not causal: the file's results do not fit


class Results(Case):
    """Every layout, ring size and order gives what the formulas give, and the same with other tiles and threads."""

    def check(self, tensors, bound, rings, *options, **formula):
        want = reference(tensors, **formula)
        for order in ("bshd", "bhsd"):
            write(self.input, tensors if order == "bshd" else swap(tensors))
            for P, layout in itertools.product(rings, LAYOUTS):
                got = self.attend("--backward", "-q", "--ring", P, "--layout", layout, "--order", order, *options)
                self.assertEqual(set(got), {"out", "lse", "dq", "dk", "dv"})
                self.assertEqual(dtype_of(got["out"]), dtype_of(tensors["q"]))
                got = got if order == "bshd" else swap(got)
                self.close(got, want, bound, "P %d %s %s" % (P, layout, order))

    def test_plain(self):
        self.check(sample(S=37, B=2, H=4, G=2, D=16, Dv=24), 1e-5, (1, 3, 4))

    def test_more_ranks_than_tokens(self):
        self.check(sample(S=5, H=2), 1e-5, (8,), "--causal", causal=True)

    def test_causal(self):
        self.check(sample(S=65, H=3, G=1, D=40), 1e-5, (2, 5), "--causal", causal=True)

    def test_causal_block(self):
        self.check(sample(S=65), 1e-5, (3,), "--causal-block", 8, causal=True, block=8)

    def test_corners(self):
        self.check(sample(S=20, Skv=33), 1e-5, (3,), "--causal", "--align", "bottom-right", causal=True, offset=13)
        self.check(sample(S=33, Skv=20), 1e-5, (3,), "--causal", "--align", "bottom-right", causal=True, offset=-13)
        self.check(sample(S=20, Skv=33), 1e-5, (3,), "--causal", "--align", "top-left", causal=True)

    def test_segments(self):
        ids = (np.arange(60) // 13).astype(np.int32)
        self.check({**sample(S=60, B=2), "segment_ids": np.stack([ids, ids[::-1]])}, 1e-5, (3,), "--causal", causal=True)

    def test_separate_ids(self):
        tensors = sample(S=30, Skv=40)
        q, kv = (np.arange(30) // 7).astype(np.int32)[None], (np.arange(40) // 9).astype(np.int32)[None]
        bias = np.where(q[0][:, None] != kv[0][None, :], -np.inf, 0).astype(np.float32)[None, None]
        write(self.input, {**tensors, "q_segment_ids": q, "kv_segment_ids": kv})
        self.close(self.attend("--backward", "--ring", 3), reference({**tensors, "bias": bias}), 1e-5)

    def test_biases(self):
        rng = np.random.default_rng(5)
        for shape in ((1, 1, 1, 40), (2, 1, 1, 40), (1, 4, 40, 40), (2, 4, 40, 40), (2, 4, 1, 40), (1, 4, 40, 1), (1, 1, 1, 1)):
            bias = rng.standard_normal(shape).astype(np.float32)
            bias[rng.random(shape) < 0.1] = -np.inf
            with self.subTest(shape):
                self.check({**sample(S=40, B=2, H=4), "bias": bias}, 1e-5, (3,))
        write(self.input, {**sample(S=40), "bias": to_bf16(np.zeros((1, 1, 40, 40)))})
        self.close(self.attend("--backward", "--ring", 2), reference(sample(S=40)), 1e-5)

    def test_16_bit(self):
        for cast, bound in (("bf16", 8e-3), (np.float16, 1e-3)):
            with self.subTest(cast):
                self.check(sample(S=50, H=4, G=2, D=32, cast=cast), bound, (1, 3), "--causal", causal=True)

    def test_16_bit_out_is_rounded_once(self):
        """The forward alone stores out directly, with --backward it is rounded from fp32: the same numbers."""
        for cast in ("bf16", np.float16):
            write(self.input, sample(S=50, D=32, cast=cast))
            one = self.attend()["out"]
            self.assertEqual(one.tobytes(), self.attend("--backward")["out"].tobytes())

    def test_forward_alone(self):
        tensors = sample()
        write(self.input, tensors)
        got = self.attend("--ring", 2)
        self.assertEqual(set(got), {"out", "lse"})
        want = reference(tensors)
        self.close(got, {"out": want["out"], "lse": want["lse"]}, 1e-5)

    def test_gradient_of_lse_alone_and_of_out_alone(self):
        for gone in ("dout", "dlse"):
            tensors = sample()
            zero = {**tensors, gone: np.zeros_like(tensors[gone])}
            write(self.input, {name: x for name, x in tensors.items() if name != gone})
            self.close(self.attend("--backward", "--ring", 2), reference(zero), 1e-5)

    def test_scale(self):
        tensors = sample(D=16)
        write(self.input, tensors)
        want = reference({**tensors, "q": tensors["q"] * np.float32(2)})
        got = self.attend("--scale", "0.5", "--ring", 2)
        self.close(got, {"out": want["out"], "lse": want["lse"]}, 1e-5)

    def test_same_bits(self):
        """Repetitions and threads change no bit; tiles only the rounding."""
        tensors = sample(S=150, H=4, D=32)
        write(self.input, tensors)
        before = slurp(self.input)
        self.attend("--backward", "--causal", "--ring", 2, "--threads", 1)
        first = slurp(self.output)
        for options in (("--threads", 3), ("--repeat", 3), ("--threads", 2, "-v")):
            self.attend("--backward", "--causal", "--ring", 2, *options)
            self.assertEqual(slurp(self.output), first, options)
        for chunk in (1, 16, 150, "1K"):
            got = self.attend("--backward", "--causal", "--ring", 2, "--q-chunk", chunk, "--k-chunk", chunk)
            self.close(got, reference(tensors, causal=True), 1e-5)
        self.assertEqual(slurp(self.input), before)

    def test_nothing_is_visible(self):
        tensors = {**sample(S=12), "bias": np.full((1, 1, 1, 12), -np.inf, np.float32)}
        write(self.input, tensors)
        got = self.attend("--backward", "--ring", 2)
        self.assertTrue(all((got[name] == 0).all() for name in ("out", "dq", "dk", "dv")))
        self.assertTrue((got["lse"] == -np.inf).all())


def golden_files():
    if not os.path.isdir(GOLDEN):
        raise unittest.SkipTest("the golden files are not at " + GOLDEN)
    names = sorted(x for x in os.listdir(GOLDEN) if x.endswith(".safetensors") and not x.startswith("smollm2"))
    return [os.path.join(GOLDEN, x) for x in names]


def golden_mask(tensors):
    block = int(tensors["__metadata__"]["causal_block_size"])
    return ([], ["--causal"])[block] if block < 2 else ["--causal-block", block]


class Golden(Case):
    def check(self, path, run):
        """run(options) gives the results for the file at self.input."""
        tensors = read(path)
        mask = golden_mask(tensors)
        want = {name: tensors[name] for name in ("out", "dq", "dk", "dv")}
        bound = 1e-4 if "large_logits" in path else 1e-5
        inputs = {name: x for name, x in tensors.items() if name not in want and name != "__metadata__"}
        for order in ("bshd", "bhsd"):
            write(self.input, inputs if order == "bshd" else swap(inputs))
            for layout, got in run(["--backward", "-q", "--order", order, *mask]):
                got = got if order == "bshd" else swap(got)
                self.close(got, want, bound, "%s %s %s" % (os.path.basename(path), layout, order))

    def test_local(self):
        def run(options):
            for P, layout in itertools.product((2, 3) if SMALL else (1, 2, 3, 4, 8), LAYOUTS):
                yield "P %d %s" % (P, layout), self.attend("--ring", P, "--layout", layout, *options)
        for path in golden_files():
            with self.subTest(os.path.basename(path)):
                self.check(path, run)

    def test_smollm2_head(self):
        """Under a causal mask the first 256 rows depend on the first 256 tokens only, and these the file holds."""
        path = os.path.join(GOLDEN, "smollm2_layer0.safetensors")
        if not os.path.exists(path):
            self.skipTest("there is no " + path)
        x = read(path)
        write(self.input, {name: x[name + "_head"] for name in ("q", "k", "v")})
        inside = x["rows"] < 256
        rows = x["rows"][inside]
        self.assertGreater(len(rows), 0)
        for P, layout in itertools.product((1, 2, 4), LAYOUTS):
            got = self.attend("--causal", "--ring", P, "--layout", layout, "-q")
            self.close({"out": got["out"][:, rows], "lse": got["lse"][:, :, rows]},
                       {"out": x["out_rows"][:, inside], "lse": x["lse_rows"][:, :, inside]}, 1e-5)


def launchers():
    """The commands in RA_MPIRUN_*, which may have options. One that is set but not there is an error, not a skip."""
    for name, command in MPIRUN.items():
        if not command:
            continue
        words = shlex.split(command)
        if not shutil.which(words[0]):
            raise FileNotFoundError("RA_MPIRUN_%s: there is no %s" % (name.upper(), words[0]))
        yield name, words + (["--oversubscribe"] if name == "openmpi" and "--oversubscribe" not in words else [])


class Mpi(Case):
    def setUp(self):
        super().setUp()
        os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.found = list(launchers())
        if not self.found:
            self.skipTest("RA_MPIRUN_OPENMPI and RA_MPIRUN_MPICH name no launcher")
        if SMALL:
            self.skipTest("MPI is not run under sanitizers")

    def mpi(self, launcher, n, *arguments, **more):
        return self.ringattn(*arguments, launcher=[*launcher, "-n", str(n)], **more)

    def test_golden(self):
        for (name, launcher), n in itertools.product(self.found, (1, 2, 3, 4)):
            def run(options):
                for layout in LAYOUTS:
                    self.mpi(launcher, n, "attend", self.input, "-o", self.output, "--layout", layout, *options)
                    yield "%s -n %d %s" % (name, n, layout), read(self.output)
            for path in golden_files():
                with self.subTest(name=name, n=n, file=os.path.basename(path)):
                    Golden.check(self, path, run)

    def test_bits_are_those_of_local_ranks(self):
        write(self.input, sample(S=50, H=4, G=2))
        for (name, launcher), layout in itertools.product(self.found, LAYOUTS):
            options = ("--backward", "--causal", "--layout", layout, "--threads", 1)
            local = self.attend("--ring", 3, *options)
            self.mpi(launcher, 3, "attend", self.input, "-o", self.output, *options)
            for tensor, x in read(self.output).items():
                self.assertEqual(x.tobytes(), local[tensor].tobytes(), "%s %s %s" % (name, layout, tensor))

    def test_json_once(self):
        write(self.input, sample())
        for name, launcher in self.found:
            x = json.loads(self.mpi(launcher, 3, "attend", self.input, "-o", self.output, "--json", "--ring", 3).stdout)
            self.assertEqual((x["ranks"], x["link"]), (3, name))

    def test_ring_must_fit(self):
        write(self.input, sample())
        for name, launcher in self.found:
            result = self.mpi(launcher, 2, "attend", self.input, "-o", self.output, "--ring", 3, status=2)
            self.assertEqual(result.stderr.count("--ring 3, but there are 2 processes"), 1, result.stderr)

    def test_failure_is_told_once(self):
        write(self.input, {name: x for name, x in sample().items() if name != "v"})
        with open(self.output, "w") as file:
            file.write("precious")
        for name, launcher in self.found:
            result = self.mpi(launcher, 3, "attend", self.input, "-o", self.output, status=4)
            self.assertEqual(result.stderr.count("ringattn: ranks 0-2: %s: there is no tensor v" % self.input), 1, result.stderr)
            self.assertEqual(result.stderr.count("ringattn: "), 1, result.stderr)
            self.assertEqual(slurp(self.output), b"precious")

    def test_other_input_on_one_rank(self):
        """Ranks started with different arguments notice, instead of hanging or mixing results."""
        other = os.path.join(self.dir, "other.st")
        write(self.input, sample())
        write(other, sample(S=51))
        for name, launcher in self.found:
            command = [*launcher, "-n", "1", PROGRAM, "attend", self.input, "-o", self.output, ":", "-n", "1", PROGRAM, "attend", other,
                       "-o", self.output]
            result = subprocess.run(command, capture_output=True, text=True, timeout=60)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn("the ranks disagree", result.stderr)
            self.assertEqual(sorted(os.listdir(self.dir)), ["in.st", "other.st"])

    def test_verify(self):
        for name, launcher in self.found:
            text = self.mpi(launcher, 2, "verify", "--S", 40, "--D", 8, "--causal").stdout
            self.assertEqual(len(text.splitlines()), 11, text)

    def test_a_killed_rank_leaves_no_output(self):
        write(self.input, sample(S=4096, H=1, D=64))
        for name, launcher in self.found:
            process = subprocess.Popen([*launcher, "-n", "2", PROGRAM, "attend", self.input, "-o", self.output, "--repeat", "100000",
                                        "--timeout", "5"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            victim = self.wait_for_rank(process.pid)
            os.kill(victim, signal.SIGKILL)
            process.communicate(timeout=60)
            self.assertNotEqual(process.returncode, 0)
            self.assertFalse(os.path.exists(self.output))

    def wait_for_rank(self, launcher):
        """The process number of one ringattn below the launcher, once the output's temporary is there."""
        end = time.time() + 30
        while time.time() < end:
            time.sleep(0.05)
            if any(x.startswith(".ringattn") for x in os.listdir(self.dir)):
                found = [pid for pid in descendants(launcher) if name_of(pid) == "ringattn"]
                if len(found) == 2:
                    time.sleep(0.2)
                    return found[1]
        self.fail("the ranks did not start")


def name_of(pid):
    try:
        return slurp("/proc/%d/comm" % pid).decode().strip()
    except OSError:
        return ""


def descendants(pid):
    try:
        children = slurp("/proc/%d/task/%d/children" % (pid, pid)).split()
    except OSError:
        return []
    return [x for child in map(int, children) for x in [child, *descendants(child)]]


if __name__ == "__main__":
    if not os.access(PROGRAM, os.X_OK):
        print("skipped: there is no program", PROGRAM)
        sys.exit(77)
    unittest.main()
