/* The safetensors file format: 8 bytes with the little-endian length N of a JSON header, the header, the data.
 *
 *   {"q": {"dtype": "F32", "shape": [1, 8, 2, 4], "data_offsets": [0, 256]}, ..., "__metadata__": {"key": "text"}}
 *
 * The reader treats the file as hostile: whatever it returns lies inside the file, has the size its shape says, and overlaps nothing.
 * Format: https://github.com/huggingface/safetensors, "Format". Holes between tensors, which it forbids, do no harm and are accepted. */
#ifndef RINGATTN_SAFETENSORS_H
#define RINGATTN_SAFETENSORS_H

#include "failure.h"

enum { SAFETENSORS_RANK = 16 }; /* most axes of a tensor */

typedef struct st_tensor {
    char *name;
    char dtype[12]; /* "F32", ... as in the file */
    int axes;
    int64_t shape[SAFETENSORS_RANK];
    int64_t offset, bytes; /* in the file */
} st_tensor;

typedef struct st_header {
    st_tensor *tensors; /* by rising offset */
    int count;
    uint64_t digest; /* of the header's bytes: equal for ranks that read the same file */
} st_header;

/* Parses the first bytes of a file of file_bytes bytes; `bytes` holds at least the header. `path` is for messages.
 * 0, or -1 with f: EXIT_BAD_INPUT (names file, tensor, offset) or EXIT_MEMORY. Release by st_free. */
int st_parse(const void *bytes, int64_t available, int64_t file_bytes, const char *path, st_header *header, failure *f);

/* Opens and parses a file; *fd is left open for reading the data. Errors as above, and EXIT_IO. */
int st_open(const char *path, int *fd, st_header *header, failure *f);

void st_free(st_header *header);

const st_tensor *st_find(const st_header *header, const char *name); /* NULL: no such tensor */

/* Sets offset and bytes of n tensors to be written one after the other, and makes the bytes that come before the data.
 * *prefix is to be freed. 0, or -1 with f. */
int st_layout(st_tensor *tensors, int n, char **prefix, int64_t *prefix_bytes, int64_t *file_bytes, failure *f);

int st_dtype_size(const char *dtype); /* bytes; 0 if it is none that we know */

#endif
