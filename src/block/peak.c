/* What the machine can do: the multiply-add peak of several threads at once and the speed at which they read memory. Figures in percent
 * refer to these. */
#include <stdint.h>
#include <string.h>

#include "base/cpu.h"
#include "base/memory.h"
#include "base/threads.h"
#include "block/block.h"

double ra__measure_peak(const struct ra__kernels *k, int threads, double seconds) {
    double sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum += k->peak(seconds);
    return sum;
}

/* xor, because nothing else is as cheap in portable C; with lines asked for this far ahead it reads as fast as the widest loads do. */
enum { LINES = 16, AHEAD = 1024 }; /* words of 64 bits: read at a time, two cache lines; between asking and reading */

static uint64_t read_words(const uint64_t *words, int64_t n) {
    uint64_t sum[LINES] = {0}, all = 0;
    for (int64_t i = 0; i + LINES <= n; i += LINES) {
        if (i + AHEAD + LINES <= n) {
            __builtin_prefetch(words + i + AHEAD);
            __builtin_prefetch(words + i + AHEAD + LINES / 2);
        }
        for (int j = 0; j < LINES; j++)
            sum[j] ^= words[i + j];
    }
    for (int j = 0; j < LINES; j++)
        all ^= sum[j];
    return all;
}

/* A thread reads the part that it has touched first. */
double ra__measure_bandwidth(int threads, double seconds) {
    const int64_t whole = (int64_t)256 << 20, least = (int64_t)32 << 20; /* of a thread, against its own caches */
    const int64_t bytes = whole / threads > least ? whole / threads : least, words = bytes / (int64_t)sizeof(uint64_t);
    const ra_allocator allocator = ra__allocator_or_default(NULL);
    uint64_t *const buffer = ra__alloc(&allocator, (size_t)(bytes * threads)), sum = 0;
    if (!buffer)
        return 0;
#pragma omp parallel num_threads(threads)
    memset(buffer + ra__thread_index() * words, ra__thread_index() + 1, (size_t)bytes);
    double best = 0, begin = ra__now();
    do {
        const double start = ra__now();
        double read = 0; /* by as many threads as there are */
#pragma omp parallel num_threads(threads) reduction(^ : sum) reduction(+ : read)
        {
            sum ^= read_words(buffer + ra__thread_index() * words, words);
            read += (double)bytes;
        }
        const double speed = read / (ra__now() - start) * 1e-9;
        best = speed > best ? speed : best;
    } while (ra__now() - begin < seconds);
    ra__free(&allocator, buffer);
    return sum == 1 ? 0 : best; /* it never is; but what nobody uses need not be read */
}
