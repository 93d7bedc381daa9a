/* The feed-forward's rows for the instruction set that the whole build targets. */
#include "block/ffn_rows_body.h"

const struct ra__ffn_rows ra__ffn_rows_scalar = RA__FFN_ROWS;
