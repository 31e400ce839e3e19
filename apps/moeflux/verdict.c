/* The verdict: what this machine does, and what that means for a model.
 *
 *   a token's time     the larger of   bytes it reads / memory     bytes of missing experts / drive
 *   missing experts    from the share that fits, as recorded routes have it (docs/SPEED.md)
 *   a prompt's time    products, at a rate per thread that depends on the instruction set and the experts' size, and
 * the experts of a chunk read once */
#include "verdict.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/direct.h"
#include "base/file.h"
#include "base/probe.h"
#include "bench.h"
#include "convert/survey.h"

#define DRIVE_THREADS 8
#define DRIVE_SECONDS 0.15
#define CHUNK 512
#define LEAST_RAM ((int64_t)2 << 30) /* a budget that measuring, before the model is opened, stays far below */
#define MOST_TOLD 500.0              /* tokens/s: faster ones wait for other things than bytes */
#define MEMORY_SHARE 0.9             /* of the floor of memory that decoding reaches */
#define DRIVE_SHARE 0.75             /* and of the drive's, waiting included */

/* ---- the machine ------------------------------------------------------------------------------------------------------ */

typedef struct drive_probe {
    int fd;
    int64_t size, block;
    double until;
    _Atomic int64_t bytes;
    _Atomic uint32_t random;
} drive_probe;

static void *read_blocks(void *user) {
    drive_probe *d = user;
    void *buf = mf__direct_alloc((size_t)d->block);
    int64_t n = d->size / d->block;
    while (buf && n > 0 && app_seconds() < d->until) {
        uint32_t r = atomic_fetch_add(&d->random, 2654435761u) * 2246822519u;
        ssize_t got = pread(d->fd, buf, (size_t)d->block, (off_t)((r >> 4) % (uint64_t)n) * d->block);
        if (got <= 0) break;
        atomic_fetch_add(&d->bytes, got);
    }
    mf__direct_free(buf, (size_t)d->block);
    return NULL;
}

/* Bytes per second of random reads past the page cache; 0 where that cannot be. */
static double measure_drive(const char *path, int64_t block) {
#ifdef O_DIRECT
    struct stat s;
    drive_probe d = {.fd = open(path, O_RDONLY | O_CLOEXEC | O_DIRECT)};
    pthread_t threads[DRIVE_THREADS];
    int n = 0;
    if (d.fd < 0) return 0;
    d.block = (block + 4095) / 4096 * 4096;
    if (d.block > 8 << 20) d.block = 8 << 20;
    d.size = fstat(d.fd, &s) ? 0 : s.st_size;
    double start = app_seconds();
    d.until = start + DRIVE_SECONDS;
    while (n < DRIVE_THREADS && !pthread_create(&threads[n], NULL, read_blocks, &d)) n++;
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    double seconds = app_seconds() - start;
    close(d.fd);
    return seconds > 0 ? (double)atomic_load(&d.bytes) / seconds : 0;
#else
    (void)path, (void)block;
    return 0;
#endif
}

/* Bytes of 4-bit weights, times rows, that one thread multiplies in a second: what was measured on one machine of each
 * kind, between small experts and large ones. */
static double product_rate(const mf__cpu *cpu, int64_t expert) {
    double small = 59e9, large = 176e9; /* AVX-512 with VNNI; experts of 1.8 and 7 MB */
    double share = expert > 0 ? log2((double)expert / 1.77e6) / 2 : 1;
    double scale = cpu->avx512_vnni ? 1
                   : cpu->avx_vnni  ? 0.5
                   : cpu->avx2      ? 0.35
                   : cpu->i8mm      ? 0.4
                   : cpu->dotprod   ? 0.25
                                    : 0.03;
    share = share < -0.3 ? -0.3 : share > 1 ? 1 : share;
    return scale * (small + share * (large - small));
}

mf_status machine_measure(const char *file, int64_t read_bytes, machine *out, mf_error *err) {
    mf__memory memory;
    mf__cpu cpu;
    memory_reader *reader = NULL;
    double gb_s = 0;
    *out = (machine){0};
    mf__cpu_probe(&cpu);
    MF__TRY(mf__memory_probe("", &memory, err));
    out->total = memory.total;
    out->usable = memory.usable;
    out->threads = cpu.n_physical > 0 ? cpu.n_physical : 1;
    out->product_bytes_s = product_rate(&cpu, read_bytes);
    mf_status st = memory_reader_open(NULL, out->threads, &reader, err);
    for (int i = 0; st == MF_OK && i < 2; i++) { /* the better of two: somebody else may have been at it */
        st = memory_reader_run(reader, &gb_s, err);
        if (gb_s * 1e9 > out->memory_bytes_s) out->memory_bytes_s = gb_s * 1e9;
    }
    memory_reader_close(reader);
    if (st == MF_OK && file) out->drive_bytes_s = measure_drive(file, read_bytes);
    return st;
}

/* ---- the estimate ------------------------------------------------------------------------------------------------------ */

/* Hits by the share of experts that fit: between the two models whose routes were recorded. */
static double hits_of(double share) {
    static const double at[] = {0, 0.05, 0.10, 0.25, 0.50, 0.75, 1}, hits[] = {0, 0.19, 0.36, 0.66, 0.90, 0.985, 1};
    for (size_t i = 1; i < MF__COUNT(at); i++)
        if (share <= at[i]) return hits[i - 1] + (hits[i] - hits[i - 1]) * (share - at[i - 1]) / (at[i] - at[i - 1]);
    return 1;
}

