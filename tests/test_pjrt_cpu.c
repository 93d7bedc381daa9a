/* The PJRT client with a real plugin for the processor (tools/pjrt_plugins.sh cpu): rings of 1, 2, 4, 5 and 8 devices in this process. */
#define _GNU_SOURCE /* mkdtemp, glob; pjrt_plugin.h */
#include <glob.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/half.h"
#include "check.h"
#include "pjrt/client.h"
#include "pjrt_plugin.h"

static char folder[] = "/tmp/ra_pjrt_XXXXXX";

static bool says(const char *words) {
    return CHECK_MSG(strstr(ra_last_error(), words) != NULL, "\"%s\" does not say \"%s\"", ra_last_error(), words);
}

static struct ra__pjrt *opened(int devices, const char *cache) {
    struct ra__pjrt *p = NULL;
    const struct ra__pjrt_options options = {.devices = devices, .cache = cache};
    CHECK_OK(ra__pjrt_open(plugin, &options, &p));
    return p;
}

/* Each replica sends what it has to the next one, which doubles it: y of replica r is 2 x of replica r - 1. */
static const char *ring_program(int P, const char *type) {
    static char text[2048];
    char pairs[256] = "";
    for (int r = 0; r < P; r++)
        snprintf(pairs + strlen(pairs), sizeof pairs - strlen(pairs), "%s[%d, %d]", r ? ", " : "", r, (r + 1) % P);
    snprintf(text, sizeof text,
             "module @ring {\n"
             "  func.func @main(%%x: tensor<2x3x%s>, %%n: tensor<i32>) -> (tensor<2x3x%s>, tensor<i32>) {\n"
             "    %%y = \"stablehlo.collective_permute\"(%%x) {source_target_pairs = dense<[%s]> : tensor<%dx2xi64>}\n"
             "        : (tensor<2x3x%s>) -> tensor<2x3x%s>\n"
             "    %%z = stablehlo.add %%y, %%y : tensor<2x3x%s>\n"
             "    %%r = stablehlo.replica_id : tensor<ui32>\n"
             "    %%i = stablehlo.convert %%r : (tensor<ui32>) -> tensor<i32>\n"
             "    %%m = stablehlo.add %%i, %%n : tensor<i32>\n"
             "    return %%z, %%m : tensor<2x3x%s>, tensor<i32>\n"
             "  }\n"
             "}\n",
             type, type, pairs, P, type, type, type, type);
    return text;
}

enum { MOST = 8, N = 6 };

static void put(void *x, enum ra__pjrt_type type, int i, int value) {
    if (type == RA__PJRT_F32)
        ((float *)x)[i] = (float)value;
    else if (type == RA__PJRT_S32)
        ((int32_t *)x)[i] = value;
    else
        ((uint16_t *)x)[i] = type == RA__PJRT_BF16 ? ra__to_bf16((float)value) : ra__to_f16((float)value);
}

static ra_status run_ring(struct ra__pjrt_executable *program, int P, enum ra__pjrt_type type, bool *right) {
    char x[MOST][N * 4], y[MOST][N * 4], expected[MOST][N * 4] = {{0}};
    int32_t n[MOST], m[MOST];
    struct ra__pjrt_host_array in[2 * MOST] = {0}, out[2 * MOST] = {0};
    const size_t bytes = type == RA__PJRT_F32 || type == RA__PJRT_S32 ? N * 4 : N * 2;
    for (int r = 0; r < P; r++) {
        for (int i = 0; i < N; i++) {
            put(x[r], type, i, 10 * r + i);
            put(expected[r], type, i, 2 * (10 * ((r + P - 1) % P) + i));
        }
        n[r] = 1000 * r;
        in[2 * r] = (struct ra__pjrt_host_array){type, 2, {2, 3}, x[r]};
        in[2 * r + 1] = (struct ra__pjrt_host_array){RA__PJRT_S32, 0, {0}, &n[r]};
        out[2 * r] = (struct ra__pjrt_host_array){type, 2, {2, 3}, y[r]};
        out[2 * r + 1] = (struct ra__pjrt_host_array){RA__PJRT_S32, 0, {0}, &m[r]};
    }
    memset(y, 0xff, sizeof y);
    ra_status s = ra__pjrt_run(program, in, 2, out, 2);
    *right = s == RA_OK;
    for (int r = 0; r < P; r++)
        *right = *right && memcmp(y[r], expected[r], bytes) == 0 && m[r] == 1001 * r;
    return s;
}

