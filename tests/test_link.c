/* The local link and what every link shares: transfers in pieces, deadlines, failures that reach every rank, and no leak on any path. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "base/status.h"
#include "check.h"
#include "link/link.h"
#include "link_ring.h"

static void rings_complete(void) {
    for (int P = 1; P <= 17; P++)
        CHECK_OK(ra_local_run(P, NULL, NULL, go_round, &(struct ring){{70000, 1234}, 3}));
}

static void zero_bytes_travel_at_once(void) {
    CHECK_OK(ra_local_run(3, NULL, NULL, go_round, &(struct ring){{0, 0}, 2}));
    CHECK_OK(ra_local_run(3, NULL, NULL, go_round, &(struct ring){{0, 17}, 2}));
}

static void split_messages_arrive_whole(void) {
    const size_t sizes[] = {1, 999, 1000, 1001, 8000, 8001, 123456};
    const ra_local_options split = {.max_message = 1000};
    for (int i = 0; i < 7; i++)
        CHECK_OK(ra_local_run(3, NULL, &split, go_round, &(struct ring){{sizes[i], sizes[6 - i]}, 1}));
    /* longer than a window of the largest pieces */
    CHECK_OK(ra_local_run(2, NULL, NULL, go_round, &(struct ring){{(RA__WINDOW + 1) * (size_t)RA__PIECE_BYTES + 5, 3}, 1}));
}

static void more_ranks_than_cores(void) {
    double start = ra__now();
    CHECK_OK(ra_local_run(64, NULL, NULL, go_round, &(struct ring){{4096, 64}, 1}));
    double s = ra__now() - start;
    printf("   64 ranks, 64 steps: %.0f ms\n", 1e3 * s);
    CHECK_MSG(s < 30, "64 ranks took %g s", s);
}

/* ---- order, time */

static ra_status receive_in_reverse(ra_comm *comm, int rank, void *user) {
    (void)user;
    int a = 1, b = 2, got[2] = {0, 0};
    struct ra__transfer t[2];
    if (rank == 0) {
        RA__TRY(ra__send(comm, &t[0], 1, 5, &a, sizeof a));
        RA__TRY(ra__send(comm, &t[1], 1, 5, &b, sizeof b));
        return ra__wait((struct ra__transfer *[]){&t[0], &t[1]}, 2, "two");
    }
    RA__TRY(ra__recv(comm, &t[0], 0, 5, &got[0], sizeof got[0]));
    RA__TRY(ra__recv(comm, &t[1], 0, 5, &got[1], sizeof got[1]));
    RA__TRY(ra__wait((struct ra__transfer *[]){&t[1]}, 1, "the second"));
    RA__TRY(ra__wait((struct ra__transfer *[]){&t[0]}, 1, "the first"));
    CHECK_EQ_INT(got[0], 1);
    CHECK_EQ_INT(got[1], 2);
    return RA_OK;
}

static void messages_of_one_tag_keep_their_order(void) {
    CHECK_OK(ra_local_run(2, NULL, NULL, receive_in_reverse, NULL));
}

static ra_status send_two(ra_comm *comm, int rank, void *user) {
    double *seconds = user;
    size_t bytes = 1000000;
    char *data = calloc(2, bytes);
    struct ra__transfer t[2];
    double start = ra__now();
    ra_status s = RA_OK;
    for (int i = 0; s == RA_OK && i < 2; i++)
        s = rank == 0 ? ra__send(comm, &t[i], 1, 1, data + (size_t)i * bytes, bytes)
                      : ra__recv(comm, &t[i], 0, 1, data + (size_t)i * bytes, bytes);
    if (s == RA_OK)
        s = ra__wait((struct ra__transfer *[]){&t[0], &t[1]}, 2, "two");
    free(data);
    if (rank == 1)
        *seconds = ra__now() - start;
    return s;
}

