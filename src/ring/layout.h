/* Which tokens a rank holds. A new layout is one case in ra__layout_shard. */
#ifndef RA_RING_LAYOUT_H
#define RA_RING_LAYOUT_H

#include "block/block.h"

/* A shard is at most two stretches of local tokens whose global positions ascend with a constant stride. */
struct ra__shard {
    int64_t T;
    struct ra__stretches stretches;
    int64_t position[2]; /* global position of each stretch's first token */
    int64_t stride;
};

struct ra__shard ra__layout_shard(ra_layout layout, int64_t S, int P, int r);
int64_t ra__shard_position(const struct ra__shard *s, int64_t t);
void ra__shard_positions(const struct ra__shard *s, int64_t *positions); /* [T] */
int64_t ra__shard_first(const struct ra__shard *s);                      /* smallest position; T > 0 */
int64_t ra__shard_last(const struct ra__shard *s);                       /* largest position; T > 0 */

#endif