static ra_status compile(struct ra__pjrt *p, const char *text, int replicas, const int *order, struct ra__pjrt_executable **program) {
    return ra__pjrt_compile(p, text, strlen(text), replicas, order, program);
}

static void rings(void) {
    static const struct {
        const char *name;
        enum ra__pjrt_type type;
    } types[] = {{"f32", RA__PJRT_F32}, {"bf16", RA__PJRT_BF16}, {"f16", RA__PJRT_F16}, {"i32", RA__PJRT_S32}};
    static const int sizes[] = {1, 2, 4, 5, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int P = sizes[i];
        struct ra__pjrt *p = opened(P, "");
        if (!p)
            return;
        CHECK_EQ_INT(ra__pjrt_device_count(p), P);
        CHECK(strcmp(ra__pjrt_platform(p), "cpu") == 0);
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            struct ra__pjrt_executable *program = NULL;
            if (!CHECK_OK(compile(p, ring_program(P, types[t].name), P, NULL, &program)))
                continue;
            for (int run = 0; run < 3; run++) {
                bool right;
                CHECK_OK(run_ring(program, P, types[t].type, &right));
                CHECK_MSG(right, "%d devices, %s, run %d: wrong result", P, types[t].name, run);
            }
            ra__pjrt_executable_destroy(program);
        }
        ra__pjrt_close(p);
    }
}

/* Fewer replicas than devices, on devices in an order of the caller's. */
static void an_order_of_devices(void) {
    struct ra__pjrt *p = opened(8, "");
    struct ra__pjrt_executable *program = NULL;
    bool right;
    if (!p)
        return;
    if (CHECK_OK(compile(p, ring_program(4, "f32"), 4, (int[]){6, 0, 7, 3}, &program))) {
        CHECK_OK(run_ring(program, 4, RA__PJRT_F32, &right));
        CHECK(right);
    }
    ra__pjrt_executable_destroy(program);
    ra__pjrt_close(p);
}

/* The one entry in the folder; "" if there is none. */
static const char *entry(void) {
    static char path[4096];
    glob_t matches;
    char pattern[64];
    snprintf(pattern, sizeof pattern, "%s/*", folder);
    path[0] = 0;
    if (glob(pattern, 0, NULL, &matches) != 0)
        return path;
    CHECK_EQ_INT(matches.gl_pathc, 1);
    snprintf(path, sizeof path, "%s", matches.gl_pathv[0]);
    globfree(&matches);
    return path;
}

static void compile_and_run(bool cached, const char *when) {
    struct ra__pjrt *p = opened(4, folder);
    struct ra__pjrt_executable *program = NULL;
    bool right = false;
    if (!p)
        return;
    if (CHECK_OK(compile(p, ring_program(4, "f32"), 4, NULL, &program))) {
        CHECK_MSG(ra__pjrt_executable_was_cached(program) == cached, "%s: cached %d, expected %d", when, !cached, cached);
        CHECK_OK(run_ring(program, 4, RA__PJRT_F32, &right));
        CHECK_MSG(right, "%s: wrong result", when);
    }
    ra__pjrt_executable_destroy(program);
    ra__pjrt_close(p);
}

static void programs_are_kept(void) {
    compile_and_run(false, "the first time");
    compile_and_run(true, "the second time");
    FILE *file = fopen(entry(), "r+b");
    if (!CHECK(file != NULL))
        return;
    CHECK(fseek(file, -40, SEEK_END) == 0 && fputs("damage", file) >= 0);
    fclose(file);
    compile_and_run(false, "after damage");
    compile_and_run(true, "after repair");
    CHECK_EQ_INT(truncate(entry(), 200), 0);
    compile_and_run(false, "after truncation");
    compile_and_run(true, "after repair");
    struct ra__pjrt *p = opened(4, folder); /* another order is another program */
    struct ra__pjrt_executable *program = NULL;
    if (p && CHECK_OK(compile(p, ring_program(4, "f32"), 4, (int[]){3, 2, 1, 0}, &program)))
        CHECK(!ra__pjrt_executable_was_cached(program));
    ra__pjrt_executable_destroy(program);
    ra__pjrt_close(p);
}

