/* The link over MPI: one shared library per MPI implementation, built from this file alone on the public headers.
 *
 * Everything is non-blocking and called from one thread (FUNNELED), also what MPI offers as a collective: after the death of a process MPI
 * neither completes its operations nor reports an error, so every wait here is a loop of tests with a deadline. Two duplicates of the
 * caller's communicator keep our messages apart: `ring` carries the blocks, `control` what is small (gatherings and notices of failure).
 *
 * How a failure gets known, fastest first:
 *   the ranks of one host share a board in memory, where the first that gives up leaves its reason;
 *   ranks of other hosts are sent a notice, and look for one every millisecond while they wait;
 *   a process on the same host that has died is seen missing while a message to or from it is pending;
 *   everything else, such as a stopped process or a lost host, ends with the deadline.
 *
 * The board has a second purpose. Within a host MPI lets the receiver read large messages straight from the sender's memory, and if that
 * memory is gone it aborts the receiver (UCX: "process_vm_readv: Bad address"). So a failing rank keeps its caller's buffers alive, by not
 * returning, until the others on the board have closed their link; a rank that comes too late for that does not call MPI any more. */
#define _GNU_SOURCE /* syscall, gethostname */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "ringattention_mpi.h"

#define DEFAULT_TIMEOUT_S 300.0
#define NOTICE_INTERVAL_S 1e-3
#define EXIT_INTERVAL_S   20e-3
#define PATIENCE_S        0.2 /* how long a failing rank waits for others, and for its notices to leave, in each of three steps */

enum { LONGEST_MESSAGE = 1 << 30 }; /* MPI counts are int */
enum { GATHER_TAG, NOTICE_TAG };    /* on `control` */

/* What a message keeps where in its ra_link_request. The MPI_Request, pointer or int, lies in p[REQUEST]. */
enum { REQUEST, NEXT, PREVIOUS };
enum { PEER, BYTES, RECEIVING };
_Static_assert(sizeof(MPI_Request) <= sizeof(void *), "MPI_Request does not fit into a link's request");

struct identity {
    char host[256];
    uint64_t pid_namespace;
    int64_t pid;
    int board_fd; /* in that process; the board of the first rank on the host is used */
};

/* Shared by the ranks of one host; zeroed memory is its initial state. */
struct board {
    atomic_int failure; /* UNWRITTEN, WRITING, WRITTEN */
    int failed_rank;
    char why[256];
    atomic_int left; /* a rank has returned from a failure: its buffers may be gone, nobody may call MPI for this comm */
    struct {
        _Alignas(64) atomic_int state; /* OUTSIDE, INSIDE, CLOSED */
    } ranks[];
};
enum { UNWRITTEN, WRITING, WRITTEN };
enum { OUTSIDE, INSIDE, CLOSED }; /* of MPI calls; CLOSED: failed, will make none again */

struct notice {
    int status;
    char why[256];
};

struct mpi_link {
    ra_allocator allocator;
    MPI_Comm ring, control;
    int rank, size;
    bool failed, told; /* told: because of another rank */
    bool finalises;    /* MPI was initialised here */
    double next_notice_check, next_exit_check;
    int suspect; /* the rank whose process was missing at the last look, -1: none */
    ra_link_request *pending;
    struct identity *peers; /* [size] */
    struct board *board;    /* NULL: none */
    char *on_board;         /* [size] which ranks share it */
    MPI_Request *requests;  /* [2 size] of a gathering: receives by source, then sends by destination */
    MPI_Request *notices;   /* [size] sends of */
    struct notice notice;
};

static void *default_alloc(void *user, size_t bytes, size_t align) {
    (void)user;
    void *p = NULL;
    return posix_memalign(&p, align, bytes) == 0 ? p : NULL;
}

static void default_free(void *user, void *p) {
    (void)user;
    free(p);
}

/* Zeroed; NULL if there is none. */
static void *alloc(const ra_allocator *a, size_t n, size_t bytes) {
    void *p = a->alloc(a->user, n * bytes, 64);
    return p ? memset(p, 0, n * bytes) : NULL;
}

static ra_status mpi_error(int code, const char *operation) {
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        length = 0;
    return ra_link_error(RA_ERR_LINK, "%s: %.*s", operation, length, text);
}

