/* The machine: what it is, measured in a moment, and what somebody wants to assume of another one. */
#include "machine.h"

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
#include "inspect_cuda.h"

#define DRIVE_THREADS 8
#define DRIVE_SECONDS 0.15
#define SCRATCH_BYTES ((size_t)64 << 20)
#define PRODUCTS_S 85e9 /* weights, times rows, that a thread multiplies in a second with AVX-512 and VNNI */

/* ---- assumed -------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    double products; /* beside AVX-512 with VNNI */
} CPUS[] = {{"avx512", 1}, {"avxvnni", 0.5}, {"i8mm", 0.4}, {"avx2", 0.35}, {"dotprod", 0.25}, {"scalar", 0.03}};

/* "12G": a number with a unit of that base. */
static bool parse_amount(const char *text, size_t n, double base, double *out) {
    static const char units[] = "KMGT";
    char copy[32], *end;
    if (n == 0 || n >= sizeof copy) return false;
    memcpy(copy, text, n);
    copy[n] = '\0';
    double v = strtod(copy, &end);
    if (end == copy) return false;
    const char *unit = *end ? strchr(units, *end) : NULL;
    if (unit) {
        for (const char *u = units; u <= unit; u++) v *= base;
        end++;
    }
    *out = v;
    return !*end && v >= 1 && v <= 1e18;
}

static bool set_cpu(machine_assumed *a, const char *text, size_t n) {
    for (size_t i = 0; i < MF__COUNT(CPUS); i++)
        if (strlen(CPUS[i].name) == n && !strncmp(CPUS[i].name, text, n)) a->products = CPUS[i].products;
    return a->products > 0;
}

static bool set_one(machine_assumed *a, const char *text, size_t n) {
    const char *equals = memchr(text, '=', n);
    size_t key = equals ? (size_t)(equals - text) : n, rest = equals ? n - key - 1 : 0;
    const struct {
        const char *name;
        double base, *value;
    } amounts[] = {{"ram", 1024, &a->ram},
                   {"vram", 1024, &a->vram},
                   {"memory", 1000, &a->memory},
                   {"drive", 1000, &a->drive},
                   {"threads", 1000, &a->threads}};
    if (!equals) return false;
    if (key == 3 && !strncmp(text, "cpu", 3)) return set_cpu(a, equals + 1, rest);
    for (size_t i = 0; i < MF__COUNT(amounts); i++)
        if (strlen(amounts[i].name) == key && !strncmp(amounts[i].name, text, key))
            return parse_amount(equals + 1, rest, amounts[i].base, amounts[i].value) && a->threads <= 4096;
    return false;
}

mf_status machine_assume(const char *text, machine_assumed *out, mf_error *err) {
    *out = (machine_assumed){.any = true};
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        if (!set_one(out, at, n))
            return mf__fail(
                err, MF_E_INVALID,
                "--assume has \"%.*s\"; expected some of ram=32G, memory=60G, drive=5G, threads=8, vram=24G "
                "and cpu=avx512, avxvnni, avx2, i8mm, dotprod or scalar, with commas between",
                (int)(n < 60 ? n : 60), at);
        at += n;
        if (!*at) return MF_OK;
    }
}

/* ---- measured -------------------------------------------------------------------------------------------------------- */

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

/* A file of random bytes without a name, for a moment, on the drive of that folder or of the nearest one above it that
 * is there; -1: it cannot be. */
static int scratch_file(const char *folder) {
    char *dir = strdup(folder), *slash;
    int fd = -1;
    while (dir && *dir && !mf__path_is_dir(dir) && (slash = strrchr(dir, '/'))) *slash = '\0';
    uint64_t *bytes = mf__direct_alloc(SCRATCH_BYTES), x = 88172645463325252u;
#ifdef O_TMPFILE
    if (dir && bytes) fd = open(*dir ? dir : "/", O_RDWR | O_CLOEXEC | O_TMPFILE | O_DIRECT, 0600);
#endif
    for (size_t i = 0; fd >= 0 && i < SCRATCH_BYTES / sizeof *bytes; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        bytes[i] = x;
    }
    if (fd >= 0 && mf__pwrite_all(fd, bytes, SCRATCH_BYTES, 0, folder, NULL) != MF_OK) {
        close(fd);
        fd = -1;
    }
    if (bytes) mf__direct_free(bytes, SCRATCH_BYTES);
    free(dir);
    return fd;
}

