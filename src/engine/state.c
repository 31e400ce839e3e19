/* The public state calls: saving, loading, forking, truncating, checkpoints. */
#include <stdlib.h>
#include <string.h>

#include "engine/snapshot.h"

/* The session's state as a frozen one, without copying: valid until the session changes. */
static mf__frozen view_of(const mf_session *s) {
    return (mf__frozen){.length = s->length,
                        .tokens = s->tokens,
                        .n_pages = (int32_t)((s->length + MF_KV_BLOCK - 1) / MF_KV_BLOCK),
                        .pages = s->pages,
                        .recurrent = s->length ? s->recurrent[s->now] : NULL};
}

mf_status mf_state_size(mf_session *s, size_t *out, mf_error *err) {
    if (!s || !out) return mf__fail(err, MF_E_INVALID, "mf_state_size: an argument is NULL");
    MF__TRY(mf__model_fingerprint(s->model, err));
    *out = (size_t)mf__snapshot_bytes(s->model->shape, 0, s->length);
    return MF_OK;
}

static mf_status write_to_memory(void *sink, const void *data, size_t size, mf_error *err) {
    uint8_t **at = sink;
    (void)err;
    memcpy(*at, data, size);
    *at += size;
    return MF_OK;
}

mf_status mf_state_save(mf_session *s, void *buf, size_t size, size_t *written, mf_error *err) {
    size_t need = 0;
    if (written) *written = 0;
    if (!s || !buf) return mf__fail(err, MF_E_INVALID, "mf_state_save: an argument is NULL");
    MF__TRY(mf_state_size(s, &need, err));
    if (size < need) return mf__fail(err, MF_E_INVALID, "the buffer has %zu bytes, the state needs %zu", size, need);
    mf__frozen view = view_of(s);
    uint8_t *at = buf;
    MF__TRY(mf__snapshot_write(s->model, &view, 0, 0, write_to_memory, &at, err));
    if (written) *written = need;
    return MF_OK;
}

static mf_status produce_state(void *user, mf__write_fn *write, void *sink, mf_error *err) {
    mf_session *s = user;
    mf__frozen view = view_of(s);
    return mf__snapshot_write(s->model, &view, 0, 0, write, sink, err);
}

mf_status mf_state_save_file(mf_session *s, const char *path, mf_error *err) {
    if (!s || !path) return mf__fail(err, MF_E_INVALID, "mf_state_save_file: an argument is NULL");
    MF__TRY(mf__model_fingerprint(s->model, err));
    return mf__file_replace_by(path, produce_state, s, err);
}

static mf_status load(mf_session *s, const mf__snapshot_source *src, mf_error *err) {
    mf__frozen *f = NULL;
    MF__TRY(mf__model_fingerprint(s->model, err));
    MF__TRY(mf__snapshot_read(s->model, src, NULL, true, &f, err));
    mf__model_lock(s->model);
    mf_status st = mf__thaw(s, f, f->length, err);
    mf__frozen_free(s->model, f);
    mf__model_unlock(s->model);
    return st;
}

mf_status mf_state_load(mf_session *s, const void *buf, size_t size, mf_error *err) {
    if (!s || !buf) return mf__fail(err, MF_E_INVALID, "mf_state_load: an argument is NULL");
    if (size > PTRDIFF_MAX) return mf__fail(err, MF_E_INVALID, "mf_state_load: no state has %zu bytes", size);
    return load(s, &(mf__snapshot_source){.map = {buf, size}}, err);
}

mf_status mf_state_load_file(mf_session *s, const char *path, mf_error *err) {
    mf__snapshot_source src = {.mapped = true};
    if (!s || !path) return mf__fail(err, MF_E_INVALID, "mf_state_load_file: an argument is NULL");
    MF__TRY(mf__map_open(path, &src.map, err));
    mf_status st = load(s, &src, err);
    mf__map_close(&src.map);
    return st == MF_OK ? MF_OK : mf__fail_prefix(err, st, "%s", path);
}

mf_status mf_session_fork(mf_session *s, mf_session **out, mf_error *err) {
    if (out) *out = NULL;
    if (!s || !out) return mf__fail(err, MF_E_INVALID, "mf_session_fork: an argument is NULL");
    mf_session *child;
    MF__TRY(mf_session_create(s->model, &s->opt, &child, err));
    mf__model_lock(s->model);
    mf__frozen view = view_of(s);
    mf_status st = mf__thaw(child, &view, s->length, err);
    mf__model_unlock(s->model);
    if (st != MF_OK) {
        mf_session_free(child);
        return st;
    }
    *out = child;
    return MF_OK;
}

const int32_t *mf_memory_tokens(const mf_session *s) {
    return s ? s->tokens : NULL;
}

/* ---- checkpoints ----------------------------------------------------------------------------------------------- */

static int find(const mf_session *s, int64_t pos) {
    for (int i = 0; i < s->n_checkpoints; i++)
        if (s->checkpoints[i]->length == pos) return i;
    return -1;
}

