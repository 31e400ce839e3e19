/* Converting a model while its files come.
 *
 * The plan of a conversion needs only the table of tensors at the beginning of each file, so these come first, into
 * files that have their full size and nothing in them. Then the conversion runs, and waits where the file it wants is
 * not there yet; a file whose tensors are all written loses its bytes, all but the table. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "convert/outlook.h"
#include "convert_run.h"
#include "pull.h"

#define FIRST_HEAD ((size_t)256 << 10)
#define MAX_HEAD ((size_t)256 << 20)

/* ---- heads ----------------------------------------------------------------------------------------------------------- */

/* How many bytes of the file, whose first n are given, its table of tensors takes; 0: it cannot be. */
static size_t head_size(const pull *p, const uint8_t *data, size_t n, int64_t file_size) {
    uint64_t length = 0;
    if (p->kind == PULL_GGUF) return n; /* whether it is enough turns out when it is read */
    if (n < 8) return 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | data[i];
    return length > MAX_HEAD - 8 || (int64_t)length > file_size - 8 ? 0 : (size_t)length + 8;
}

mf_status pull_write_head(const char *path, int64_t size, const mf__strbuf *head, mf_error *err) {
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return mf__fail_errno(err, errno, "cannot write %s", path);
    mf_status st = ftruncate(fd, (off_t)size) ? mf__fail_errno(err, errno, "cannot make %s", path) : MF_OK;
    if (st == MF_OK) st = mf__pwrite_all(fd, head->data, head->size, 0, path, err);
    close(fd);
    return st;
}

static mf_status note_head(const pull *p, const pull_item *item, mf_error *err) {
    char *path, text[24];
    MF__TRY(pull_path(p->state, item->local, ".head", &path, err));
    snprintf(text, sizeof text, "%lld", (long long)item->head);
    mf_status st = mf__file_replace(path, text, strlen(text), err);
    free(path);
    return st;
}

static int64_t noted_head(const pull *p, const pull_item *item) {
    char *path, *text = NULL;
    size_t n;
    int64_t head = 0;
    if (pull_path(p->state, item->local, ".head", &path, NULL) != MF_OK) return 0;
    if (mf__file_read(path, 64, &text, &n, NULL) == MF_OK) head = strtoll(text, NULL, 10);
    free(text);
    free(path);
    return head > 0 && head <= item->file->size ? head : 0;
}

static mf_status hash_head(const char *path, int64_t n, uint64_t *out, mf_error *err) {
    int fd;
    char *bytes = malloc((size_t)n + 1);
    if (!bytes) return mf__fail(err, MF_E_NOMEM, "no memory for the head of %s", path);
    mf_status st = mf__file_open(path, &fd, NULL, err);
    if (st == MF_OK) {
        st = mf__pread_all(fd, bytes, (size_t)n, 0, path, err);
        close(fd);
    }
    if (st == MF_OK) *out = mf__hash_bytes(bytes, (size_t)n);
    free(bytes);
    return st;
}

/* Gets at least `least` bytes of the file's beginning, or what its table takes. */
static mf_status get_head(pull *p, pull_item *item, size_t least, const char *path, mf_error *err) {
    char *url = hub_url(&p->repo, item->file);
    mf__strbuf head = {0};
    size_t size = (int64_t)least < item->file->size ? least : (size_t)item->file->size;
    mf_status st = url && size ? MF_OK : mf__fail(err, MF_E_FORMAT, "%s is empty", item->file->path);
    if (st == MF_OK) st = fetch_get(p->fetch, url, (fetch_range){.size = size, .most = MAX_HEAD}, &head, NULL, err);
    size_t needs = st == MF_OK ? head_size(p, (const uint8_t *)head.data, head.size, item->file->size) : 0;
    if (st == MF_OK && (!needs || head.size < size))
        st =
            mf__fail(err, MF_E_FORMAT, "%s: %s does not begin with a table of tensors", p->repo.name, item->file->path);
    if (st == MF_OK && needs > head.size)
        st = fetch_get(p->fetch, url, (fetch_range){.size = needs, .most = MAX_HEAD}, &head, NULL, err);
    if (st == MF_OK && head.size < needs)
        st = mf__fail(err, MF_E_FORMAT, "%s: %s ends within its table of tensors", p->repo.name, item->file->path);
    if (st == MF_OK) st = pull_write_head(path, item->file->size, &head, err);
    item->head = (int64_t)needs;
    if (st == MF_OK) st = note_head(p, item, err);
    mf__strbuf_free(&head);
    free(url);
    return st;
}

