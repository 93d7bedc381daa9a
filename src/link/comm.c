/* The comm: a link plus deadline, allocator and the memory of its first failure; and transfers over it.
 *
 * A transfer is one logical message of any size. It is cut into pieces that both ends count alike, so that no header travels: piece i
 * begins at i times the piece length, and pieces of one transfer are posted in order with one tag. Nobody blocks: transfers advance only
 * when they are polled, by ra__progress between tiles of the compute and by ra__wait when there is nothing left to compute.
 *
 * After the first failure a comm is poisoned: every later call returns that failure, and the link has told the other ranks. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "base/status.h"
#include "link/link.h"

#define DEFAULT_TIMEOUT_S 300.0

static ra_status check_link(const ra_link *link) {
    if (!link->name || !link->send || !link->recv || !link->test || !link->allgather || !link->fail || !link->destroy)
        return ra__fail(RA_ERR_INVALID, "link: name and all functions must be set");
    if (link->size < 1 || link->rank < 0 || link->rank >= link->size)
        return ra__fail(RA_ERR_INVALID, "link: rank %d of %d", link->rank, link->size);
    return RA_OK;
}

ra_status ra__comm_check_options(const ra_comm_options *options) {
    if (options && !(options->timeout_s >= 0 && isfinite(options->timeout_s)))
        return ra__fail(RA_ERR_INVALID, "timeout_s: %g: must be a number of seconds, 0 or more", options->timeout_s);
    if (options && options->allocator && (!options->allocator->alloc || !options->allocator->free))
        return ra__fail(RA_ERR_INVALID, "allocator: alloc and free must be set");
    return RA_OK;
}

ra_status ra_comm_create_link(const ra_link *link, const ra_comm_options *options, ra_comm **comm) {
    if (!link || !comm)
        return ra__fail(RA_ERR_INVALID, "%s: NULL", link ? "comm" : "link");
    RA__TRY(check_link(link));
    RA__TRY(ra__comm_check_options(options));
    ra_allocator allocator = ra__allocator_or_default(options ? options->allocator : NULL);
    ra_comm *c = ra__alloc_zero(&allocator, sizeof *c);
    if (!c)
        return ra__fail(RA_ERR_MEMORY, "no memory for a comm (%zu bytes)", sizeof *c);
    c->link = *link;
    c->allocator = allocator;
    c->timeout_s = options && options->timeout_s > 0 ? options->timeout_s : DEFAULT_TIMEOUT_S;
    *comm = c;
    return RA_OK;
}

void ra_comm_destroy(ra_comm *comm) {
    if (!comm)
        return;
    ra_allocator allocator = comm->allocator;
    comm->link.destroy(comm->link.self);
    ra__free(&allocator, comm);
}

int ra_comm_rank(const ra_comm *comm) {
    return comm ? comm->link.rank : -1;
}

int ra_comm_size(const ra_comm *comm) {
    return comm ? comm->link.size : 0;
}

const char *ra_comm_kind(const ra_comm *comm) {
    return comm ? comm->link.name : "";
}

ra_status ra__comm_check(ra_comm *comm) {
    return comm->failure == RA_OK ? RA_OK : ra__fail(comm->failure, "%s", comm->why);
}

ra_status ra__comm_fail(ra_comm *comm, ra_status status, const char *format, ...) {
    if (comm->failure == RA_OK) {
        va_list ap;
        va_start(ap, format);
        vsnprintf(comm->why, sizeof comm->why, format, ap);
        va_end(ap);
        comm->failure = status;
        comm->link.fail(comm->link.self, status, comm->why);
    }
    return ra__comm_check(comm);
}

void ra_comm_fail(ra_comm *comm, ra_status status, const char *why) {
    if (comm)
        ra__comm_fail(comm, status == RA_OK ? RA_ERR_INTERNAL : status, "%s", why ? why : ra_status_text(status));
}

/* The link has recorded the detail; keep it. */
static ra_status link_failed(ra_comm *comm, ra_status status) {
    return ra__comm_fail(comm, status, "%s", ra_last_error());
}

ra_status ra_comm_allgather(ra_comm *comm, const void *mine, void *all, size_t bytes) {
    if (!comm || (bytes && (!mine || !all)))
        return ra__fail(RA_ERR_INVALID, "allgather: NULL");
    RA__TRY(ra__comm_check(comm));
    size_t total;
    if (__builtin_mul_overflow(bytes, (size_t)comm->link.size, &total))
        return ra__fail(RA_ERR_INVALID, "allgather: %zu bytes from each of %d ranks do not fit in memory", bytes, comm->link.size);
    ra_status s = comm->link.allgather(comm->link.self, mine, all, bytes, comm->timeout_s);
    return s == RA_OK ? RA_OK : link_failed(comm, s);
}

/* ---- transfers */

static bool is_complete(const struct ra__transfer *t) {
    return t->done == t->bytes;
}

