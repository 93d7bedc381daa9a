/* ringattn info --matrix. */
#ifndef RINGATTN_MATRIX_H
#define RINGATTN_MATRIX_H

#include <jansson.h>

#include "options.h"

void matrix_print(void);

/* A list of objects, one for each combination. */
json_t *matrix_json(void);

#endif