static void delay_and_bandwidth_are_honoured(void) {
    double s;
    CHECK_OK(ra_local_run(2, NULL, &(ra_local_options){.delay_s = 0.1}, send_two, &s));
    CHECK_MSG(s >= 0.09 && s < 0.19, "two messages at once, each delayed by 0.1 s: %g s", s);
    CHECK_OK(ra_local_run(2, NULL, &(ra_local_options){.bytes_per_s = 1e7}, send_two, &s));
    CHECK_MSG(s >= 0.19 && s < 0.5, "2 MB at 10 MB/s: %g s", s);
}

static ra_status ping(ra_comm *comm, int rank, void *user) {
    (void)user;
    char byte = 0;
    const int rounds = 2000;
    double start = ra__now();
    for (int i = 0; i < 2 * rounds; i++) {
        struct ra__transfer t;
        RA__TRY((i + rank) % 2 == 0 ? ra__send(comm, &t, 1 - rank, 1, &byte, 1) : ra__recv(comm, &t, 1 - rank, 1, &byte, 1));
        RA__TRY(ra__wait((struct ra__transfer *[]){&t}, 1, "ping"));
    }
    if (rank == 0)
        printf("   latency %.1f us\n", 1e6 * (ra__now() - start) / (2 * rounds));
    return RA_OK;
}

static void latency_is_short(void) {
    double start = ra__now();
    CHECK_OK(ra_local_run(2, NULL, NULL, ping, NULL));
    CHECK_MSG(ra__now() - start < 8, "4000 messages took %g s", ra__now() - start);
}

/* ---- allgather */

static ra_status gather_often(ra_comm *comm, int rank, void *user) {
    (void)user;
    int P = ra_comm_size(comm), all[64][3];
    for (int i = 0; i < 50; i++) {
        int mine[3] = {rank, i, rank * i};
        RA__TRY(ra_comm_allgather(comm, mine, all, sizeof mine));
        for (int r = 0; r < P; r++)
            CHECK(all[r][0] == r && all[r][1] == i && all[r][2] == r * i);
        RA__TRY(ra_comm_allgather(comm, NULL, NULL, 0));
    }
    return RA_OK;
}

static ra_status gather_unequal(ra_comm *comm, int rank, void *user) {
    (void)user;
    char mine[2] = {0, 0}, all[4];
    return ra_comm_allgather(comm, mine, all, rank == 0 ? 1 : 2);
}

static ra_status sleep_instead_of_gathering(ra_comm *comm, int rank, void *user) {
    (void)user;
    char mine = 0, all[3];
    if (rank == 1)
        nanosleep(&(struct timespec){.tv_nsec = 400000000}, NULL);
    return ra_comm_allgather(comm, &mine, all, 1);
}

static void allgather_gathers(void) {
    const int sizes[] = {1, 2, 3, 8, 64};
    for (int i = 0; i < 5; i++)
        CHECK_OK(ra_local_run(sizes[i], NULL, NULL, gather_often, NULL));
    CHECK_STATUS(ra_local_run(2, NULL, NULL, gather_unequal, NULL), RA_ERR_LINK);
    CHECK_STATUS(ra_local_run(3, &(ra_comm_options){.timeout_s = 0.1}, NULL, sleep_instead_of_gathering, NULL), RA_ERR_TIMEOUT);
    CHECK(strstr(ra_last_error(), "rank 1 did not come"));
}

/* ---- failures */

/* What each rank of a run saw, for the tests that look at every one. */
struct outcome {
    struct ring ring;
    ra_status status[8];
    char why[8][512];
    double seconds[8];
};

static ra_status go_round_and_tell(ra_comm *comm, int rank, void *user) {
    struct outcome *o = user;
    double start = ra__now();
    o->status[rank] = go_round(comm, rank, &o->ring);
    snprintf(o->why[rank], sizeof o->why[rank], "%s", ra_last_error());
    o->seconds[rank] = ra__now() - start;
    CHECK_STATUS(ra_comm_allgather(comm, NULL, NULL, 0), o->status[rank]); /* poisoned: the same again */
    return o->status[rank];
}

