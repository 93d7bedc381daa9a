"""The whole mask language and the score modifiers through files: ringattn attend against dense matrices in numpy, or refused with a reason.

What the engine does not do must be refused with exit status 3 and leave no output; what it does must be right. Environment as in test_cli.py.
"""
import itertools
import json
import os
import re
import sys
import unittest

import numpy as np

from test_cli import LAYOUTS, PROGRAM, SMALL, Case, read, sample, slurp, widen, write

REFUSED = re.compile(r"^ringattn: .*the CPU engine does not (do|compute) this yet$")


def ints(*values, t=np.int32):
    return np.array(values, t)


def places(S, offsets):
    """Sequence of every token, -1 for none, and its place in it."""
    sequence, place = np.full(S, -1), np.arange(S)
    for s, (begin, end) in enumerate(zip(offsets, offsets[1:])):
        sequence[begin:end], place[begin:end] = s, np.arange(end - begin)
    return sequence, place


def visible(t, Sq, Skv, causal=0, block=0, corner="", left=-1, right=-1, prefix=0, keep_first=0):
    """[B,Sq,Skv] of booleans, the distances i + offset - j of ALiBi [Sq,Skv]."""
    q_sequence, i = places(Sq, t.get("cu_seqlens_q", [0, Sq]))
    k_sequence, j = places(Skv, t.get("cu_seqlens_kv", [0, Skv]))
    offset = np.zeros(Sq, int)
    if corner == "bottom-right":
        offset = np.array([(k_sequence == s).sum() - (q_sequence == s).sum() for s in q_sequence])
    behind = (i + offset)[:, None] - j
    see = (q_sequence[:, None] == k_sequence) & (q_sequence >= 0)[:, None]
    if causal:
        see &= (behind >= 0) | (j < prefix)
    if block:
        see &= (j // block <= ((i + offset) // block)[:, None]) | (j < prefix)
    if left >= 0:
        see &= (behind <= left) | (j < keep_first)
    if right >= 0:
        see &= -behind <= right
    if "slices" in t:
        covered = np.zeros((Sq, Skv), bool)
        for q0, q1, k0, k1, kind in t["slices"]:
            for q, k in itertools.product(range(q0, q1), range(k0, k1)):
                covered[q, k] |= (not kind & 1 or k - k1 <= q - q1) and (not kind & 2 or k - k0 >= q - q0)
        see &= covered
    B = t["q"].shape[0]
    see = np.repeat(see[None], B, 0)
    if "kv_lens" in t:
        see &= (np.arange(Skv)[None] < t["kv_lens"][:, None])[:, None]
    if "segment_ids" in t:
        see &= t["segment_ids"][:, :, None] == t["segment_ids"][:, None]
    return see, behind


def reference(t, softcap=0, slopes=None, **mask):
    q, k, v, dout = (widen(t[name]).astype(np.float64) for name in ("q", "k", "v", "dout"))
    B, Sq, H, D = q.shape
    Skv, group = k.shape[1], H // k.shape[2]
    kk, vv = np.repeat(k, group, 2), np.repeat(v, group, 2)
    see, behind = visible(t, Sq, Skv, **mask)
    factor = t.get("temperature", np.ones(Sq)).astype(np.float64)[None, None, :, None] / np.sqrt(D)
    s = np.einsum("bihd,bjhd->bhij", q, kk) * factor
    bent = np.ones_like(s)
    if softcap:
        x = np.tanh(s / softcap)
        s, bent = softcap * x, 1 - x * x
    if "bias" in t:
        s = s + t["bias"]
    slopes = t.get("alibi_slopes", slopes)
    if slopes is not None:
        s = s - np.asarray(slopes, np.float64)[:, None, None] * abs(behind)
    s = np.where(see[:, None], s, -np.inf)
    sink = t.get("sinks", np.full(H, -np.inf)).astype(np.float64)[None, :, None, None]
    row_max = s.max(-1, keepdims=True, initial=-np.inf)
    top = np.maximum(row_max, sink)
    top = np.where(np.isinf(top), 0, top)
    p, from_sink = np.exp(s - top), np.exp(sink - top)
    total = p.sum(-1, keepdims=True) + from_sink
    with np.errstate(divide="ignore"):
        lse = (top + np.log(total))[..., 0]
    total = np.where(total == 0, 1, total)
    p, from_sink = p / total, from_sink / total
    out = np.einsum("bhij,bjhd->bihd", p, vv)
    shift = t["dlse"][..., None] - (dout * out).sum(-1).transpose(0, 2, 1)[..., None]
    ds = p * (np.einsum("bihd,bjhd->bhij", dout, vv) + shift)
    dz = ds * bent * factor
    fold = lambda x: x.reshape(B, Skv, H // group, group, -1).sum(3)
    want = {"out": out, "lse": lse, "row_max": row_max[..., 0], "dq": np.einsum("bhij,bjhd->bihd", dz, kk),
            "dk": fold(np.einsum("bhij,bihd->bjhd", dz, q)), "dv": fold(np.einsum("bhij,bihd->bjhd", p, dout))}
    if "bias" in t:
        want["dbias"] = ds.sum(tuple(a for a in range(4) if t["bias"].shape[a] < ds.shape[a]), keepdims=True)
    if "sinks" in t:
        want["dsinks"] = (from_sink * shift).sum((0, 2, 3))
    return want


class Masks(Case):
    """One problem after the other, on one rank and on several, in every layout."""

    def check(self, tensors, *options, outputs=(), **formula):
        write(self.input, tensors)
        want = {name: x for name, x in reference(tensors, **formula).items() if name in ("out", "lse", "dq", "dk", "dv", *outputs)}
        flags = ["--" + name.replace("_", "-") for name in outputs]
        for P, layout in ((1, "contiguous"), *itertools.product((2, 5), LAYOUTS)):
            arguments = ["attend", self.input, "-o", self.output, "--backward", "-q", "--ring", P, "--layout", layout, *options, *flags]
            if os.path.exists(self.output):
                os.remove(self.output)
            try:
                self.ringattn(*arguments)
            except AssertionError:
                text = self.ringattn(*arguments, status=3).stderr.strip()
                self.assertRegex(re.sub("ranks? [0-9, -]+: ", "", text), REFUSED)
                self.assertEqual(os.listdir(self.dir), ["in.st"])
                continue
            got = read(self.output)
            self.assertEqual(set(got), set(want))
            self.close(got, want, 2e-5, "P %d %s" % (P, layout))

    def test_windows(self):
        t = sample(S=41, H=4, G=2)
        self.check(t, "--causal", "--window", "5,-1", causal=1, left=5)
        self.check(t, "--window", "3,7", left=3, right=7)
        self.check(t, "--window", "-1,0", right=0)
        self.check(t, "--causal", "--window", "4,-1", "--keep-first", 3, causal=1, left=4, keep_first=3)
        self.check(sample(S=9, Skv=30), "--window", "4,2", "--align", "bottom-right", left=4, right=2, corner="bottom-right")

    def test_prefix(self):
        self.check(sample(S=41), "--causal", "--prefix", 11, causal=1, prefix=11)
        self.check(sample(S=41), "--causal-block", 4, "--prefix", 11, block=4, prefix=11)

    def test_kv_lens(self):
        self.check({**sample(S=20, B=3), "kv_lens": ints(20, 7, 0)}, "--causal", causal=1)

    def test_packed(self):
        t = {**sample(S=41), "cu_seqlens_q": ints(0, 3, 23, 23, 24, 38)}
        self.check({**t, "cu_seqlens_kv": t["cu_seqlens_q"]}, "--causal", causal=1)
        t["cu_seqlens_kv"] = ints(0, 0, 19, 25, 25, 40)
        for corner in ("top-left", "bottom-right"):
            self.check(t, "--causal", "--align", corner, causal=1, corner=corner)
            self.check(t, "--window", "2,1", "--align", corner, left=2, right=1, corner=corner)
        self.check(t)

    def test_slices(self):
        s = ints([0, 20, 0, 10, 0], [5, 41, 2, 41, 1], [0, 30, 11, 33, 2], [25, 41, 0, 20, 3], t=np.int64)
        self.check({**sample(S=41), "slices": s})
        self.check({**sample(S=41), "slices": s}, "--causal", causal=1)

    def test_modifiers(self):
        rng = np.random.default_rng(3)
        t = sample(S=41, H=4, G=2, B=2)
        self.check(t, "--softcap", 1.5, softcap=1.5)
        self.check(t, "--alibi", "--causal", causal=1, slopes=[2.0 ** -(2 * h + 2) for h in range(4)])
        self.check({**t, "alibi_slopes": rng.random(4).astype(np.float32)})
        self.check({**t, "temperature": rng.random(41).astype(np.float32)}, "--causal", causal=1)
        sinks = np.array([0.5, -np.inf, 2, -1], np.float32)
        self.check({**t, "sinks": sinks}, "--causal", causal=1, outputs=("dsinks",))
        self.check({**t, "sinks": sinks, "kv_lens": ints(0, 41)}, outputs=("dsinks", "row_max"))

    def test_row_max(self):
        self.check(sample(S=41), "--causal", causal=1, outputs=("row_max",))

    def test_dbias(self):
        rng = np.random.default_rng(4)
        for shape in ((1, 1, 1, 23), (2, 4, 23, 23), (1, 4, 23, 23), (2, 1, 1, 23), (1, 4, 23, 1)):
            bias = rng.standard_normal(shape).astype(np.float32)
            bias[rng.random(shape) < 0.2] = -np.inf
            self.check({**sample(S=23, B=2, H=4), "bias": bias}, outputs=("dbias",))

    def test_all_together(self):
        rng = np.random.default_rng(5)
        offsets = ints(0, 13, 13, 37)
        t = {**sample(S=41, B=2, H=4, G=2), "cu_seqlens_q": offsets, "cu_seqlens_kv": offsets, "kv_lens": ints(36, 20),
             "slices": ints([0, 41, 0, 41, 1], [0, 41, 0, 5, 0], t=np.int64), "sinks": np.ones(4, np.float32),
             "temperature": 1 + rng.random(41).astype(np.float32), "alibi_slopes": rng.random(4).astype(np.float32),
             "segment_ids": np.repeat((np.arange(41) // 9).astype(np.int32)[None], 2, 0),
             "bias": rng.standard_normal((1, 4, 41, 41)).astype(np.float32)}
        self.check(t, "--causal", "--prefix", 2, "--window", "6,-1", "--keep-first", 1, "--softcap", 3, causal=1, prefix=2, left=6,
                   keep_first=1, softcap=3, outputs=("dbias", "dsinks", "row_max"))

    def test_dropout(self):
        """Mean, extremes, and the same bits for every number of ranks and layout."""
        t = sample(S=64, H=2)
        t["q"], t["v"] = np.zeros_like(t["q"]), np.ones_like(t["v"])
        write(self.input, t)
        try:
            kept = self.attend("--dropout", 0.25, "--seed", 7)["out"] * 0.75 * 64
        except AssertionError:
            self.assertRegex(self.attend("--dropout", 0.25, "--seed", 7, status=3).strip(), REFUSED)
            return
        np.testing.assert_allclose(kept, np.round(kept), atol=1e-3)
        self.assertLess(abs(kept.mean() / 48 - 1), 4 * np.sqrt(0.25 / 0.75 / (2 * 64 * 64)))
        for P, layout in itertools.product((2, 3), LAYOUTS):
            got = self.attend("--dropout", 0.25, "--seed", 7, "--ring", P, "--layout", layout)["out"] * 0.75 * 64
            np.testing.assert_allclose(got, kept, atol=1e-3)
        self.assertTrue((self.attend("--dropout", 1)["out"] == 0).all())
        np.testing.assert_allclose(self.attend("--dropout", 0)["out"], 1, atol=1e-5)


class BadValues(Case):
    def bad(self, status, says, tensors, *options):
        write(self.input, {**sample(S=12, B=2, H=4, G=2), **tensors})
        for P in (1, 3):
            self.refused(status, says, "attend", self.input, "-o", self.output, "--ring", P, *options)

    def test_shapes_and_types(self):
        good = ints(0, 5, 12)
        for says, tensors in {
            "tensor kv_lens is F32, must be I32": {"kv_lens": np.zeros(2, np.float32)},
            "tensor kv_lens is [3], must be [2]": {"kv_lens": ints(1, 2, 3)},
            "cu_seqlens_q is there without cu_seqlens_kv": {"cu_seqlens_q": good},
            "tensor cu_seqlens_kv is I64, must be I32": {"cu_seqlens_q": good, "cu_seqlens_kv": good.astype(np.int64)},
            "tensor cu_seqlens_kv is [1], must be [sequences + 1]": {"cu_seqlens_q": good, "cu_seqlens_kv": ints(0)},
            "cu_seqlens_q is of 2 sequences, cu_seqlens_kv of 1": {"cu_seqlens_q": good, "cu_seqlens_kv": ints(0, 12)},
            "tensor slices is [1, 4], must be [1 or more, 5]": {"slices": np.zeros((1, 4), np.int64)},
            "tensor slices is [0, 5], must be [1 or more, 5]": {"slices": np.zeros((0, 5), np.int64)},
            "tensor slices is I32, must be I64": {"slices": np.zeros((1, 5), np.int32)},
            "tensor alibi_slopes is [2], must be [4]": {"alibi_slopes": np.zeros(2, np.float32)},
            "tensor sinks is F16, must be F32": {"sinks": np.zeros(4, np.float16)},
            "tensor temperature is [1, 12], must be [12]": {"temperature": np.ones((1, 12), np.float32)},
        }.items():
            with self.subTest(says):
                self.bad(4, "in.st: " + says, tensors)

    def test_values(self):
        good = ints(0, 5, 12)
        pack = lambda q, kv: {"cu_seqlens_q": q, "cu_seqlens_kv": kv}
        one = lambda *s: {"slices": ints(s, t=np.int64)}
        for says, tensors in {
            "kv_lens[1] is 13: must be in 0..Skv, 12": {"kv_lens": ints(1, 13)},
            "kv_lens[0] is -1": {"kv_lens": ints(-1, 3)},
            "cu_seqlens_q[0] is 1: must be 0": pack(ints(1, 5, 12), good),
            "cu_seqlens_kv[2] is 4 after 5: the offsets must ascend": pack(good, ints(0, 5, 4)),
            "cu_seqlens_kv[2] is 13: beyond Skv, 12": pack(good, ints(0, 5, 13)),
            "slice 0: queries 3 to 3 of 12": one(3, 3, 0, 4, 0),
            "slice 0: keys 0 to 13 of 12": one(0, 3, 0, 13, 0),
            "slice 0: unknown type 4": one(0, 3, 0, 4, 4),
            "alibi_slopes[3] is inf": {"alibi_slopes": ints(0, 0, 0, np.inf, t=np.float32)},
        }.items():
            with self.subTest(says):
                self.bad(4, "in.st: " + says, tensors)

    def test_wishes(self):
        good = ints(0, 5, 12)
        self.bad(4, "--dbias needs tensor bias", {}, "--backward", "--dbias")
        self.bad(4, "--dsinks needs tensor sinks", {}, "--backward", "--dsinks")
        self.bad(2, "--alibi and tensor alibi_slopes exclude each other", {"alibi_slopes": np.ones(4, np.float32)}, "--alibi")
        self.bad(2, "sequence 0 has 5 queries and 4 keys: the alignment (top-left or bottom-right) of a causal mask must be named",
                 {"cu_seqlens_q": good, "cu_seqlens_kv": ints(0, 4, 12)}, "--causal")
        self.bad(2, "12 queries and 11 keys: name the ALiBi's corner",
                 {"alibi_slopes": np.ones(4, np.float32), "k": np.zeros((2, 11, 2, 8), np.float32), "v": np.zeros((2, 11, 2, 8), np.float32)})


class Verify(Case):
    def test_random(self):
        """Every problem drawn is exact or refused; what the engine has always done is never refused."""
        n = 20 if SMALL else 150
        x = json.loads(self.ringattn("verify", "--random", n, "--seed", 3, "--json").stdout)
        self.assertEqual((x["problems"], x["exact"] + x["refused"], x["failures"]), (n, n, 0))
        self.assertEqual(sum(x["reasons"].values()), x["refused"])
        x = json.loads(self.ringattn("verify", "--random", n, "--only", "causal,causal-block,segments,bias", "--json").stdout)
        self.assertEqual((x["exact"], x["refused"]), (n, 0))
        text = self.ringattn("verify", "--random", 3, "--only", "none").stdout
        self.assertRegex(text, r"^3 problems tried: 3 exact, 0 refused, 0 wrong; \d+ tensors compared with fp64\n$")

    def test_random_is_reproducible(self):
        one, two = (self.ringattn("verify", "--random", 10, "--seed", s, "--tolerance", "1e-12", "--only", "causal", status=1).stderr
                    for s in (5, 5))
        self.assertEqual(one, two)
        command = re.search(r"to reproduce: ringattn (.*)", one).group(1).split()
        self.assertIn("ABOVE", self.ringattn(*command, status=1).stdout)

    def test_files(self):
        """verify reads what attend reads; what is supported there is supported here."""
        write(self.input, {**sample(S=20), "kv_lens": ints(11), "sinks": np.ones(2, np.float32)})
        attend = self.ringattn_status("attend", self.input, "-o", self.output)
        self.assertEqual(self.ringattn_status("verify", self.input, "--ring", 2), attend)
        self.assertIn(attend, (0, 3))

    def ringattn_status(self, *arguments):
        try:
            self.ringattn(*arguments)
        except AssertionError:
            self.ringattn(*arguments, status=3)
            return 3
        return 0

    def test_matrix_of_capabilities(self):
        """info --matrix says what attend does."""
        cells = json.loads(self.ringattn("info", "--matrix", "--json").stdout)["matrix"]
        self.assertEqual(len(cells), 10 * 7 * 3 * 3 * 2)
        for x in cells:
            self.assertEqual(x["supported"], x["reason"] == "", x)
            if x["mask"] in ("none", "causal", "causal-block", "segments") and x["modifier"] in ("none", "bias"):
                self.assertTrue(x["supported"], x)
        table = self.ringattn("info", "--matrix").stdout
        self.assertRegex(table, r"(?m)^causal-block +yes +yes ")


if __name__ == "__main__":
    if not os.access(PROGRAM, os.X_OK):
        print("skipped: there is no program", PROGRAM)
        sys.exit(77)
    unittest.main()
