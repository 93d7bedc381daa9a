"""Do the tests notice faults? Every known fault of mutants/mutants.py is switched on by itself, and the one that must catch it - `ringattn verify` with some
arguments, or a test program - must fail: by a wrong result, a crash or a hang. Without any fault all of them must pass.

Environment (CMake sets it): RA_MUTANTS, the program ringattn_mutants; the test programs lie beside it. By hand, also for some numbers only:
    RA_MUTANTS=build/ringattn_mutants python3 tests/test_mutants.py [NUMBER...]
"""
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "mutants"))
from mutants import FAULTS

PROGRAM = os.environ.get("RA_MUTANTS", "")


def command(catcher):
    if catcher.startswith("test_"):
        return [os.path.join(os.path.dirname(PROGRAM), "mutants_" + catcher)]
    return [PROGRAM, "verify", *catcher.split(), "--threads", "1", "--timeout", "10"]


def run(number, catcher, seconds):
    """What caught the fault; None: nothing did. Whoever cannot judge, as the arguments are wrong or not supported, ends the test."""
    environment = dict(os.environ, RA_MUTANT=str(number), OMP_NUM_THREADS="1", RA_TEST_SMALL="1")
    try:
        x = subprocess.run(command(catcher), capture_output=True, text=True, errors="replace", timeout=seconds, env=environment)
    except subprocess.TimeoutExpired:
        return "hangs"
    if x.returncode == 0:
        return None
    if x.returncode < 0:
        return signal.Signals(-x.returncode).name
    if not catcher.startswith("test_") and x.returncode in (2, 3):
        sys.exit("test_mutants: %s: %s" % (catcher, x.stderr.strip()))
    tried = re.search(r"(\d+) problems tried.* (\d+) wrong", x.stdout)
    return "%s of %s wrong" % (tried[2], tried[1]) if tried else "exit status %d" % x.returncode


def main():
    numbers = [int(x) for x in sys.argv[1:]] or range(1, len(FAULTS) + 1)
    catchers = sorted({FAULTS[n - 1][1] for n in numbers})
    start = time.monotonic()
    missed = 0
    with ThreadPoolExecutor(2) as pool:
        for catcher, found in zip(catchers, pool.map(lambda c: run(0, c, 600), catchers)):
            if found:
                print("without a fault: %s fails: %s" % (catcher, found))
                missed += 1
        hang = 30 + 5 * (time.monotonic() - start)  # a busy machine is slow in both
        for n, found in zip(numbers, pool.map(lambda n: run(n, FAULTS[n - 1][1], hang), numbers)):
            name, catcher = FAULTS[n - 1][:2]
            print("%2d  %-70s %s" % (n, name, "%s (%s)" % (found, catcher) if found else "NOT CAUGHT by " + catcher), flush=True)
            missed += not found
    print("%d faults, %d failures, %.0f s" % (len(numbers), missed, time.monotonic() - start))
    return missed > 0


if __name__ == "__main__":
    if not os.access(PROGRAM, os.X_OK):
        print("skipped: this build has no mutants")
        sys.exit(77)
    sys.exit(main())
