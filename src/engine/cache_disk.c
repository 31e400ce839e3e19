#include "engine/cache_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "engine/snapshot.h"

#define ENDING ".state"
#define MAX_CHAIN 4096
#define TEMP_SECONDS 600 /* a temporary file older than this was left by somebody who died */

struct mf__cache_disk {
    char *dir;            /* DIR */
    char *folder;         /* DIR/FINGERPRINT; NULL until it is first needed */
    pthread_mutex_t lock; /* while the folder is named and made */
    int64_t max_bytes;
};

/* One file of the listing. */
typedef struct item {
    int64_t length, bytes;
    uint64_t name;
    struct timespec used;
} item;

typedef struct listing {
    item *items;
    size_t n, capacity;
} listing;

mf_status mf__cache_disk_open(const mf_model *m, const char *dir, int64_t max_bytes, mf__cache_disk **out,
                              mf_error *err) {
    (void)m;
    if (!mf__path_is_dir(dir)) MF__TRY(mf__dir_make(dir, err));
    mf__cache_disk *d = calloc(1, sizeof *d);
    if (d) d->dir = strdup(dir);
    if (!d || !d->dir) {
        free(d);
        return mf__fail(err, MF_E_NOMEM, "no memory for the prompt cache");
    }
    if (pthread_mutex_init(&d->lock, NULL)) {
        free(d->dir);
        free(d);
        return mf__fail(err, MF_E_NOMEM, "no memory for the prompt cache");
    }
    d->max_bytes = max_bytes;
    *out = d;
    return MF_OK;
}

void mf__cache_disk_close(mf__cache_disk *d) {
    if (!d) return;
    pthread_mutex_destroy(&d->lock);
    free(d->folder);
    free(d->dir);
    free(d);
}

/* The model's own folder; the fingerprint is computed when first needed. Somebody may remove the whole cache while it
 * is in use: it is made anew. */
static mf_status make_folder(mf_model *m, mf__cache_disk *d, mf_error *err) {
    if (!d->folder) {
        char name[17];
        mf__hash_text(m->shape->fingerprint, name);
        d->folder = mf__path_join(d->dir, name);
    }
    if (!d->folder) return mf__fail(err, MF_E_NOMEM, "no memory for the prompt cache");
    if (mf__path_is_dir(d->folder)) return MF_OK;
    if (!mf__path_is_dir(d->dir)) MF__TRY(mf__dir_make(d->dir, err));
    return mf__dir_make(d->folder, err);
}

static mf_status prepare(mf_model *m, mf__cache_disk *d, mf_error *err) {
    MF__TRY(mf__model_fingerprint(m, err));
    pthread_mutex_lock(&d->lock);
    mf_status st = make_folder(m, d, err);
    pthread_mutex_unlock(&d->lock);
    return st;
}

static uint64_t name_of(const mf_model *m, const int32_t *tokens, int64_t n) {
    mf__hash h;
    mf__hash_init(&h, m->shape->fingerprint);
    mf__hash_update(&h, tokens, (size_t)n * sizeof *tokens);
    return mf__hash_digest(&h);
}

static char *path_of(const mf__cache_disk *d, int64_t length, uint64_t name) {
    char file[64];
    snprintf(file, sizeof file, "%lld-%016llx" ENDING, (long long)length, (unsigned long long)name);
    return mf__path_join(d->folder, file);
}

static void remove_item(const mf__cache_disk *d, int64_t length, uint64_t name) {
    char *path = path_of(d, length, name);
    if (path) unlink(path);
    free(path);
}

static void touch_item(const mf__cache_disk *d, int64_t length, uint64_t name) {
    char *path = path_of(d, length, name);
    if (path) utimensat(AT_FDCWD, path, NULL, 0);
    free(path);
}

/* ---- listing --------------------------------------------------------------------------------------------------- */

/* "LENGTH-NAME.state", and nothing else. */
static bool parse_name(const char *file, item *out) {
    char *end;
    errno = 0;
    long long length = strtoll(file, &end, 10);
    if (errno || end == file || *end != '-' || length < 1 || strlen(end) != 17 + strlen(ENDING)) return false;
    out->length = length;
    return mf__hash_parse(end + 1, &out->name) && !strcmp(end + 17, ENDING);
}