static mf_status get_heads(pull *p, size_t least, mf_error *err) {
    for (int i = 0; i < p->n_items; i++) {
        pull_item *item = &p->items[i];
        char *path;
        if (!item->weights) continue;
        if (app_interrupted(NULL)) return mf__fail(err, MF_E_CANCELLED, "stopped by the user");
        MF__TRY(pull_path(p->work, item->local, "", &path, err));
        item->head = noted_head(p, item);
        mf_status st = MF_OK;
        if (!item->head || (p->kind == PULL_GGUF && item->head < (int64_t)least && item->head < item->file->size))
            st = get_head(p, item, least, path, err);
        if (st == MF_OK) st = hash_head(path, item->head, &item->head_hash, err);
        free(path);
        MF__TRY(st);
    }
    return MF_OK;
}

/* ---- the feed ---------------------------------------------------------------------------------------------------------- */

typedef struct feeder {
    pull *p;
    fetch *fetch;
    bool started;
    int64_t ahead;
} feeder;

static pull_item *item_of(pull *p, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (int i = 0; i < p->n_items; i++)
        if (p->items[i].weights && !strcmp(p->items[i].local, name)) return &p->items[i];
    return NULL;
}

/* The plan was made from the head alone; now the whole file has the right hash. */
static mf_status same_head(pull_item *item, const char *path, mf_error *err) {
    uint64_t hash;
    if (item->checked) return MF_OK;
    MF__TRY(hash_head(path, item->head, &hash, err));
    if (hash != item->head_hash)
        return mf__fail(err, MF_E_IO,
                        "%s: the table of tensors that was sent first is not that of the file; --restart begins anew",
                        item->file->path);
    item->checked = true;
    return MF_OK;
}

static mf_status want(void *user, const char *path, mf_error *err) {
    feeder *f = user;
    pull_item *item = item_of(f->p, path);
    if (!item) return mf__fail(err, MF_E_INTERNAL, "%s is no file of %s", path, f->p->repo.name);
    if (!f->started) MF__TRY(fetch_start(f->fetch, f->ahead, err));
    f->started = true;
    if (!item->checked) MF__TRY(fetch_want(f->fetch, item->id, err));
    return same_head(item, path, err);
}

/* The bytes behind the head go; the file keeps its size. The note goes first: what it says must be there. */
static mf_status done(void *user, const char *path, mf_error *err) {
    feeder *f = user;
    pull_item *item = item_of(f->p, path);
    char *note;
    if (!item) return MF_OK;
    fetch_done(f->fetch, item->id);
    MF__TRY(pull_path(f->p->state, item->local, "", &note, err));
    if (unlink(note) && errno != ENOENT) {
        mf_status st = mf__fail_errno(err, errno, "cannot remove %s", note);
        free(note);
        return st;
    }
    free(note);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return mf__fail_errno(err, errno, "cannot open %s", path);
    off_t from = (off_t)((item->head + 4095) / 4096 * 4096), size = (off_t)item->file->size;
    bool freed = from >= size || !fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, size - from);
    if (!freed) freed = !ftruncate(fd, (off_t)item->head) && !ftruncate(fd, size);
    mf_status st = freed ? MF_OK : mf__fail_errno(err, errno, "cannot free the bytes of %s", path);
    close(fd);
    return st;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------------- */

static mf_status source_of(const pull *p, char **out, mf_error *err) {
    *out = NULL;
    if (p->kind != PULL_GGUF)
        return (*out = strdup(p->work)) ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for a path");
    for (int i = 0; i < p->n_items; i++)
        if (p->items[i].weights) return pull_path(p->work, p->items[i].local, "", out, err);
    return mf__fail(err, MF_E_INTERNAL, "%s: no file is chosen", p->repo.name);
}

static mf_status make_plan(const pull *p, const char *source, mf__convert_options *opt, mf__outlook *look, char why[96],
                           mf_error *err) {
    const char *preset = p->opt->preset;
    mf__convert_options_init(opt);
    if (preset && !mf__convert_preset(opt, preset))
        return mf__fail(err, MF_E_INVALID, "--preset is \"%s\"; expected small, balanced or exact", preset);
    if (!preset) MF__TRY(mf__outlook_recommend(source, opt, &preset, err));
    snprintf(why, 96, "preset %s%s", preset, p->opt->preset ? "" : ": --preset chooses otherwise");
    return mf__outlook_make(source, opt, look, err);
}

