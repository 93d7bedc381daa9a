/* Reader and writer of safetensors headers. The tensors' data is read and written by rank_io.c. */
#define _POSIX_C_SOURCE 200809L
#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PREFIX = 8, HEADER_LIMIT = 100000000 }; /* the limit is the format's own */

int st_dtype_size(const char *dtype) {
    static const struct {
        const char *name;
        int size;
    } known[] = {{"F32", 4}, {"BF16", 2}, {"F16", 2}, {"I32", 4}, {"F64", 8},     {"I64", 8},     {"U64", 8}, {"U32", 4},
                 {"I16", 2}, {"U16", 2},  {"I8", 1},  {"U8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"BOOL", 1}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, dtype) == 0)
            return known[i].size;
    return 0;
}

/* The size in bytes that shape and type ask for; -1 if it does not fit. Axes of length 0 do not hide an absurd length beside them. */
static int64_t shape_bytes(const st_tensor *t) {
    int64_t bytes = st_dtype_size(t->dtype), empty = 0;
    for (int i = 0; i < t->axes; i++) {
        empty |= t->shape[i] == 0;
        if (__builtin_mul_overflow(bytes, t->shape[i] ? t->shape[i] : 1, &bytes))
            return -1;
    }
    return empty ? 0 : bytes;
}

/* Where we are, for messages. */
typedef struct place {
    const char *path;
    const char *tensor;
    int64_t data_at, data_bytes;
} place;

static int bad(const place *p, failure *f, const char *what) {
    return fail(f, EXIT_BAD_INPUT, "%s: tensor %s: %s", p->path, p->tensor, what);
}

static int parse_shape(st_tensor *t, const json_t *shape, const place *p, failure *f) {
    if (!json_is_array(shape))
        return bad(p, f, "the header gives no shape");
    if (json_array_size(shape) > SAFETENSORS_RANK)
        return bad(p, f, "more than 16 axes");
    t->axes = (int)json_array_size(shape);
    for (int i = 0; i < t->axes; i++) {
        const json_t *length = json_array_get(shape, (size_t)i);
        if (!json_is_integer(length) || json_integer_value(length) < 0)
            return bad(p, f, "an axis of the shape is no whole number from 0");
        t->shape[i] = json_integer_value(length);
    }
    return 0;
}

static int parse_offsets(st_tensor *t, const json_t *offsets, const place *p, failure *f) {
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return bad(p, f, "data_offsets is no pair of whole numbers");
    int64_t begin = json_integer_value(first), end = json_integer_value(second);
    if (begin < 0 || end < begin)
        return fail(f, EXIT_BAD_INPUT, "%s: tensor %s: data_offsets [%" PRId64 ", %" PRId64 "] run backwards", p->path, p->tensor, begin,
                    end);
    if (end > p->data_bytes)
        return fail(f, EXIT_BAD_INPUT,
                    "%s: tensor %s: data_offsets end at %" PRId64 ", but the file holds %" PRId64 " bytes of data (truncated?)", p->path,
                    p->tensor, end, p->data_bytes);
    t->offset = p->data_at + begin;
    t->bytes = end - begin;
    int64_t needed = shape_bytes(t);
    if (needed < 0)
        return bad(p, f, "the shape does not fit in 64 bits");
    if (st_dtype_size(t->dtype) && needed != t->bytes)
        return fail(f, EXIT_BAD_INPUT, "%s: tensor %s at offset %" PRId64 ": %" PRId64 " bytes, but shape and type make %" PRId64, p->path,
                    p->tensor, t->offset, t->bytes, needed);
    return 0;
}

static int parse_tensor(st_tensor *t, const char *name, const json_t *description, place *p, failure *f) {
    p->tensor = name;
    const char *dtype = json_string_value(json_object_get(description, "dtype"));
    if (!dtype)
        return bad(p, f, "the header gives no dtype");
    if (!*dtype || strlen(dtype) >= sizeof t->dtype)
        return bad(p, f, "the dtype's name is empty or too long");
    memcpy(t->dtype, dtype, strlen(dtype) + 1);
    t->name = strdup(name);
    if (!t->name)
        return fail_memory(f, (int64_t)strlen(name), "the header");
    if (parse_shape(t, json_object_get(description, "shape"), p, f))
        return -1;
    return parse_offsets(t, json_object_get(description, "data_offsets"), p, f);
}

static int by_offset(const void *a, const void *b) {
    const st_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int check_overlap(st_header *h, const char *path, failure *f) {
    qsort(h->tensors, (size_t)h->count, sizeof h->tensors[0], by_offset);
    for (int i = 1; i < h->count; i++) {
        const st_tensor *a = &h->tensors[i - 1], *b = &h->tensors[i];
        if (a->offset + a->bytes > b->offset)
            return fail(f, EXIT_BAD_INPUT, "%s: tensors %s and %s overlap at offset %" PRId64, path, a->name, b->name, b->offset);
    }
    return 0;
}

static int parse_object(json_t *root, place *p, st_header *h, failure *f) {
    if (!json_is_object(root))
        return fail(f, EXIT_BAD_INPUT, "%s: the header is no JSON object", p->path);
    h->tensors = calloc(json_object_size(root) + 1, sizeof h->tensors[0]);
    if (!h->tensors)
        return fail_memory(f, (int64_t)(json_object_size(root) * sizeof h->tensors[0]), "the header");
    const char *name;
    json_t *description;
    json_object_foreach(root, name, description) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (parse_tensor(&h->tensors[h->count++], name, description, p, f))
            return -1;
    }
    return check_overlap(h, p->path, f);
}

static uint64_t little_endian(const unsigned char *bytes) {
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | bytes[i];
    return n;
}

/* The length of the header, checked against the size of the file; -1 with f. */
static int64_t header_length(const unsigned char *bytes, int64_t file_bytes, const char *path, failure *f) {
    uint64_t length = little_endian(bytes);
    if (length > HEADER_LIMIT)
        return fail(f, EXIT_BAD_INPUT, "%s: offset 0: a header of %" PRIu64 " bytes: this is no safetensors file", path, length);
    if (length < 2 || (int64_t)length > file_bytes - PREFIX)
        return fail(f, EXIT_BAD_INPUT,
                    "%s: offset 0: a header of %" PRIu64 " bytes does not fit in a file of %" PRId64 " bytes (truncated?)", path, length,
                    file_bytes);
    return (int64_t)length;
}

int st_parse(const void *bytes, int64_t available, int64_t file_bytes, const char *path, st_header *h, failure *f) {
    memset(h, 0, sizeof *h);
    if (file_bytes < PREFIX || available < PREFIX)
        return fail(f, EXIT_BAD_INPUT, "%s: %" PRId64 " bytes are too few for a safetensors file", path, file_bytes);
    int64_t length = header_length(bytes, file_bytes, path, f);
    if (length < 0)
        return -1;
    if (length > available - PREFIX)
        return fail(f, EXIT_INTERNAL, "%s: the header was not read whole", path);
    const char *text = (const char *)bytes + PREFIX;
    json_error_t error;
    json_t *root = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return fail(f, EXIT_BAD_INPUT, "%s: offset %d: the header is no valid JSON: %.160s", path, PREFIX + error.position, error.text);
    place p = {.path = path, .data_at = PREFIX + length, .data_bytes = file_bytes - PREFIX - length};
    int result = parse_object(root, &p, h, f);
    json_decref(root);
    h->digest = 14695981039346656037u; /* FNV-1a */
    for (int64_t i = 0; i < length; i++)
        h->digest = (h->digest ^ (unsigned char)text[i]) * 1099511628211u;
    if (result)
        st_free(h);
    return result;
}

static int read_fully(int fd, char *to, int64_t bytes) {
    for (int64_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, to + done, (size_t)(bytes - done), done);
        if (n == 0)
            errno = EIO; /* the file became shorter while we read */
        if (n == 0 || (n < 0 && errno != EINTR))
            return -1;
        done += n > 0 ? n : 0;
    }
    return 0;
}

static int read_header(int fd, int64_t file_bytes, const char *path, st_header *h, failure *f) {
    char prefix[PREFIX];
    int64_t length = 0;
    if (file_bytes >= PREFIX) {
        if (read_fully(fd, prefix, PREFIX))
            return fail(f, EXIT_IO, "%s: cannot read %d bytes: %s", path, PREFIX, strerror(errno));
        length = header_length((unsigned char *)prefix, file_bytes, path, f);
        if (length < 0)
            return -1;
    }
    char *bytes = malloc((size_t)(PREFIX + length));
    if (!bytes)
        return fail_memory(f, PREFIX + length, "the header");
    int64_t available = file_bytes < PREFIX ? 0 : PREFIX + length;
    int result;
    if (read_fully(fd, bytes, available))
        result = fail(f, EXIT_IO, "%s: cannot read the header of %" PRId64 " bytes: %s", path, length, strerror(errno));
    else
        result = st_parse(bytes, available, file_bytes, path, h, f);
    free(bytes);
    return result;
}

int st_open(const char *path, int *fd, st_header *h, failure *f) {
    struct stat status;
    memset(h, 0, sizeof *h);
    int opened = open(path, O_RDONLY | O_CLOEXEC);
    if (opened < 0)
        return fail(f, EXIT_IO, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(opened, &status) || !S_ISREG(status.st_mode))
        fail(f, EXIT_IO, "%s: not a regular file", path);
    if (f->status || read_header(opened, status.st_size, path, h, f)) {
        close(opened);
        return -1;
    }
    *fd = opened;
    return 0;
}

void st_free(st_header *h) {
    for (int i = 0; i < h->count; i++)
        free(h->tensors[i].name);
    free(h->tensors);
    h->tensors = NULL;
    h->count = 0;
}

const st_tensor *st_find(const st_header *h, const char *name) {
    for (int i = 0; i < h->count; i++)
        if (strcmp(h->tensors[i].name, name) == 0)
            return &h->tensors[i];
    return NULL;
}

static json_t *describe(const st_tensor *t, int64_t begin) {
    json_t *shape = json_array();
    for (int i = 0; i < t->axes; i++)
        json_array_append_new(shape, json_integer(t->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape", shape, "data_offsets", (json_int_t)begin,
                     (json_int_t)(begin + t->bytes));
}

int st_layout(st_tensor *tensors, int n, char **prefix, int64_t *prefix_bytes, int64_t *file_bytes, failure *f) {
    json_t *root = json_object();
    int64_t end = 0;
    for (int i = 0; i < n; i++) {
        tensors[i].bytes = shape_bytes(&tensors[i]);
        int64_t begin = end;
        if (tensors[i].bytes < 0 || __builtin_add_overflow(end, tensors[i].bytes, &end) || end > INT64_MAX / 2) {
            json_decref(root);
            return fail(f, EXIT_UNSUPPORTED, "tensor %s of the result does not fit in 64 bits", tensors[i].name);
        }
        tensors[i].offset = begin;
        json_object_set_new(root, tensors[i].name, describe(&tensors[i], begin));
    }
    char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    int64_t length = text ? (int64_t)strlen(text) : 0, padded = (length + 7) / 8 * 8;
    *prefix = text ? malloc((size_t)(PREFIX + padded)) : NULL;
    if (!*prefix) {
        free(text);
        return fail_memory(f, padded, "the header of the result");
    }
    for (int i = 0; i < PREFIX; i++)
        (*prefix)[i] = (char)(padded >> 8 * i & 255);
    memcpy(*prefix + PREFIX, text, (size_t)length);
    memset(*prefix + PREFIX + length, ' ', (size_t)(padded - length)); /* data begins at a multiple of 8 */
    free(text);
    for (int i = 0; i < n; i++)
        tensors[i].offset += PREFIX + padded;
    *prefix_bytes = PREFIX + padded;
    *file_bytes = *prefix_bytes + end;
    return 0;
}