static void remove_old_temp(int dir_fd, const char *file, const struct stat *st) {
    size_t n = strlen(file);
    if (file[0] == '.' && n > 4 && !strcmp(file + n - 4, ".tmp") && st->st_mtime < time(NULL) - TEMP_SECONDS)
        unlinkat(dir_fd, file, 0);
}

static mf_status list(const mf__cache_disk *d, listing *out, mf_error *err) {
    DIR *dir = opendir(d->folder);
    struct dirent *entry;
    *out = (listing){0};
    if (!dir) return mf__fail_errno(err, errno, "cannot list the prompt cache %s", d->folder);
    while ((entry = readdir(dir))) {
        struct stat st;
        item it;
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode)) continue;
        if (!parse_name(entry->d_name, &it)) {
            remove_old_temp(dirfd(dir), entry->d_name, &st);
            continue;
        }
        it.bytes = st.st_size;
        it.used = st.st_mtim;
        if (out->n == out->capacity) {
            size_t capacity = out->capacity ? 2 * out->capacity : 64;
            item *grown = realloc(out->items, capacity * sizeof *grown);
            if (!grown) {
                free(out->items);
                closedir(dir);
                return mf__fail(err, MF_E_NOMEM, "no memory to list the prompt cache");
            }
            out->items = grown;
            out->capacity = capacity;
        }
        out->items[out->n++] = it;
    }
    closedir(dir);
    return MF_OK;
}

static int by_length(const void *a, const void *b) {
    const item *x = a, *y = b;
    return (x->length > y->length) - (x->length < y->length);
}

/* Keeps only the items that name a prefix of the tokens, shortest first. */
static void keep_prefixes(const mf_model *m, listing *l, const int32_t *tokens, int64_t n) {
    mf__hash h;
    int64_t hashed = 0;
    size_t kept = 0;
    mf__hash_init(&h, m->shape->fingerprint);
    if (l->n > 1) qsort(l->items, l->n, sizeof *l->items, by_length);
    for (size_t i = 0; i < l->n && l->items[i].length <= n; i++) {
        mf__hash_update(&h, tokens + hashed, (size_t)(l->items[i].length - hashed) * sizeof *tokens);
        hashed = l->items[i].length;
        if (mf__hash_digest(&h) == l->items[i].name) l->items[kept++] = l->items[i];
    }
    l->n = kept;
}

/* ---- reading --------------------------------------------------------------------------------------------------- */

/* Reads one increment on top of its parent, which is freed. */
static mf_status read_one(mf_model *m, const mf__cache_disk *d, int64_t length, uint64_t name, bool last,
                          mf__frozen **state, mf_error *err) {
    char *path = path_of(d, length, name);
    mf__snapshot_source src = {.mapped = true};
    mf__frozen *next = NULL;
    mf_status st = path ? mf__map_open(path, &src.map, err) : mf__fail(err, MF_E_NOMEM, "no memory for a path");
    if (st == MF_OK) st = mf__snapshot_read(m, &src, *state, last, &next, err);
    if (st == MF_OK && next->length != length) {
        st = mf__fail(err, MF_E_FORMAT, "%s holds %lld tokens", path, (long long)next->length);
        mf__frozen_drop(m, next);
    }
    mf__map_close(&src.map);
    free(path);
    if (st != MF_OK) return st;
    mf__frozen_drop(m, *state);
    *state = next;
    return MF_OK;
}

/* base and parent of an entry, from its header. */
static mf_status peek(const mf__cache_disk *d, int64_t length, uint64_t name, int64_t *base, uint64_t *parent,
                      mf_error *err) {
    mf__snapshot_header h;
    char *path = path_of(d, length, name);
    int fd = -1;
    int64_t size;
    mf_status st = path ? mf__file_open(path, &fd, &size, err) : mf__fail(err, MF_E_NOMEM, "no memory for a path");
    if (st == MF_OK) st = mf__pread_all(fd, &h, sizeof h, 0, path, err);
    if (st == MF_OK && (h.base < 0 || h.base >= length || h.length != length))
        st = mf__fail(err, MF_E_FORMAT, "%s holds %lld to %lld", path, (long long)h.base, (long long)h.length);
    if (fd >= 0) close(fd);
    free(path);
    if (st == MF_OK) *base = h.base, *parent = h.parent;
    return st;
}

typedef struct chain_link {
    int64_t length;
    uint64_t name;
} chain_link;

