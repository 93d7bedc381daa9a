/* The local link: P ranks as threads of one process, one group shared by their comms. "self" is a group of one.
 *
 * It is the transport for one machine without MPI and the instrument of the tests, so it is strict on purpose: rendezvous only. Sending
 * puts a note into the receiver's inbox; the receiver copies straight from the sender's buffer when it tests a matching receive; only then
 * is the send complete. Nothing is allocated per message: the note is the sender's ra_link_request.
 *
 * Order of blame: a rank looks for its data first and for failures of others second, so that work which can be completed is. The first
 * rank that fails is remembered with its reason; the others fail because of it.
 *
 * Locks: an inbox's lock guards the notes in it; the group's lock guards gatherings, the first failure and the number of references.
 * Never both at once. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "base/status.h"
#include "link/link.h"

/* What a message keeps where in its ra_link_request. */
enum { NEXT, DATA, RECEIVER };              /* p: next in its list; the bytes; a send's destination (struct rank), NULL for a receive */
enum { CHANNEL, BYTES, ARRIVAL_NS, STATE }; /* i: sender and tag in one number; length; a send's arrival after the wire; enum state */
enum state { SENDING, COPYING, SENT };

struct message_list {
    ra_link_request *first, *last;
};

struct rank {
    struct group *group;
    ra_comm *comm;
    int rank;
    int64_t messages;              /* posted so far, for fault injection */
    struct message_list receiving; /* receives posted and not complete, in order. Only this rank's thread looks at it */

    pthread_mutex_t inbox_lock;
    struct message_list inbox; /* messages sent to this rank and not copied, in order */
    int64_t *wire_free_ns;     /* [size] when the wire from that rank is free again */
    atomic_bool gone;          /* this rank's comm was destroyed */

    bool gathers; /* has come to the gathering under way, with: */
    const void *gather_mine;
    void *gather_all;
    size_t gather_bytes;
};

struct group {
    ra_allocator allocator;
    ra_local_options faults;
    int size;

    pthread_mutex_t lock;
    pthread_cond_t changed; /* a gathering is complete, or a rank has failed or gone */
    int references;         /* comms not destroyed, and whoever makes or runs the group */
    int gone;               /* comms destroyed */
    int gathered;           /* ranks that have come to the gathering under way */
    uint64_t gatherings;    /* completed */

    atomic_int counter;     /* of ra_link.count */
    atomic_int failed_rank; /* the first rank that failed, -1: none. The reason is fixed before it is set */
    char failed_why[256];

    struct rank ranks[];
};

static int64_t now_ns(void) {
    return (int64_t)(1e9 * ra__now());
}

static int64_t channel_of(int from, int tag) {
    return (int64_t)from << 32 | (uint32_t)tag;
}

static int sender_of(const ra_link_request *m) {
    return (int)(m->i[CHANNEL] >> 32);
}

static ra_link_request *next_of(const ra_link_request *m) {
    return m->p[NEXT];
}

static void append(struct message_list *list, ra_link_request *m) {
    m->p[NEXT] = NULL;
    if (list->first)
        list->last->p[NEXT] = m;
    else
        list->first = m;
    list->last = m;
}

static void take_out(struct message_list *list, const ra_link_request *m) {
    ra_link_request *previous = NULL, *it = list->first;
    while (it != m) {
        previous = it;
        it = next_of(it);
    }
    if (previous)
        previous->p[NEXT] = next_of(m);
    else
        list->first = next_of(m);
    if (list->last == m)
        list->last = previous;
}

/* ---- failure of others, and injected */

static ra_status peer_lost(struct group *g, int failed_rank) {
    return ra__fail(RA_ERR_PEER_LOST, "rank %d failed: %s", failed_rank, g->failed_why);
}

static ra_status peer_gone(int rank) {
    return ra__fail(RA_ERR_PEER_LOST, "rank %d has left the ring (its comm was destroyed)", rank);
}

