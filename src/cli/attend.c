/* ringattn attend: attention over the tensors of a file, each rank touching only its own rows.
 *
 * The phases, after each of which all ranks go on together or stop together: open and check the input; make the output's temporary, so
 * that a full disk is known before the work; plan; read; compute; write and sync; rename. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "crew.h"
#include "input.h"
#include "measure.h"
#include "narrow.h"
#include "rank_io.h"
#include "report.h"

enum { MOST_RESULTS = SLOTS - OUT };

/* One rank's work. */
typedef struct job {
    worker *w;
    input in;
    tensors t;
    output out;
    slot results[MOST_RESULTS];
    st_tensor described[MOST_RESULTS]; /* the tensors of the output file */
    int result_count;
    char *prefix; /* and what stands before them */
    int64_t prefix_bytes, file_bytes;
    run run;
} job;

static void choose_results(job *j) {
    const options *o = j->w->o;
    const int wanted[MOST_RESULTS] = {1, 1, o->backward, o->backward, o->backward, o->row_max, o->dbias, o->dsinks}; /* from OUT on */
    for (int i = 0; i < MOST_RESULTS; i++)
        if (wanted[i])
            j->results[j->result_count++] = (slot)(OUT + i);
}

/* With -v: what in the file is not used. */
static void note_ignored(const job *j) {
    for (int i = 0; i < j->in.header.count; i++) {
        const st_tensor *x = &j->in.header.tensors[i];
        int used = 0;
        for (int s = 0; s < OUT; s++)
            used |= j->in.tensor[s] == x && (j->w->o->backward || (s != DOUT && s != DLSE));
        if (!used)
            worker_note(j->w, "%s: tensor %s is not used", j->in.path, x->name);
    }
}

/* The output's header follows from the input's, so every rank works it out for itself. */
static int describe_output(job *j) {
    static const char *const types[] = {"F32", "BF16", "F16"};
    for (int i = 0; i < j->result_count; i++) {
        st_tensor *x = &j->described[i];
        x->name = (char *)(uintptr_t)slot_name(j->results[i]);
        strcpy(x->dtype, j->results[i] == OUT ? types[j->t.problem.dtype] : "F32");
        x->axes = tensors_shape(&j->t, j->results[i], x->shape);
    }
    return st_layout(j->described, j->result_count, &j->prefix, &j->prefix_bytes, &j->file_bytes, &j->w->failure);
}

/* The peak takes a tenth of a second, so it is measured only to be printed. */
static int wants_peak(const options *o) {
    return o->json || !o->quiet;
}

/* All ranks must work on the same file with the same options; what the library does not compare itself is compared here. */
static int compare_ranks(job *j) {
    const options *o = j->w->o;
    const uint64_t outputs = (uint64_t)o->row_max | (uint64_t)o->dbias << 1 | (uint64_t)o->dsinks << 2;
    uint64_t mine[] = {j->in.header.digest,   (uint64_t)o->repeat,     (uint64_t)o->order,
                       (uint64_t)o->backward, (uint64_t)wants_peak(o), outputs};
    enum { COMPARED = sizeof mine / sizeof mine[0] };
    static const char *const differ[COMPARED] = {
        "its input has another header", "--repeat differs",          "--order differs",
        "--backward differs",           "--json or --quiet differs", "--row-max, --dbias or --dsinks differs"};
    uint64_t(*all)[COMPARED] = calloc((size_t)j->w->size, sizeof *all);
    if (!all)
        fail_memory(&j->w->failure, j->w->size * (int64_t)sizeof *all, "the list of ranks");
    if (worker_agree(j->w) || worker_gather(j->w, mine, all, sizeof mine, "comparing the ranks' options")) {
        free(all);
        return -1;
    }
    for (int r = 0; r < j->w->size; r++)
        for (int i = 0; i < COMPARED; i++)
            if (all[r][i] != all[0][i])
                fail(&j->w->failure, EXIT_RANKS, "the ranks disagree: rank %d is unlike rank 0: %s", r, differ[i]);
    free(all);
    return worker_agree(j->w);
}

static int open_phase(job *j) {
    worker *w = j->w;
    if (input_open(&j->in, w->o->operands[0], &w->failure) == 0 && input_problem(&j->in, w->o, &j->t, &w->failure) == 0)
        describe_output(j);
    j->t.P = w->size;
    j->t.r = w->rank;
    if (worker_agree(w))
        return -1;
    note_ignored(j);
    return compare_ranks(j);
}

