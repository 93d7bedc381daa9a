/* The multiply-add peak of several threads at once: what a figure in percent refers to. */
#include "base/threads.h"
#include "block/block.h"

double ra__measure_peak(const struct ra__kernels *k, int threads, double seconds) {
    double sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum += k->peak(seconds);
    return sum;
}
