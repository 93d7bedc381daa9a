/* What the tests of all links run: two blocks of every rank go round the ring and must arrive unchanged. */
#ifndef RA_TESTS_LINK_RING_H
#define RA_TESTS_LINK_RING_H

#include "base/status.h"
#include "check.h"
#include "link/link.h"

static unsigned char pattern(int rank, size_t i) {
    return (unsigned char)(rank * 31 + (int)(i % 251) + (int)(i / 4096));
}

static bool holds_pattern(const unsigned char *data, int rank, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != pattern(rank, i))
            return false;
    return true;
}

struct ring {
    size_t bytes[2];
    int rounds;
};

/* Passes both blocks on once. Receives are posted after sends: with rendezvous only, nothing may depend on the order. */
static ra_status pass_on(ra_comm *comm, unsigned char *const *blocks, unsigned char *const *next, const size_t *bytes) {
    int P = ra_comm_size(comm), rank = ra_comm_rank(comm), to = (rank + 1) % P, from = (rank + P - 1) % P;
    struct ra__transfer t[4];
    RA__TRY(ra__send(comm, &t[0], to, 7, blocks[0], bytes[0]));
    RA__TRY(ra__send(comm, &t[1], to, 8, blocks[1], bytes[1]));
    RA__TRY(ra__recv(comm, &t[2], from, 7, next[0], bytes[0]));
    RA__TRY(ra__recv(comm, &t[3], from, 8, next[1], bytes[1]));
    RA__TRY(ra__wait((struct ra__transfer *[]){&t[0], &t[1], &t[2], &t[3]}, 4, "blocks"));
    for (int i = 0; i < 4; i++)
        CHECK(t[i].t_done >= t[i].t_posted);
    return RA_OK;
}

static ra_status go_round(ra_comm *comm, int rank, void *user) {
    const struct ring *ring = user;
    int P = ra_comm_size(comm);
    unsigned char *buffer[2][2];
    for (int i = 0; i < 4; i++)
        buffer[i / 2][i % 2] = malloc(ring->bytes[i % 2] + 1);
    for (int b = 0; b < 2; b++)
        for (size_t i = 0; i < ring->bytes[b]; i++)
            buffer[0][b][i] = pattern(rank + b, i);
    ra_status s = RA_OK;
    for (int step = 0; s == RA_OK && step < P * ring->rounds; step++) {
        s = pass_on(comm, buffer[step % 2], buffer[(step + 1) % 2], ring->bytes);
        int owner = ((rank - step - 1) % P + P) % P;
        for (int b = 0; s == RA_OK && b < 2; b++)
            CHECK(holds_pattern(buffer[(step + 1) % 2][b], owner + b, ring->bytes[b]));
    }
    for (int i = 0; i < 4; i++)
        free(buffer[i / 2][i % 2]);
    return s;
}

#endif
