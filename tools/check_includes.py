#!/usr/bin/env python3
"""Checks the rules between the rooms of src/ (CONTRIBUTING.md): who may include whom, what belongs in one place only, length of files.

A line may not be excepted: change the rule here, with a reason, or the code.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Room -> rooms whose headers it may include, besides its own and the public header.
ALLOWED = {
    "base": set(),
    "link": {"base"},
    "block": {"base"},
    "ring": {"block", "link", "base"},
    "plan": {"ring", "block", "link", "base"},
    "pjrt": {"plan", "base"},  # and schedules, see EXCEPTIONS
    "pjrt_child": {"pjrt"},  # a program
    "api": {"plan", "ring", "block", "link", "base"},  # src/api*.c, the front door
    "pjrt": {"plan", "ring", "block", "link", "base"},
    "ffn": {"block", "base"},  # the other files directly in src/
    "cli": set(),
}
# Headers that a room may include though it may not include their room.
EXCEPTIONS = {
    # The reference shares no code with the library, but which probabilities are dropped is a definition, not code to be checked.
    "cli": {"block/dropout.h"},
    # A program for a device walks the same schedule as the other engines.
    "pjrt": {"ring/schedule.h"},
}
LIBRARY = {"base", "link", "block", "ring", "plan", "pjrt", "api", "ffn"}


def room_of(path):
    parts = path.relative_to(ROOT / "src").parts
    if len(parts) > 1:
        return parts[0]
    return "api" if parts[0].startswith("api") else "ffn"


def isa_file(path):
    return path.parent.name == "block" and re.search(r"(^vec|_vec|)_avx(2|512)\.[ch]$", path.name) and \
        (path.suffix == ".c" or path.name.startswith("vec_"))


def without_comments(text):
    """Comments and strings blanked, lines kept; include lines keep their names."""
    def blank(m):
        s = m.group(0)
        return s if s.startswith('"') and "\n" not in s and ".h" in s else re.sub(r"[^\n]", " ", s)
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', blank, text, flags=re.S)


# (what, pattern, where it is allowed: path as text, room -> bool)
PLACES = [
    ("mpi.h", r"#\s*include\s*[<\"]mpi\.h", lambda p, room: p in ("src/link/mpi.c", "include/ringattention_mpi.h")),
    ("immintrin.h", r"#\s*include\s*<\w*intrin\.h>", lambda p, room: isa_file(ROOT / p)),
    ("dlfcn.h", r"#\s*include\s*<dlfcn\.h>", lambda p, room: p in ("src/link/launched.c", "src/pjrt/plugin.c", "src/pjrt/process.c")),
    ("a new process", r"\b(v?fork|system|popen|posix_spawnp?|exec[lv]p?e?)\s*\(", lambda p, room: p == "src/pjrt/process.c" or room == "cli"),
    ("getenv", r"\b(secure_)?getenv\s*\(", lambda p, room: room == "base"),
    ("an OpenMP pragma", r"#\s*pragma\s+omp|_Pragma\s*\(\s*\"omp",
     lambda p, room: room in ("ring", "ffn") or re.match(r"src/block/(attn|block|ffn|peak)\w*\.c$", p)),
    ("#if 0", r"#\s*if\s+0\b", lambda p, room: False),
    ("abort, exit or printing in the library", r"\b(abort|_?exit|printf|fprintf|vprintf|vfprintf|puts|fputs|perror|assert)\s*\(",
     lambda p, room: room not in LIBRARY),
]


def check(path, complain):
    relative = str(path.relative_to(ROOT))
    room = room_of(path) if relative.startswith("src/") else None
    code = without_comments(path.read_text())
    for number, line in enumerate(code.split("\n"), 1):
        for what, pattern, allowed in PLACES:
            if re.search(pattern, line) and not allowed(relative, room):
                complain(f"{relative}:{number}: {what} is not allowed here")
        include = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
        if not include or room is None:
            continue
        name = include.group(1)
        if name.startswith("ringattention"):
            continue
        here, there = path.parent / name, ROOT / "src" / name
        target = there if there.exists() else here
        if not target.exists():
            complain(f"{relative}:{number}: {name}: no such file below src/ or beside this one")
        elif (other := room_of(target)) != room and other not in ALLOWED.get(room, set()) \
                and name not in EXCEPTIONS.get(room, set()):
            complain(f"{relative}:{number}: {room} may not include {other} ({name})")


def main():
    complaints = []
    files = sorted(f for d in ("include", "src") for f in (ROOT / d).rglob("*.[ch]"))
    for path in files:
        check(path, complaints.append)
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    everything = [ROOT / f for f in listed.stdout.split("\n") if f] if listed.returncode == 0 else files
    sources = {".c", ".h", ".py", ".sh", ".cmake", ".txt", ".md", ".1", ".cpp"}
    for path in everything:
        if path.is_file() and (path.suffix in sources or path.name == "Makefile"):
            lines = path.read_bytes().count(b"\n")
            if lines >= 1000:
                complaints.append(f"{path.relative_to(ROOT)}: {lines} lines; files have fewer than 1,000")
    print("\n".join(complaints) if complaints else f"{len(files)} files keep the rules")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
