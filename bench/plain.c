/* The foot of the ladder in docs/kernels.md: attention as the formula is written, a query row at a time, by one thread.
 * Usage: plain S H D ROWS; computes the first ROWS queries of every head and prints GFLOP/s. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One query against all keys; rows are `ld` apart. */
static void attend(const float *q, const float *k, const float *v, float *out, float *s, int S, int D, int ld) {
    const float scale = 1 / sqrtf((float)D);
    float max = -INFINITY, sum = 0;
    for (int j = 0; j < S; j++) {
        s[j] = 0;
        for (int d = 0; d < D; d++)
            s[j] += q[d] * k[j * ld + d];
        s[j] *= scale;
        max = s[j] > max ? s[j] : max;
    }
    for (int d = 0; d < D; d++)
        out[d] = 0;
    for (int j = 0; j < S; j++) {
        const float p = expf(s[j] - max);
        sum += p;
        for (int d = 0; d < D; d++)
            out[d] += p * v[j * ld + d];
    }
    for (int d = 0; d < D; d++)
        out[d] /= sum;
}

int main(int argc, char **argv) {
    if (argc != 5)
        return 2;
    const int S = atoi(argv[1]), H = atoi(argv[2]), D = atoi(argv[3]), rows = atoi(argv[4]), ld = H * D;
    const size_t n = (size_t)S * (size_t)ld;
    float *q = malloc(4 * n * sizeof *q), *k = q + n, *v = k + n, *out = v + n, *s = malloc((size_t)S * sizeof *s);
    if (!q || !s)
        return 8;
    for (size_t i = 0; i < 3 * n; i++)
        q[i] = (float)(i * 2654435761u % 65536) / 32768 - 1;
    double start = now(), check = 0;
    for (int h = 0; h < H; h++)
        for (int i = 0; i < rows; i++) {
            attend(q + i * ld + h * D, k + h * D, v + h * D, out + i * ld + h * D, s, S, D, ld);
            check += out[i * ld + h * D];
        }
    printf("%.3f\n", 4.0 * H * rows * S * D * 1e-9 / (now() - start));
    free(q);
    free(s);
    return check == 0.25; /* never, but then it must be computed */
}
