/* The link over MPI, as one program under mpirun.
 *
 * Without an argument it tests what works, on any number of processes. With one, it breaks rank 1 in that way while the ring runs, and
 * every rank that survives prints what it saw, "rank 0: ERR_PEER_LOST after 0.1 s: ...", for test_mpi_faults.py to judge:
 *   fail    gives up by ra_comm_fail                        leave     as fail, over ra_comm_create_launched; all exit with status 6
 *   stall   sleeps for longer than the others' deadline      exit      _exit(1)
 *   kill    SIGKILL                                          absent    SIGKILL while the others gather
 *   stop    SIGSTOP; a child continues it after 3 s */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "link_ring.h"
#include "ringattention_mpi.h"

#define BROKEN 1 /* the rank that breaks */

static int world_rank, world_size;

static void rings_complete(void) {
    const struct ring rings[] = {{{70000, 1234}, 3}, {{0, 5}, 2}, {{3u * RA__PIECE_BYTES + 17, 1}, 1}, {{40u * 1024 * 1024, 65536}, 1}};
    ra_comm *comm;
    if (!CHECK_OK(ra_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm)))
        return;
    CHECK_EQ_INT(ra_comm_rank(comm), world_rank);
    CHECK_EQ_INT(ra_comm_size(comm), world_size);
    CHECK(!strcmp(ra_comm_kind(comm), "openmpi") || !strcmp(ra_comm_kind(comm), "mpich"));
    for (size_t i = 0; i < sizeof rings / sizeof *rings; i++)
        CHECK_OK(go_round(comm, world_rank, (void *)&rings[i]));
    ra_comm_destroy(comm);
}

static void allgather_gathers(void) {
    ra_comm *comm;
    int *all = malloc((size_t)world_size * 1000 * sizeof *all), mine[1000];
    if (!CHECK_OK(ra_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm)))
        return;
    for (int n = 0; n <= 1000; n += 250) {
        for (int i = 0; i < n; i++)
            mine[i] = world_rank * 1000 + i;
        CHECK_OK(ra_comm_allgather(comm, mine, all, (size_t)n * sizeof *all));
        for (int r = 0; r < world_size; r++)
            for (int i = 0; i < n; i++)
                CHECK(all[r * n + i] == r * 1000 + i);
    }
    free(all);
    ra_comm_destroy(comm);
}

/* Even and odd ranks form a ring each, beside the ring of all. */
static void rings_of_some_ranks_are_independent(void) {
    MPI_Comm half;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank % 2, world_rank, &half);
    ra_comm *some, *all;
    if (!CHECK_OK(ra_comm_create_mpi(half, NULL, &some)) || !CHECK_OK(ra_comm_create_mpi(MPI_COMM_WORLD, NULL, &all)))
        return;
    MPI_Comm_free(&half);
    CHECK_EQ_INT(ra_comm_rank(some), world_rank / 2);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(go_round(some, world_rank / 2, &(struct ring){{5000, 50}, 2}));
        CHECK_OK(go_round(all, world_rank, &(struct ring){{6000, 60}, 1}));
    }
    ra_comm_destroy(some);
    ra_comm_destroy(all);
}

static void a_comm_that_fails_leaves_others_alone(void) {
    ra_comm *failing, *working;
    const ra_comm_options options = {.timeout_s = 20};
    if (!CHECK_OK(ra_comm_create_mpi(MPI_COMM_WORLD, &options, &failing)) ||
        !CHECK_OK(ra_comm_create_mpi(MPI_COMM_WORLD, &options, &working)))
        return;
    if (world_rank == world_size - 1)
        ra_comm_fail(failing, RA_ERR_MEMORY, "no memory for the workspace");
    char text[64], mine = 0, *all = malloc((size_t)world_size);
    snprintf(text, sizeof text, "%sno memory for the workspace", "");
    if (world_rank != world_size - 1)
        snprintf(text, sizeof text, "rank %d failed: no memory for the workspace", world_size - 1);
    CHECK_STATUS(ra_comm_allgather(failing, &mine, all, 1), world_rank == world_size - 1 ? RA_ERR_MEMORY : RA_ERR_PEER_LOST);
    CHECK_MSG(!strcmp(ra_last_error(), text), "%s", ra_last_error());
    CHECK_OK(go_round(working, world_rank, &(struct ring){{6000, 60}, 1}));
    free(all);
    ra_comm_destroy(failing);
    ra_comm_destroy(working);
}

static void bad_arguments_are_refused(void) {
    ra_comm *comm;
    CHECK_STATUS(ra_comm_create_mpi(MPI_COMM_NULL, NULL, &comm), RA_ERR_INVALID);
    CHECK_STATUS(ra_comm_create_mpi(MPI_COMM_WORLD, NULL, NULL), RA_ERR_INVALID);
    CHECK_STATUS(ra_comm_create_mpi(MPI_COMM_WORLD, &(ra_comm_options){.timeout_s = -1}, &comm), RA_ERR_INVALID);
}

