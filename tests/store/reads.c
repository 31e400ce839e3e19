/* How fast the store reads, next to the plainest program that does the same:
 *
 *   test_store_reads DIR LAYERS EXPERTS BYTES SECONDS [BUDGET_MB [BATCH [DEPTH]]]
 *
 * Reads random experts of DIR/layer_NN.bin (made of noise when they are not there) with every engine, BATCH at a
 * time (8: as a token wants them; 64: as a prompt does) with DEPTH reads under way, and compares with threads that
 * pread into a buffer of their own. Prints GB/s, the share of the plain program's speed and processor seconds per GB.
 * Without arguments it does so for a moment on a few small files, as a test that all of it works. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/probe.h"
#include "store/internal.h"

#define MAX_BATCH 128
#define MAX_THREADS 64

typedef struct setup {
    int n_layers, n_experts, batch, depth;
    int64_t bytes, budget;
    double seconds;
    char paths[256][300];
    const char *files[256];
} setup;

static double processor_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

static bool make_files(setup *x, const char *dir) {
    int64_t block = 8 << 20, size = x->n_experts * x->bytes;
    uint64_t *noise = malloc((size_t)block), seed = 1;
    for (int64_t i = 0; noise && i < block / 8; i++) noise[i] = next_random(&seed) << 32 | next_random(&seed);
    mkdir(dir, 0700);
    for (int l = 0; noise && l < x->n_layers; l++) {
        struct stat st;
        snprintf(x->paths[l], sizeof x->paths[l], "%s/layer_%02d.bin", dir, l);
        x->files[l] = x->paths[l];
        if (!stat(x->paths[l], &st) && st.st_size >= size) continue;
        int fd = open(x->paths[l], O_WRONLY | O_CREAT | O_TRUNC, 0600);
        for (int64_t at = 0; fd >= 0 && at < size; at += block) {
            size_t n = (size_t)(size - at < block ? size - at : block);
            noise[0] = (uint64_t)at * 31 + (uint64_t)l;
            if (write(fd, noise, n) != (ssize_t)n) return false;
        }
        if (fd < 0 || fsync(fd) || close(fd)) return false;
    }
    free(noise);
    return true;
}

/* ---- the plain program ---- */

typedef struct plain {
    const setup *x;
    int *fds;
    int64_t until;
    atomic_llong bytes;
    atomic_ullong seed;
} plain;

static void *plain_thread(void *arg) {
    plain *p = arg;
    uint64_t seed = atomic_fetch_add(&p->seed, 7919);
    size_t room = (size_t)((p->x->bytes + MF_HUGE - 1) / MF_HUGE * MF_HUGE);
    uint8_t *buf = aligned_alloc((size_t)MF_HUGE, room);
    if (!buf) return NULL;
    madvise(buf, room, MADV_HUGEPAGE);
    while (mf__clock_ns() < p->until) {
        int fd = p->fds[next_random(&seed) % (uint64_t)p->x->n_layers];
        int64_t at = (int64_t)(next_random(&seed) % (uint64_t)p->x->n_experts) * p->x->bytes;
        ssize_t n = pread(fd, buf, (size_t)p->x->bytes, (off_t)at);
        if (n <= 0) break;
        atomic_fetch_add(&p->bytes, n);
    }
    free(buf);
    return NULL;
}

static double plain_speed(const setup *x) {
    plain p = {.x = x, .fds = malloc((size_t)x->n_layers * sizeof(int))};
    pthread_t threads[MAX_THREADS];
    for (int l = 0; l < x->n_layers; l++) {
        p.fds[l] = open(x->files[l], O_RDONLY | O_DIRECT);
        if (p.fds[l] < 0) p.fds[l] = open(x->files[l], O_RDONLY);
    }
    atomic_store(&p.seed, (unsigned long long)mf__clock_ns());
    double cpu = processor_seconds();
    int64_t began = mf__clock_ns();
    p.until = began + (int64_t)(x->seconds * 1e9);
    for (int i = 0; i < x->depth; i++) pthread_create(&threads[i], NULL, plain_thread, &p);
    for (int i = 0; i < x->depth; i++) pthread_join(threads[i], NULL);
    double speed = (double)atomic_load(&p.bytes) / (double)(mf__clock_ns() - began);
    cpu = (processor_seconds() - cpu) / ((double)atomic_load(&p.bytes) * 1e-9);
    for (int l = 0; l < x->n_layers; l++) close(p.fds[l]);
    free(p.fds);
    printf("| plain pread, direct, %d threads | %.2f | | %.3f | |\n", x->depth, speed, cpu);
    return speed;
}

/* ---- the store ---- */

