/* What ringattn info says about PJRT plugins. */
#ifndef RINGATTN_PLUGINS_H
#define RINGATTN_PLUGINS_H

#include <jansson.h>

#include "failure.h"

/* A list of objects, one for each plugin found; NULL after a failure. */
json_t *plugins_json(failure *f);

/* The same for people, a line each. */
void plugins_print(const json_t *plugins);

#endif
