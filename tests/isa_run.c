/* isa_run LEVEL PROGRAM [ARGUMENTS]: runs a test with RA_ISA=LEVEL, or skips it where the processor lacks that level. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cpu.h"

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    int known = 0;
    for (int level = RA__SCALAR; level <= (int)ra__isa_detected(); level++)
        known |= strcmp(argv[1], ra__isa_name((enum ra__isa)level)) == 0;
    if (!known) {
        printf("skipped: the processor lacks %s\n", argv[1]);
        return 77;
    }
    setenv("RA_ISA", argv[1], 1);
    execv(argv[2], argv + 2);
    perror(argv[2]);
    return 1;
}