/* A few random experts of a layer, as a decoded token wants them. */
static bool one_turn(const setup *x, mf__turn *t, int layer, uint64_t *seed, mf_error *err) {
    int32_t ids[MAX_BATCH];
    const void *blobs[MAX_BATCH];
    int n = 0;
    while (n < x->batch && n < x->n_experts) {
        int32_t id = (int32_t)(next_random(seed) % (uint64_t)x->n_experts);
        bool twice = false;
        for (int i = 0; i < n; i++) twice = twice || ids[i] == id;
        if (!twice) ids[n++] = id;
    }
    bool ok = mf__turn_begin(t, layer, ids, NULL, n, 1, err) == MF_OK;
    while (ok && n) {
        ok = mf__turn_next(t, ids, blobs, &n, err) == MF_OK;
        if (ok) mf__turn_done(t, ids, n);
    }
    mf__turn_end(t);
    return ok;
}

static bool store_speed(const setup *x, mf_io io, mf_switch direct, double baseline) {
    mf__store_config c = {.n_layers = x->n_layers,
                          .n_dirs = 1,
                          .files = x->files,
                          .n_experts = x->n_experts,
                          .stride = x->bytes,
                          .bytes = x->bytes,
                          .budget = x->budget,
                          .io = io,
                          .direct = direct,
                          .prefetch = MF_SWITCH_OFF,
                          .n_io_threads = x->depth};
    mf_error err = {0};
    mf__store *s = NULL;
    mf__turn *t = NULL;
    uint64_t seed = (uint64_t)mf__clock_ns();
    if (mf__store_open(&c, &s, &err) != MF_OK || mf__turn_create(s, &t, &err) != MF_OK) {
        fprintf(stderr, "%s\n", err.text);
        return false;
    }
    bool ok = true;
    double cpu = 0;
    int64_t began = 0, until = INT64_MAX;
    mf_stats st = {0};
    for (int layer = 0; ok && mf__clock_ns() < until; layer = (layer + 1) % x->n_layers) {
        ok = one_turn(x, t, layer, &seed, &err);
        if (began) continue;
        mf__store_stats_get(s, &st); /* memory that is touched for the first time is slow: not what is measured here */
        if (!st.evictions && st.cache_bytes < x->n_layers * x->n_experts * x->bytes) continue;
        mf__store_stats_reset(s);
        cpu = processor_seconds();
        began = mf__clock_ns();
        until = began + (int64_t)(x->seconds * 1e9);
    }
    mf__store_stats_get(s, &st);
    double read = (double)st.bytes_read, speed = read / (double)(mf__clock_ns() - began);
    printf("| store, %s%s | %.2f | %.0f %% | %.3f | %.1f %% |\n", st.io, st.direct ? ", direct" : "", speed,
           100 * speed / baseline, (processor_seconds() - cpu) / (read * 1e-9),
           100.0 * (double)st.hits / (double)(st.wanted ? st.wanted : 1));
    fflush(stdout);
    if (!ok) fprintf(stderr, "%s\n", err.text);
    mf__turn_free(t);
    mf__store_close(s);
    return ok && st.bytes_read > 0;
}

int main(int argc, char **argv) {
    static setup x;
    const char *dir = argc > 1 ? argv[1] : "reads_test";
    x.n_layers = argc > 2 ? atoi(argv[2]) : 3;
    x.n_experts = argc > 3 ? atoi(argv[3]) : 12;
    x.bytes = argc > 4 ? atoll(argv[4]) : 1769472;
    x.seconds = argc > 5 ? atof(argv[5]) : 0.2;
    x.batch = argc > 7 ? atoi(argv[7]) : 8;
    x.depth = argc > 8 ? atoi(argv[8]) : 8;
    x.budget = argc > 6 ? atoll(argv[6]) << 20 : 32 << 20;
    mf__memory mem;
    if (!x.budget && mf__memory_probe("", &mem, NULL) == MF_OK) x.budget = mem.usable / 4 * 3; /* 0: what there is */
    if (x.n_layers < 1 || x.n_layers > 256 || x.n_experts < 1 || x.batch < 1 || x.batch > MAX_BATCH || x.depth < 1 ||
        x.depth > MAX_THREADS || x.bytes < 1 || !make_files(&x, dir))
        return 1;
    printf("| %d x %d experts of %lld bytes | GB/s | of plain | CPU s/GB | hits |\n|---|---|---|---|---|\n", x.n_layers,
           x.n_experts, (long long)x.bytes);
    double baseline = plain_speed(&x);
    bool ok = store_speed(&x, MF_IO_PREAD, MF_SWITCH_ON, baseline);
    ok = store_speed(&x, MF_IO_URING, MF_SWITCH_ON, baseline) && ok;
    ok = store_speed(&x, MF_IO_PREAD, MF_SWITCH_OFF, baseline) && ok;
    plain_speed(&x);
    for (int l = 0; argc < 2 && l < x.n_layers; l++) unlink(x.paths[l]);
    if (argc < 2) rmdir(dir);
    return !ok;
}
