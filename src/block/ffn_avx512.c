/* The feed-forward's rows for avx512. */
#include "block/ffn_rows_body.h"

const struct ra__ffn_rows ra__ffn_rows_avx512 = RA__FFN_ROWS;