/* RA_OK, or ERR_PEER_LOST once any rank has failed. */
static ra_status check_group(struct group *g) {
    int failed = atomic_load(&g->failed_rank);
    return failed < 0 ? RA_OK : peer_lost(g, failed);
}

static struct timespec deadline_in(double seconds) {
    double at = ra__now() + fmin(seconds, 1e9);
    return (struct timespec){.tv_sec = (time_t)at, .tv_nsec = (long)(1e9 * (at - floor(at)))};
}

/* Like a process that is stopped: answers nobody until the others have given up. */
static void stall(struct rank *me) {
    struct group *g = me->group;
    double give_up = ra__now() + 2 * me->comm->timeout_s;
    struct timespec deadline = deadline_in(2 * me->comm->timeout_s);
    pthread_mutex_lock(&g->lock);
    while (atomic_load(&g->failed_rank) < 0 && g->gone < g->size - 1 && ra__now() < give_up)
        pthread_cond_timedwait(&g->changed, &g->lock, &deadline);
    pthread_mutex_unlock(&g->lock);
}

static ra_status count_message(struct rank *me) {
    const ra_local_options *faults = &me->group->faults;
    me->messages++;
    if (faults->fail_after == 0 || faults->fail_rank != me->rank || me->messages < faults->fail_after)
        return RA_OK;
    if (faults->fail_silently)
        stall(me);
    return ra__fail(RA_ERR_LINK, "injected failure at message %lld", (long long)me->messages);
}

/* ---- messages */

static ra_status check_peer(const struct rank *me, int peer) {
    if (peer < 0 || peer >= me->group->size)
        return ra__fail(RA_ERR_INVALID, "message to or from rank %d of %d", peer, me->group->size);
    return RA_OK;
}

static ra_status local_send(void *self, int to, int tag, const void *buf, size_t bytes, ra_link_request *m) {
    struct rank *me = self;
    struct group *g = me->group;
    RA__TRY(check_peer(me, to));
    RA__TRY(count_message(me));
    RA__TRY(check_group(g));
    struct rank *receiver = &g->ranks[to];
    m->p[DATA] = (void *)buf;
    m->p[RECEIVER] = receiver;
    m->i[CHANNEL] = channel_of(me->rank, tag);
    m->i[BYTES] = (int64_t)bytes;
    m->i[STATE] = SENDING;

    int64_t on_wire_ns = g->faults.bytes_per_s > 0 ? (int64_t)(1e9 * (double)bytes / g->faults.bytes_per_s) : 0;
    int64_t now = now_ns();
    pthread_mutex_lock(&receiver->inbox_lock);
    int64_t *wire_free = &receiver->wire_free_ns[me->rank];
    *wire_free = (*wire_free > now ? *wire_free : now) + on_wire_ns;
    m->i[ARRIVAL_NS] = *wire_free + (int64_t)(1e9 * g->faults.delay_s);
    append(&receiver->inbox, m);
    pthread_mutex_unlock(&receiver->inbox_lock);
    return RA_OK;
}

static ra_status local_recv(void *self, int from, int tag, void *buf, size_t bytes, ra_link_request *m) {
    struct rank *me = self;
    RA__TRY(check_peer(me, from));
    RA__TRY(count_message(me));
    RA__TRY(check_group(me->group));
    m->p[DATA] = buf;
    m->p[RECEIVER] = NULL;
    m->i[CHANNEL] = channel_of(from, tag);
    m->i[BYTES] = (int64_t)bytes;
    append(&me->receiving, m);
    return RA_OK;
}

/* The message in the inbox for this receive: if n earlier receives wait on the same channel, the one after n others. */
static ra_link_request *matching(struct rank *me, const ra_link_request *receive) {
    int64_t channel = receive->i[CHANNEL], skip = 0;
    for (const ra_link_request *m = me->receiving.first; m != receive; m = next_of(m))
        skip += m->i[CHANNEL] == channel;
    for (ra_link_request *m = me->inbox.first; m; m = next_of(m))
        if (m->i[CHANNEL] == channel && skip-- == 0)
            return m;
    return NULL;
}

