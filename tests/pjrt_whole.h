/* A whole problem as a program for P devices: its description and inputs made from a plan, its outputs gathered into the harness's whole
 * tensors, so that what a plugin computes is set against the oracle as the walkers of the local ring are. */
#ifndef RA_TESTS_PJRT_WHOLE_H
#define RA_TESTS_PJRT_WHOLE_H

#include "base/memory.h"
#include "harness.h"
#include "pjrt/emit.h"
#include "plan/plan.h"

/* Compiles the text and runs it once. Device r's arrays are in[r * inputs + i] and out[r * outputs + i], dense, in the order and with the
 * types of the lists; those of `out` are to be written. */
struct pjrt_job {
    const struct ra__pjrt_program *program;
    const char *text;
    size_t length;
    int inputs, outputs;
    const struct ra__pjrt_array *input, *output;
    void **in, **out;
};
typedef ra_status pjrt_run_fn(void *user, const struct pjrt_job *job);

struct pjrt_whole {
    struct whole *w;
    struct ra__pjrt_program program; /* of the forward; bias_axis, row_max set as the whole wants */
    /* Per device: */
    int32_t *spans[RA__PJRT_DEVICES], *aligned[RA__PJRT_DEVICES], *index[RA__PJRT_DEVICES], *position[RA__PJRT_DEVICES];
};

/* ---- what comes from the plan ---- */

static void pjrt_take_plan(struct pjrt_whole *x, const ra_plan *plan) {
    const struct whole *w = x->w;
    const ra_problem *p = &w->p;
    const ra_allocator *memory = &plan->comm->allocator;
    struct ra__schedule *schedule = calloc((size_t)w->P, sizeof *schedule);
    struct ra__span *room = malloc((size_t)plan->rule.most * sizeof *room);
    ra__pjrt_describe(p, w->P, &x->program);
    for (int r = 0; r < w->P; r++)
        CHECK(ra__schedule_make(&schedule[r], memory, w->P, r, ra_shard_size(p->layout, p->Skv, w->P, r), RA__ROWS_MOST, ra__plan_rows,
                                plan));
    ra__pjrt_steps(&x->program, schedule);
    x->program.spans = (int)ra__pjrt_most_spans(&plan->rule, room);
    x->program.row_max = w->row_max != NULL;
    x->program.dbias = w->dbias != NULL;
    x->program.bias_axis[0] = w->bias_b > 1;
    x->program.bias_axis[1] = w->bias_h > 1;
    x->program.bias_axis[2] = w->bias_q > 1;
    for (int r = 0; r < w->P; r++) {
        const struct ra__shard q = ra__layout_shard(p->layout, p->Sq, w->P, r), kv = ra__layout_shard(p->layout, p->Skv, w->P, r);
        int32_t *ids = w->kv_ids ? ids_of(w, r, p->Skv, w->kv_ids) : NULL;
        x->spans[r] = malloc((size_t)(2 * x->program.spans * x->program.Tq) * sizeof(int32_t));
        x->aligned[r] = malloc((size_t)x->program.Tq * sizeof(int32_t));
        x->index[r] = malloc((size_t)((1 + p->B) * x->program.Tkv) * sizeof(int32_t));
        x->position[r] = malloc((size_t)x->program.Tq * sizeof(int32_t));
        ra__pjrt_fill_queries(&x->program, &plan->rule, &q, room, x->spans[r], x->aligned[r], x->position[r]);
        ra__pjrt_fill_keys(&x->program, &kv, ids, x->index[r]);
        free(ids);
        ra__schedule_free(&schedule[r]);
    }
    free(room);
    free(schedule);
}

