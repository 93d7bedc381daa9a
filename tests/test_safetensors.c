/* The safetensors reader against files that lie, its writer against the reader, and rounding to 16 bits. */
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "cli/narrow.h"
#include "cli/options.h"
#include "cli/oracle.h"
#include "cli/safetensors.h"

/* Parses a file made of this header and data_bytes of data. */
static int parse(const char *json, int64_t data_bytes, st_header *h, failure *f) {
    size_t n = strlen(json);
    unsigned char *bytes = calloc(1, 8 + n + (size_t)data_bytes);
    if (!CHECK(bytes))
        return -1;
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(n >> 8 * i);
    memcpy(bytes + 8, json, n);
    memset(f, 0, sizeof *f);
    int result = st_parse(bytes, (int64_t)n + 8 + data_bytes, (int64_t)n + 8 + data_bytes, "F", h, f);
    free(bytes);
    return result;
}

static void accepts(void) {
    st_header h;
    failure f;
    const char *json = "{\"__metadata__\": {\"a\": \"b\"}, \"y\": {\"dtype\": \"BF16\", \"shape\": [], \"data_offsets\": [24, 26]},"
                       "\"x\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]},"
                       "\"empty\": {\"dtype\": \"F32\", \"shape\": [0, 3], \"data_offsets\": [24, 24]},"
                       "\"other\": {\"dtype\": \"F4\", \"shape\": [3], \"data_offsets\": [26, 28]}}   ";
    if (!CHECK_EQ_INT(parse(json, 30, &h, &f), 0)) {
        fprintf(stderr, "%s\n", f.text);
        return;
    }
    const st_tensor *x = st_find(&h, "x"), *y = st_find(&h, "y");
    CHECK_EQ_INT(h.count, 4);
    CHECK(x && x->axes == 2 && x->shape[1] == 3 && x->bytes == 24 && x->offset == (int64_t)strlen(json) + 8);
    CHECK(y && y->axes == 0 && y->bytes == 2 && strcmp(y->dtype, "BF16") == 0);
    CHECK(!st_find(&h, "z"));
    st_free(&h);
}

static void refuses(void) {
    static const struct {
        const char *json, *says;
    } bad[] = {
        {"[]", "no JSON object"},
        {"{\"x\"", "no valid JSON"},
        {"{} x", "no valid JSON"},
        {"{\"x\": 3}", "tensor x: the header gives no dtype"},
        {"{\"x\": {\"dtype\": 1}}", "tensor x: the header gives no dtype"},
        {"{\"x\": {\"dtype\": \"\"}}", "empty or too long"},
        {"{\"x\": {\"dtype\": \"F32F32F32F32F32\"}}", "empty or too long"},
        {"{\"x\": {\"dtype\": \"F32\"}}", "gives no shape"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [1.5], \"data_offsets\": [0, 4]}}", "no whole number"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [-1], \"data_offsets\": [0, 4]}}", "no whole number"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1], \"data_offsets\": [0, 4]}}", "more than 16 axes"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [1]}}", "no pair"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0]}}", "no pair"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4, 8]}}", "no pair"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4.0]}}", "no pair"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 0]}}", "backwards"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [-4, 0]}}", "backwards"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [5], \"data_offsets\": [0, 20]}}", "truncated"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 9223372036854775807]}}", "truncated"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 9223372036854775808]}}", "no valid JSON"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [3], \"data_offsets\": [0, 8]}}", "shape and type make 12"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [4294967296, 4294967296], \"data_offsets\": [0, 0]}}", "does not fit in 64 bits"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [4294967296, 4294967296, 0], \"data_offsets\": [0, 0]}}", "does not fit in 64 bits"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}, "
         "\"x\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [4, 8]}}",
         "duplicate"},
        {"{\"x\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}, "
         "\"y\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [4, 12]}}",
         "x and y overlap"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        st_header h;
        failure f;
        int result = parse(bad[i].json, 16, &h, &f);
        CHECK_MSG(result == -1 && f.status == EXIT_BAD_INPUT && strstr(f.text, bad[i].says) && strncmp(f.text, "F: ", 3) == 0,
                  "%s: status %d, \"%s\", expected \"%s\"", bad[i].json, f.status, f.text, bad[i].says);
        if (!result)
            st_free(&h);
    }
}

