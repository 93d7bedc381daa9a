/* Emitted programs, compiled and run by a real plugin for the processor (tools/pjrt_plugins.sh cpu) on rings of 1, 2, 4, 5 and 8 devices:
 * random problems with every mask and modifier, both passes, against the oracle; NaN and infinity. */
#define _GNU_SOURCE /* pjrt_plugin.h */
#include "pjrt/client.h"
#include "pjrt_checks.h"
#include "pjrt_plugin.h"

static enum ra__pjrt_type type_of(enum ra__hlo_element element) {
    static const enum ra__pjrt_type types[] = {
        [RA__HLO_F32] = RA__PJRT_F32, [RA__HLO_BF16] = RA__PJRT_BF16, [RA__HLO_F16] = RA__PJRT_F16,
        [RA__HLO_S32] = RA__PJRT_S32, [RA__HLO_U32] = RA__PJRT_U32,
    };
    return types[element];
}

/* The arrays of all devices as the client takes them. */
static struct ra__pjrt_host_array *host_arrays(int P, int n, const struct ra__pjrt_array *array, void **data) {
    struct ra__pjrt_host_array *all = calloc((size_t)(P * n), sizeof *all);
    for (int i = 0; i < P * n; i++) {
        const struct ra__hlo_type *type = &array[i % n].type;
        all[i] = (struct ra__pjrt_host_array){.type = type_of(type->element), .dim_count = type->rank, .data = data[i]};
        for (int d = 0; d < type->rank; d++)
            all[i].dims[d] = type->dim[d];
    }
    return all;
}

static ra_status compile_and_run(void *user, const struct pjrt_job *job) {
    struct ra__pjrt_executable *executable = NULL;
    const int P = job->program->P;
    ra_status s = ra__pjrt_compile(user, job->text, job->length, P, NULL, &executable);
    if (s == RA_OK) {
        struct ra__pjrt_host_array *in = host_arrays(P, job->inputs, job->input, job->in);
        struct ra__pjrt_host_array *out = host_arrays(P, job->outputs, job->output, job->out);
        s = ra__pjrt_run(executable, in, job->inputs, out, job->outputs);
        free(in);
        free(out);
    }
    ra__pjrt_executable_destroy(executable);
    return s;
}

static struct ra__pjrt *opened(int devices) {
    struct ra__pjrt *p = NULL;
    const struct ra__pjrt_options options = {.devices = devices, .cache = "", .unchecked = true};
    CHECK_OK(ra__pjrt_open(plugin, &options, &p));
    return p;
}

static void random_problems(void) {
    static const int rings[] = {1, 2, 4, 5, 8};
    static const char *const names[] = {[RA_F32] = "f32", [RA_BF16] = "bf16", [RA_F16] = "f16"};
    const char *more = getenv("RA_PJRT_TRIALS"); /* of each ring */
    const int trials = more ? atoi(more) : 5;
    for (size_t i = 0; i < sizeof rings / sizeof *rings; i++) {
        struct ra__pjrt *p = opened(rings[i]);
        struct errors worst[3] = {{0}};
        int compared = 0;
        for (int trial = 0; p && trial < trials; trial++)
            compared += pjrt_check_trial(1000 * rings[i] + trial, rings[i], compile_and_run, p, worst);
        CHECK_MSG(compared > 0, "%d devices: nothing was compared", rings[i]);
        printf("%d devices: %d of %d problems; worst error of out, lse, dq, dk, dv:", rings[i], compared, trials);
        for (int dtype = 0; dtype < 3; dtype++)
            printf("  %s %.1e %.1e %.1e %.1e %.1e", names[dtype], worst[dtype].out, worst[dtype].lse, worst[dtype].dq, worst[dtype].dk,
                   worst[dtype].dv);
        printf("\n");
        ra__pjrt_close(p);
    }
}

static void what_is_not_finite(void) {
    struct ra__pjrt *p = opened(4);
    if (!p)
        return;
    static const ra_dtype types[] = {RA_F32, RA_BF16, RA_F16};
    for (int i = 0; i < 3; i++)
        pjrt_check_hidden(4, types[i], compile_and_run, p);
    for (int input = POISON_Q; input <= POISON_DOUT; input++) {
        pjrt_check_seen(4, RA_F32, input, NAN, compile_and_run, p);
        pjrt_check_seen(4, RA_BF16, input, INFINITY, compile_and_run, p);
    }
    ra__pjrt_close(p);
}

int main(void) {
    find_plugin();
    RUN(random_problems);
    RUN(what_is_not_finite);
    return check_result();
}