/* Copies without the lock, so that the sender's own test does not wait for it; the sender keeps the buffer until the state is SENT. */
static void copy_message(struct rank *me, ra_link_request *sent, const ra_link_request *receive) {
    sent->i[STATE] = COPYING;
    pthread_mutex_unlock(&me->inbox_lock);
    memcpy(receive->p[DATA], sent->p[DATA], (size_t)receive->i[BYTES]);
    pthread_mutex_lock(&me->inbox_lock);
    take_out(&me->inbox, sent);
    sent->i[STATE] = SENT;
}

static ra_status test_receive(struct rank *me, ra_link_request *receive, int *done) {
    int from = sender_of(receive);
    /* Looked at before the inbox: whoever has failed or gone sends no more, so an inbox that is empty now stays empty. */
    bool gone = atomic_load(&me->group->ranks[from].gone);
    int failed = atomic_load(&me->group->failed_rank);

    pthread_mutex_lock(&me->inbox_lock);
    ra_link_request *sent = matching(me, receive);
    int64_t bytes = sent ? sent->i[BYTES] : 0;
    if (sent && bytes == receive->i[BYTES] && sent->i[ARRIVAL_NS] <= now_ns()) {
        copy_message(me, sent, receive);
        *done = 1;
    }
    pthread_mutex_unlock(&me->inbox_lock);

    if (*done)
        take_out(&me->receiving, receive);
    else if (sent && bytes != receive->i[BYTES])
        return ra__fail(RA_ERR_LINK, "message of %lld bytes from rank %d where %lld were expected", (long long)bytes, from,
                        (long long)receive->i[BYTES]);
    else if (!sent && failed >= 0)
        return peer_lost(me->group, failed);
    else if (!sent && gone)
        return peer_gone(from);
    return RA_OK;
}

static ra_status test_send(struct rank *me, const ra_link_request *sent, int *done) {
    struct rank *receiver = sent->p[RECEIVER];
    bool gone = atomic_load(&receiver->gone);
    int failed = atomic_load(&me->group->failed_rank);

    pthread_mutex_lock(&receiver->inbox_lock);
    *done = sent->i[STATE] == SENT;
    pthread_mutex_unlock(&receiver->inbox_lock);

    if (!*done && failed >= 0)
        return peer_lost(me->group, failed);
    if (!*done && gone)
        return peer_gone(receiver->rank);
    return RA_OK;
}

static ra_status local_test(void *self, ra_link_request *m, int *done) {
    *done = 0;
    return m->p[RECEIVER] ? test_send(self, m, done) : test_receive(self, m, done);
}

/* Takes back what this rank has sent and nobody has copied, so that its buffers may go. A copy under way is waited for. */
static void withdraw_messages(struct rank *me) {
    struct group *g = me->group;
    for (int r = 0; r < g->size; r++) {
        struct rank *receiver = &g->ranks[r];
        bool copying;
        do {
            copying = false;
            pthread_mutex_lock(&receiver->inbox_lock);
            for (ra_link_request *m = receiver->inbox.first, *next; m; m = next) {
                next = next_of(m);
                if (sender_of(m) != me->rank)
                    continue;
                if (m->i[STATE] == COPYING)
                    copying = true;
                else
                    take_out(&receiver->inbox, m);
            }
            pthread_mutex_unlock(&receiver->inbox_lock);
            if (copying)
                ra__yield();
        } while (copying);
    }
    me->receiving = (struct message_list){0};
}

/* ---- allgather: whoever comes last copies for all */

static ra_status complete_gathering(struct group *g) {
    size_t bytes = g->ranks[0].gather_bytes;
    for (int r = 1; r < g->size; r++)
        if (g->ranks[r].gather_bytes != bytes)
            return ra__fail(RA_ERR_LINK, "allgather of %zu bytes on rank %d, of %zu on rank 0", g->ranks[r].gather_bytes, r, bytes);
    for (int to = 0; to < g->size; to++)
        for (int from = 0; bytes && from < g->size; from++)
            memmove((char *)g->ranks[to].gather_all + (size_t)from * bytes, g->ranks[from].gather_mine, bytes);
    for (int r = 0; r < g->size; r++)
        g->ranks[r].gathers = false;
    g->gathered = 0;
    g->gatherings++;
    pthread_cond_broadcast(&g->changed);
    return RA_OK;
}