struct meter {
    long calls, live, fail_at;
};

static void *metered_alloc(void *user, size_t bytes, size_t align) {
    struct meter *m = user;
    void *p = NULL;
    if (++m->calls == m->fail_at || posix_memalign(&p, align, bytes) != 0)
        return NULL;
    m->live++;
    return p;
}

static void metered_free(void *user, void *p) {
    ((struct meter *)user)->live--;
    free(p);
}

/* One rank's k-th allocation fails: that rank says so, the others are told, and nobody waits. */
static void no_memory_is_told_to_all(void) {
    static struct meter meters[20]; /* outlive the comms that are leaked after a failure */
    ra_status s = RA_ERR_MEMORY;
    int k = 0, leaks = 0;
    for (; s != RA_OK && k < 20; k++) {
        struct meter *meter = &meters[k];
        meter->fail_at = world_rank == 0 ? k + 1 : 0;
        ra_allocator allocator = {metered_alloc, metered_free, meter};
        ra_comm *comm = NULL;
        s = ra_comm_create_mpi(MPI_COMM_WORLD, &(ra_comm_options){.timeout_s = 20, .allocator = &allocator}, &comm);
        if (s == RA_OK)
            s = ra_comm_allgather(comm, NULL, NULL, 0);
        CHECK(s == RA_OK || s == (world_rank == 0 ? RA_ERR_MEMORY : RA_ERR_PEER_LOST));
        ra_comm_destroy(comm);
        leaks += meter->live > 0;
        CHECK(s != RA_OK || meter->live == 0);
    }
    CHECK_MSG(k > 3 && k < 20, "%d allocations", k);
    CHECK_MSG(leaks <= 1, "%d leaks", leaks); /* one is meant: the comm's own allocation fails when the link is made, a failure */
}

/* ---- breaking */

static void sleep_s(double s) {
    nanosleep(&(struct timespec){.tv_sec = (time_t)s, .tv_nsec = (long)(1e9 * (s - (double)(time_t)s))}, NULL);
}

static void stop_for_a_while(void) {
    pid_t me = getpid();
    if (fork() == 0) {
        sleep_s(3);
        kill(me, SIGCONT);
        _exit(0);
    }
    raise(SIGSTOP);
}

static void break_here(const char *mode, ra_comm *comm) {
    if (!strcmp(mode, "fail") || !strcmp(mode, "leave"))
        ra_comm_fail(comm, RA_ERR_MEMORY, "no memory for the workspace");
    else if (!strcmp(mode, "stall"))
        sleep_s(2.5);
    else if (!strcmp(mode, "exit"))
        _exit(1);
    else if (!strcmp(mode, "stop"))
        stop_for_a_while();
    else
        raise(SIGKILL);
}

static ra_status run_until_broken(const char *mode, ra_comm *comm) {
    struct ring ring = {{5u << 20, 100}, 1};
    ra_status s = go_round(comm, world_rank, &ring);
    if (world_rank == BROKEN)
        break_here(mode, comm);
    if (s == RA_OK && !strcmp(mode, "absent"))
        s = ra_comm_allgather(comm, NULL, NULL, 0);
    for (int i = 0; s == RA_OK && i < 3; i++)
        s = go_round(comm, world_rank, &ring);
    return s;
}

/* The survivors cannot leave by MPI_Finalize, which would wait for rank 1. Leaving early would make mpirun kill those that have not
 * printed yet. */
static int broken(const char *mode) {
    ra_comm *comm;
    const ra_comm_options options = {.timeout_s = 1};
    ra_status s = !strcmp(mode, "leave") ? ra_comm_create_launched(&options, &comm) : ra_comm_create_mpi(MPI_COMM_WORLD, &options, &comm);
    if (s != RA_OK) {
        fprintf(stderr, "%s\n", ra_last_error());
        return 1;
    }
    world_rank = ra_comm_rank(comm);
    double start = ra__now();
    s = run_until_broken(mode, comm);
    printf("rank %d: %s after %.2f s: %s\n", world_rank, ra_status_name(s), ra__now() - start, ra_last_error());
    fflush(stdout);
    ra_comm_destroy(comm);
    if (strcmp(mode, "leave") != 0)
        sleep_s(!strcmp(mode, "stall") || !strcmp(mode, "stop") ? 3 : 1);
    return s == RA_OK ? 0 : 6;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : NULL;
    if (mode && !strcmp(mode, "leave"))
        return broken(mode);
    int level;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world_size);
    if (mode)
        _exit(broken(mode));
    if (world_rank > 0 && !freopen("/dev/null", "w", stdout)) /* rank 0 speaks */
        return 1;
    RUN(rings_complete);
    RUN(allgather_gathers);
    RUN(rings_of_some_ranks_are_independent);
    RUN(bad_arguments_are_refused);
    RUN(no_memory_is_told_to_all);
    RUN(a_comm_that_fails_leaves_others_alone);
    MPI_Finalize();
    return check_result();
}
