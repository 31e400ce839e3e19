/* How fast the drive is with each way of reading. Measured for a moment by a small store of its own over the same files
 * (so what is measured is what will be used), and remembered per device and expert size: for some days, and until a run
 * shows that it was wrong. What is measured under somebody else's load would otherwise choose for ever. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

#include "base/json.h"
#include "base/log.h"
#include "store/internal.h"

#define PROBE_NS 30000000
#define PROBE_ROUNDS 2 /* of all ways in turn; the best of each counts */
#define PROBE_BATCH 8
#define PROBE_SLOTS (2 * PROBE_BATCH)
#define PROBE_BYTES ((int64_t)48 << 20) /* room of the small store's tables */
#define PROBE_WARM_NS 300000000         /* memory that is touched for the first time is slow: at most this long */
#define PROBE_IDLE 64 /* turns in a row that read nothing: the files are so small that all is in memory */
#define MAX_CACHE_FILE (1 << 20)
#define LONGEST_S ((int64_t)7 * 24 * 3600) /* a measurement holds */

#define CONTRADICTION_NS 2000000000 /* of reading, at least */

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

static int64_t number(const json_t *entry, const char *key) {
    int64_t value = json_integer_value(json_object_get(entry, key));
    return value > 0 ? value : 0;
}

static int64_t now_s(void) {
    return (int64_t)time(NULL);
}

/* A file that cannot be read or makes no sense is as good as none, and so is a measurement that is old, or of a time
 * that has not come yet. */
