/* How fast the drive is with each way of reading. Measured for a moment by a small store of its own over the same files
 * (so what is measured is what will be used), and remembered per device and expert size. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/json.h"
#include "base/log.h"
#include "store/internal.h"

#define PROBE_NS 60000000
#define PROBE_BYTES ((int64_t)48 << 20) /* room of the small store, within the budget of the one that asks */
#define PROBE_BATCH 8
#define MAX_CACHE_FILE (1 << 20)

/* ---- remembering ---- */

/* "259:1 direct 1769472": devices come and go under the same number, but the speeds stay of the same kind. */
static bool drive_key(const mf__store *s, char *out, size_t size) {
    struct stat st;
    size_t used = 0;
    dev_t seen = 0;
    for (int d = 0; d < s->n_dirs; d++) {
        for (int l = 0; l < s->n_layers; l++) {
            const mf__expert_file *f = &s->files[d * s->n_layers + l];
            if (!f->path || fstat(f->fd, &st)) continue;
            if (used && st.st_dev == seen) break;
            seen = st.st_dev;
            used += (size_t)snprintf(out + used, used < size ? size - used : 0, "%u:%u ", major(st.st_dev),
                                     minor(st.st_dev));
            break;
        }
    }
    used += (size_t)snprintf(out + used, used < size ? size - used : 0, "%lld", (long long)s->bytes);
    return used < size;
}

static int64_t speed(const json_t *entry, const char *key) {
    int64_t value = json_integer_value(json_object_get(entry, key));
    return value > 0 ? value : 0;
}

/* A file that cannot be read or makes no sense is as good as none. */
static bool recall(const char *path, const char *key, mf__drive *out) {
    json_t *root = NULL;
    bool known = false;
    if (!mf__path_exists(path) || mf__json_read(path, MAX_CACHE_FILE, &root, NULL) != MF_OK) return false;
    const json_t *entry = json_object_get(root, key);
    if (json_is_object(entry)) {
        *out = (mf__drive){speed(entry, "direct"), speed(entry, "buffered"), speed(entry, "uring")};
        known = out->direct > 0 || out->buffered > 0;
    }
    json_decref(root);
    return known;
}

/* The folder and, where a new user has none yet, the one it is in. */
static bool make_folder(const char *dir) {
    if (mf__dir_make(dir, NULL) == MF_OK) return true;
    char *parent = strdup(dir), *slash = parent ? strrchr(parent, '/') : NULL;
    if (slash) *slash = '\0';
    bool made = slash && slash > parent && mf__dir_make(parent, NULL) == MF_OK && mf__dir_make(dir, NULL) == MF_OK;
    free(parent);
    return made;
}

static void remember(const char *dir, const char *path, const char *key, const mf__drive *drive) {
    json_t *root = NULL;
    if (!make_folder(dir)) return;
    if (!mf__path_exists(path) || mf__json_read(path, MAX_CACHE_FILE, &root, NULL) != MF_OK || !json_is_object(root)) {
        json_decref(root);
        root = json_object();
    }
    json_t *entry = json_pack("{sI sI sI}", "direct", (json_int_t)drive->direct, "buffered",
                              (json_int_t)drive->buffered, "uring", (json_int_t)drive->uring);
    char *text = NULL;
    if (entry && json_object_set(root, key, entry) == 0) text = json_dumps(root, JSON_INDENT(1) | JSON_SORT_KEYS);
    if (text) mf__file_replace(path, text, strlen(text), NULL);
    free(text);
    json_decref(entry);
    json_decref(root);
}

/* ---- measuring ---- */

static void uncache(const mf__store *s, int layer, const int32_t *ids, int n) {
#ifdef POSIX_FADV_DONTNEED
    for (int d = 0; d < s->n_dirs; d++)
        for (int i = 0; s->files[d * s->n_layers + layer].path && i < n; i++)
            posix_fadvise(s->files[d * s->n_layers + layer].fd, ids[i] * s->stride, s->bytes, POSIX_FADV_DONTNEED);
#else
    (void)s, (void)layer, (void)ids, (void)n;
#endif
}

