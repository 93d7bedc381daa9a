/* Makes one rank's schedule from the question who needs whose block. */
#include "ring/schedule.h"

int ra__schedule_reach(int P, int b, ra__needs_fn *needs, const void *context) {
    for (int distance = P - 1; distance > 0; distance--)
        if (needs(context, (b + distance) % P, b))
            return distance;
    return 0;
}

/* Distance of the first rank after b that needs block b; P when none does. */
static int first_stop(int P, int b, ra__needs_fn *needs, const void *context) {
    for (int distance = 1; distance < P; distance++)
        if (needs(context, (b + distance) % P, b))
            return distance;
    return P;
}

void ra__schedule_make(struct ra__schedule *s, struct ra__step *step, int P, int r, ra__needs_fn *needs, const void *context) {
    *s = (struct ra__schedule){.P = P, .r = r, .steps = 1, .step = step, .home_from = -1};
    for (int distance = 0; distance < P; distance++) {
        const int b = (r - distance + P) % P, next = (r - distance - 1 + 2 * P) % P;
        const int reach = ra__schedule_reach(P, b, needs, context), first = first_stop(P, b, needs, context);
        struct ra__step *now = &step[distance];
        *now = (struct ra__step){.block = b, .dkv_to = -1};
        now->computes = distance <= reach && needs(context, r, b);
        now->sends_kv = distance < reach;
        now->receives_kv = distance + 1 < P && distance + 1 <= ra__schedule_reach(P, next, needs, context);
        now->receives_dkv = distance > first && distance <= reach;
        if (distance >= first && distance <= reach)
            now->dkv_to = distance == reach ? b : (r + 1) % P;
        if (now->computes || now->sends_kv || now->receives_kv || now->receives_dkv || now->dkv_to >= 0)
            s->steps = distance + 1;
    }
    const int reach = ra__schedule_reach(P, r, needs, context);
    if (reach > 0)
        s->home_from = (r + reach) % P;
}