/* An entry and its ancestors, back to the one that begins at 0. */
typedef struct lineage {
    chain_link *links; /* the entry itself first */
    int n;
} lineage;

static mf_status lineage_find(const mf__cache_disk *d, int64_t length, uint64_t name, lineage *out, mf_error *err) {
    chain_link at = {length, name};
    *out = (lineage){.links = malloc(MAX_CHAIN * sizeof *out->links)};
    mf_status st = out->links ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory to read the prompt cache");
    while (st == MF_OK && at.length > 0) {
        chain_link parent = {0, 0};
        if (out->n == MAX_CHAIN) st = mf__fail(err, MF_E_LIMIT, "an entry of the prompt cache has too many ancestors");
        if (st == MF_OK) st = peek(d, at.length, at.name, &parent.length, &parent.name, err);
        if (st == MF_OK) out->links[out->n++] = at;
        at = parent;
    }
    if (st == MF_OK) return MF_OK;
    free(out->links);
    *out = (lineage){0};
    return st;
}

/* All of it counts as used now, a parent never before its child: of equals the longer goes first. */
static void lineage_touch(const mf__cache_disk *d, const lineage *l) {
    for (int i = 0; i < l->n; i++) touch_item(d, l->links[i].length, l->links[i].name);
}

static bool lineage_has(const lineage *l, const item *it) {
    for (int i = 0; i < l->n; i++)
        if (l->links[i].length == it->length && l->links[i].name == it->name) return true;
    return false;
}

/* From the beginning to an entry. On any failure the entry is removed: it, its parents or its bytes are not what they
 * should be. */
static mf_status read_chain(mf_model *m, const mf__cache_disk *d, const item *it, mf__frozen **out, mf_error *err) {
    lineage l;
    mf_status st = lineage_find(d, it->length, it->name, &l, err);
    for (int i = l.n; st == MF_OK && i-- > 0;)
        st = read_one(m, d, l.links[i].length, l.links[i].name, i == 0, out, err);
    if (st == MF_OK) lineage_touch(d, &l);
    free(l.links);
    if (st != MF_OK) {
        mf__frozen_drop(m, *out);
        *out = NULL;
        if (st != MF_E_NOMEM) remove_item(d, it->length, it->name);
    }
    return st;
}

/* An entry that does not fit in memory now is as good as ever: it stays, and is worth no warning. */
static void tell_why_not(const mf_model *m, mf_status st, const mf_error *why) {
    if (st == MF_E_NOMEM)
        mf__log(&m->log, MF_LOG_INFO, "prompt cache: no memory for an entry: %s", why->text);
    else
        mf__log(&m->log, MF_LOG_WARN, "prompt cache: an entry was dropped: %s", why->text);
}

void mf__cache_disk_find(mf_model *m, mf__cache_disk *d, const int32_t *tokens, int64_t n, int64_t longer_than,
                         mf__frozen **out) {
    listing l;
    mf_error damage;
    *out = NULL;
    mf_status st = prepare(m, d, &damage);
    if (st == MF_OK) st = list(d, &l, &damage);
    if (st != MF_OK) {
        mf__log(&m->log, MF_LOG_WARN, "prompt cache: %s", damage.text);
        return;
    }
    keep_prefixes(m, &l, tokens, n);
    while (l.n && l.items[l.n - 1].length > longer_than && !*out) {
        const item *it = &l.items[--l.n];
        st = read_chain(m, d, it, out, &damage);
        if (st != MF_OK) {
            tell_why_not(m, st, &damage);
        } else if (memcmp((*out)->tokens, tokens, (size_t)it->length * sizeof *tokens)) { /* the names collide */
            mf__frozen_drop(m, *out);
            *out = NULL;
        }
    }
    free(l.items);
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static int by_use(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec) return (x->used.tv_sec > y->used.tv_sec) - (x->used.tv_sec < y->used.tv_sec);
    if (x->used.tv_nsec != y->used.tv_nsec) return x->used.tv_nsec > y->used.tv_nsec ? 1 : -1;
    return (x->length < y->length) - (x->length > y->length); /* of equals the longer goes first: nobody needs it */
}