/* Random experts, no policy, no predictions, until the time is over. Returns bytes/s; 0 when this way does not work. */
static int64_t speed_of(const mf__store *s, mf_io io, bool direct, const char *const *files) {
    int64_t room = PROBE_BYTES + 3 * PROBE_BATCH * (s->bytes + MF_HUGE), budget = s->config.budget;
    mf__store_config c = {.n_layers = s->n_layers,
                          .n_dirs = s->n_dirs,
                          .files = files,
                          .n_experts = s->n_experts,
                          .stride = s->stride,
                          .bytes = s->bytes,
                          .budget = budget && budget < room ? budget : room,
                          .io = io,
                          .direct = direct ? MF_SWITCH_ON : MF_SWITCH_OFF,
                          .prefetch = MF_SWITCH_OFF,
                          .n_io_threads = s->config.n_io_threads,
                          .policy = "lru",
                          .quiet = true};
    mf__store *small = NULL;
    mf__turn *turn = NULL;
    int64_t bytes = 0, began = 0, now = 0;
    uint64_t seed = (uint64_t)mf__clock_ns();
    if (mf__store_open(&c, &small, NULL) != MF_OK) return 0;
    bool ok = small->io_kind == io && small->direct == direct && mf__turn_create(small, &turn, NULL) == MF_OK;
    for (began = now = mf__clock_ns(); ok && now - began < PROBE_NS; now = mf__clock_ns()) {
        int32_t ids[PROBE_BATCH], got[PROBE_BATCH];
        const void *blobs[PROBE_BATCH];
        int layer, n = 0;
        do {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            layer = (int)((seed >> 33) % (uint64_t)s->n_layers);
        } while (!mf__files_has(s, layer));
        int first = (int)((seed >> 17) % (uint64_t)s->n_experts), step = s->n_experts / PROBE_BATCH;
        for (int i = 0; i < PROBE_BATCH && (step || i == 0); i++) ids[n++] = (first + i * step) % s->n_experts;
        int n_got = n;
        if (!direct) uncache(small, layer, ids, n); /* what the page cache has is no measure of the drive */
        ok = mf__turn_begin(turn, layer, ids, NULL, n, 1, NULL) == MF_OK;
        while (ok && n_got) {
            ok = mf__turn_next(turn, got, blobs, &n_got, NULL) == MF_OK;
            if (ok) mf__turn_done(turn, got, n_got);
        }
        mf__turn_end(turn);
        if (!direct) uncache(small, layer, ids, n); /* and what was read to measure is not to fill it */
    }
    bytes = small->stats.bytes_read;
    mf__turn_free(turn);
    mf__store_close(small);
    return ok && now > began ? (int64_t)((double)bytes * 1e9 / (double)(now - began)) : 0;
}

mf_status mf__drive_measure(mf__store *s, mf__drive *out, mf_error *err) {
    char key[256];
    char *path = s->config.speed_dir ? mf__path_join(s->config.speed_dir, "drives.json") : NULL;
    bool keyed = drive_key(s, key, sizeof key);
    *out = (mf__drive){0};
    if (path && keyed && recall(path, key, out)) {
        free(path);
        return MF_OK;
    }
    const char **files = calloc((size_t)s->n_files, sizeof *files);
    if (!files) {
        free(path);
        return mf__fail(err, MF_E_NOMEM, "no memory for %d paths", s->n_files);
    }
    for (int i = 0; i < s->n_files; i++) files[i] = s->files[i].path;
    out->buffered = speed_of(s, MF_IO_PREAD, false, files);
    if (s->direct) {
        out->direct = speed_of(s, MF_IO_PREAD, true, files);
        out->uring = speed_of(s, MF_IO_URING, true, files);
    }
    free(files);
    mf__log(&s->log, MF_LOG_DEBUG,
            "experts: drive measured at %.2f GB/s direct, %.2f through the page cache, %.2f "
            "with io_uring",
            (double)out->direct / 1e9, (double)out->buffered / 1e9, (double)out->uring / 1e9);
    if (path && keyed) remember(s->config.speed_dir, path, key, out);
    free(path);
    return MF_OK;
}
