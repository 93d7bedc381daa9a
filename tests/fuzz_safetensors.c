/* libFuzzer target for the safetensors reader: clang -fsanitize=fuzzer,address,undefined. What is accepted must keep its promises.
 *
 *     fuzz_safetensors -max_total_time=30 -max_len=4096 tests/fuzz_safetensors */
#include <stdlib.h>
#include <string.h>

#include "cli/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    st_header h;
    failure f = {0};
    if (st_parse(data, (int64_t)size, (int64_t)size, "fuzz", &h, &f))
        return f.status && *f.text ? 0 : (abort(), 0);
    for (int i = 0; i < h.count; i++) {
        const st_tensor *t = &h.tensors[i];
        int64_t bytes = st_dtype_size(t->dtype);
        if (t->offset < 8 || t->bytes < 0 || t->offset + t->bytes > (int64_t)size || st_find(&h, t->name) != t)
            abort();
        if (i && h.tensors[i - 1].offset + h.tensors[i - 1].bytes > t->offset)
            abort();
        for (int axis = 0; axis < t->axes; axis++)
            bytes *= t->shape[axis];
        if (st_dtype_size(t->dtype) && bytes != t->bytes)
            abort();
    }
    st_free(&h);
    return 0;
}