/* ---- waiting */

/* A short spin, then yielding, then sleeping a few percent of the wait so far. */
static void rest(double idle_s) {
    if (idle_s < 20e-6)
        return;
    if (idle_s < 5e-3) {
        sched_yield();
        return;
    }
    double s = idle_s / 16 < 1e-3 ? idle_s / 16 : 1e-3;
    nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * s)}, NULL);
}

/* How many of n requests are left after one test of each. */
static int test_each(MPI_Request *requests, int n, int *left) {
    int code = MPI_SUCCESS;
    *left = 0;
    for (int i = 0; code == MPI_SUCCESS && i < n; i++) {
        int done = 1;
        code = MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE);
        *left += !done;
    }
    return code;
}

/* For what needs all ranks before there is a link; a request given up is leaked. */
static ra_status await(MPI_Request *request, double timeout_s, const char *operation) {
    double start = MPI_Wtime();
    for (;;) {
        int done = 0, code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS)
            return mpi_error(code, operation);
        if (done)
            return RA_OK;
        double waited = MPI_Wtime() - start;
        if (waited > timeout_s)
            return ra_link_error(RA_ERR_TIMEOUT, "making a comm: a rank did not answer within %g s (%s)", timeout_s, operation);
        rest(waited);
    }
}

/* ---- processes of this host */

static bool process_exited(pid_t pid) {
#ifdef SYS_pidfd_open /* sees a process that its parent has not collected yet, which kill does not */
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd >= 0) {
        bool exited = poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0) == 1;
        close(fd);
        return exited;
    }
#endif
    return kill(pid, 0) != 0 && errno == ESRCH;
}

static bool is_neighbour(const struct identity *a, const struct identity *b) {
    return a->pid_namespace == b->pid_namespace && strcmp(a->host, b->host) == 0;
}

static bool rank_exited(const struct mpi_link *l, int r) {
    return is_neighbour(&l->peers[r], &l->peers[l->rank]) && process_exited((pid_t)l->peers[r].pid);
}

/* ---- the board of a host */

static size_t board_bytes(int size) {
    return sizeof(struct board) + (size_t)size * sizeof((struct board){0}.ranks[0]);
}

