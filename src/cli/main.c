/* ringattn: exact attention on a ring of ranks, from the command line. This file finds the subcommand; commands.h lists them. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"

typedef struct subcommand {
    const char *name;
    enum command command;
    int (*run)(const options *o);
    const char *usage;
    const char *what; /* one line */
    const char *more; /* the rest of its help */
} subcommand;

static const subcommand subcommands[] = {
    {"attend", ATTEND, command_attend, "ringattn attend IN.safetensors -o OUT.safetensors [OPTION]...",
     "attention over the tensors of a file, forward and backward",
     "IN holds q [B,Sq,H,D], k [B,Skv,G,D], v [B,Skv,G,Dv] of one type, F32, BF16 or F16, and optionally dout, dlse, bias,\n"
     "segment_ids or q_segment_ids and kv_segment_ids, kv_lens, cu_seqlens_q and cu_seqlens_kv, slices, alibi_slopes, sinks,\n"
     "temperature. OUT gets out, lse, with --backward dq, dk, dv, and what else is asked for. Each rank reads and writes only the\n"
     "rows of its own tokens. OUT appears whole or not at all.\n"},
    {"verify", VERIFY, command_verify, "ringattn verify [FILE.safetensors] [OPTION]...",
     "compare both passes with an fp64 reference, tensor by tensor and rank by rank",
     "Without FILE and without sizes: a built-in matrix of problems. With sizes: one random problem. With FILE: its tensors, and\n"
     "if it holds out, lse, dq, dk or dv, these are compared too. With --random: problems of all kinds, which are exact, refused\n"
     "with a reason, or wrong. Exit status 1 if an error is above its bound.\n"},
    {"bench", BENCH, command_bench, "ringattn bench [SHAPE]... [OPTION]...", "speed of both passes, in GFLOP/s and percent of the FMA peak",
     "SHAPE is a name of --list, or all; without any the first five are run, which takes some seconds. Sizes given as options\n"
     "change the shapes. Median of several repetitions; the peak is measured before and after each of them. Shapes that compare take\n"
     "turns, and their last columns say how many times as fast each is as what it is compared with: forward, backward, both.\n"
     "The environment variable RA_ISA caps the instruction set.\n"},
    {"info", INFO, command_info, "ringattn info [--matrix] [--json]", "what this build and this machine can do", ""},
};
enum { SUBCOMMANDS = sizeof subcommands / sizeof subcommands[0] };

static const char exit_statuses[] =
    "Exit status: 0 done; 1 a check failed; 2 wrong usage; 3 unsupported; 4 bad input file; 5 input/output error;\n"
    "6 a rank or link lost, or ranks disagree; 7 NaN or infinity; 8 out of memory; 9 internal error;\n"
    "128+n killed by signal n.\n";

static void print_help(void) {
    printf("ringattn: exact attention over long sequences, computed by a ring of ranks\n\nUsage:\n");
    for (int i = 0; i < SUBCOMMANDS; i++)
        printf("  %s\n      %s\n", subcommands[i].usage, subcommands[i].what);
    printf("  ringattn --help | --version\n  ringattn COMMAND --help\n\n%s", exit_statuses);
}

static void print_command_help(const subcommand *s) {
    printf("Usage: %s\n\n%s%s\nOptions (sizes may end in K, M, G for 1024, 1024^2, 1024^3):\n", s->usage, s->more, *s->more ? "" : s->what);
    options_help(stdout, s->command);
    printf("\n%s", exit_statuses);
}

static const subcommand *find(const char *name, failure *f) {
    const char *names[SUBCOMMANDS + 1] = {0};
    for (int i = 0; i < SUBCOMMANDS; i++) {
        names[i] = subcommands[i].name;
        if (strcmp(name, names[i]) == 0)
            return &subcommands[i];
    }
    if (*name == '-') {
        static const char *const flags[] = {"--help", "--version", NULL};
        const char *near = nearest_name(name, flags);
        fail(f, EXIT_USAGE, "unknown option %s, did you mean %s? (options of a command come after it)", name, near ? near : "--help");
        return NULL;
    }
    const char *near = nearest_name(name, names);
    if (near)
        fail(f, EXIT_USAGE, "unknown command %s, did you mean %s?", name, near);
    else
        fail(f, EXIT_USAGE, "unknown command %s; known are attend, verify, bench, info", name);
    return NULL;
}

/* The environment is input like the command line: what the library would refuse in any plan is wrong usage, said before files are read. */
static int check_environment(failure *f) {
    ra_problem p;
    ra_problem_init(&p);
    p.B = p.Sq = p.Skv = p.H = p.G = p.D = p.Dv = 1;
    char reason[256];
    return ra_supports(&p, NULL, reason, sizeof reason) == RA_OK ? 0 : fail(f, EXIT_USAGE, "%s", reason);
}

static int run_command(int argc, char **argv) {
    failure f = {0};
    const subcommand *s = find(argv[0], &f);
    if (!s)
        return failure_print(&f);
    options o;
    options_init(&o, s->command);
    if (options_parse(&o, argc, argv, &f))
        return failure_print(&f);
    if (!o.help)
        return check_environment(&f) ? failure_print(&f) : s->run(&o);
    print_command_help(s);
    return 0;
}

int main(int argc, char **argv) {
    int status = 0;
    if (argc < 2) {
        fprintf(stderr, "ringattn: a command is needed: attend, verify, bench or info (ringattn --help)\n");
        return EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        print_help();
    else if (strcmp(argv[1], "--version") == 0)
        printf("ringattn %s\n", ra_version());
    else
        status = run_command(argc - 1, argv + 1);
    if ((fflush(stdout) || ferror(stdout)) && status == 0) {
        fprintf(stderr, "ringattn: standard output: %s\n", strerror(errno));
        status = EXIT_IO;
    }
    return status;
}