static ra_status pjrt_plan_rank(ra_comm *comm, int r, void *user) {
    struct pjrt_whole *x = user;
    const struct whole *w = x->w;
    ra_problem p = w->p;
    int32_t *q_ids = w->q_ids ? ids_of(w, r, p.Sq, w->q_ids) : NULL, *kv_ids = w->kv_ids ? ids_of(w, r, p.Skv, w->kv_ids) : NULL;
    p.mask.q_segment_ids = q_ids;
    p.mask.kv_segment_ids = kv_ids;
    ra_plan *plan = NULL;
    const ra_status s = ra_plan_create(comm, &p, &plan);
    if (s == RA_OK && r == 0)
        pjrt_take_plan(x, plan);
    ra_plan_destroy(plan);
    free(q_ids);
    free(kv_ids);
    return s;
}

/* Plans the whole; pjrt_whole_free in any case. */
static ra_status pjrt_whole_make(struct pjrt_whole *x, struct whole *w) {
    const ra_comm_options options = {.timeout_s = 30};
    *x = (struct pjrt_whole){.w = w};
    return ra_local_run(w->P, &options, NULL, pjrt_plan_rank, x);
}

static void pjrt_whole_free(struct pjrt_whole *x) {
    for (int r = 0; r < x->w->P; r++) {
        free(x->spans[r]);
        free(x->aligned[r]);
        free(x->position[r]);
        free(x->index[r]);
    }
}

/* ---- inputs and outputs ---- */

/* Device r's part of a tensor [B,S,heads,width] as [B,heads,rows,width], or back. */
static void pjrt_heads(const struct whole *w, int r, int64_t S, int64_t heads, int64_t width, int64_t rows, size_t bytes, void *whole,
                       void *device, bool out) {
    const int64_t T = ra_shard_size(w->p.layout, S, w->P, r);
    for (int64_t b = 0; b < w->p.B; b++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t h = 0; h < heads; h++) {
                const int64_t s = ra_shard_position(w->p.layout, S, w->P, r, t);
                char *there = (char *)whole + (size_t)(((b * S + s) * heads + h) * width) * bytes;
                char *here = (char *)device + (size_t)(((b * heads + h) * rows + t) * width) * bytes;
                memcpy(out ? there : here, out ? here : there, (size_t)width * bytes);
            }
}

/* The same of [B,H,Sq] and [B,H,rows]. */
static void pjrt_rows(const struct whole *w, int r, int64_t rows, float *whole, float *device, bool out) {
    const int64_t T = ra_shard_size(w->p.layout, w->p.Sq, w->P, r);
    for (int64_t h = 0; h < w->p.B * w->p.H; h++)
        for (int64_t t = 0; t < T; t++) {
            float *there = whole + h * w->p.Sq + ra_shard_position(w->p.layout, w->p.Sq, w->P, r, t), *here = device + h * rows + t;
            *(out ? there : here) = *(out ? here : there);
        }
}

/* Device r's part of the bias; or the bias's gradient from it, summed over the devices where they share it. */
static void pjrt_bias(const struct pjrt_whole *x, int r, float *device, bool out) {
    const struct whole *w = x->w;
    const ra_problem *p = &w->p;
    const int64_t rows = w->bias_q > 1 ? x->program.Tq : 1, T = w->bias_q > 1 ? ra_shard_size(p->layout, p->Sq, w->P, r) : 1;
    for (int64_t o = 0; o < w->bias_b * w->bias_h; o++)
        for (int64_t t = 0; t < T; t++) {
            const int64_t s = w->bias_q > 1 ? ra_shard_position(p->layout, p->Sq, w->P, r, t) : 0;
            for (int b = 0; b < w->P; b++)
                for (int64_t k = 0; k < ra_shard_size(p->layout, p->Skv, w->P, b); k++) {
                    const int64_t at = (o * w->bias_q + s) * p->Skv + ra_shard_position(p->layout, p->Skv, w->P, b, k);
                    float *here = &device[((o * rows + t) * w->P + b) * x->program.Tkv + k];
                    if (out)
                        w->dbias[at] = *here + (r > 0 && w->bias_q == 1 ? w->dbias[at] : 0);
                    else
                        *here = w->bias[at];
                }
        }
}