static void loud_failure_reaches_all_at_once(void) {
    struct outcome o = {.ring = {{10000, 10}, 3}};
    const ra_local_options fault = {.fail_rank = 2, .fail_after = 9, .max_message = 3000};
    CHECK_STATUS(ra_local_run(4, &(ra_comm_options){.timeout_s = 20}, &fault, go_round_and_tell, &o), RA_ERR_LINK);
    CHECK_MSG(!strcmp(ra_last_error(), "rank 2: injected failure at message 9"), "%s", ra_last_error());
    for (int r = 0; r < 4; r++) {
        CHECK_EQ_INT(o.status[r], r == 2 ? RA_ERR_LINK : RA_ERR_PEER_LOST);
        CHECK_MSG(r == 2 || !strcmp(o.why[r], "rank 2 failed: injected failure at message 9"), "%s", o.why[r]);
        CHECK_MSG(o.seconds[r] < 5, "rank %d noticed after %g s", r, o.seconds[r]);
    }
}

static void silent_failure_ends_by_the_deadline(void) {
    struct outcome o = {.ring = {{10000, 10}, 3}};
    const ra_local_options fault = {.fail_rank = 2, .fail_after = 9, .fail_silently = 1};
    CHECK_STATUS(ra_local_run(4, &(ra_comm_options){.timeout_s = 0.3}, &fault, go_round_and_tell, &o), RA_ERR_TIMEOUT);
    CHECK_MSG(strstr(ra_last_error(), "did not answer within 0.3 s (") && strstr(ra_last_error(), "blocks"), "%s", ra_last_error());
    for (int r = 0; r < 4; r++) {
        CHECK(r == 2 ? o.status[r] == RA_ERR_LINK : o.status[r] == RA_ERR_TIMEOUT || o.status[r] == RA_ERR_PEER_LOST);
        CHECK_MSG(o.seconds[r] > 0.25 && o.seconds[r] < 3, "rank %d noticed after %g s", r, o.seconds[r]);
    }
}

static void every_message_may_be_the_last(void) {
    for (int k = 1; k <= 26; k++) {
        const ra_local_options fault = {.fail_rank = 1, .fail_after = k, .max_message = 3000};
        ra_status s = ra_local_run(3, &(ra_comm_options){.timeout_s = 20}, &fault, go_round, &(struct ring){{7000, 10}, 1});
        CHECK_STATUS(s, k <= 24 ? RA_ERR_LINK : RA_OK); /* 3 steps of (3 + 1) pieces out and as many in */
    }
}

static ra_status leave_early(ra_comm *comm, int rank, void *user) {
    struct ring ring = {{1000, 10}, 1};
    if (rank == 1 && *(int *)user == 0)
        return RA_OK;
    ra_status s = go_round(comm, rank, &ring);
    if (rank == 1 || s != RA_OK)
        return s;
    char mine = 0, all[4];
    return ra_comm_allgather(comm, &mine, all, 1);
}

static void a_rank_that_leaves_is_missed(void) {
    for (int rounds = 0; rounds < 2; rounds++) {
        double start = ra__now();
        CHECK_STATUS(ra_local_run(4, &(ra_comm_options){.timeout_s = 20}, NULL, leave_early, &rounds), RA_ERR_PEER_LOST);
        CHECK_MSG(strstr(ra_last_error(), "rank 1 has left the ring"), "%s", ra_last_error());
        CHECK(ra__now() - start < 5);
    }
}

static ra_status give_up(ra_comm *comm, int rank, void *user) {
    const int *failing = user;
    ra_status s = RA_OK;
    if (failing[0] == 4) /* all for the same reason, as in a refused plan */
        return ra__fail(RA_ERR_MISMATCH, "D differs");
    if (rank == failing[0])
        ra_comm_fail(comm, RA_ERR_MEMORY, "no memory for the workspace");
    if (rank == failing[1])
        return ra__fail(RA_ERR_UNSUPPORTED, "no kernel");
    char mine = 0, all[4];
    if (s == RA_OK)
        s = ra_comm_allgather(comm, &mine, all, 1);
    return s;
}

