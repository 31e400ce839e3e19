/* Frozen states: the pages are shared, the recurrent state is copied, the tokens say what it is a state of. */
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"

static int32_t pages_for(int64_t n_tokens) {
    return (int32_t)((n_tokens + MF_KV_BLOCK - 1) / MF_KV_BLOCK);
}

void mf__frozen_free(mf_model *m, mf__frozen *f) {
    if (!f || --f->refs > 0) return;
    for (int32_t i = 0; i < f->n_pages; i++) mf__page_release(m, f->pages[i]);
    mf__model_release(m, m->recurrent_floats * (int64_t)sizeof(float), f->recurrent);
    free(f->pages);
    free(f->tokens);
    free(f);
}

void mf__frozen_drop(mf_model *m, mf__frozen *f) {
    if (!f) return;
    mf__model_lock(m);
    mf__frozen_free(m, f);
    mf__model_unlock(m);
}

static mf_status copy_recurrent(mf_session *s, mf__frozen *f, mf_error *err) {
    mf_model *m = s->model;
    int64_t bytes = m->recurrent_floats * (int64_t)sizeof(float);
    void *mem;
    if (!bytes || !s->length) return MF_OK;
    MF__TRY(mf__model_alloc(m, bytes, &mem, err));
    f->recurrent = mem;
    return m->be->copy(m->be, f->recurrent, s->recurrent[s->now], bytes, err);
}

mf_status mf__freeze(mf_session *s, mf__frozen **out, mf_error *err) {
    int32_t n_pages = pages_for(s->length);
    mf__frozen *f = calloc(1, sizeof *f);
    if (f) {
        f->refs = 1;
        f->tokens = malloc(((size_t)s->length + 1) * sizeof *f->tokens);
        f->pages = calloc((size_t)n_pages + 1, sizeof *f->pages);
    }
    if (!f || !f->tokens || !f->pages) {
        mf__frozen_free(s->model, f);
        return mf__fail(err, MF_E_NOMEM, "no memory to keep a state of %lld tokens", (long long)s->length);
    }
    f->length = s->length;
    memcpy(f->tokens, s->tokens, (size_t)s->length * sizeof *f->tokens);
    mf_status st = copy_recurrent(s, f, err);
    if (st != MF_OK) {
        mf__frozen_free(s->model, f);
        return st;
    }
    for (; f->n_pages < n_pages; f->n_pages++) {
        f->pages[f->n_pages] = s->pages[f->n_pages];
        f->pages[f->n_pages]->refs++;
    }
    *out = f;
    return MF_OK;
}

mf_status mf__thaw(mf_session *s, const mf__frozen *f, int64_t n, mf_error *err) {
    mf_model *m = s->model;
    int32_t n_pages = pages_for(n);
    if (n > s->opt.n_ctx)
        return mf__fail(err, MF_E_CONTEXT_FULL, "a state of %lld tokens does not fit in a context of %d", (long long)n,
                        s->opt.n_ctx);
    if (n != f->length && m->recurrent_floats)
        return mf__fail(err, MF_E_INTERNAL, "a recurrent state of %lld tokens cannot be cut to %lld",
                        (long long)f->length, (long long)n);
    if (f->recurrent)
        MF__TRY(
            m->be->copy(m->be, s->recurrent[!s->now], f->recurrent, m->recurrent_floats * (int64_t)sizeof(float), err));
    for (int32_t i = 0; i < n_pages; i++) f->pages[i]->refs++;
    for (int32_t i = 0; i < s->n_pages; i++) mf__page_release(m, s->pages[i]);
    s->n_pages = n_pages;
    for (int32_t i = 0; i < n_pages; i++) mf__session_set_page(s, i, f->pages[i]);
    memcpy(s->tokens, f->tokens, (size_t)n * sizeof *s->tokens);
    s->length = n;
    s->now = !s->now;
    return MF_OK;
}
