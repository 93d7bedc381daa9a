/* Rows of tensors as fp32. */
#include "block/tiles.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

int64_t ra__cut_panels(const struct ra__stretches *s, int64_t lanes, ra__edge_fn *edge, const struct ra__mask_view *v, int64_t b,
                       struct ra__stretch *out) {
    int64_t count = 0;
    for (int i = 0; i < s->count; i++) {
        const int64_t end = s->part[i].t0 + s->part[i].n;
        for (int64_t begin = s->part[i].t0, next; begin < end; begin = next) {
            next = edge && end - begin > lanes ? begin + lanes : end;
            while (next < end && !edge(v, b, next))
                next++;
            for (int64_t t = begin; t < next; t += lanes, count++)
                if (out)
                    out[count] = (struct ra__stretch){t, next - t < lanes ? next - t : lanes};
        }
    }
    return count;
}

static int64_t offset(const ra_tensor *x, int64_t b, int64_t t, int64_t h) {
    return b * x->stride[0] + t * x->stride[1] + h * x->stride[2];
}

static float load_element(const ra_tensor *x, int64_t at) {
    switch (x->dtype) {
    case RA_F32:
        return ((const float *)x->data)[at];
    case RA_BF16:
        return ra__from_bf16(((const uint16_t *)x->data)[at]);
    case RA_F16:
        return ra__from_f16(((const uint16_t *)x->data)[at]);
    }
    return 0;
}

static void store_element(const ra_tensor *x, int64_t at, float value) {
    switch (x->dtype) {
    case RA_F32:
        ((float *)x->data)[at] = value;
        break;
    case RA_BF16:
        ((uint16_t *)x->data)[at] = ra__to_bf16(value);
        break;
    case RA_F16:
        ((uint16_t *)x->data)[at] = ra__to_f16(value);
        break;
    }
}

static char *address(const ra_tensor *x, int64_t at) {
    return (char *)x->data + at * (int64_t)ra_dtype_size(x->dtype);
}

const float *ra__rows(const struct ra__kernels *kernels, const ra_tensor *x, int64_t b, int64_t t0, int64_t n, int64_t h, int64_t k,
                      float *scratch, int64_t *ld) {
    int64_t first = offset(x, b, t0, h);
    if (x->stride[3] == 1 && x->dtype == RA_F32) {
        *ld = x->stride[1];
        return (const float *)x->data + first;
    }
    *ld = k;
    if (x->stride[3] == 1) {
        kernels->load_rows(scratch, k, address(x, first), x->dtype, x->stride[1], n, k);
    } else {
        for (int64_t i = 0; i < n; i++)
            for (int64_t d = 0; d < k; d++)
                scratch[i * k + d] = load_element(x, first + i * x->stride[1] + d * x->stride[3]);
    }
    return scratch;
}

void ra__store_rows(const struct ra__kernels *kernels, const ra_tensor *x, int64_t b, int64_t t0, int64_t n, int64_t h, int64_t k,
                    const float *rows, int64_t ld) {
    int64_t first = offset(x, b, t0, h);
    if (x->stride[3] == 1) {
        kernels->store_rows(address(x, first), x->dtype, x->stride[1], rows, ld, n, k);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < k; d++)
            store_element(x, first + i * x->stride[1] + d * x->stride[3], rows[i * ld + d]);
}

/* bf16 rows that can be read as words where they lie: whole pairs, aligned. */
static bool readable_as_pairs(const ra_tensor *x, int64_t first, int64_t k) {
    return x->dtype == RA_BF16 && x->stride[3] == 1 && x->stride[1] % 2 == 0 && k % 2 == 0 && (uintptr_t)address(x, first) % 4 == 0;
}

const float *ra__operand_rows(const struct ra__kernels *kernels, const ra_tensor *x, int64_t b, int64_t t0, int64_t n, int64_t h, int64_t k,
                              float *scratch, int64_t *ld) {
    if (kernels->pair == 1)
        return ra__rows(kernels, x, b, t0, n, h, k, scratch, ld);
    const int64_t first = offset(x, b, t0, h), words = ra__words(kernels, k);
    if (readable_as_pairs(x, first, k)) {
        *ld = x->stride[1] / 2;
        return (const float *)address(x, first);
    }
    int64_t from_ld;
    float *pairs = scratch + n * k;
    const float *from = ra__rows(kernels, x, b, t0, n, h, k, scratch, &from_ld);
    kernels->store_rows(pairs, RA_BF16, 2 * words, from, from_ld, n, k);
    *ld = words;
    return pairs;
}

const float *ra__query_rows(const struct ra__kernels *kernels, const ra_tensor *q, int64_t b, int64_t t0, int64_t n, int64_t h, int64_t k,
                            const float *temperature, float *scratch, int64_t *ld) {
    const float *from = ra__operand_rows(kernels, q, b, t0, n, h, k, scratch, ld);
    if (!temperature)
        return from;
    for (int64_t i = 0; i < n; i++)
        for (int64_t d = 0; d < k; d++)
            scratch[i * k + d] = from[i * *ld + d] * temperature[t0 + i];
    *ld = k;
    return scratch;
}

static bool half_is_finite(uint16_t h) {
    return (h & 0x7f80) != 0x7f80;
}

/* Of four at a time: one more in the last place of an exponent that is all ones carries into the sign's. */
static uint64_t not_finite(uint64_t halves) {
    return ((halves & 0x7f807f807f807f80) + 0x0080008000800080) & 0x8000800080008000;
}

static bool all_halves_finite(const float *rows, int64_t ld, int64_t n, int64_t k) {
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        const uint16_t *row = (const uint16_t *)(rows + i * ld);
        uint64_t bad = 0;
        int64_t d = 0;
        for (; d + 4 <= k; d += 4) {
            uint64_t halves;
            memcpy(&halves, row + d, sizeof halves);
            bad |= not_finite(halves);
        }
        for (; d < k; d++)
            bad |= !half_is_finite(row[d]);
        finite &= !bad;
    }
    return finite;
}

const float *ra__finite_rows(const struct ra__kernels *kernels, const float *rows, int64_t *ld, int64_t n, int64_t k, float *scratch,
                             bool *clean) {
    const int64_t words = ra__words(kernels, k);
    *clean = kernels->pair == 1 ? kernels->all_finite(rows, *ld, n, k) : all_halves_finite(rows, *ld, n, k);
    if (*clean)
        return rows;
    for (int64_t i = 0; i < n; i++) {
        const float *from = rows + i * *ld;
        float *to = scratch + i * words;
        if (kernels->pair == 1)
            for (int64_t d = 0; d < k; d++)
                to[d] = isfinite(from[d]) ? from[d] : 0;
        else
            for (int64_t d = 0; d < k; d++) {
                uint16_t h = ((const uint16_t *)from)[d];
                ((uint16_t *)to)[d] = half_is_finite(h) ? h : 0;
            }
    }
    *ld = words;
    return scratch;
}

float ra__col_value(const struct ra__kernels *kernels, const float *words, int64_t row, int64_t lane) {
    if (kernels->pair == 1)
        return words[row * kernels->lanes + lane];
    return ra__from_bf16(((const uint16_t *)(words + row / 2 * kernels->lanes + lane))[row % 2]);
}

float ra__row_value(const struct ra__kernels *kernels, const float *words, int64_t row, int64_t lane) {
    const float *from = words + row * kernels->lanes;
    return kernels->pair == 1 ? from[lane] : ra__from_bf16(((const uint16_t *)from)[lane]);
}