/* The table of a GGUF file has no length: more is read until it can be. */
static mf_status get_tables(pull *p, const char *source, mf_error *err) {
    mf__convert_options keep;
    mf__outlook look;
    if (p->kind != PULL_GGUF) return get_heads(p, FIRST_HEAD, err);
    mf__convert_options_init(&keep);
    for (size_t least = (size_t)4 << 20;; least *= 4) {
        MF__TRY(get_heads(p, least, err));
        if (least >= MAX_HEAD / 4 || mf__outlook_make(source, &keep, &look, NULL) != MF_E_FORMAT) return MF_OK;
    }
}

mf_status pull_heads(pull *p, char **source, mf_error *err) {
    MF__TRY(source_of(p, source, err));
    return get_tables(p, *source, err);
}

static int64_t largest(const pull *p) {
    int64_t n = 0;
    for (int i = 0; i < p->n_items; i++)
        if (p->items[i].weights && p->items[i].file->size > n) n = p->items[i].file->size;
    return n;
}

static int n_weights(const pull *p) {
    int n = 0;
    for (int i = 0; i < p->n_items; i++) n += p->items[i].weights;
    return n;
}

/* Said at once, not after hours. What an interrupted run has already counts as free. */
static mf_status check_space(const pull *p, const mf__outlook *look, mf_error *err) {
    struct statvfs fs;
    char need[APP_BYTES_TEXT], have[APP_BYTES_TEXT];
    mf__strbuf partial = {0};
    MF__TRY(mf__strbuf_printf(&partial, err, "%s.partial", p->dir));
    double wanted = (double)look->after + (n_weights(p) > 1 ? 2 : 1) * (double)largest(p);
    double there = (double)app_dir_bytes(partial.data); /* of an interrupted run; what it downloaded is sparse */
    mf__strbuf_free(&partial);
    if (statvfs(p->work, &fs)) return MF_OK;
    double free_bytes = (double)fs.f_bavail * (double)fs.f_frsize;
    if (wanted - there <= free_bytes) return MF_OK;
    return mf__fail(err, MF_E_NO_SPACE,
                    "No space left for %s: the model and two files of it need %s, %s are free there", p->dir,
                    app_bytes(wanted - there, need), app_bytes(free_bytes, have));
}

/* ---- all of it --------------------------------------------------------------------------------------------------------- */

static bool show(void *user, int64_t n, int64_t total) {
    pull *p = user;
    atomic_store(&p->converted, total > 0 ? (int)(100 * n / total) : 0);
    return app_interrupted(NULL);
}

static void tick(void *user, int64_t have, int64_t total) {
    pull *p = user;
    char what[48];
    if (!p->shown) p->bar.base = have;
    p->shown = true;
    snprintf(what, sizeof what, "downloading (%d %% converted)", atomic_load(&p->converted));
    p->bar.what = what;
    progress_show(&p->bar, have, total);
    p->bar.what = "downloading";
}

static mf_status convert(pull *p, const char *source, mf__convert_options *opt, mf_error *err) {
    feeder f = {.p = p, .ahead = 2 * largest(p)};
    mf__feed feed = {.user = &f, .identity = p->identity, .want = want, .done = done};
    fetch_options net = p->net;
    net.tick = tick;
    net.user = p;
    MF__TRY(fetch_create(&net, &f.fetch, err));
    mf_status st = MF_OK;
    for (int i = 0; st == MF_OK && i < p->n_items; i++)
        if (p->items[i].weights) st = pull_add(p, f.fetch, &p->items[i], err);
    opt->feed = &feed;
    opt->progress = show;
    opt->progress_user = p;
    opt->restart = p->opt->restart;
    opt->log = app_log(false);
    if (st == MF_OK) st = mf__convert(source, p->dir, opt, err);
    fetch_free(f.fetch);
    return st;
}

mf_status pull_convert(pull *p, mf_error *err) {
    mf__convert_options opt;
    mf__outlook look;
    char *source = NULL, why[96], before[APP_BYTES_TEXT], after[APP_BYTES_TEXT];
    MF__TRY(source_of(p, &source, err));
    mf_status st = get_tables(p, source, err);
    if (st == MF_OK) st = make_plan(p, source, &opt, &look, why, err);
    if (st == MF_OK && p->opt->dry) st = convert_show_plan(source, &opt, why, err);
    if (st == MF_OK && !p->opt->dry) {
        app_note("%s: %s become %s (%s)", p->identity, app_bytes((double)look.before, before),
                 app_bytes((double)look.after, after), why);
        st = check_space(p, &look, err);
        if (st == MF_OK) st = convert(p, source, &opt, err);
    }
    free(source);
    return st;
}