static void bad_programs(void) {
    struct ra__pjrt *p = opened(2, "");
    struct ra__pjrt_executable *program = NULL;
    if (!p)
        return;
    static const char *const texts[] = {"module {", "\n", "not a program at all",
                                        "module { func.func @main(%x: tensor<2xf32>) -> tensor<3xf32> { return %x : tensor<2xf32> } }",
                                        "module { func.func @other(%x: tensor<2xf32>) -> tensor<2xf32> { return %x : tensor<2xf32> } }"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        ra_status s = compile(p, texts[i], 2, NULL, &program);
        CHECK_MSG(s != RA_OK, "\"%s\" was compiled", texts[i]);
        says("pjrt_c_api_cpu_plugin.so: compile: ");
    }
    CHECK(program == NULL);
    CHECK_STATUS(compile(p, ring_program(2, "f32"), 3, NULL, &program), RA_ERR_INVALID);
    says("3 replicas on 2 devices");
    ra__pjrt_close(p);
}

static void wrong_arrays(void) {
    struct ra__pjrt *p = opened(1, "");
    struct ra__pjrt_executable *program = NULL;
    float x[8] = {0}, y[8] = {0};
    int32_t n = 0, m = 0;
    if (!p || !CHECK_OK(compile(p, ring_program(1, "f32"), 1, NULL, &program)))
        return;
    struct ra__pjrt_host_array in[2] = {{RA__PJRT_F32, 2, {2, 3}, x}, {RA__PJRT_S32, 0, {0}, &n}},
                               out[2] = {{RA__PJRT_F32, 2, {2, 3}, y}, {RA__PJRT_S32, 0, {0}, &m}};
    CHECK_OK(ra__pjrt_run(program, in, 2, out, 2));
    CHECK(ra__pjrt_run(program, in, 1, out, 2) != RA_OK);
    says("pjrt_c_api_cpu_plugin.so: run: ");
    in[0].dims[1] = 4;
    CHECK(ra__pjrt_run(program, in, 2, out, 2) != RA_OK);
    says("pjrt_c_api_cpu_plugin.so: run: ");
    in[0].dims[1] = 3;
    out[0].dims[0] = 3;
    CHECK_STATUS(ra__pjrt_run(program, in, 2, out, 2), RA_ERR_INVALID);
    out[0].dims[0] = 2;
    CHECK_OK(ra__pjrt_run(program, in, 2, out, 2)); /* none of it did any harm */
    ra__pjrt_executable_destroy(program);
    ra__pjrt_close(p);
}

static void is_found(void) {
    setenv("RA_PJRT_PLUGIN", plugin, 1);
    ra_pjrt_list *list = NULL;
    const ra_pjrt_list_options options = {.folders = (const char *[]){folder}, .folder_count = 1};
    if (!CHECK_OK(ra_pjrt_list_create(&options, &list)))
        return;
    const ra_pjrt_plugin *first = ra_pjrt_list_get(list, 0);
    CHECK(strcmp(first->path, plugin) == 0);
    CHECK_STATUS(first->status, RA_OK);
    CHECK(first->api_major == 0 && first->api_minor == 115 && strcmp(first->platform, "cpu") == 0 && first->device_count > 0);
    ra_pjrt_list_destroy(list);
    unsetenv("RA_PJRT_PLUGIN");
}

int main(void) {
    find_plugin();
    if (!mkdtemp(folder))
        CHECK_SKIP("no temporary folder");
    RUN(rings);
    RUN(an_order_of_devices);
    RUN(programs_are_kept);
    RUN(bad_programs);
    RUN(wrong_arrays);
    RUN(is_found);
    char command[sizeof folder + 16];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK_EQ_INT(system(command), 0);
    return check_result();
}
