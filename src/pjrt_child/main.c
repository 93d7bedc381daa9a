/* pjrt_child: loads a PJRT plugin on behalf of the library, so that a plugin which aborts or hangs does so here (src/pjrt/process.c). Not
 * meant to be called by anybody else: it reads a request on standard input and answers on descriptor 3. */
#define _DEFAULT_SOURCE
#include <sys/resource.h>
#include <unistd.h>
#if defined(__linux__)
#include <signal.h>
#include <sys/prctl.h>
#endif

#include "pjrt/internal.h"

int main(void) {
#if defined(__linux__)
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* nobody is left to set a deadline */
#endif
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}); /* a plugin's end is expected here */
    ra__pjrt_serve(STDIN_FILENO, RA__PJRT_REPLY_FD);
    _exit(0); /* without the plugin's destructors */
}
