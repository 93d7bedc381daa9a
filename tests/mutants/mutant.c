/* Which fault of mutants.py this process has: the environment variable RA_MUTANT, 0 or none of them when it is not set. Read before main,
 * so that nothing of the library ever writes it. */
#include <stdlib.h>

extern int ra__mutant;
int ra__mutant;

__attribute__((constructor)) static void choose(void) {
    const char *number = getenv("RA_MUTANT");
    ra__mutant = number ? atoi(number) : 0;
}