static int first_gone(struct group *g) {
    int r = 0;
    while (r < g->size - 1 && !atomic_load(&g->ranks[r].gone))
        r++;
    return r;
}

static int first_missing(const struct group *g) {
    int r = 0;
    while (r < g->size - 1 && g->ranks[r].gathers)
        r++;
    return r;
}

static ra_status await_gathering(struct group *g, double timeout_s) {
    struct timespec deadline = deadline_in(timeout_s);
    double give_up = ra__now() + timeout_s;
    uint64_t gathering = g->gatherings;
    while (g->gatherings == gathering) {
        RA__TRY(check_group(g));
        if (g->gone)
            return peer_gone(first_gone(g));
        if (ra__now() >= give_up)
            return ra__fail(RA_ERR_TIMEOUT, "rank %d did not come to an allgather within %g s", first_missing(g), timeout_s);
        pthread_cond_timedwait(&g->changed, &g->lock, &deadline);
    }
    return RA_OK;
}

static ra_status local_allgather(void *self, const void *mine, void *all, size_t bytes, double timeout_s) {
    struct rank *me = self;
    struct group *g = me->group;
    pthread_mutex_lock(&g->lock);
    me->gathers = true;
    me->gather_mine = mine;
    me->gather_all = all;
    me->gather_bytes = bytes;
    g->gathered++;
    ra_status s = g->gathered == g->size ? complete_gathering(g) : await_gathering(g, timeout_s);
    if (s != RA_OK) {
        me->gathers = false;
        g->gathered--;
    }
    pthread_mutex_unlock(&g->lock);
    return s;
}

/* ---- making and ending */

static void local_fail(void *self, ra_status status, const char *why) {
    struct rank *me = self;
    struct group *g = me->group;
    (void)status; /* the others fail with ERR_PEER_LOST whatever it is */
    withdraw_messages(me);
    pthread_mutex_lock(&g->lock);
    if (atomic_load(&g->failed_rank) < 0) {
        snprintf(g->failed_why, sizeof g->failed_why, "%s", why);
        atomic_store(&g->failed_rank, me->rank);
        pthread_cond_broadcast(&g->changed);
    }
    pthread_mutex_unlock(&g->lock);
}

static void release(struct group *g) {
    pthread_mutex_lock(&g->lock);
    bool last = --g->references == 0;
    pthread_mutex_unlock(&g->lock);
    if (!last)
        return;
    for (int r = 0; r < g->size; r++)
        pthread_mutex_destroy(&g->ranks[r].inbox_lock);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    ra_allocator allocator = g->allocator;
    ra__free(&allocator, g);
}

static void local_destroy(void *self) {
    struct rank *me = self;
    struct group *g = me->group;
    withdraw_messages(me);
    atomic_store(&me->gone, true);
    pthread_mutex_lock(&g->lock);
    g->gone++;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
    release(g);
}

static ra_status check_local_options(int P, const ra_local_options *o) {
    if (P < 1)
        return ra__fail(RA_ERR_INVALID, "P: %d: must be at least 1", P);
    if (!o)
        return RA_OK;
    if (!(o->delay_s >= 0 && o->delay_s <= 1e6) || !(o->bytes_per_s >= 0))
        return ra__fail(RA_ERR_INVALID, "local link: delay_s %g, bytes_per_s %g: must be 0 or more", o->delay_s, o->bytes_per_s);
    if (o->fail_after < 0 || (o->fail_after > 0 && (o->fail_rank < 0 || o->fail_rank >= P)))
        return ra__fail(RA_ERR_INVALID, "local link: fail_rank %d, fail_after %lld with %d ranks", o->fail_rank, (long long)o->fail_after,
                        P);
    return RA_OK;
}