static void refuses_headers_that_do_not_fit(void) {
    static const unsigned char files[][16] = {
        {0}, {1, 0, 0, 0, 0, 0, 0, 0, '{'}, {9, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'}};
    for (int i = 0; i < 4; i++)
        for (int64_t n = 0; n <= 16; n++) {
            st_header h;
            failure f = {0};
            CHECK_EQ_INT(st_parse(files[i], n, n, "F", &h, &f), -1);
            CHECK_EQ_INT(f.status, EXIT_BAD_INPUT);
        }
}

/* A name may hold what a terminal would obey. */
static void messages_are_harmless(void) {
    st_header h;
    failure f;
    CHECK_EQ_INT(parse("{\"\\u001b[2J\\n\": {}}", 0, &h, &f), -1);
    CHECK_MSG(strstr(f.text, "tensor ?[2J?:") != NULL, "%s", f.text);
}

static void reads_what_it_writes(void) {
    static char a[] = "a", b[] = "b \"quoted\"";
    st_tensor out[2] = {{.name = a, .dtype = "F16", .axes = 4, .shape = {1, 3, 2, 5}},
                        {.name = b, .dtype = "F32", .axes = 1, .shape = {0}}};
    char *prefix;
    int64_t prefix_bytes, file_bytes;
    failure f = {0};
    st_header h;
    if (!CHECK_EQ_INT(st_layout(out, 2, &prefix, &prefix_bytes, &file_bytes, &f), 0))
        return;
    CHECK_EQ_INT(prefix_bytes % 8, 0);
    CHECK_EQ_INT(file_bytes, prefix_bytes + 60);
    if (CHECK_EQ_INT(st_parse(prefix, prefix_bytes, file_bytes, "F", &h, &f), 0)) {
        const st_tensor *x = st_find(&h, a), *y = st_find(&h, b);
        CHECK(x && y && x->offset == out[0].offset && x->bytes == 60 && y->bytes == 0 && y->offset == out[1].offset);
        st_free(&h);
    }
    free(prefix);
    out[0].shape[0] = out[0].shape[1] = INT64_MAX / 2;
    CHECK_EQ_INT(st_layout(out, 2, &prefix, &prefix_bytes, &file_bytes, &f), -1);
    CHECK_EQ_INT(f.status, EXIT_UNSUPPORTED);
}

static void opens_only_files(void) {
    st_header h;
    int fd = -1;
    failure f = {0}, g = {0};
    CHECK_EQ_INT(st_open("/nowhere/at all", &fd, &h, &f), -1);
    CHECK_EQ_INT(f.status, EXIT_IO);
    CHECK_EQ_INT(st_open("/dev/null", &fd, &h, &g), -1);
    CHECK_EQ_INT(g.status, EXIT_IO);
    CHECK_EQ_INT(fd, -1);
}

/* Widening is exact, so narrowing a widened number must give it back, and the middle of two neighbours the even one. */
static void narrowing_rounds_to_nearest_even(void) {
    for (int type = RA_BF16; type <= RA_F16; type++) {
        uint16_t (*narrow)(float) = type == RA_BF16 ? narrow_bf16 : narrow_f16;
        for (uint32_t bits = 0; bits < 0xffff; bits++) {
            uint16_t pair[2] = {(uint16_t)bits, (uint16_t)(bits + 1)};
            ra_tensor t = {pair, {0, 0, 0, 1}, (ra_dtype)type};
            float x = (float)oracle_load(&t, 0, 0, 0, 0), next = (float)oracle_load(&t, 0, 0, 0, 1);
            if (isnan(x))
                CHECK(isnan(oracle_load(&(ra_tensor){&(uint16_t){narrow(x)}, {0}, (ra_dtype)type}, 0, 0, 0, 0)));
            else
                CHECK_EQ_INT(narrow(x), bits);
            if (isfinite(x) && isfinite(next) && (bits & 0x7fff) != 0x7fff)
                CHECK_EQ_INT(narrow((float)(0.5 * x + 0.5 * next)), bits & 1 ? bits + 1 : bits);
        }
        CHECK(isinf(oracle_load(&(ra_tensor){&(uint16_t){narrow(3.4e38f)}, {0}, (ra_dtype)type}, 0, 0, 0, 0)));
    }
}

static void names_the_nearest(void) {
    static const char *const names[] = {"causal", "causal-block", "layout", NULL};
    CHECK(strcmp(nearest_name("casual", names), "causal") == 0);
    CHECK(strcmp(nearest_name("lay-out", names), "layout") == 0);
    CHECK(nearest_name("xyzzy", names) == NULL);
}

int main(void) {
    RUN(accepts);
    RUN(refuses);
    RUN(refuses_headers_that_do_not_fit);
    RUN(messages_are_harmless);
    RUN(reads_what_it_writes);
    RUN(opens_only_files);
    RUN(narrowing_rounds_to_nearest_even);
    RUN(names_the_nearest);
    return check_result();
}
