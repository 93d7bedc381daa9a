/* Work that a plugin may not survive - some abort on a bad program, libtpu waits for ever where there is no TPU - is done in a process of
 * its own. That is another program, pjrt_child, and not a fork of this one: a forked copy of a process with threads may only call what is
 * safe in a signal handler, and would find a plugin that is loaded here without its threads. Request, answer and whatever the plugin prints
 * are files without a name, so that nobody waits for a reader or writer. */
#define _GNU_SOURCE /* dladdr, environ */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "base/status.h"
#include "pjrt/internal.h"

#ifndef RA_CHILD_FOLDER /* where the installation puts it */
#define RA_CHILD_FOLDER "/usr/local/lib/ringattention"
#endif

/* ---- a process with a deadline */

struct child {
    pid_t pid;
    FILE *in, *out, *err; /* NULL: /dev/null */
    int out_fd;           /* the child's number of `out` */
};

/* Numbers that cannot collide with those the child is given. */
static int high_copy(FILE *file) {
    return file ? fcntl(fileno(file), F_DUPFD_CLOEXEC, 10) : -1;
}

static bool direct(posix_spawn_file_actions_t *actions, int from, int to) {
    return from >= 0 ? posix_spawn_file_actions_adddup2(actions, from, to) == 0
                     : posix_spawn_file_actions_addopen(actions, to, "/dev/null", to == 0 ? O_RDONLY : O_WRONLY, 0) == 0;
}

static bool start(struct child *child, const char *const *argv) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none;
    sigemptyset(&none);
    if (posix_spawn_file_actions_init(&actions) != 0)
        return false;
    if (posix_spawnattr_init(&attributes) != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return false;
    }
    int in = high_copy(child->in), out = high_copy(child->out), err = high_copy(child->err);
    bool ok = direct(&actions, in, 0) && (child->out_fd == 1 || direct(&actions, -1, 1)) && direct(&actions, out, child->out_fd) &&
              direct(&actions, err, 2) && posix_spawnattr_setsigmask(&attributes, &none) == 0 &&
              posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK) == 0 &&
              posix_spawnp(&child->pid, argv[0], &actions, &attributes, (char *const *)argv, environ) == 0;
    int fds[] = {in, out, err};
    for (int i = 0; i < 3; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return ok;
}

/* False if the deadline has passed, the child is killed then. *status: as waitpid's, -1 where the caller's process has seen to it that
 * nobody learns it (SIGCHLD ignored). */
static bool wait_for(const struct child *child, double timeout_s, int *status) {
    const double begun = ra__now();
    long pause_ns = 1000000;
    for (;;) {
        pid_t ended = waitpid(child->pid, status, WNOHANG);
        if (ended == child->pid)
            return true;
        if (ended < 0 && errno != EINTR) {
            *status = -1;
            return true;
        }
        if (ra__now() - begun > timeout_s)
            break;
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        pause_ns = pause_ns < 20000000 ? pause_ns * 2 : pause_ns;
    }
    kill(child->pid, SIGKILL);
    while (waitpid(child->pid, status, 0) < 0 && errno == EINTR)
        ;
    return false;
}

bool ra__pjrt_output_of(const char *const *argv, double timeout_s, char *text, size_t n) {
    struct child child = {.out = tmpfile(), .out_fd = 1};
    int status = 0;
    bool ok = child.out && start(&child, argv) && wait_for(&child, timeout_s, &status) && status == 0;
    size_t count = 0;
    if (ok) {
        rewind(child.out);
        count = fread(text, 1, n - 1, child.out);
    }
    text[count] = 0;
    if (child.out)
        fclose(child.out);
    return ok;
}

/* ---- pjrt_child */

/* The folder of the library, or of the program that holds it; a program started by a name alone knows no better than the kernel. */
static bool own_folder(char *folder, size_t n) {
    Dl_info here;
    if (dladdr((void *)&own_folder, &here) && here.dli_fname && strchr(here.dli_fname, '/')) {
        ra__pjrt_copy_text(folder, n, here.dli_fname, strlen(here.dli_fname));
    } else {
        ssize_t length = readlink("/proc/self/exe", folder, n - 1);
        folder[length > 0 ? length : 0] = 0;
    }
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = 0;
    return slash != NULL;
}

/* In ringattention/ beside the code, or where it was to be installed. */
static bool find_child(char *path, size_t n) {
    char folder[PATH_MAX];
    if (own_folder(folder, sizeof folder)) {
        int written = snprintf(path, n, "%s/ringattention/pjrt_child", folder);
        if (written > 0 && (size_t)written < n && access(path, X_OK) == 0)
            return true;
    }
    snprintf(path, n, "%s/pjrt_child", RA_CHILD_FOLDER);
    return access(path, X_OK) == 0;
}

