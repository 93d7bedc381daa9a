/* What the program says about a run: a table for people, a JSON object for programs. */
#ifndef RINGATTN_REPORT_H
#define RINGATTN_REPORT_H

#include <jansson.h>

#include "measure.h"

/* attend's result on stdout. reports: of every rank. */
int report_attend(const options *o, const ra_problem *p, const rank_report *reports, int ranks, const char *link, failure *f);

/* Prints the object on one line of stdout and releases it; NULL counts as no memory. */
int report_json(json_t *object, failure *f);

json_t *json_number(double x); /* null for what JSON cannot say */

#endif
