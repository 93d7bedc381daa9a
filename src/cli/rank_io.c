/* Reading and writing a rank's rows, and the output that appears whole or not at all. */
#define _GNU_SOURCE
#include "rank_io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* One transfer, through interruptions and short counts; errno tells why it failed. */
static int transfer(int fd, int writing, char *at, int64_t bytes, int64_t offset) {
    while (bytes > 0) {
        size_t piece = bytes < (1 << 30) ? (size_t)bytes : (size_t)1 << 30;
        ssize_t n = writing ? pwrite(fd, at, piece, offset) : pread(fd, at, piece, offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n == 0)
            errno = writing ? ENOSPC : EIO; /* a file that shrank under us */
        if (n <= 0)
            return -1;
        at += n;
        offset += n;
        bytes -= n;
    }
    return 0;
}

static int move_rows(const tensors *t, slot s, int fd, int writing, const st_tensor *x, const char *path, failure *f) {
    rows r = tensors_rows(t, s);
    int64_t n = tensors_local_tokens(t, s);
    for (int64_t from = 0, position; from < n;) {
        int64_t run = tensors_run(t, s, from, &position);
        for (int64_t o = 0; o < r.outer; o++) {
            char *at = (char *)t->data[s] + (o * n + from) * r.bytes;
            int64_t offset = x->offset + (o * r.tokens + position) * r.bytes;
            if (transfer(fd, writing, at, run * r.bytes, offset))
                return fail(f, EXIT_IO, "%s: cannot %s %" PRId64 " bytes of tensor %s at offset %" PRId64 ": %s", path,
                            writing ? "write" : "read", run * r.bytes, x->name, offset, strerror(errno));
        }
        from += run;
    }
    return 0;
}

int rank_read(const tensors *t, slot s, int fd, const st_tensor *x, const char *path, failure *f) {
    return move_rows(t, s, fd, 0, x, path, f);
}

int rank_write(const tensors *t, slot s, int fd, const st_tensor *x, const char *path, failure *f) {
    return move_rows(t, s, fd, 1, x, path, f);
}

/* Where a rename must put the result: an existing link is followed, so that it stays a link. */
static int resolve(output *out, const char *path, failure *f) {
    struct stat status;
    char real[PATH_MAX];
    out->fd = -1;
    out->mode = -1;
    if (stat(path, &status) == 0) {
        if (!S_ISREG(status.st_mode))
            return fail(f, EXIT_IO, "%s: exists and is not a regular file", path);
        out->mode = status.st_mode & 0777;
        path = realpath(path, real) ? real : path;
    }
    if (strlen(path) >= sizeof out->path - 64)
        return fail(f, EXIT_IO, "%s: %s", path, strerror(ENAMETOOLONG));
    strcpy(out->path, path);
    return 0;
}

static void name_temporary(output *out) {
    char copy[sizeof out->path];
    strcpy(copy, out->path);
    const char *folder = dirname(copy);
    snprintf(out->temporary, sizeof out->temporary, "%.4000s/.ringattn-%" PRId64 "-%" PRId64 ".tmp", folder, out->tag[0], out->tag[1]);
}

static int reserve(const output *out, int64_t bytes, failure *f) {
    int error = posix_fallocate(out->fd, 0, bytes);
    if (error == EINVAL || error == EOPNOTSUPP || error == EINTR) /* a file system that cannot reserve */
        error = ftruncate(out->fd, bytes) ? errno : 0;
    if (error)
        return fail(f, EXIT_IO, "%s: cannot make a file of %" PRId64 " bytes: %s", out->path, bytes, strerror(error));
    return 0;
}

int output_create(output *out, const char *path, const char *prefix, int64_t prefix_bytes, int64_t file_bytes, failure *f) {
    if (resolve(out, path, f))
        return -1;
    out->tag[0] = getpid();
    for (out->tag[1] = 0; out->fd < 0; out->tag[1]++) {
        name_temporary(out);
        out->fd = open(out->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (out->fd >= 0)
            break;
        if (errno != EEXIST)
            return fail(f, EXIT_IO, "%s: cannot write in its folder (%" PRId64 " bytes are needed): %s", path, file_bytes, strerror(errno));
    }
    output_guard(out);
    signal(SIGXFSZ, SIG_IGN); /* a size limit shall be an error, not a death */
    if (out->mode >= 0)
        (void)fchmod(out->fd, (mode_t)out->mode);
    if (reserve(out, file_bytes, f))
        return -1;
    if (transfer(out->fd, 1, (char *)(uintptr_t)prefix, prefix_bytes, 0))
        return fail(f, EXIT_IO, "%s: cannot write %" PRId64 " bytes: %s", path, prefix_bytes, strerror(errno));
    return 0;
}

int output_join(output *out, const char *path, const int64_t tag[2], failure *f) {
    if (resolve(out, path, f))
        return -1;
    memcpy(out->tag, tag, sizeof out->tag);
    name_temporary(out);
    out->fd = open(out->temporary, O_RDWR | O_CLOEXEC);
    if (out->fd < 0)
        return fail(f, EXIT_IO, "%s: cannot open (is the folder shared by all ranks?): %s", out->temporary, strerror(errno));
    signal(SIGXFSZ, SIG_IGN);
    return 0;
}

int output_sync(output *out, failure *f) {
    if (fsync(out->fd) && errno != EINVAL)
        return fail(f, EXIT_IO, "%s: cannot write: %s", out->path, strerror(errno));
    return 0;
}

int output_commit(output *out, failure *f) {
    if (rename(out->temporary, out->path))
        return fail(f, EXIT_IO, "%s: cannot rename %s to it: %s", out->path, out->temporary, strerror(errno));
    char copy[sizeof out->path];
    strcpy(copy, out->path);
    int folder = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        (void)fsync(folder); /* the name survives a power cut; some file systems cannot, and the data is safe anyway */
        close(folder);
    }
    return 0;
}

void output_close(output *out) {
    if (out->fd >= 0)
        close(out->fd);
    out->fd = -1;
}

/* The only writable globals of the program: a handler reaches nothing else. */
static char guarded[4096];
static volatile sig_atomic_t guarding;

static void on_signal(int number) {
    if (guarding)
        unlink(guarded);
    signal(number, SIG_DFL);
    raise(number);
}

void output_guard(const output *out) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    strcpy(guarded, out->temporary);
    guarding = 1;
    struct sigaction action = {.sa_handler = on_signal}, before;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* nohup stays nohup */
            sigaction(numbers[i], &action, NULL);
}

void output_discard(void) {
    if (guarding)
        unlink(guarded);
    guarding = 0;
}