/* Removes what was not used longest, but nothing of `keep`, until `room` more bytes fit. */
static void make_room(const mf__cache_disk *d, listing *l, const lineage *keep, int64_t room) {
    int64_t total = room;
    for (size_t i = 0; i < l->n; i++) total += l->items[i].bytes;
    if (l->n > 1) qsort(l->items, l->n, sizeof *l->items, by_use);
    for (size_t i = 0; i < l->n && total > d->max_bytes; i++) {
        if (lineage_has(keep, &l->items[i])) continue;
        remove_item(d, l->items[i].length, l->items[i].name);
        total -= l->items[i].bytes;
    }
}

/* An increment on its way to a file. */
typedef struct increment {
    mf_model *m;
    const mf__frozen *f;
    chain_link parent;
} increment;

static mf_status produce(void *user, mf__write_fn *write, void *sink, mf_error *err) {
    const increment *i = user;
    return mf__snapshot_write(i->m, i->f, i->parent.length, i->parent.name, write, sink, err);
}

static mf_status write_item(mf_model *m, const mf__cache_disk *d, const mf__frozen *f, chain_link parent,
                            mf_error *err) {
    char *path = path_of(d, f->length, name_of(m, f->tokens, f->length));
    if (!path) return mf__fail(err, MF_E_NOMEM, "no memory for an entry of the prompt cache");
    mf_status st = mf__file_replace_by(path, produce, &(increment){m, f, parent}, err);
    free(path);
    return st;
}

/* The longest prefix of f on disk, with its ancestors. One that cannot be read back is removed, and the next is taken.
 */
static mf_status find_parent(const mf_model *m, const mf__cache_disk *d, const mf__frozen *f, lineage *out,
                             mf_error *err) {
    listing l;
    mf_error damage;
    mf_status st = MF_E_NOT_FOUND;
    *out = (lineage){0};
    MF__TRY(list(d, &l, err));
    keep_prefixes(m, &l, f->tokens, f->length);
    while (l.n && st != MF_OK) {
        const item *it = &l.items[--l.n];
        st = lineage_find(d, it->length, it->name, out, &damage);
        if (st != MF_OK && st != MF_E_NOMEM) remove_item(d, it->length, it->name);
    }
    free(l.items);
    return MF_OK;
}

/* Bytes of the listed items that belong to the lineage. */
static int64_t lineage_bytes(const lineage *l, const listing *all) {
    int64_t bytes = 0;
    for (size_t i = 0; i < all->n; i++)
        if (lineage_has(l, &all->items[i])) bytes += all->items[i].bytes;
    return bytes;
}

/* An increment is of use only beside its parents. Where they do not all fit together the state is written whole,
 * without parents; where that does not fit either, what is there stays. */
static mf_status put_after(mf_model *m, mf__cache_disk *d, const mf__frozen *f, lineage *parents, mf_error *err) {
    listing l;
    chain_link parent = parents->n ? parents->links[0] : (chain_link){0, 0};
    if (parent.length == f->length) return MF_OK; /* it is there */
    MF__TRY(list(d, &l, err));
    int64_t bytes = mf__snapshot_bytes(m->shape, parent.length, f->length);
    if (bytes + lineage_bytes(parents, &l) > d->max_bytes) {
        parents->n = 0;
        parent = (chain_link){0, 0};
        bytes = mf__snapshot_bytes(m->shape, 0, f->length);
    }
    bool fits = bytes <= d->max_bytes;
    if (fits) make_room(d, &l, parents, bytes);
    free(l.items);
    if (!fits) return MF_OK;
    return write_item(m, d, f, parent, err);
}

static mf_status put(mf_model *m, mf__cache_disk *d, const mf__frozen *f, mf_error *err) {
    lineage parents;
    MF__TRY(prepare(m, d, err));
    MF__TRY(find_parent(m, d, f, &parents, err));
    mf_status st = put_after(m, d, f, &parents, err);
    lineage_touch(d, &parents);
    free(parents.links);
    return st;
}

mf_status mf__cache_disk_put(mf_model *m, mf__cache_disk *d, const mf__frozen *f, mf_error *err) {
    mf_error why;
    (void)err;
    for (int64_t i = 0; i < f->length; i++)
        if (f->tokens[i] < 0) return MF_OK; /* from a snapshot that does not say what it is a state of */
    if (f->length && put(m, d, f, &why) != MF_OK)
        mf__log(&m->log, MF_LOG_WARN, "prompt cache: an entry was not kept: %s", why.text);
    return MF_OK;
}