static int new_board(int size) {
    int fd = memfd_create("ringattention", MFD_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)board_bytes(size)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Maps the board of the first rank on this host, found through its process. NULL if that is not allowed here. */
static struct board *open_board(const struct mpi_link *l) {
    int first = 0;
    while (!is_neighbour(&l->peers[first], &l->peers[l->rank]))
        first++;
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)l->peers[first].pid, l->peers[first].board_fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    void *p = mmap(NULL, board_bytes(l->size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? NULL : p;
}

static bool shares_board(const struct mpi_link *l, int r) {
    return l->board && l->on_board[r] && is_neighbour(&l->peers[r], &l->peers[l->rank]);
}

/* The first to write stays. */
static void write_board(struct mpi_link *l, int failed_rank, const char *why) {
    int expected = UNWRITTEN;
    if (!l->board || !atomic_compare_exchange_strong(&l->board->failure, &expected, WRITING))
        return;
    l->board->failed_rank = failed_rank;
    snprintf(l->board->why, sizeof l->board->why, "%s", why);
    atomic_store(&l->board->failure, WRITTEN);
}

/* ERR_PEER_LOST if there is something on the board. */
static ra_status read_board(struct mpi_link *l) {
    if (!l->board || atomic_load(&l->board->failure) != WRITTEN)
        return RA_OK;
    l->told = true;
    return ra_link_error(RA_ERR_PEER_LOST, "rank %d failed: %s", l->board->failed_rank, l->board->why);
}

static void set_state(struct mpi_link *l, int state) {
    if (l->board)
        atomic_store(&l->board->ranks[l->rank].state, state);
}

/* Before calls of MPI that may read from other ranks' buffers; ends with set_state(OUTSIDE). */
static ra_status enter(struct mpi_link *l) {
    set_state(l, INSIDE);
    if (!l->board || !atomic_load(&l->board->left))
        return RA_OK;
    set_state(l, OUTSIDE);
    ra_status s = read_board(l);
    return s == RA_OK ? ra_link_error(RA_ERR_PEER_LOST, "another rank has failed") : s;
}

/* Waits a while for the other ranks on the board: until all are closed, or until none is inside. */
static void await_others(const struct mpi_link *l, bool closed) {
    double start = MPI_Wtime(), waited = 0;
    for (int r = 0; r < l->size && waited < PATIENCE_S;) {
        int state = shares_board(l, r) && r != l->rank ? atomic_load(&l->board->ranks[r].state) : CLOSED;
        if ((closed ? state == CLOSED : state != INSIDE) || rank_exited(l, r)) {
            r++;
        } else {
            rest(waited);
            waited = MPI_Wtime() - start;
        }
    }
}

/* ---- failures of others */

/* ERR_PEER_LOST if another rank has sent a notice. */
static ra_status check_notice(struct mpi_link *l) {
    int there = 0;
    MPI_Status status;
    int code = MPI_Iprobe(MPI_ANY_SOURCE, NOTICE_TAG, l->control, &there, &status);
    if (code != MPI_SUCCESS)
        return mpi_error(code, "MPI_Iprobe");
    if (!there)
        return RA_OK;
    struct notice notice; /* has arrived whole: shorter than any eager limit */
    code = MPI_Recv(&notice, sizeof notice, MPI_BYTE, status.MPI_SOURCE, NOTICE_TAG, l->control, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS)
        return mpi_error(code, "MPI_Recv");
    notice.why[sizeof notice.why - 1] = 0;
    l->told = true;
    write_board(l, status.MPI_SOURCE, notice.why);
    return ra_link_error(RA_ERR_PEER_LOST, "rank %d failed: %s", status.MPI_SOURCE, notice.why);
}

static bool is_due(double *next, double interval) {
    double now = MPI_Wtime();
    if (now < *next)
        return false;
    *next = now + interval;
    return true;
}

/* What others have said about themselves. */
static ra_status check_failures(struct mpi_link *l) {
    ra_status s = read_board(l);
    if (s != RA_OK || !is_due(&l->next_notice_check, NOTICE_INTERVAL_S))
        return s;
    s = enter(l);
    if (s != RA_OK)
        return s;
    s = check_notice(l);
    set_state(l, OUTSIDE);
    return s;
}

/* A rank that did its part may exit while we still complete ours. So a missing process counts only if a message with it is still pending
 * at the next look, after many more tests. */
static ra_status suspect(struct mpi_link *l, int r) {
    bool again = r >= 0 && r == l->suspect;
    l->suspect = r;
    if (!again)
        return RA_OK;
    return ra_link_error(RA_ERR_PEER_LOST, "rank %d (process %lld on %s) has exited", r, (long long)l->peers[r].pid, l->peers[r].host);
}

/* ---- messages */

static MPI_Request get_request(const ra_link_request *m) {
    MPI_Request request;
    memcpy(&request, &m->p[REQUEST], sizeof request);
    return request;
}

static void put_request(ra_link_request *m, MPI_Request request) {
    memcpy(&m->p[REQUEST], &request, sizeof request);
}

static void add_pending(struct mpi_link *l, ra_link_request *m) {
    ra_link_request *first = l->pending;
    m->p[NEXT] = first;
    m->p[PREVIOUS] = NULL;
    if (first)
        first->p[PREVIOUS] = m;
    l->pending = m;
}

static void remove_pending(struct mpi_link *l, ra_link_request *m) {
    ra_link_request *next = m->p[NEXT], *previous = m->p[PREVIOUS];
    if (next)
        next->p[PREVIOUS] = previous;
    if (previous)
        previous->p[NEXT] = next;
    else
        l->pending = next;
}

static void note_message(struct mpi_link *l, ra_link_request *m, MPI_Request request, int peer, size_t bytes, bool receiving) {
    put_request(m, request);
    m->i[PEER] = peer;
    m->i[BYTES] = (int64_t)bytes;
    m->i[RECEIVING] = receiving;
    add_pending(l, m);
}

/* A message that is new after a failure is refused; one that is under way may still be completed. */
static ra_status enter_to_post(struct mpi_link *l) {
    ra_status s = read_board(l);
    return s == RA_OK ? enter(l) : s;
}

static ra_status mpi_send(void *self, int to, int tag, const void *buf, size_t bytes, ra_link_request *m) {
    struct mpi_link *l = self;
    MPI_Request request;
    ra_status s = enter_to_post(l);
    if (s != RA_OK)
        return s;
    int code = MPI_Isend(buf, (int)bytes, MPI_BYTE, to, tag, l->ring, &request);
    set_state(l, OUTSIDE);
    if (code != MPI_SUCCESS)
        return mpi_error(code, "MPI_Isend");
    note_message(l, m, request, to, bytes, false);
    return RA_OK;
}

static ra_status mpi_recv(void *self, int from, int tag, void *buf, size_t bytes, ra_link_request *m) {
    struct mpi_link *l = self;
    MPI_Request request;
    ra_status s = enter_to_post(l);
    if (s != RA_OK)
        return s;
    int code = MPI_Irecv(buf, (int)bytes, MPI_BYTE, from, tag, l->ring, &request);
    set_state(l, OUTSIDE);
    if (code != MPI_SUCCESS)
        return mpi_error(code, "MPI_Irecv");
    note_message(l, m, request, from, bytes, true);
    return RA_OK;
}

static ra_status check_length(const ra_link_request *m, const MPI_Status *status) {
    int bytes = 0;
    MPI_Get_count(status, MPI_BYTE, &bytes);
    if (bytes == m->i[BYTES])
        return RA_OK;
    return ra_link_error(RA_ERR_LINK, "message of %d bytes from rank %d where %lld were expected", bytes, (int)m->i[PEER],
                         (long long)m->i[BYTES]);
}

/* Perhaps a message is complete, and only its turn to be tested has not come. */
static bool is_unfinished(const ra_link_request *m) {
    int complete = 0;
    return MPI_Request_get_status(get_request(m), &complete, MPI_STATUS_IGNORE) == MPI_SUCCESS && !complete;
}

static ra_status check_pending_exits(struct mpi_link *l) {
    ra_status s = enter(l);
    if (s != RA_OK)
        return s;
    const ra_link_request *m = l->pending;
    while (m && !(rank_exited(l, (int)m->i[PEER]) && is_unfinished(m)))
        m = m->p[NEXT];
    set_state(l, OUTSIDE);
    return suspect(l, m ? (int)m->i[PEER] : -1);
}

static ra_status mpi_test(void *self, ra_link_request *m, int *done) {
    struct mpi_link *l = self;
    MPI_Request request = get_request(m);
    MPI_Status status;
    ra_status s = enter(l);
    if (s != RA_OK)
        return s;
    int code = MPI_Test(&request, done, &status);
    set_state(l, OUTSIDE);
    put_request(m, request);
    if (code != MPI_SUCCESS) {
        remove_pending(l, m);
        return mpi_error(code, "MPI_Test");
    }
    if (*done) {
        remove_pending(l, m);
        return m->i[RECEIVING] ? check_length(m, &status) : RA_OK;
    }
    s = check_failures(l);
    if (s == RA_OK && is_due(&l->next_exit_check, EXIT_INTERVAL_S))
        s = check_pending_exits(l);
    return s;
}

/* ---- allgather: everybody to everybody, so that it is known who is missing */

static ra_status check_gather_exits(struct mpi_link *l) {
    for (int i = 0; i < 2 * l->size; i++)
        if (l->requests[i] != MPI_REQUEST_NULL && rank_exited(l, i % l->size))
            return suspect(l, i % l->size);
    return suspect(l, -1);
}

static ra_status post_gather(struct mpi_link *l, const void *mine, char *all, int bytes) {
    for (int i = 0; i < 2 * l->size; i++)
        l->requests[i] = MPI_REQUEST_NULL;
    ra_status s = enter_to_post(l);
    if (s != RA_OK)
        return s;
    int code = MPI_SUCCESS;
    for (int k = 1; code == MPI_SUCCESS && k < l->size; k++) {
        int from = (l->rank + l->size - k) % l->size;
        char *part = bytes ? all + (size_t)from * (size_t)bytes : NULL;
        code = MPI_Irecv(part, bytes, MPI_BYTE, from, GATHER_TAG, l->control, &l->requests[from]);
    }
    for (int k = 1; code == MPI_SUCCESS && k < l->size; k++) {
        int to = (l->rank + k) % l->size;
        code = MPI_Isend(mine, bytes, MPI_BYTE, to, GATHER_TAG, l->control, &l->requests[l->size + to]);
    }
    set_state(l, OUTSIDE);
    return code == MPI_SUCCESS ? RA_OK : mpi_error(code, "allgather");
}

static ra_status gather_timed_out(const struct mpi_link *l, double timeout_s) {
    int i = 0;
    while (l->requests[i] == MPI_REQUEST_NULL)
        i++;
    return ra_link_error(RA_ERR_TIMEOUT, "rank %d did not come to an allgather within %g s", i % l->size, timeout_s);
}

static ra_status await_gather(struct mpi_link *l, double timeout_s) {
    double start = MPI_Wtime();
    for (int left = 1; left > 0;) {
        ra_status s = enter(l);
        if (s != RA_OK)
            return s;
        int code = test_each(l->requests, 2 * l->size, &left);
        set_state(l, OUTSIDE);
        if (code != MPI_SUCCESS)
            return mpi_error(code, "allgather");
        double waited = MPI_Wtime() - start;
        if (left > 0)
            s = check_failures(l);
        if (s == RA_OK && left > 0 && is_due(&l->next_exit_check, EXIT_INTERVAL_S))
            s = check_gather_exits(l);
        if (s == RA_OK && left > 0 && waited > timeout_s)
            s = gather_timed_out(l, timeout_s);
        if (s != RA_OK)
            return s;
        if (left > 0)
            rest(waited);
    }
    return RA_OK;
}

static ra_status mpi_allgather(void *self, const void *mine, void *all, size_t bytes, double timeout_s) {
    struct mpi_link *l = self;
    if (bytes > LONGEST_MESSAGE)
        return ra_link_error(RA_ERR_OVERFLOW, "allgather of %zu bytes: at most %d", bytes, (int)LONGEST_MESSAGE);
    if (bytes)
        memmove((char *)all + (size_t)l->rank * bytes, mine, bytes);
    ra_status s = post_gather(l, mine, all, (int)bytes);
    return s == RA_OK ? await_gather(l, timeout_s) : s;
}

/* ---- own failure */

static void send_notices(struct mpi_link *l, ra_status status, const char *why) {
    l->notice.status = status;
    snprintf(l->notice.why, sizeof l->notice.why, "%s", why);
    for (int r = 0; r < l->size; r++)
        if (r != l->rank && !shares_board(l, r) && !rank_exited(l, r))
            MPI_Isend(&l->notice, sizeof l->notice, MPI_BYTE, r, NOTICE_TAG, l->control, &l->notices[r]);
}

/* Receives that nobody will wait for must not write into memory that the caller may free. Sends only read. */
static void cancel_receives(struct mpi_link *l) {
    for (ra_link_request *m = l->pending; m; m = m->p[NEXT]) {
        MPI_Request request = get_request(m);
        if (m->i[RECEIVING] && request != MPI_REQUEST_NULL)
            MPI_Cancel(&request);
    }
    for (int r = 0; r < l->size; r++)
        if (l->requests[r] != MPI_REQUEST_NULL)
            MPI_Cancel(&l->requests[r]);
}

/* One test of everything that a failing rank would like to see finished; true if it is. */
static bool settle(struct mpi_link *l) {
    int settled = 1;
    for (ra_link_request *m = l->pending, *next; m; m = next) {
        next = m->p[NEXT];
        MPI_Request request = get_request(m);
        int done = !m->i[RECEIVING];
        if (m->i[RECEIVING] && MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done)
            remove_pending(l, m);
        settled &= done;
    }
    int receives = 0, notices = 0;
    test_each(l->requests, l->size, &receives);
    test_each(l->notices, l->size, &notices);
    return settled && receives == 0 && notices == 0;
}

static void mpi_fail(void *self, ra_status status, const char *why) {
    struct mpi_link *l = self;
    l->failed = true;
    write_board(l, l->rank, why);
    if (enter(l) == RA_OK) {
        if (!l->told) /* else whoever told this rank tells all */
            send_notices(l, status, why);
        cancel_receives(l);
        double start = MPI_Wtime();
        while (!settle(l) && MPI_Wtime() - start < PATIENCE_S)
            rest(MPI_Wtime() - start);
    }
    set_state(l, CLOSED);
    await_others(l, true);
    if (l->board)
        atomic_store(&l->board->left, 1);
    await_others(l, false);
}

/* ---- making and ending */

static void free_link(struct mpi_link *l) {
    void *parts[] = {l->peers, l->on_board, l->requests, l->notices, l};
    ra_allocator a = l->allocator;
    if (l->board)
        munmap(l->board, board_bytes(l->size));
    for (int i = 0; i < 5; i++)
        if (parts[i])
            a.free(a.user, parts[i]);
}

/* After a failure nothing is freed or finalised: both would wait for the lost rank, and MPI may still look at our memory. */
static void mpi_destroy(void *self) {
    struct mpi_link *l = self;
    int finalized = 0;
    if (l->failed)
        return;
    MPI_Finalized(&finalized);
    if (!finalized) {
        MPI_Comm_free(&l->ring);
        MPI_Comm_free(&l->control);
    }
    bool finalises = l->finalises && !finalized;
    free_link(l);
    if (finalises)
        MPI_Finalize();
}

static struct mpi_link *new_link(MPI_Comm mpi_comm, const ra_comm_options *options) {
    ra_allocator allocator = {default_alloc, default_free, NULL};
    if (options && options->allocator)
        allocator = *options->allocator;
    struct mpi_link *l = alloc(&allocator, 1, sizeof *l);
    if (!l)
        return NULL;
    l->allocator = allocator;
    MPI_Comm_rank(mpi_comm, &l->rank);
    MPI_Comm_size(mpi_comm, &l->size);
    size_t size = (size_t)l->size;
    l->suspect = -1;
    l->peers = alloc(&allocator, size, sizeof *l->peers);
    l->on_board = alloc(&allocator, size, 1);
    l->requests = alloc(&allocator, 2 * size, sizeof *l->requests);
    l->notices = alloc(&allocator, size, sizeof *l->notices);
    if (!l->peers || !l->on_board || !l->requests || !l->notices) {
        free_link(l);
        return NULL;
    }
    for (size_t i = 0; i < 2 * size; i++)
        l->requests[i] = MPI_REQUEST_NULL;
    for (size_t i = 0; i < size; i++)
        l->notices[i] = MPI_REQUEST_NULL;
    return l;
}

/* What this rank can find wrong by itself, before it meets the others. */
static ra_status check_own(const ra_comm_options *options) {
    int level = MPI_THREAD_SINGLE, is_main = 0;
    MPI_Query_thread(&level);
    MPI_Is_thread_main(&is_main);
    if (level < MPI_THREAD_FUNNELED)
        return ra_link_error(RA_ERR_UNSUPPORTED, "MPI was initialised without threads: MPI_Init_thread with MPI_THREAD_FUNNELED is needed");
    if (level == MPI_THREAD_FUNNELED && !is_main)
        return ra_link_error(RA_ERR_INVALID, "called from another thread than the one that initialised MPI");
    if (options && options->allocator && (!options->allocator->alloc || !options->allocator->free))
        return ra_link_error(RA_ERR_INVALID, "allocator: alloc and free must be set");
    return RA_OK;
}

/* RA_OK if all ranks are well; else this rank's own error, or ERR_PEER_LOST. */
static ra_status agree(MPI_Comm mpi_comm, ra_status own, double timeout_s) {
    int mine = own, worst = 0;
    MPI_Request request;
    int code = MPI_Iallreduce(&mine, &worst, 1, MPI_INT, MPI_MIN, mpi_comm, &request);
    if (own != RA_OK) {
        await(&request, timeout_s, "agreement"); /* its error would hide the cause */
        return own;
    }
    ra_status s = code == MPI_SUCCESS ? await(&request, timeout_s, "agreement") : mpi_error(code, "MPI_Iallreduce");
    if (s == RA_OK && worst != RA_OK)
        s = ra_link_error(RA_ERR_PEER_LOST, "another rank could not make its comm: %s", ra_status_text((ra_status)worst));
    return s;
}

static ra_status duplicate(MPI_Comm mpi_comm, MPI_Comm *copy, double timeout_s) {
    MPI_Request request;
    int code = MPI_Comm_idup(mpi_comm, copy, &request);
    if (code != MPI_SUCCESS)
        return mpi_error(code, "MPI_Comm_idup");
    ra_status s = await(&request, timeout_s, "MPI_Comm_idup");
    if (s == RA_OK)
        MPI_Comm_set_errhandler(*copy, MPI_ERRORS_RETURN);
    return s;
}

/* Who is where, then which of them share the board; its file must stay open in between. */
static ra_status introduce(struct mpi_link *l, double timeout_s) {
    struct identity me = {.pid = getpid(), .board_fd = new_board(l->size)};
    struct stat namespace;
    gethostname(me.host, sizeof me.host - 1);
    if (stat("/proc/self/ns/pid", &namespace) == 0)
        me.pid_namespace = (uint64_t) namespace.st_ino;
    ra_status s = mpi_allgather(l, &me, l->peers, sizeof me, timeout_s);
    if (s == RA_OK) {
        struct board *board = open_board(l);
        char mapped = board != NULL;
        s = mpi_allgather(l, &mapped, l->on_board, 1, timeout_s);
        l->board = board;
    }
    if (me.board_fd >= 0)
        close(me.board_fd);
    return s;
}

static ra_status meet(struct mpi_link *l, MPI_Comm mpi_comm, double timeout_s) {
    ra_status s = duplicate(mpi_comm, &l->ring, timeout_s);
    if (s == RA_OK)
        s = duplicate(mpi_comm, &l->control, timeout_s);
    if (s != RA_OK)
        return s; /* without communicators nobody can be told */
    s = introduce(l, timeout_s);
    if (s != RA_OK)
        mpi_fail(l, s, ra_last_error());
    return s;
}

static ra_status wrap(struct mpi_link *l, const ra_comm_options *options, ra_comm **comm) {
    const ra_link link = {
        .name = RA_MPI_NAME,
        .rank = l->rank,
        .size = l->size,
        .max_message = LONGEST_MESSAGE,
        .send = mpi_send,
        .recv = mpi_recv,
        .test = mpi_test,
        .allgather = mpi_allgather,
        .fail = mpi_fail,
        .destroy = mpi_destroy,
        .self = l,
    };
    ra_status s = ra_comm_create_link(&link, options, comm);
    if (s != RA_OK)
        mpi_fail(l, s, "could not make its comm");
    return s;
}

static ra_status create(MPI_Comm mpi_comm, const ra_comm_options *options, bool finalises, ra_comm **comm) {
    double timeout_s = options && options->timeout_s > 0 ? options->timeout_s : DEFAULT_TIMEOUT_S;
    ra_status s = check_own(options);
    struct mpi_link *l = s == RA_OK ? new_link(mpi_comm, options) : NULL;
    if (s == RA_OK && !l)
        s = ra_link_error(RA_ERR_MEMORY, "no memory for a link over MPI");
    s = agree(mpi_comm, s, timeout_s);
    if (s != RA_OK) {
        if (l)
            free_link(l);
        return s;
    }
    l->finalises = finalises;
    s = meet(l, mpi_comm, timeout_s); /* if it fails, MPI may still write to l */
    return s == RA_OK ? wrap(l, options, comm) : s;
}

static ra_status check_initialized(void) {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (!initialized || finalized)
        return ra_link_error(RA_ERR_INVALID, "MPI is not initialised, or finalised already");
    return RA_OK;
}

RA_API ra_status ra_comm_create_mpi(MPI_Comm mpi_comm, const ra_comm_options *options, ra_comm **comm) {
    if (!comm || mpi_comm == MPI_COMM_NULL)
        return ra_link_error(RA_ERR_INVALID, "%s: NULL", comm ? "mpi_comm" : "comm");
    ra_status s = check_initialized();
    return s == RA_OK ? create(mpi_comm, options, false, comm) : s;
}

/* What ra_comm_create_launched looks up in this library. */
RA_API ra_status ra_mpi_create_launched(const ra_comm_options *options, ra_comm **comm);

RA_API ra_status ra_mpi_create_launched(const ra_comm_options *options, ra_comm **comm) {
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (!initialized) {
        int level;
        int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
        if (code != MPI_SUCCESS)
            return ra_link_error(RA_ERR_LINK, "MPI_Init_thread failed (%d)", code);
    }
    ra_status s = check_initialized();
    return s == RA_OK ? create(MPI_COMM_WORLD, options, !initialized, comm) : s;
}
