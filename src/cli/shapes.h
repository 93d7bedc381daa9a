/* The named shapes of `ringattn bench`: each stands for a case or several, measured in turn and, where there is something to compare with,
 * against each other. */
#ifndef RINGATTN_SHAPES_H
#define RINGATTN_SHAPES_H

#include "crew.h"

typedef struct bench_case {
    char name[32];
    options o;         /* all that the problem, its ranks and its threads take */
    int against;       /* the case that this one is compared with, -1: none. It comes earlier in the list */
    int alone;         /* on the first of several processes, while the others wait */
    int forward_only;  /* no backward */
    int reads;         /* bound by reading keys and values: measure the speed of memory */
    double slow_share; /* the link is so slow that a transfer takes this share of a step's computation; 0: as fast as it is */
} bench_case;

typedef struct bench_cases {
    bench_case at[48];
    int n;
    int rounds; /* all cases in turn, so often; the passes of a case in a round are few. 0: one round, in which the passes are repeated */
} bench_cases;

int shapes_count(void);
int shapes_by_default(int shape);
const char *shapes_name(int shape);

/* The shape's number, or -1 with f. */
int shapes_find(const char *name, failure *f);

void shapes_list(void); /* name and meaning of each, on stdout */

/* The cases of a shape; sizes and masks that o gives go before the shape's own. -1 with f: not for these ranks. */
int shapes_cases(int shape, const options *o, const crew *c, bench_cases *cases, failure *f);

#endif
