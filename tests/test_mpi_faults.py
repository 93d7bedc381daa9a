"""A rank that breaks under mpirun: every survivor returns an error that names it, in time, and nothing hangs.

Runs the program test_mpi_link, which describes the ways to break, from the current folder under each MPI that was built."""
import os
import re
import subprocess
import sys
import time

RANKS, BROKEN = 4, 1
SLOW = 4 if os.environ.get("RA_TEST_SMALL") else 1
# The launchers watch their children and kill the job when one dies. Behind a shell a death goes unnoticed for a while, as on a host that
# drops out, so that the survivors must find out themselves.
HIDDEN = ["sh", "-c", '"$0" "$@"; status=$?; sleep 2; exit $status']
TIMEOUT = r"rank 1 did not answer within 1 s \((sending|receiving) blocks, \d+ of \d+ bytes done\)"
EXITED = r"rank 1 \(process \d+ on .*\) has exited"
GAVE_UP = "no memory for the workspace"

failures = []


def check(holds, where, message):
    if not holds:
        failures.append(where)
        print(f"{where}: {message}", file=sys.stderr)


def launch(kind, mode, wrapper=()):
    """Exit status, seconds, and what each rank said: {rank: (status, seconds, text)}."""
    command = os.environ["RA_MPIRUN_" + kind.upper()].split() + ["-n", str(RANKS), *wrapper, f"./test_mpi_link_{kind}", mode]
    start = time.monotonic()
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60 * SLOW)
    except subprocess.TimeoutExpired:
        check(False, f"{kind} {mode}", "hangs")
        return None, 0, {}
    said = re.findall(r"^rank (\d+): (\w+) after ([\d.]+) s: (.*)$", run.stdout, re.M)
    return run.returncode, time.monotonic() - start, {int(r): (s, float(t), text) for r, s, t, text in said}


def check_survivors(kind, mode, pattern, statuses, seconds, wrapper=()):
    status, _, said = launch(kind, mode, wrapper)
    where = f"{kind} {mode}"
    check(status != 0, where, "mpirun succeeded")
    for rank in range(RANKS):
        if rank == BROKEN:
            continue
        got, after, text = said.get(rank, ("nothing", 0, ""))
        check(got in statuses, where, f"rank {rank} said {got}: {text}")
        check(re.fullmatch(r"(rank \d failed: )?" + pattern, text), where, f"rank {rank} said: {text}")
        check(after < seconds * SLOW, where, f"rank {rank} noticed after {after} s")
    return said


def test(kind):
    lost, late = {"ERR_PEER_LOST"}, {"ERR_PEER_LOST", "ERR_TIMEOUT"}
    said = check_survivors(kind, "fail", GAVE_UP, lost, 1)
    check(said.get(BROKEN, ("",))[0] == "ERR_MEMORY", f"{kind} fail", "rank 1 did not keep its own error")
    for mode in "stall", "stop":  # deadline 1 s
        check_survivors(kind, mode, TIMEOUT, late, 2.4)
    for mode in "exit", "kill", "absent":  # long before the deadline
        check_survivors(kind, mode, EXITED, lost, 0.95, HIDDEN)
    for mode in "leave", "kill":  # nobody stays behind, and the launcher reports failure
        status, seconds, said = launch(kind, mode)
        check(status not in (0, None), f"{kind} {mode}", f"mpirun's exit status is {status}")
        check(seconds < 15 * SLOW, f"{kind} {mode}", f"mpirun returned after {seconds:.1f} s")
        check(mode != "leave" or said, f"{kind} {mode}", "no rank said why")


kinds = [k for k in ("openmpi", "mpich") if os.environ.get("RA_MPIRUN_" + k.upper()) and os.path.exists(f"test_mpi_link_{k}")]
if not kinds:
    print("skipped: no MPI link was built, or there is no launcher")
    sys.exit(77)
for kind in kinds:
    before = len(failures)
    test(kind)
    print("ok" if len(failures) == before else "FAILED", kind, flush=True)
sys.exit(1 if failures else 0)