/* Bytes per second of random reads past the page cache; 0 where that cannot be. */
static double measure_drive(const char *path, int64_t block) {
#ifdef O_DIRECT
    struct stat s;
    drive_probe d = {.fd = mf__path_is_dir(path) ? scratch_file(path) : open(path, O_RDONLY | O_CLOEXEC | O_DIRECT)};
    pthread_t threads[DRIVE_THREADS];
    int n = 0;
    if (d.fd < 0 && !mf__path_exists(path)) d.fd = scratch_file(path);
    if (d.fd < 0) return 0;
    d.block = block > 0 ? (block + 4095) / 4096 * 4096 : 4096;
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

static double products_of(const mf__cpu *cpu) {
    const bool has[] = {cpu->avx512_vnni, cpu->avx_vnni, cpu->i8mm, cpu->avx2, cpu->dotprod, true};
    for (size_t i = 0; i < MF__COUNT(CPUS); i++)
        if (has[i]) return CPUS[i].products;
    return 0.03;
}

static mf_status measure_memory(int threads, machine *out, mf_error *err) {
    memory_reader *reader = NULL;
    double gb_s = 0;
    mf_status st = memory_reader_open(NULL, threads, &reader, err);
    for (int i = 0; st == MF_OK && i < 2; i++) { /* the better of two: somebody else may have been at it */
        st = memory_reader_run(reader, &gb_s, err);
        if (gb_s * 1e9 > out->memory_bytes_s) out->memory_bytes_s = gb_s * 1e9;
    }
    memory_reader_close(reader);
    return st;
}

mf_status machine_measure(const machine_assumed *as, const char *place, int64_t read_bytes, machine *out,
                          mf_error *err) {
    static const machine_assumed nothing = {0};
    mf__memory memory;
    mf__cpu cpu;
    if (!as) as = &nothing;
    *out = (machine){.assumed = as->any};
    mf__cpu_probe(&cpu);
    MF__TRY(mf__memory_probe("", &memory, err));
    out->total = as->ram > 0 ? (int64_t)as->ram : memory.total;
    out->usable = as->ram > 0 ? out->total / 8 * 7 : memory.usable; /* the system and others want some of it */
    int cores = cpu.n_physical > 0 ? cpu.n_physical : 1;
    out->threads = as->threads > 0 ? (int)as->threads : cores;
    out->products_s = PRODUCTS_S * (as->products > 0 ? as->products : products_of(&cpu));
    out->memory_bytes_s = as->memory;
    if (!(as->memory > 0)) MF__TRY(measure_memory(cores, out, err));
    out->drive_bytes_s = as->drive > 0 ? as->drive : place ? measure_drive(place, read_bytes) : 0;
    out->vram = as->any ? (int64_t)as->vram : inspect_cuda_memory(out->gpu);
    return MF_OK;
}

static void print_gpu(const machine *at) {
    char a[APP_BYTES_TEXT];
    if (at->vram > 0 && *at->gpu)
        printf("  %-22s %s, %s free\n", "GPU", at->gpu, app_bytes((double)at->vram, a));
    else if (at->vram > 0)
        printf("  %-22s %s\n", "GPU", app_bytes((double)at->vram, a));
    else
        printf("  %-22s none%s%s\n", "GPU", *at->gpu ? " that can be used: " : "", at->gpu);
}

void machine_print(const machine *at, int64_t read_bytes) {
    char a[APP_BYTES_TEXT], b[APP_BYTES_TEXT], c[APP_BYTES_TEXT];
    printf("\n%s\n  %-22s %s free of %s; %s/s with %d thread%s\n",
           at->assumed ? "a machine as assumed" : "this machine", "memory", app_bytes((double)at->usable, a),
           app_bytes((double)at->total, b), app_bytes(at->memory_bytes_s, c), at->threads, at->threads > 1 ? "s" : "");
    if (at->drive_bytes_s > 0)
        printf("  %-22s %s/s in reads of %s%s\n", "drive", app_bytes(at->drive_bytes_s, a),
               app_bytes((double)read_bytes, b), at->assumed ? "" : ", where the model is or would be");
    else
        printf("  %-22s not measured here\n", "drive");
    print_gpu(at);
}

json_t *machine_json(const machine *at) {
    return json_pack("{s:b, s:I, s:I, s:i, s:f, s:f, s:I, s:s}", "assumed", at->assumed, "memory_bytes",
                     (json_int_t)at->total, "usable_bytes", (json_int_t)at->usable, "threads", at->threads,
                     "memory_bytes_s", at->memory_bytes_s, "drive_bytes_s", at->drive_bytes_s, "gpu_bytes",
                     (json_int_t)at->vram, "gpu", at->gpu);
}