/* Fills in one array of device r. data: zeros. */
static void pjrt_fill(const struct pjrt_whole *x, int r, const struct ra__pjrt_array *array, void *data) {
    const struct whole *w = x->w;
    const ra_problem *p = &w->p;
    const int64_t Tq = x->program.Tq, Tkv = x->program.Tkv;
    const size_t size = ra_dtype_size(p->dtype), all = (size_t)ra__hlo_elements(array->type) * ra__hlo_element_bytes(array->type.element);
    const uint32_t seed[] = {(uint32_t)p->seed, (uint32_t)(p->seed >> 32)};
    const struct {
        const char *name;
        const void *from;
    } copies[] = {
        {"q_spans", x->spans[r]},          {"q_aligned", x->aligned[r]}, {"k_index", x->index[r]},       {"kv_lens", p->mask.kv_lens},
        {"alibi_slopes", p->alibi_slopes}, {"sinks", w->sinks},          {"q_position", x->position[r]}, {"seed", seed}};
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++)
        if (strcmp(array->name, copies[i].name) == 0) {
            memcpy(data, copies[i].from, all);
            return;
        }
    if (strcmp(array->name, "q") == 0) {
        pjrt_heads(w, r, p->Sq, p->H, p->D, Tq, size, w->q, data, false);
    } else if (strcmp(array->name, "k") == 0) {
        pjrt_heads(w, r, p->Skv, p->G, p->D, Tkv, size, w->k, data, false);
    } else if (strcmp(array->name, "v") == 0) {
        pjrt_heads(w, r, p->Skv, p->G, p->Dv, Tkv, size, w->v, data, false);
    } else if (strcmp(array->name, "dout") == 0) {
        pjrt_heads(w, r, p->Sq, p->H, p->Dv, Tq, size, w->dout, data, false);
    } else if (strcmp(array->name, "out") == 0) {
        pjrt_heads(w, r, p->Sq, p->H, p->Dv, Tq, sizeof(float), w->out, data, false);
    } else if (strcmp(array->name, "lse") == 0) {
        for (int64_t i = 0; i < p->B * p->H * Tq; i++)
            ((float *)data)[i] = INFINITY;
        pjrt_rows(w, r, Tq, w->lse, data, false);
    } else if (strcmp(array->name, "dlse") == 0) {
        pjrt_rows(w, r, Tq, w->dlse, data, false);
    } else if (strcmp(array->name, "bias") == 0) {
        pjrt_bias(x, r, data, false);
    } else if (strcmp(array->name, "temperature") == 0) {
        for (int64_t t = 0; t < ra_shard_size(p->layout, p->Sq, w->P, r); t++)
            ((float *)data)[t] = w->temperature[ra_shard_position(p->layout, p->Sq, w->P, r, t)];
    } else if (strcmp(array->name, "q_segments") == 0) {
        const int64_t T = ra_shard_size(p->layout, p->Sq, w->P, r);
        int32_t *ids = ids_of(w, r, p->Sq, w->q_ids);
        for (int64_t b = 0; b < p->B; b++)
            memcpy((int32_t *)data + b * Tq, ids + b * T, (size_t)T * sizeof *ids);
        free(ids);
    } else {
        CHECK_MSG(false, "an input %s that this test does not know", array->name);
    }
}