static int create_phase(job *j) {
    worker *w = j->w;
    int64_t(*tags)[2] = calloc((size_t)w->size, sizeof *tags);
    if (!tags)
        fail_memory(&w->failure, w->size * (int64_t)sizeof *tags, "the list of ranks");
    else if (w->rank == 0)
        output_create(&j->out, w->o->output, j->prefix, j->prefix_bytes, j->file_bytes, &w->failure);
    if (worker_agree(w) || worker_gather(w, j->out.tag, tags, sizeof j->out.tag, "naming the output")) {
        free(tags);
        return -1;
    }
    if (w->rank != 0 && output_join(&j->out, w->o->output, tags[0], &w->failure) == 0 && w->guards)
        output_guard(&j->out);
    free(tags);
    return worker_agree(w);
}

static int read_phase(job *j) {
    worker *w = j->w;
    worker_note(w, "reading %s", j->in.path);
    for (slot s = 0; s < OUT && !w->failure.status; s++) {
        if (!j->in.tensor[s] || ((s == DOUT || s == DLSE) && !w->o->backward))
            continue;
        if (tensors_allocate(&j->t, s, j->in.dtype[s], &w->failure) == 0)
            rank_read(&j->t, s, j->in.fd, j->in.tensor[s], j->in.path, &w->failure);
    }
    if (!w->failure.status)
        input_finish(&j->in, w->o, &j->t, &w->failure);
    for (int i = 0; i < j->result_count && !w->failure.status; i++) {
        /* The backward wants out in fp32 whatever it will be stored as. */
        int narrow = j->results[i] == OUT && !w->o->backward;
        tensors_allocate(&j->t, j->results[i], narrow ? j->t.problem.dtype : RA_F32, &w->failure);
    }
    return worker_agree(w);
}

static void narrow_out(job *j) {
    tensors *t = &j->t;
    if (t->dtype[OUT] != t->problem.dtype)
        narrow_in_place(t->data[OUT], tensors_elements(t, OUT), t->problem.dtype);
    t->dtype[OUT] = t->problem.dtype;
}

static int write_phase(job *j) {
    worker *w = j->w;
    worker_note(w, "writing %s, %" PRId64 " bytes", w->o->output, j->file_bytes);
    narrow_out(j);
    for (int i = 0; i < j->result_count && !w->failure.status; i++)
        rank_write(&j->t, j->results[i], j->out.fd, &j->described[i], j->out.path, &w->failure);
    if (!w->failure.status)
        output_sync(&j->out, &w->failure);
    if (worker_agree(w))
        return -1;
    if (w->rank == 0)
        output_commit(&j->out, &w->failure);
    return worker_agree(w);
}

static int report_phase(job *j) {
    worker *w = j->w;
    rank_report *all = calloc((size_t)w->size, sizeof *all);
    if (!all)
        fail_memory(&w->failure, w->size * (int64_t)sizeof *all, "the report");
    if (worker_agree(w) == 0 && worker_gather(w, &j->run.report, all, sizeof *all, "gathering the report") == 0 && w->rank == 0)
        report_attend(w->o, &j->t.problem, all, w->size, ra_comm_kind(w->comm), &w->failure);
    free(all);
    return worker_agree(w);
}

static int compute_phase(job *j) {
    const options *o = j->w->o;
    worker_note(j->w, "computing");
    return run_passes(&j->run, o->repeat ? (int)o->repeat : 1, 0, wants_peak(o) ? 0.05 : 0);
}

static void attend_body(worker *w, void *user) {
    (void)user;
    job *j = calloc(1, sizeof *j);
    if (!j)
        fail_memory(&w->failure, (int64_t)sizeof *j, "the job");
    if (worker_agree(w)) {
        free(j);
        return;
    }
    j->w = w;
    j->in.fd = j->out.fd = -1;
    choose_results(j);
    /* Segment ids must be read before planning: the plan copies them. */
    if (open_phase(j) == 0 && create_phase(j) == 0 && read_phase(j) == 0 && run_open(&j->run, w, &j->t) == 0 && compute_phase(j) == 0 &&
        write_phase(j) == 0)
        report_phase(j);
    run_close(&j->run);
    tensors_free(&j->t);
    output_close(&j->out);
    input_close(&j->in);
    free(j->prefix);
    free(j);
}

static int check_options(const options *o, failure *f) {
    if (o->operand_count == 0)
        return fail(f, EXIT_USAGE, "attend needs an input file: ringattn attend IN.safetensors -o OUT.safetensors");
    if (o->operand_count > 1)
        return fail(f, EXIT_USAGE, "attend takes one input file, the second is %s", o->operands[1]);
    if (!o->output)
        return fail(f, EXIT_USAGE, "attend needs an output file: -o OUT.safetensors");
    return 0;
}

int command_attend(const options *o) {
    failure f = {0};
    crew c = {0};
    int status;
    if (check_options(o, &f) || crew_open(&c, o, &f))
        status = crew_speaks(&c) ? failure_print(&f) : f.status;
    else
        status = crew_run(&c, attend_body, NULL);
    output_discard();
    crew_close(&c);
    return status;
}
