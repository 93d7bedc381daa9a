/* Problems drawn at random over everything that the library's problems can have, as options, so that a command line tells each of them. */
#ifndef RINGATTN_DRAW_H
#define RINGATTN_DRAW_H

#include "options.h"

/* Names from a list like "causal,window" as a set of bits; all of them for NULL, none for "none". 0, or -1 with f (EXIT_USAGE). */
int draw_kinds(const char *list, unsigned *kinds, failure *f);

/* Draws sizes, type, layout, order and, of these kinds, mask, modifiers and outputs of the i-th problem of a seed; the number of ranks
 * unless it is fixed, by being given too. o->seed becomes the problem's own. */
void draw_options(options *o, uint64_t seed, int64_t i, unsigned kinds, int ranks_are_fixed);

#endif