static void reports_name_who_began(void) {
    CHECK_STATUS(ra_local_run(4, NULL, NULL, give_up, (int[]){2, -1}), RA_ERR_MEMORY);
    CHECK_MSG(!strcmp(ra_last_error(), "rank 2: no memory for the workspace"), "%s", ra_last_error());
    CHECK_STATUS(ra_local_run(4, NULL, NULL, give_up, (int[]){-1, 3}), RA_ERR_UNSUPPORTED);
    CHECK_MSG(!strcmp(ra_last_error(), "rank 3: no kernel"), "%s", ra_last_error());
    CHECK_STATUS(ra_local_run(4, NULL, NULL, give_up, (int[]){4, -1}), RA_ERR_MISMATCH);
    CHECK_MSG(!strcmp(ra_last_error(), "ranks 0-3: D differs"), "%s", ra_last_error());
    CHECK_STATUS(ra_local_run(1, NULL, NULL, give_up, (int[]){4, -1}), RA_ERR_MISMATCH);
    CHECK_MSG(!strcmp(ra_last_error(), "rank 0: D differs"), "%s", ra_last_error());
}

static ra_status fail_all_but_one(ra_comm *comm, int rank, void *user) {
    (void)comm;
    (void)user;
    return rank == 1 ? RA_OK : ra__fail(RA_ERR_INVALID, "bad");
}

static void reports_join_ranks(void) {
    CHECK_STATUS(ra_local_run(5, NULL, NULL, fail_all_but_one, NULL), RA_ERR_INVALID);
    CHECK_MSG(!strcmp(ra_last_error(), "ranks 0,2-4: bad"), "%s", ra_last_error());
}

/* ---- memory, several comms, arguments */

struct meter {
    atomic_long calls, live;
    long fail_at;
};

static void *metered_alloc(void *user, size_t bytes, size_t align) {
    struct meter *m = user;
    void *p = NULL;
    if (atomic_fetch_add(&m->calls, 1) + 1 == m->fail_at || posix_memalign(&p, align, bytes) != 0)
        return NULL;
    atomic_fetch_add(&m->live, 1);
    return p;
}

static void metered_free(void *user, void *p) {
    atomic_fetch_sub(&((struct meter *)user)->live, 1);
    free(p);
}

static void no_memory_leaks_nothing(void) {
    ra_status s = RA_ERR_MEMORY;
    int k = 0;
    while (s != RA_OK && k++ < 100) {
        struct meter meter = {.fail_at = k};
        ra_allocator allocator = {metered_alloc, metered_free, &meter};
        ra_comm_options options = {.allocator = &allocator};
        s = ra_local_run(3, &options, NULL, go_round, &(struct ring){{100, 10}, 2});
        CHECK(s == RA_OK || s == RA_ERR_MEMORY);
        CHECK_EQ_INT(atomic_load(&meter.live), 0);
        ra_comm *marker = (ra_comm *)&meter, *comms[3] = {marker, marker, marker};
        atomic_store(&meter.calls, 0);
        if (ra_comm_create_local(3, &options, NULL, comms) == RA_OK)
            for (int r = 0; r < 3; r++)
                ra_comm_destroy(comms[r]);
        else
            CHECK(comms[0] == marker && comms[2] == marker);
        CHECK_EQ_INT(atomic_load(&meter.live), 0);
    }
    CHECK_EQ_INT(k, 6); /* a group, three comms, the runs: five */
}

static ra_status alternate(ra_comm *comm, int rank, void *user) {
    ra_comm **others = user;
    for (int i = 0; i < 10; i++) {
        RA__TRY(go_round(comm, rank, &(struct ring){{500, 5}, 1}));
        RA__TRY(go_round(others[rank], rank, &(struct ring){{600, 6}, 1}));
    }
    RA__TRY(ra_comm_allgather(others[rank], NULL, NULL, 0));
    /* The failure of one comm leaves the other alone. */
    ra_comm_fail(others[rank], RA_ERR_INTERNAL, "enough");
    CHECK_STATUS(ra_comm_allgather(others[rank], NULL, NULL, 0), RA_ERR_INTERNAL);
    ra_status s = go_round(comm, rank, &(struct ring){{500, 5}, 1});
    ra_comm_destroy(others[rank]);
    return s;
}

