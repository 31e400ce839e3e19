/* Telling whoever watches a backend how long its ops take. */
#include <time.h>

#include "backend/backend.h"

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t mf__watch_begin(const mf__backend *be) {
    return be->watch.fn ? now_ns() : 0;
}

void mf__watch_end(const mf__backend *be, int64_t began, const mf__op_done *done) {
    if (be->watch.fn) be->watch.fn(be->watch.user, done, now_ns() - began);
}