static ra_status post_pieces(struct ra__transfer *t) {
    const ra_link *link = &t->comm->link;
    while (t->posted < t->bytes && t->next - t->oldest < RA__WINDOW) {
        int slot = t->next % RA__WINDOW;
        size_t rest = t->bytes - t->posted, bytes = rest < t->piece ? rest : t->piece;
        char *data = t->data + t->posted;
        ra_link_request *request = &t->window[slot].request;
        ra_status s = t->sending ? link->send(link->self, t->peer, t->tag, data, bytes, request)
                                 : link->recv(link->self, t->peer, t->tag, data, bytes, request);
        if (s != RA_OK)
            return link_failed(t->comm, s);
        t->window[slot].bytes = bytes;
        t->posted += bytes;
        t->next++;
    }
    return RA_OK;
}

static ra_status start(ra_comm *comm, struct ra__transfer *t, int peer, int tag, char *data, size_t bytes, bool sending) {
    *t = (struct ra__transfer){0};
    RA__TRY(ra__comm_check(comm));
    size_t limit = comm->link.max_message;
    t->piece = limit && limit < RA__PIECE_BYTES ? limit : RA__PIECE_BYTES;
    t->comm = comm;
    t->data = data;
    t->bytes = bytes;
    t->peer = peer;
    t->tag = tag;
    t->sending = sending;
    t->t_posted = t->t_done = ra__now();
    return post_pieces(t);
}

ra_status ra__send(ra_comm *comm, struct ra__transfer *t, int to, int tag, const void *data, size_t bytes) {
    return start(comm, t, to, tag, (char *)data, bytes, true);
}

ra_status ra__recv(ra_comm *comm, struct ra__transfer *t, int from, int tag, void *data, size_t bytes) {
    return start(comm, t, from, tag, data, bytes, false);
}

/* Completes pieces in order. A link may copy inside test, so one call stops after about one full piece. */
static ra_status progress(struct ra__transfer *t) {
    const ra_link *link = &t->comm->link;
    size_t stop = t->done + RA__PIECE_BYTES;
    RA__TRY(ra__comm_check(t->comm));
    while (!is_complete(t) && t->done < stop) {
        int slot = t->oldest % RA__WINDOW, done = 0;
        ra_status s = link->test(link->self, &t->window[slot].request, &done);
        if (s != RA_OK)
            return link_failed(t->comm, s);
        if (!done)
            break;
        t->done += t->window[slot].bytes;
        t->oldest++;
        RA__TRY(post_pieces(t));
    }
    if (is_complete(t))
        t->t_done = ra__now();
    return RA_OK;
}

static const ra_comm *comm_of(struct ra__transfer *const *transfers, int n) {
    for (int i = 0; i < n; i++)
        if (transfers[i]->comm) /* NULL in a transfer that was never started */
            return transfers[i]->comm;
    return NULL;
}

ra_status ra__progress(struct ra__transfer *const *transfers, int n, bool *complete) {
    bool all = true;
    for (int i = 0; i < n; i++) {
        if (!is_complete(transfers[i]))
            RA__TRY(progress(transfers[i]));
        all = all && is_complete(transfers[i]);
    }
    const ra_comm *comm = comm_of(transfers, n);
    for (int i = 0; comm && i < comm->backgrounds; i++)
        if (!is_complete(&comm->background[i]))
            RA__TRY(progress(&comm->background[i]));
    *complete = all;
    return RA_OK;
}

static size_t bytes_done(struct ra__transfer *const *transfers, int n) {
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += transfers[i]->done;
    return sum;
}

/* How to pass the time until the next poll, after idle_s seconds without progress. A short spin keeps the latency of the common case low,
 * yielding lets more ranks than cores take turns, and sleeping leaves the machine alone during long waits at the price of a few percent
 * of them. */
static void pause_between_polls(double idle_s) {
    const double yield_after_s = 20e-6, sleep_after_s = 5e-3, longest_sleep_s = 1e-3;
    if (idle_s < yield_after_s) {
        for (int i = 0; i < 10; i++)
#if defined(__x86_64__)
            __builtin_ia32_pause();
#else
            __asm__ volatile("");
#endif
    } else if (idle_s < sleep_after_s) {
        ra__yield();
    } else {
        double s = idle_s / 16 < longest_sleep_s ? idle_s / 16 : longest_sleep_s;
        nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * s)}, NULL);
    }
}

static const struct ra__transfer *first_incomplete(struct ra__transfer *const *transfers) {
    int i = 0;
    while (is_complete(transfers[i]))
        i++;
    return transfers[i];
}

static ra_status timed_out(const struct ra__transfer *t, const char *what) {
    return ra__comm_fail(t->comm, RA_ERR_TIMEOUT, "rank %d did not answer within %g s (%s %s, %zu of %zu bytes done)", t->peer,
                         t->comm->timeout_s, t->sending ? "sending" : "receiving", what, t->done, t->bytes);
}

ra_status ra__wait(struct ra__transfer *const *transfers, int n, const char *what) {
    size_t done = bytes_done(transfers, n);
    double last_progress = ra__now();
    for (;;) {
        bool complete;
        RA__TRY(ra__progress(transfers, n, &complete));
        if (complete)
            return RA_OK;
        size_t done_now = bytes_done(transfers, n);
        double now = ra__now();
        if (done_now != done) {
            done = done_now;
            last_progress = now;
        } else if (now - last_progress > first_incomplete(transfers)->comm->timeout_s) {
            return timed_out(first_incomplete(transfers), what);
        } else {
            pause_between_polls(now - last_progress);
        }
    }
}