static bool recall(const char *path, const char *key, mf__drive *out) {
    json_t *root = NULL;
    bool known = false;
    if (!mf__path_exists(path) || mf__json_read(path, MAX_CACHE_FILE, &root, NULL) != MF_OK) return false;
    const json_t *entry = json_object_get(root, key);
    if (json_is_object(entry)) {
        mf__drive found = {number(entry, "direct"), number(entry, "buffered"), number(entry, "uring")};
        int64_t age = now_s() - number(entry, "measured");
        known = (found.direct > 0 || found.buffered > 0) && age >= 0 && age < LONGEST_S;
        if (known) *out = found;
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

/* Writes the file with this entry, NULL: without it. */
static void write_entry(const char *path, const char *key, json_t *entry) {
    json_t *root = NULL;
    if (!mf__path_exists(path) || mf__json_read(path, MAX_CACHE_FILE, &root, NULL) != MF_OK || !json_is_object(root)) {
        json_decref(root);
        root = json_object();
    }
    char *text = NULL;
    int failed = entry ? json_object_set(root, key, entry) : json_object_del(root, key);
    if (!failed) text = json_dumps(root, JSON_INDENT(1) | JSON_SORT_KEYS);
    if (text) mf__file_replace(path, text, strlen(text), NULL);
    free(text);
    json_decref(root);
}

static void remember(const char *dir, const char *path, const char *key, const mf__drive *drive) {
    if (!make_folder(dir)) return;
    json_t *entry =
        json_pack("{sI sI sI sI}", "direct", (json_int_t)drive->direct, "buffered", (json_int_t)drive->buffered,
                  "uring", (json_int_t)drive->uring, "measured", (json_int_t)now_s());
    if (entry) write_entry(path, key, entry);
    json_decref(entry);
}

/* A page cache that holds little of the files is of no use, and where memory is short it costs the time to find pages
 * that can go; else it takes memory that somebody could have, and must be clearly faster. */
bool mf__drive_direct_pays(const mf__drive *drive, int64_t beside, int64_t total) {
    int64_t best = drive->direct > drive->uring ? drive->direct : drive->uring;
    if (best > 0 && beside < total / 2) return true;
    return best + best / 4 >= drive->buffered;
}

bool mf__drive_contradicted(int64_t ceiling, bool direct, const mf__drive_seen *seen) {
    if (ceiling <= 0 || seen->ns < CONTRADICTION_NS || !seen->reads) return false;
    double speed = (double)seen->bytes * 1e9 / (double)seen->ns, depth = (double)seen->depths / (double)seen->reads;
    if (direct && speed > 1.5 * (double)ceiling) return true;     /* else it was the page cache, not the drive */
    return speed < 0.4 * (double)ceiling && depth >= PROBE_BATCH; /* as many reads at once as the measurement had */
}

/* At close: a run that saw a drive of another kind has the next one measure it. */
void mf__drive_review(mf__store *s) {
    if (!s->drive_path || !s->ceiling || s->follows || s->config.beside) return; /* two on one drive: not told apart */
    if (mf__drive_contradicted(s->ceiling, s->direct, &s->drive_seen)) write_entry(s->drive_path, s->drive_key, NULL);
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

/* Random experts, no policy, no predictions, until the time is over, which begins when all memory has been touched.
 * Returns bytes/s; 0 when this way does not work. */
static int64_t speed_of(const mf__store *s, mf_io io, bool direct, const char *const *files) {
    int64_t room = PROBE_BYTES + PROBE_SLOTS * (s->bytes + MF_HUGE), budget = s->config.budget;
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
                          .most_slots = PROBE_SLOTS,
                          .n_io_threads = s->config.n_io_threads,
                          .policy = "lru",
                          .quiet = true};
    mf__store *small = NULL;
    mf__turn *turn = NULL;
    int64_t bytes = 0, opened = mf__clock_ns(), began = 0, now = opened, had = 0;
    int idle = 0;
    uint64_t seed = (uint64_t)mf__clock_ns();
    if (mf__store_open(&c, &small, NULL) != MF_OK) return 0;
    bool ok = small->io_kind == io && small->direct == direct && mf__turn_create(small, &turn, NULL) == MF_OK;
    for (; ok && idle < PROBE_IDLE && (!began || now - began < PROBE_NS); now = mf__clock_ns()) {
        if (!began && (small->evicted || now - opened > PROBE_WARM_NS)) {
            began = now;
            bytes = small->stats.bytes_read;
        }
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
        idle = small->stats.bytes_read > had ? 0 : idle + 1;
        had = small->stats.bytes_read;
    }
    if (!began) began = opened;
    bytes = small->stats.bytes_read - bytes;
    mf__turn_free(turn);
    mf__store_close(small);
    return ok && now > began ? (int64_t)((double)bytes * 1e9 / (double)(now - began)) : 0;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static mf_status measure(const mf__store *s, mf__drive *out, mf_error *err) {
    const char **files = calloc((size_t)s->n_files, sizeof *files);
    if (!files) return mf__fail(err, MF_E_NOMEM, "no memory for %d paths", s->n_files);
    for (int i = 0; i < s->n_files; i++) files[i] = s->files[i].path;
    for (int i = 0; i < PROBE_ROUNDS; i++) {
        if (s->direct) {
            out->direct = larger(out->direct, speed_of(s, MF_IO_PREAD, true, files));
            out->uring = larger(out->uring, speed_of(s, MF_IO_URING, true, files));
        }
        out->buffered = larger(out->buffered, speed_of(s, MF_IO_PREAD, false, files));
    }
    free(files);
    mf__log(&s->log, MF_LOG_DEBUG,
            "experts: drive measured at %.2f GB/s direct, %.2f through the page cache, %.2f "
            "with io_uring",
            (double)out->direct / 1e9, (double)out->buffered / 1e9, (double)out->uring / 1e9);
    return MF_OK;
}

mf_status mf__drive_measure(mf__store *s, mf__drive *out, mf_error *err) {
    bool keyed = drive_key(s, s->drive_key, sizeof s->drive_key);
    *out = (mf__drive){0};
    if (s->config.speed_dir && keyed) s->drive_path = mf__path_join(s->config.speed_dir, "drives.json");
    if (s->drive_path && recall(s->drive_path, s->drive_key, out)) return MF_OK;
    MF__TRY(measure(s, out, err));
    if (s->drive_path) remember(s->config.speed_dir, s->drive_path, s->drive_key, out);
    return MF_OK;
}
