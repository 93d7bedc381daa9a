"""No option is accepted and not applied, by enumeration: every mask with every modifier, type and layout, both passes, on two ranks, and pairs of masks and of
modifiers, is equal to the fp64 reference in every result and gradient, or refused with a reason; there is no third outcome (cases 68, 69).

ringattn verify decides each; info --matrix must have promised the same. Environment as in test_cli.py.
"""
import itertools
import json
import os
import subprocess
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

from test_cli import LAYOUTS, PROGRAM, SMALL

MASKS = {
    "none": [],
    "causal": ["--causal"],
    "causal-block": ["--causal-block", "4"],
    "window": ["--window", "5,3"],
    "prefix": ["--causal", "--prefix", "7"],
    "keep-first": ["--window", "5,-1", "--keep-first", "2"],
    "segments": ["--segments", "3"],
    "kv-lens": ["--kv-lens"],
    "packed": ["--packed", "4"],
    "slices": ["--slices", "4"],
}
MODIFIERS = {
    "none": [],
    "bias": ["--bias", "full"],
    "softcap": ["--softcap", "2"],
    "alibi": ["--alibi"],
    "sinks": ["--sinks"],
    "dropout": ["--dropout", "0.3"],
    "temperature": ["--temperature"],
}
SIZES = ["--B", "2", "--H", "4", "--G", "2", "--D", "12", "--Dv", "8", "--threads", "1"]
CONFLICTS = {("causal", "causal-block"), ("causal-block", "prefix"), ("window", "keep-first")}  # the same option twice, or one against the other


def verify(arguments):
    """The command and what came of it: exact, or the reason of the refusal, or None."""
    command = ["verify", "-q", *SIZES, *arguments]
    x = subprocess.run([PROGRAM, *command], capture_output=True, text=True, timeout=300)
    outcome = "exact" if x.returncode == 0 else x.stderr.strip() if x.returncode == 3 and x.stderr.count("\n") == 1 else None
    return " ".join(command), outcome, x.stdout + x.stderr


class Cross(unittest.TestCase):
    def run_all(self, what, many, lengths=("--S", "37")):
        """many: argument lists. Returns whether each was exact."""
        many = [[*lengths, *arguments] for arguments in many]
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(verify, many))
        for command, outcome, said in found:
            with self.subTest(command):
                self.assertIsNotNone(outcome, said)
        exact = [outcome == "exact" for _, outcome, _ in found]
        print("%s: %d tried, %d exact, %d refused" % (what, len(many), sum(exact), len(many) - sum(exact)), flush=True)
        return exact

    def test_complete_on_two_ranks(self):
        matrix = json.loads(subprocess.run([PROGRAM, "info", "--matrix", "--json"], capture_output=True, text=True, check=True).stdout)
        promised = {(x["mask"], x["modifier"], x["dtype"], x["layout"]): x["supported"]
                    for x in matrix["matrix"] if x["pass"] == "backward"}
        self.assertEqual({(m, f) for m, f, _, _ in promised}, set(itertools.product(MASKS, MODIFIERS)))
        cells = [x for x in promised if not SMALL or x[2] == "f32"]
        exact = self.run_all("masks x modifiers x types x layouts", (
            [*MASKS[m], *MODIFIERS[f], "--dtype", t, "--layout", layout, "--ring", "2"] for m, f, t, layout in cells))
        for cell, got in zip(cells, exact):
            self.assertEqual(got, promised[cell], cell)

    def test_pairs_of_masks(self):
        pairs = [p for p in itertools.combinations([m for m in MASKS if m != "none"], 2) if p not in CONFLICTS]
        options = lambda a, b: MASKS[a] + ([x for x in MASKS[b] if x != "--causal"] if "--causal" in MASKS[a] else MASKS[b])
        self.run_all("pairs of masks x layouts", ([*options(a, b), "--layout", layout, "--ring", "3"]
                                                  for (a, b), layout in itertools.product(pairs, LAYOUTS[:1] if SMALL else LAYOUTS)))

    def test_pairs_of_modifiers(self):
        pairs = itertools.combinations([m for m in MODIFIERS if m != "none"], 2)
        self.run_all("pairs of modifiers x layouts", ([*MODIFIERS[a], *MODIFIERS[b], "--causal", "--layout", layout, "--ring", "2"]
                                                      for (a, b), layout in itertools.product(pairs, LAYOUTS[:1] if SMALL else LAYOUTS)))

    def test_results_on_demand(self):
        """row_max, dbias in all of the bias's shapes, dsinks."""
        wanted = [["--row-max"], ["--bias", "key", "--dbias"], ["--bias", "full", "--dbias"], ["--sinks", "--dsinks"],
                  ["--bias", "full", "--sinks", "--row-max", "--dbias", "--dsinks"]]
        masks = [[], ["--causal"], ["--window", "4,2"], ["--packed", "4", "--causal"]]
        self.run_all("results on demand x masks x layouts x ranks", (
            [*w, *m, "--layout", layout, "--ring", P] for w, m, layout, P in itertools.product(wanted, masks, LAYOUTS, ("1", "2", "5"))))

    def test_unequal_lengths(self):
        sizes = [("5", "37", "top-left"), ("5", "37", "bottom-right"), ("37", "5", "top-left"), ("37", "5", "bottom-right")]
        positional = ["causal", "causal-block", "window", "prefix", "keep-first"]
        self.run_all("unequal lengths x masks x layouts", (
            ["--Sq", q, "--Skv", k, "--align", corner, *MASKS[m], "--layout", layout, "--ring", "3"]
            for (q, k, corner), m, layout in itertools.product(sizes, positional, LAYOUTS)), lengths=())


if __name__ == "__main__":
    if not os.access(PROGRAM, os.X_OK):
        print("skipped: there is no program", PROGRAM)
        sys.exit(77)
    unittest.main()