static void comms_are_independent(void) {
    ra_comm *others[3];
    CHECK_OK(ra_comm_create_local(3, NULL, NULL, others));
    CHECK_EQ_INT(ra_comm_rank(others[2]), 2);
    CHECK_EQ_INT(ra_comm_size(others[2]), 3);
    CHECK(!strcmp(ra_comm_kind(others[2]), "local"));
    CHECK_OK(ra_local_run(3, NULL, NULL, alternate, others));
}

static void self_is_a_ring_of_one(void) {
    ra_comm *self;
    int mine = 5, all = 0;
    if (!CHECK_OK(ra_comm_create_self(NULL, &self)))
        return;
    CHECK_EQ_INT(ra_comm_rank(self), 0);
    CHECK_EQ_INT(ra_comm_size(self), 1);
    CHECK(!strcmp(ra_comm_kind(self), "self"));
    CHECK_OK(ra_comm_allgather(self, &mine, &all, sizeof mine));
    CHECK_EQ_INT(all, 5);
    CHECK_OK(go_round(self, 0, &(struct ring){{1000, 10}, 2}));
    ra_comm_fail(self, RA_ERR_INVALID, "given up");
    CHECK_STATUS(ra_comm_allgather(self, &mine, &all, sizeof mine), RA_ERR_INVALID);
    CHECK(!strcmp(ra_last_error(), "given up"));
    ra_comm_destroy(self);
}

static void bad_arguments_are_refused(void) {
    ra_comm *comms[2];
    const ra_comm_options negative = {.timeout_s = -1}, not_a_number = {.timeout_s = NAN};
    const ra_allocator half = {metered_alloc, NULL, NULL};
    CHECK_STATUS(ra_comm_create_local(0, NULL, NULL, comms), RA_ERR_INVALID);
    CHECK_STATUS(ra_comm_create_local(2, NULL, NULL, NULL), RA_ERR_INVALID);
    CHECK_STATUS(ra_comm_create_local(2, &negative, NULL, comms), RA_ERR_INVALID);
    CHECK_STATUS(ra_comm_create_self(&not_a_number, comms), RA_ERR_INVALID);
    CHECK_STATUS(ra_comm_create_self(&(ra_comm_options){.allocator = &half}, comms), RA_ERR_INVALID);
    CHECK_STATUS(ra_comm_create_self(NULL, NULL), RA_ERR_INVALID);
    CHECK_STATUS(ra_comm_create_local(2, NULL, &(ra_local_options){.delay_s = -1}, comms), RA_ERR_INVALID);
    CHECK_STATUS(ra_comm_create_local(2, NULL, &(ra_local_options){.fail_rank = 2, .fail_after = 1}, comms), RA_ERR_INVALID);
    CHECK_STATUS(ra_comm_create_link(&(ra_link){.name = "empty", .size = 1}, NULL, comms), RA_ERR_INVALID);
    CHECK_STATUS(ra_comm_create_link(NULL, NULL, comms), RA_ERR_INVALID);
    CHECK_STATUS(ra_comm_allgather(NULL, NULL, NULL, 0), RA_ERR_INVALID);
    CHECK_STATUS(ra_local_run(2, NULL, NULL, NULL, NULL), RA_ERR_INVALID);
    ra_comm_destroy(NULL);
}

int main(void) {
    RUN(rings_complete);
    RUN(zero_bytes_travel_at_once);
    RUN(split_messages_arrive_whole);
    RUN(more_ranks_than_cores);
    RUN(messages_of_one_tag_keep_their_order);
    RUN(delay_and_bandwidth_are_honoured);
    RUN(latency_is_short);
    RUN(allgather_gathers);
    RUN(loud_failure_reaches_all_at_once);
    RUN(silent_failure_ends_by_the_deadline);
    RUN(every_message_may_be_the_last);
    RUN(a_rank_that_leaves_is_missed);
    RUN(reports_name_who_began);
    RUN(reports_join_ranks);
    RUN(no_memory_leaks_nothing);
    RUN(comms_are_independent);
    RUN(self_is_a_ring_of_one);
    RUN(bad_arguments_are_refused);
    return check_result();
}