static bool write_request(FILE *file, const struct ra__pjrt_request *request, const int *order, const char *text) {
    struct ra__pjrt_request sized = *request;
    sized.size = sizeof sized;
    bool ok = fwrite(&sized, sizeof sized, 1, file) == 1;
    if (request->has_order)
        ok = ok && fwrite(order, sizeof *order, (size_t)request->replicas, file) == (size_t)request->replicas;
    if (request->text_bytes)
        ok = ok && fwrite(text, (size_t)request->text_bytes, 1, file) == 1;
    if (fflush(file) != 0 || !ok)
        return false;
    rewind(file);
    return true;
}

/* What was on the plugin's mind: the line that says which check failed, or the last one that says anything. */
static void last_words(FILE *file, char *words, size_t n) {
    char line[512];
    *words = 0;
    rewind(file);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (line[strspn(line, " \t")])
            ra__pjrt_copy_text(words, n, line, strlen(line));
        if (strstr(line, "heck fail")) /* what follows is a list of addresses */
            return;
    }
}

static ra_status died(const struct child *child, const struct ra__pjrt_reply *reply, const char *path, int status) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    char words[240];
    last_words(child->err, words, sizeof words);
    const char *doing = reply->doing[0] ? reply->doing : "load", *between = words[0] ? ": " : "";
    if (status != -1 && WIFSIGNALED(status))
        return ra__fail(RA_ERR_UNSUPPORTED, "%s: %s: the plugin died of signal %d (%s)%s%s", name, doing, WTERMSIG(status),
                        strsignal(WTERMSIG(status)), between, words);
    return ra__fail(RA_ERR_UNSUPPORTED, "%s: %s: the plugin ended its process%s%s", name, doing, between, words);
}

static bool read_reply(FILE *file, struct ra__pjrt_reply *reply, const ra_allocator *a, ra_pjrt_device **devices) {
    struct ra__pjrt_reply got;
    rewind(file);
    if (fread(&got, sizeof got, 1, file) != 1 || got.size != sizeof got)
        return false;
    got.doing[sizeof got.doing - 1] = got.why[sizeof got.why - 1] = got.path[sizeof got.path - 1] = 0;
    got.platform[sizeof got.platform - 1] = got.version[sizeof got.version - 1] = 0;
    if (got.device_count < 0 || got.device_count > RA__PJRT_MOST_DEVICES || !devices)
        got.device_count = 0;
    *reply = got;
    if (got.device_count == 0)
        return true;
    *devices = ra__alloc(a, (size_t)got.device_count * sizeof **devices);
    if (*devices && fread(*devices, sizeof **devices, (size_t)got.device_count, file) == (size_t)got.device_count)
        return true;
    ra__free(a, *devices);
    *devices = NULL;
    reply->device_count = 0;
    return false;
}

static ra_status converse(struct child *child, const struct ra__pjrt_request *request, const int *order, const char *text, double timeout_s,
                          struct ra__pjrt_reply *reply, const ra_allocator *a, ra_pjrt_device **devices) {
    char program[PATH_MAX];
    int status = 0;
    if (!find_child(program, sizeof program))
        return ra__fail(RA_ERR_UNSUPPORTED,
                        "the program pjrt_child is not installed, neither in ringattention/ beside the library nor in %s", RA_CHILD_FOLDER);
    if (!child->in || !child->out || !child->err || !write_request(child->in, request, order, text))
        return ra__fail(RA_ERR_UNSUPPORTED, "no temporary files to talk to a child process (%s)", strerror(errno));
    if (!start(child, (const char *const[]){program, NULL}))
        return ra__fail(RA_ERR_UNSUPPORTED, "%s could not be started (%s)", program, strerror(errno));
    bool in_time = wait_for(child, timeout_s, &status);
    bool answered = read_reply(child->out, reply, a, devices) && reply->done;
    if (answered)
        return RA_OK;
    if (in_time)
        return died(child, reply, request->path, status);
    const char *slash = strrchr(request->path, '/');
    return ra__fail(RA_ERR_TIMEOUT, "%s: %s: no answer within %g s", slash ? slash + 1 : request->path,
                    reply->doing[0] ? reply->doing : "load", timeout_s);
}

ra_status ra__pjrt_ask_child(const struct ra__pjrt_request *request, const int *order, const char *text, double timeout_s,
                             struct ra__pjrt_reply *reply, const ra_allocator *a, ra_pjrt_device **devices) {
    struct child child = {.in = tmpfile(), .out = tmpfile(), .err = tmpfile(), .out_fd = RA__PJRT_REPLY_FD};
    *reply = (struct ra__pjrt_reply){0};
    ra_status s = converse(&child, request, order, text, timeout_s, reply, a, devices);
    FILE *files[] = {child.in, child.out, child.err};
    for (int i = 0; i < 3; i++)
        if (files[i])
            fclose(files[i]);
    return s;
}