static void pjrt_gather(const struct pjrt_whole *x, int r, const struct ra__pjrt_array *array, void *data) {
    struct whole *w = x->w;
    const ra_problem *p = &w->p;
    const int64_t Tq = x->program.Tq, Tkv = x->program.Tkv;
    if (strcmp(array->name, "out") == 0)
        pjrt_heads(w, r, p->Sq, p->H, p->Dv, Tq, sizeof(float), w->out, data, true);
    else if (strcmp(array->name, "lse") == 0)
        pjrt_rows(w, r, Tq, w->lse, data, true);
    else if (strcmp(array->name, "row_max") == 0)
        pjrt_rows(w, r, Tq, w->row_max, data, true);
    else if (strcmp(array->name, "dq") == 0)
        pjrt_heads(w, r, p->Sq, p->H, p->D, Tq, sizeof(float), w->dq, data, true);
    else if (strcmp(array->name, "dk") == 0)
        pjrt_heads(w, r, p->Skv, p->G, p->D, Tkv, sizeof(float), w->dk, data, true);
    else if (strcmp(array->name, "dv") == 0)
        pjrt_heads(w, r, p->Skv, p->G, p->Dv, Tkv, sizeof(float), w->dv, data, true);
    else if (strcmp(array->name, "dsinks") == 0)
        for (int64_t h = 0; h < p->H && w->dsinks; h++)
            w->dsinks[h] = (r ? w->dsinks[h] : 0) + ((float *)data)[h];
    else if (strcmp(array->name, "dbias") == 0)
        pjrt_bias(x, r, data, true);
    else
        CHECK_MSG(false, "an output %s that this test does not know", array->name);
}

/* ---- one pass ---- */

static ra_status pjrt_pass(const struct pjrt_whole *x, bool backward, pjrt_run_fn *run, void *user) {
    struct ra__pjrt_program program = x->program;
    const int P = program.P;
    program.backward = backward;
    program.dlse = backward && x->w->dlse;
    struct ra__pjrt_array input[RA__PJRT_ARRAYS], output[RA__PJRT_ARRAYS];
    struct pjrt_job job = {.program = &program,
                           .inputs = ra__pjrt_inputs(&program, input),
                           .outputs = ra__pjrt_outputs(&program, output),
                           .input = input,
                           .output = output};
    const ra_allocator memory = ra__allocator_or_default(NULL);
    char *text;
    ra_status s = ra__pjrt_emit(&program, &memory, &text, &job.length);
    if (s != RA_OK)
        return s;
    job.text = text;
    job.in = calloc((size_t)(P * job.inputs), sizeof *job.in);
    job.out = calloc((size_t)(P * job.outputs), sizeof *job.out);
    for (int r = 0; r < P; r++) {
        for (int i = 0; i < job.inputs; i++) {
            job.in[r * job.inputs + i] = calloc((size_t)ra__hlo_elements(input[i].type), ra__hlo_element_bytes(input[i].type.element));
            pjrt_fill(x, r, &input[i], job.in[r * job.inputs + i]);
        }
        for (int i = 0; i < job.outputs; i++)
            job.out[r * job.outputs + i] = calloc((size_t)ra__hlo_elements(output[i].type), ra__hlo_element_bytes(output[i].type.element));
    }
    s = run(user, &job);
    for (int r = 0; r < P; r++) {
        for (int i = 0; i < job.inputs; i++)
            free(job.in[r * job.inputs + i]);
        for (int i = 0; i < job.outputs; i++) {
            if (s == RA_OK)
                pjrt_gather(x, r, &output[i], job.out[r * job.outputs + i]);
            free(job.out[r * job.outputs + i]);
        }
    }
    free(job.in);
    free(job.out);
    ra__free(&memory, text);
    return s;
}

/* Both passes of a problem; whole_check then compares. unrolled: longer rings are a loop; 0: as usual. */
__attribute__((unused)) static ra_status pjrt_whole_run(struct whole *w, int unrolled, pjrt_run_fn *run, void *user) {
    struct pjrt_whole x;
    ra_status s = ra__pjrt_unsupported(&w->p, w->P);
    if (s != RA_OK)
        return s;
    s = pjrt_whole_make(&x, w);
    x.program.unrolled = unrolled ? unrolled : x.program.unrolled;
    if (s == RA_OK)
        s = pjrt_pass(&x, false, run, user);
    if (s == RA_OK && w->p.backward)
        s = pjrt_pass(&x, true, run, user);
    pjrt_whole_free(&x);
    return s;
}

#endif
