/* The clock that durations are measured with: it never jumps, and begins anywhere. */
#ifndef MF_BASE_CLOCK_H
#define MF_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t mf__clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline double mf__clock_seconds(void) {
    return (double)mf__clock_ns() * 1e-9;
}

/* ns from now, for pthread_cond_timedwait on a condition of this clock. */
static inline struct timespec mf__clock_after(int64_t ns) {
    int64_t at = mf__clock_ns() + ns;
    return (struct timespec){.tv_sec = (time_t)(at / 1000000000), .tv_nsec = (long)(at % 1000000000)};
}

#endif