/* Locks and conditions with these attributes cannot fail to be made on Linux (glibc, musl). */
static void init_locks(struct group *g) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&g->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&g->lock, NULL);
    for (int r = 0; r < g->size; r++)
        pthread_mutex_init(&g->ranks[r].inbox_lock, NULL);
}

/* A group without comms, referenced once. */
static struct group *new_group(int P, const ra_comm_options *options, const ra_local_options *local) {
    ra_allocator allocator = ra__allocator_or_default(options ? options->allocator : NULL);
    struct ra__layout layout = {0};
    ra__reserve(&layout, 1, sizeof(struct group));
    ra__reserve(&layout, P, sizeof(struct rank));
    int64_t wires = ra__reserve(&layout, (int64_t)P * P, sizeof(int64_t));
    struct group *g = layout.overflow ? NULL : ra__alloc_zero(&allocator, (size_t)layout.total);
    if (!g) {
        ra__fail(RA_ERR_MEMORY, "no memory for a local link of %d ranks", P);
        return NULL;
    }
    g->allocator = allocator;
    g->size = P;
    g->references = 1;
    atomic_init(&g->failed_rank, -1);
    atomic_init(&g->counter, 0);
    if (local)
        g->faults = *local;
    init_locks(g);
    for (int r = 0; r < P; r++) {
        g->ranks[r].group = g;
        g->ranks[r].rank = r;
        g->ranks[r].wire_free_ns = (int64_t *)(void *)((char *)g + wires) + (size_t)r * (size_t)P;
        atomic_init(&g->ranks[r].gone, false);
    }
    return g;
}

static int local_count(void *self, int change) {
    struct rank *me = self;
    return atomic_fetch_add(&me->group->counter, change) + change;
}

static bool injects(const ra_local_options *o) {
    return o->delay_s > 0 || o->bytes_per_s > 0 || o->max_message > 0 || o->fail_after > 0;
}

/* On success the group is referenced by its P comms, to be found in its ranks, and by the caller. */
static ra_status make_group(int P, const ra_comm_options *options, const ra_local_options *local, const char *name, struct group **group) {
    RA__TRY(check_local_options(P, local));
    RA__TRY(ra__comm_check_options(options));
    struct group *g = new_group(P, options, local);
    if (!g)
        return RA_ERR_MEMORY;
    ra_link link = {.name = name,
                    .size = P,
                    .max_message = g->faults.max_message,
                    .count = injects(&g->faults) ? NULL : local_count, /* what is injected must meet the bytes themselves */
                    .send = local_send,
                    .recv = local_recv,
                    .test = local_test,
                    .allgather = local_allgather,
                    .fail = local_fail,
                    .destroy = local_destroy};
    for (int r = 0; r < P; r++) {
        link.rank = r;
        link.self = &g->ranks[r];
        ra_status s = ra_comm_create_link(&link, options, &g->ranks[r].comm);
        if (s != RA_OK) {
            while (r-- > 0)
                ra_comm_destroy(g->ranks[r].comm);
            release(g);
            return s;
        }
        g->references++;
    }
    *group = g;
    return RA_OK;
}

ra_status ra_comm_create_self(const ra_comm_options *options, ra_comm **comm) {
    if (!comm)
        return ra__fail(RA_ERR_INVALID, "comm: NULL");
    struct group *g;
    RA__TRY(make_group(1, options, NULL, "self", &g));
    *comm = g->ranks[0].comm;
    release(g);
    return RA_OK;
}

ra_status ra_comm_create_local(int P, const ra_comm_options *options, const ra_local_options *local, ra_comm **comms) {
    if (!comms)
        return ra__fail(RA_ERR_INVALID, "comms: NULL");
    struct group *g;
    RA__TRY(make_group(P, options, local, "local", &g));
    for (int r = 0; r < P; r++)
        comms[r] = g->ranks[r].comm;
    release(g);
    return RA_OK;
}

