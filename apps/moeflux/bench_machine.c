/* What the machine can do: reading memory, and files that are not in memory. */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/pool.h"
#include "base/probe.h"
#include "bench.h"
#include "engine/experts.h"

#define MOST_BYTES ((int64_t)256 << 20)
#define LEAST_BYTES ((int64_t)64 << 20) /* less would measure a cache */

/* ---- memory ----------------------------------------------------------------------------------------------------- */

struct memory_reader {
    mf_model *model;
    int threads;
    int64_t bytes;
    uint64_t *words;     /* [bytes / 8] */
    uint64_t sums[1024]; /* by thread: the loop must not be optimized away */
};

int bench_threads(const bench_options *opt) {
    mf__cpu cpu;
    mf__cpu_probe(&cpu);
    return opt->model.threads ? (int)opt->model.threads : cpu.n_physical > 0 ? cpu.n_physical : 1;
}

mf_status memory_reader_open(mf_model *model, int threads, memory_reader **out, mf_error *err) {
    int64_t bytes = MOST_BYTES;
    *out = NULL;
    while (model && bytes >= LEAST_BYTES && !mf__model_borrow(model, bytes)) bytes /= 2;
    if (bytes < LEAST_BYTES) {
        app_say("memory is not measured: --ram leaves less than %lld MB for that", (long long)(LEAST_BYTES >> 20));
        return MF_OK;
    }
    memory_reader *r = *out = calloc(1, sizeof *r);
    if (r) *r = (memory_reader){.model = model, .threads = threads, .bytes = bytes};
    if (!r || !(r->words = aligned_alloc(64, (size_t)bytes)))
        return mf__fail(err, MF_E_NOMEM, "no memory for %lld bytes to read", (long long)bytes);
    memset(r->words, 1, (size_t)bytes);
    return MF_OK;
}

static void read_words(void *ctx, int64_t begin, int64_t end, int thread) {
    memory_reader *r = ctx;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (int64_t i = begin * 8; i < end * 8; i += 8) { /* items are cache lines */
        a ^= r->words[i] ^ r->words[i + 4];
        b ^= r->words[i + 1] ^ r->words[i + 5];
        c ^= r->words[i + 2] ^ r->words[i + 6];
        d ^= r->words[i + 3] ^ r->words[i + 7];
    }
    r->sums[thread] = a ^ b ^ c ^ d;
}

/* The threads live for one measurement: idle ones look for work for a while, and would take time from the model's. */
mf_status memory_reader_run(memory_reader *r, double *gb_s, mf_error *err) {
    mf__pool *pool;
    MF__TRY(mf__pool_create(r->threads, &pool, err));
    mf__pool_run(pool, read_words, r, r->bytes / 64 / 8); /* all threads are there */
    double began = app_seconds();
    mf__pool_run(pool, read_words, r, r->bytes / 64);
    *gb_s = (double)r->bytes / (app_seconds() - began) / 1e9;
    mf__pool_free(pool);
    return MF_OK;
}

void memory_reader_close(memory_reader *r) {
    if (!r) return;
    free(r->words);
    if (r->model) mf__model_borrow(r->model, -r->bytes);
    free(r);
}

/* ---- the page cache --------------------------------------------------------------------------------------------- */

typedef struct pages {
    int64_t all, present;
} pages;

/* Pages of the file, and how many of them the page cache has. */
static void count_pages(int fd, int64_t size, pages *sum) {
    int64_t page = sysconf(_SC_PAGESIZE), n = (size + page - 1) / page;
    void *map = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
    unsigned char *present = malloc((size_t)n);
    if (map != MAP_FAILED && present && mincore(map, (size_t)size, (void *)present) == 0)
        for (int64_t i = 0; i < n; i++) sum->present += present[i] & 1;
    else
        sum->present += n;
    sum->all += n;
    if (map != MAP_FAILED) munmap(map, (size_t)size);
    free(present);
}

static void drop_file(const char *path, pages *sum) {
    int fd;
    int64_t size;
    if (mf__file_open(path, &fd, &size, NULL) != MF_OK) return;
#ifdef POSIX_FADV_DONTNEED
    fdatasync(fd); /* what is not written yet cannot be dropped */
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
#endif
    if (size) count_pages(fd, size, sum);
    close(fd);
}

/* The files of a folder, and of folders in it. */
static void drop_folder(const char *dir, int depth, pages *sum) {
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        char *path = e->d_name[0] == '.' ? NULL : mf__path_join(dir, e->d_name);
        if (path && mf__path_is_dir(path) && depth > 0)
            drop_folder(path, depth - 1, sum);
        else if (path)
            drop_file(path, sum);
        free(path);
    }
    if (d) closedir(d);
}

double page_cache_drop(const char *dir, const opt_list *experts_dirs) {
    pages sum = {0};
    drop_folder(dir, 1, &sum);
    for (int i = 0; i < experts_dirs->n; i++) drop_folder(experts_dirs->items[i], 1, &sum);
    return sum.all ? (double)sum.present / (double)sum.all : 1;
}