/* The list is in order of saving: the oldest first. */
static void drop(mf_session *s, int i) {
    mf__frozen_free(s->model, s->checkpoints[i]);
    s->n_checkpoints--;
    memmove(&s->checkpoints[i], &s->checkpoints[i + 1], (size_t)(s->n_checkpoints - i) * sizeof s->checkpoints[0]);
}

void mf__checkpoints_drop_all(mf_session *s) {
    while (s->n_checkpoints) drop(s, s->n_checkpoints - 1);
}

/* Down to the cap, the oldest first, but never position 0 and never the newest. */
static void evict(mf_session *s) {
    for (int i = 0; s->n_checkpoints > s->max_checkpoints && i + 1 < s->n_checkpoints;) {
        if (s->checkpoints[i]->length == 0)
            i++;
        else
            drop(s, i);
    }
}

static mf_status save(mf_session *s, mf_error *err) {
    mf__frozen *f;
    mf__frozen **grown = realloc(s->checkpoints, ((size_t)s->n_checkpoints + 1) * sizeof *grown);
    if (!grown) return mf__fail(err, MF_E_NOMEM, "no memory for a checkpoint");
    s->checkpoints = grown;
    MF__TRY(mf__freeze(s, &f, err));
    int same = find(s, s->length);
    if (same >= 0) drop(s, same);
    s->checkpoints[s->n_checkpoints++] = f;
    evict(s);
    return MF_OK;
}

mf_status mf_checkpoint_save(mf_session *s, mf_error *err) {
    if (!s) return mf__fail(err, MF_E_INVALID, "mf_checkpoint_save: session is NULL");
    mf__model_lock(s->model);
    mf_status st = save(s, err);
    mf__model_unlock(s->model);
    return st;
}

static mf_status restore(mf_session *s, int64_t pos, mf_error *err) {
    int i = find(s, pos);
    if (i < 0) return mf__fail(err, MF_E_NOT_FOUND, "there is no checkpoint at position %lld", (long long)pos);
    MF__TRY(mf__thaw(s, s->checkpoints[i], pos, err));
    for (int k = s->n_checkpoints - 1; k >= 0; k--)
        if (s->checkpoints[k]->length > pos) drop(s, k);
    return MF_OK;
}

mf_status mf_checkpoint_restore(mf_session *s, int64_t pos, mf_error *err) {
    if (!s) return mf__fail(err, MF_E_INVALID, "mf_checkpoint_restore: session is NULL");
    mf__model_lock(s->model);
    mf_status st = restore(s, pos, err);
    mf__model_unlock(s->model);
    return st;
}

void mf_checkpoint_forget(mf_session *s, int64_t pos) {
    if (!s) return;
    mf__model_lock(s->model);
    int i = find(s, pos);
    if (i >= 0) drop(s, i);
    mf__model_unlock(s->model);
}

void mf_checkpoint_set_max(mf_session *s, int max) {
    if (s) s->max_checkpoints = max < 1 ? 1 : max;
}

int mf_checkpoint_count(const mf_session *s) {
    return s ? s->n_checkpoints : 0;
}

/* ---- truncation ------------------------------------------------------------------------------------------------ */

/* The longest checkpoint that the first n tokens of the session begin with. */
static const mf__frozen *nearest(const mf_session *s, int64_t n) {
    const mf__frozen *best = NULL;
    for (int i = 0; i < s->n_checkpoints; i++) {
        const mf__frozen *f = s->checkpoints[i];
        if (f->length <= n && (!best || f->length > best->length) &&
            !memcmp(f->tokens, s->tokens, (size_t)f->length * sizeof *f->tokens))
            best = f;
    }
    return best;
}

static mf_status truncate_to(mf_session *s, int64_t n, int64_t *n_again, mf_error *err) {
    if (n == 0 || !s->model->recurrent_floats) {
        s->length = n; /* pages beyond stay for reuse; make_room copies those that others hold too */
        return MF_OK;
    }
    const mf__frozen *f = nearest(s, n);
    if (!f)
        return mf__fail(err, MF_E_RECURRENT,
                        "the recurrent state of %lld tokens cannot be cut to %lld, and no checkpoint lies at or before "
                        "that; clear the session and evaluate again",
                        (long long)s->length, (long long)n);
    int64_t length = f->length;
    MF__TRY(mf__thaw(s, f, length, err));
    *n_again = n - length;
    return MF_OK;
}

mf_status mf_memory_seq_rm(mf_session *s, int64_t p0, int64_t p1, int64_t *n_again, mf_error *err) {
    if (n_again) *n_again = 0;
    if (!s || !n_again) return mf__fail(err, MF_E_INVALID, "mf_memory_seq_rm: an argument is NULL");
    if (p0 < 0) p0 = 0;
    if (p1 < 0 || p1 > s->length) p1 = s->length;
    if (p0 >= p1) return MF_OK;
    if (p1 < s->length)
        return mf__fail(err, MF_E_INVALID,
                        "positions %lld to %lld of %lld are in the middle; only a tail can be removed", (long long)p0,
                        (long long)p1, (long long)s->length);
    mf__model_lock(s->model);
    mf_status st = truncate_to(s, p0, n_again, err);
    mf__model_unlock(s->model);
    return st;
}
