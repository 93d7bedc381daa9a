/* OpenMP, or one thread where the build has none. */
#ifndef RA_BASE_THREADS_H
#define RA_BASE_THREADS_H

#ifdef _OPENMP
#include <omp.h>
static inline int ra__thread_index(void) {
    return omp_get_thread_num();
}
static inline int ra__openmp(void) {
    return 1;
}
static inline int ra__default_threads(void) {
    return omp_get_max_threads();
}
static inline void ra__set_default_threads(int threads) { /* of the calling thread only */
    omp_set_num_threads(threads);
}
#else
static inline int ra__thread_index(void) {
    return 0;
}
static inline int ra__openmp(void) {
    return 0;
}
static inline int ra__default_threads(void) {
    return 1;
}
static inline void ra__set_default_threads(int threads) {
    (void)threads;
}
#endif

#endif
