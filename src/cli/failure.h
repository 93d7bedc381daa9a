/* What went wrong on a rank, as an exit status and a sentence. Travels between ranks by value. */
#ifndef RINGATTN_FAILURE_H
#define RINGATTN_FAILURE_H

#include "ringattention.h"

/* The same for every subcommand; a signal n ends the program with 128 + n as the shell counts. */
enum exit_status {
    EXIT_DONE = 0,
    EXIT_CHECK_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_UNSUPPORTED = 3,
    EXIT_BAD_INPUT = 4,
    EXIT_IO = 5,
    EXIT_RANKS = 6,
    EXIT_NUMERIC = 7,
    EXIT_MEMORY = 8,
    EXIT_INTERNAL = 9
};

typedef struct failure {
    int status;  /* 0: none */
    int follows; /* 1: only because another rank failed */
    char text[420];
} failure;

/* The first failure recorded stays: what comes after it is mostly its consequence. Control characters in the text, which may come out
 * of a hostile file, are replaced. Always returns -1. */
int fail(failure *f, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A failed library call: "forward: a rank was lost: ..."; 0 if s is RA_OK, else -1. */
int fail_library(failure *f, ra_status s, const char *doing);

int fail_memory(failure *f, int64_t bytes, const char *what);

/* Prints the failures of n ranks to stderr, one line for each different one: "ringattn: ranks 0-3: ...". first_rank is the rank of of[0];
 * without `name_ranks` the numbers are left out. Failures that merely follow from another are left out if there is a cause among them.
 * Returns the exit status: that of the first cause, 0 if none failed. */
int failures_print(const failure *of, int n, int first_rank, int name_ranks, int quiet);

/* Prints one failure and returns its status. */
int failure_print(const failure *f);

#endif
