#!/usr/bin/env python3
"""bochs_run.py DIR PROGRAM [NAME=VALUE]...: runs a static, single-threaded program on an emulated processor with AVX-512 and AMX.

DIR is what bochs_setup.sh made. The program starts without an operating system but tools/bochs/kernel.c; the words are its environment.
Prints what the program prints; exit status is the program's, 124 if it does not end within BOCHS_TIMEOUT seconds (400).
"""
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "bochs"

END = r"\n@@EXIT (\d+)\s*\n"  # what kernel.c prints last

CONFIG = """display_library: term
romimage: file={share}/BIOS-bochs-legacy
vgaromimage: file={share}/VGABIOS-lgpl-latest
cpu: model=sapphire_rapids, count=1, ips=100000000, reset_on_triple_fault=0
memory: guest=512, host=512
ata0-master: type=cdrom, path=boot.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=serial.txt
sound: waveoutdrv=dummy
log: bochs.log
"""


def build_kernel(job):
    flags = ("-O2 -Wall -Wextra -Werror -ffreestanding -fno-stack-protector -fno-pic -mno-red-zone -mgeneral-regs-only "
             "-fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns").split()
    for source in ("boot.S", "kernel.c"):
        subprocess.run(["gcc", *flags, "-c", SOURCES / source, "-o", job / (source + ".o")], check=True)
    subprocess.run(["ld", "--no-warn-rwx-segments", "-n", "-T", SOURCES / "kernel.ld", job / "boot.S.o", job / "kernel.c.o", "-o",
                    job / "kernel64"], check=True)
    # The boot loader wants a 32-bit file; the code in it may be any.
    subprocess.run(["objcopy", "-O", "elf32-i386", job / "kernel64", job / "iso" / "kernel"], check=True)


def run_foreign(root, program, *arguments):
    """The command line of a program of the unpacked Debian, with that Debian's libraries."""
    libraries = root / "usr/lib/x86_64-linux-gnu"
    return [root / "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "--library-path", f"{libraries}:{libraries}/systemd",
            root / "usr/bin" / program, *arguments]


def make_disc(root, job, program, words):
    iso = job / "iso"
    modules = root / "usr/lib/syslinux/modules/bios"
    for file in (root / "usr/lib/ISOLINUX/isolinux.bin", modules / "ldlinux.c32", modules / "libcom32.c32", modules / "mboot.c32"):
        shutil.copy(file, iso)
    shutil.copy(program, iso / "program")
    (iso / "isolinux.cfg").write_text(f"DEFAULT test\nPROMPT 0\nLABEL test\n KERNEL mboot.c32\n APPEND kernel --- program {' '.join(words)}\n")
    subprocess.run(run_foreign(root, "genisoimage", "-quiet", "-o", "boot.iso", "-b", "isolinux.bin", "-c", "boot.cat", "-no-emul-boot",
                               "-boot-load-size", "4", "-boot-info-table", "iso"), cwd=job, check=True)


def emulate(root, job, timeout):
    """Runs Bochs until the program has ended; what the serial port said."""
    share = root / "usr/share/bochs"
    (job / "bochsrc").write_text(CONFIG.format(share=share))
    serial = job / "serial.txt"
    environment = dict(os.environ, LTDL_LIBRARY_PATH=str(root / "usr/lib/x86_64-linux-gnu/bochs/plugins"), BXSHARE=str(share),
                       TERM="linux", TERMINFO=str(root / "usr/share/terminfo"))
    screen, terminal = pty.openpty()  # its display is text on a terminal: nobody looks at it
    bochs = subprocess.Popen(run_foreign(root, "bochs-bin", "-q", "-f", "bochsrc"), cwd=job, env=environment, stdin=terminal,
                             stdout=terminal, stderr=terminal, start_new_session=True)
    os.close(terminal)

    def drain():
        try:
            while os.read(screen, 65536):
                pass
        except OSError:
            pass

    threading.Thread(target=drain, daemon=True).start()
    end = time.monotonic() + timeout
    text = ""
    while time.monotonic() < end and bochs.poll() is None and not re.search(END, text):
        time.sleep(0.2)
        text = serial.read_text(errors="replace") if serial.exists() else ""
    bochs.kill()
    bochs.wait()
    return text if re.search(END, text) or not serial.exists() else serial.read_text(errors="replace")


def main():
    root, program, words = Path(sys.argv[1]).resolve() / "root", Path(sys.argv[2]).resolve(), sys.argv[3:]
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder)
        (job / "iso").mkdir()
        build_kernel(job)
        make_disc(root, job, program, words)
        text = emulate(root, job, float(os.environ.get("BOCHS_TIMEOUT", "400")))
        output = re.search(rf"@@BEGIN\s*\n(.*?)(?:{END}|\Z)", text, re.S)
        if not output:
            print("Bochs did not start the program:", text, sep="\n")
            print((job / "bochs.log").read_text(errors="replace")[-2000:] if (job / "bochs.log").exists() else "no log")
            return 125
        print(output.group(1).rstrip())
        return int(output.group(2)) if output.group(2) else 124


if __name__ == "__main__":
    sys.exit(main())