void verdict_make(const model_sizes *m, const machine *at, int64_t ram, verdict *out) {
    *out = (verdict){.ram = ram > 0 ? ram : at->usable};
    double fixed = (double)(m->needs - m->fewest), room = (double)out->ram - fixed;
    out->least = m->needs;
    out->best = m->needs - m->fewest + m->experts;
    out->runs = out->ram >= m->needs;
    out->held = m->experts <= 0 ? 1 : room <= 0 ? 0 : room < (double)m->experts ? room / (double)m->experts : 1;
    out->fits = out->held >= 1;
    out->hits = hits_of(out->held);
    double memory = (double)m->token_bytes / (at->memory_bytes_s * MEMORY_SHARE);
    double missing = (1 - out->hits) * (double)m->token_experts, drive_speed = at->drive_bytes_s * DRIVE_SHARE;
    double drive = missing > 0 && drive_speed > 0 ? missing / drive_speed : 0;
    out->bound = drive > memory ? "the drive" : "memory";
    out->decode = out->fits || drive_speed > 0 ? 1 / (drive > memory ? drive : memory) : 0;
    /* a chunk wants nearly every expert once */
    double products = CHUNK * (double)m->token_bytes / (at->product_bytes_s * at->threads);
    double from_drive = drive_speed > 0 ? (1 - out->held) * (double)m->experts / drive_speed : 0;
    double from_memory = (double)m->experts / (at->memory_bytes_s * MEMORY_SHARE);
    double reading = from_drive > from_memory ? from_drive : from_memory;
    out->prefill = CHUNK / (products > reading ? products + reading / 4 : reading + products / 4);
}

void verdict_print(const model_sizes *m, const machine *at, const verdict *v) {
    char a[APP_BYTES_TEXT], b[APP_BYTES_TEXT];
    printf("\nthis machine\n  %-22s %s free of %s; %s/s with %d thread%s\n", "memory", app_bytes((double)at->usable, a),
           app_bytes((double)at->total, b), app_bytes(at->memory_bytes_s, (char[APP_BYTES_TEXT]){0}), at->threads,
           at->threads > 1 ? "s" : "");
    if (at->drive_bytes_s > 0)
        printf("  %-22s %s/s in reads of %s, where the model is\n", "drive", app_bytes(at->drive_bytes_s, a),
               app_bytes((double)m->expert, b));
    else
        printf("  %-22s not measured here\n", "drive");
    printf("\nverdict\n");
    if (!v->runs) {
        printf("  it does not run here with %s: it needs --ram %lldM at least\n", app_bytes((double)v->ram, a),
               (long long)((v->least + (1 << 20) - 1) >> 20));
        return;
    }
    if (v->fits)
        printf("  it fits: all experts stay in memory\n");
    else
        printf("  it streams: %.0f %% of the experts fit, about %.0f %% of those wanted will be in memory\n",
               100 * v->held, 100 * v->hits);
    printf("  %-22s at least %lldM; from %lldM on more does not help\n", "--ram",
           (long long)((v->least + (1 << 20) - 1) >> 20), (long long)((v->best + (1 << 20) - 1) >> 20));
    if (v->decode > MOST_TOLD)
        printf("  %-22s more than %.0f tokens/s\n", "answer", MOST_TOLD);
    else if (v->decode > 0)
        printf("  %-22s about %.3g tokens/s, bounded by %s\n", "answer", v->decode, v->bound);
    if (v->prefill > MOST_TOLD)
        printf("  %-22s more than %.0f tokens/s\n", "prompt", MOST_TOLD);
    else
        printf("  %-22s roughly %.2g tokens/s\n", "prompt", v->prefill);
}

/* ---- before a long wait -------------------------------------------------------------------------------------------------- */

void verdict_warn(const char *dir, const app_model_options *opt) {
    machine at;
    verdict v;
    mf__survey s;
    mf__memory memory;
    mf_memory_needs needs;
    char *file = NULL;
    if (app_quiet || mf__memory_probe("", &memory, NULL) != MF_OK) return;
    int64_t ram = opt->ram && opt->ram < memory.usable ? opt->ram : memory.usable;
    if (ram < LEAST_RAM || app_dir_bytes(dir) < ram / 2) return; /* no room to measure in, or no wait ahead */
    if (mf__survey_make(dir, &s, NULL) != MF_OK) return;
    if (s.known && s.is_native && s.has_layout && mf_model_memory(dir, NULL, 0, 0, &needs, NULL) == MF_OK &&
        needs.total - needs.experts + s.expert_bytes > ram &&
        (file = mf__path_join(dir, "packed_experts/layer_00.bin")) &&
        machine_measure(mf__path_exists(file) ? file : NULL, s.layout.bytes, &at, NULL) == MF_OK) {
        model_sizes m = {needs.total, needs.experts, s.expert_bytes, s.layout.bytes, s.cold_bytes, s.resident_bytes};
        verdict_make(&m, &at, ram, &v);
        if (v.decode > 0)
            app_note("%.0f %% of the experts fit in memory: about %.3g tokens/s, bounded by %s (moeflux inspect %s "
                     "says more)",
                     100 * v.held, v.decode, v.bound, dir);
    }
    free(file);
    mf__survey_free(&s);
}