/* ---- ra_local_run */

struct run {
    ra_comm *comm;
    int rank;
    ra_status (*body)(ra_comm *comm, int rank, void *user);
    void *user;
    pthread_t thread;
    ra_status status;
    char why[512];
};

/* The others must not wait for a rank that gives up, so its comm fails with it. */
static void end_rank(struct run *run, ra_status status) {
    run->status = status;
    if (status != RA_OK) {
        const char *why = ra_last_error();
        snprintf(run->why, sizeof run->why, "%s", *why ? why : ra_status_text(status));
        ra__comm_fail(run->comm, status, "%s", run->why);
    }
    ra_comm_destroy(run->comm);
}

static void *run_rank(void *argument) {
    struct run *run = argument;
    end_rank(run, run->body(run->comm, run->rank, run->user));
    return NULL;
}

/* "rank 2", "ranks 0-3", "ranks 0,2-3": the ranks that failed as runs[origin] did. */
static void name_ranks(const struct run *runs, int P, int origin, char *text, size_t n) {
    size_t used = 0;
    int named = 0;
    text[0] = 0;
    for (int r = 0, end; r < P && used < n; r = end) {
        end = r;
        while (end < P && runs[end].status == runs[origin].status && strcmp(runs[end].why, runs[origin].why) == 0)
            end++;
        if (end - r > 1)
            used += (size_t)snprintf(text + used, n - used, "%s%d-%d", named ? "," : "", r, end - 1);
        else if (end - r == 1)
            used += (size_t)snprintf(text + used, n - used, "%s%d", named ? "," : "", r);
        named += end - r;
        end += end == r;
    }
}

static ra_status report_runs(const struct run *runs, int P, int first_failed) {
    int origin = first_failed >= 0 && runs[first_failed].status != RA_OK ? first_failed : 0;
    while (origin < P && runs[origin].status == RA_OK)
        origin++;
    if (origin == P)
        return RA_OK;
    char ranks[128];
    name_ranks(runs, P, origin, ranks, sizeof ranks);
    bool several = strpbrk(ranks, ",-") != NULL;
    return ra__fail(runs[origin].status, "rank%s %s: %s", several ? "s" : "", ranks, runs[origin].why);
}

/* Starts the threads; returns how many there are to join. Without its thread a rank fails, and those after it never begin. */
static int start_runs(struct run *runs, int P) {
    for (int r = 0; r < P; r++) {
        int error = pthread_create(&runs[r].thread, NULL, run_rank, &runs[r]);
        if (error == 0)
            continue;
        end_rank(&runs[r], ra__fail(RA_ERR_MEMORY, "cannot start thread %d of %d (error %d)", r + 1, P, error));
        for (int q = r + 1; q < P; q++)
            ra_comm_destroy(runs[q].comm);
        return r;
    }
    return P;
}

ra_status ra_local_run(int P, const ra_comm_options *options, const ra_local_options *local,
                       ra_status (*body)(ra_comm *comm, int rank, void *user), void *user) {
    if (!body)
        return ra__fail(RA_ERR_INVALID, "body: NULL");
    struct group *g;
    RA__TRY(make_group(P, options, local, "local", &g));
    struct run *runs = ra__alloc_zero(&g->allocator, (size_t)P * sizeof *runs);
    if (!runs) {
        for (int r = 0; r < P; r++)
            ra_comm_destroy(g->ranks[r].comm);
        release(g);
        return ra__fail(RA_ERR_MEMORY, "no memory to run %d ranks", P);
    }
    for (int r = 0; r < P; r++)
        runs[r] = (struct run){.comm = g->ranks[r].comm, .rank = r, .body = body, .user = user};
    int started = start_runs(runs, P);
    for (int r = 0; r < started; r++)
        pthread_join(runs[r].thread, NULL);
    ra_status s = report_runs(runs, P, atomic_load(&g->failed_rank));
    ra_allocator allocator = g->allocator;
    release(g);
    ra__free(&allocator, runs);
    return s;
}
