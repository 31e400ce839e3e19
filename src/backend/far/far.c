/* The far backend: notes what it is told, and does it when it must. */
#include "backend/far/far.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAR_BYTES ((int64_t)1 << 30)

typedef struct far_backend {
    mf__backend base;
    mf__backend *inner;   /* does the work */
    pthread_mutex_t lock; /* fill, alloc and release come from any thread */
    mf__far_memory mem;
    mf__far_command *first, *last;
    mf_error failed; /* what went wrong on the way, for who waits next */
} far_backend;

/* ---- doing ------------------------------------------------------------------------------------------------------ */

static mf_status perform(far_backend *far, const mf__far_command *c, mf_error *err) {
    mf__fence fence;
    switch (c->what) {
    case MF_FAR_UPLOAD:
    case MF_FAR_COPY: memcpy(c->to, c->from, (size_t)c->bytes); return MF_OK;
    case MF_FAR_ZERO: memset(c->to, 0, (size_t)c->bytes); return MF_OK;
    case MF_FAR_RUNS:
        far->inner->watch = far->base.watch;
        MF__TRY(far->inner->submit(far->inner, c->runs, c->n_runs, &fence, err));
        return far->inner->wait(far->inner, fence, err);
    }
    return MF_OK;
}

/* All that was noted, in order. After a failure the rest is dropped. The lock is held. */
static mf_status drain(far_backend *far, mf_error *err) {
    mf_status st = MF_OK;
    if (!far->first) return MF_OK;
    MF__TRY(mf__far_memory_open(&far->mem, err));
    while (far->first) {
        mf__far_command *c = far->first;
        far->first = c->next;
        if (st == MF_OK) st = perform(far, c, err);
        mf__far_command_free(c);
    }
    far->last = NULL;
    mf__far_memory_shut(&far->mem);
    return st;
}

static mf_status note(far_backend *far, mf__far_command *c) {
    if (far->last)
        far->last->next = c;
    else
        far->first = c;
    far->last = c;
    return MF_OK;
}

/* ---- the vtable ------------------------------------------------------------------------------------------------- */

static void far_free(mf__backend *be) {
    far_backend *far = (far_backend *)be;
    if (!far) return;
    for (mf__far_command *c = far->first; c;) {
        mf__far_command *next = c->next;
        mf__far_command_free(c);
        c = next;
    }
    if (far->inner) far->inner->free(far->inner);
    mf__far_memory_deinit(&far->mem);
    pthread_mutex_destroy(&far->lock);
    free(far);
}

static mf_status far_alloc(mf__backend *be, int64_t bytes, void **out, mf_error *err) {
    far_backend *far = (far_backend *)be;
    pthread_mutex_lock(&far->lock);
    mf_status st = mf__far_memory_alloc(&far->mem, bytes, out, err);
    pthread_mutex_unlock(&far->lock);
    return st;
}

static void far_release(mf__backend *be, void *mem) {
    far_backend *far = (far_backend *)be;
    pthread_mutex_lock(&far->lock);
    mf_error why;
    if (drain(far, &why) != MF_OK) far->failed = why; /* whoever waits next is told */
    mf__far_memory_free(&far->mem, mem);
    pthread_mutex_unlock(&far->lock);
}

static mf_status far_move(mf__backend *be, mf__far_what what, void *to, const void *from, int64_t bytes,
                          mf_error *err) {
    far_backend *far = (far_backend *)be;
    mf__far_command *c;
    if (!bytes) return MF_OK;
    MF__TRY(mf__far_command_create(what, &c, err));
    c->to = to;
    c->from = from;
    c->bytes = bytes;
    if (what == MF_FAR_UPLOAD) {
        void *kept = mf__arena_alloc(&c->arena, (size_t)bytes);
        if (!kept) {
            mf__far_command_free(c);
            return mf__fail(err, MF_E_NOMEM, "no memory for an upload of %lld bytes", (long long)bytes);
        }
        memcpy(kept, from, (size_t)bytes);
        c->from = kept;
    }
    pthread_mutex_lock(&far->lock);
    mf_status st = note(far, c);
    pthread_mutex_unlock(&far->lock);
    return st;
}

static mf_status far_upload(mf__backend *be, void *to, const void *from, int64_t bytes, mf_error *err) {
    return far_move(be, MF_FAR_UPLOAD, to, from, bytes, err);
}

static mf_status far_copy(mf__backend *be, void *to, const void *from, int64_t bytes, mf_error *err) {
    return far_move(be, MF_FAR_COPY, to, from, bytes, err);
}

static mf_status far_zero(mf__backend *be, void *to, int64_t bytes, mf_error *err) {
    return far_move(be, MF_FAR_ZERO, to, NULL, bytes, err);
}

/* The lock is held. */
static mf_status catch_up(far_backend *far, mf_error *err) {
    mf_status st = drain(far, err);
    if (st == MF_OK && far->failed.status != MF_OK) st = mf__fail(err, far->failed.status, "%s", far->failed.text);
    far->failed = (mf_error){0};
    return st;
}

static mf_status far_download(mf__backend *be, void *to, const void *from, int64_t bytes, mf_error *err) {
    far_backend *far = (far_backend *)be;
    pthread_mutex_lock(&far->lock);
    mf_status st = catch_up(far, err);
    if (st == MF_OK) st = mf__far_memory_open(&far->mem, err);
    if (st == MF_OK) {
        if (bytes) memcpy(to, from, (size_t)bytes);
        mf__far_memory_shut(&far->mem);
    }
    pthread_mutex_unlock(&far->lock);
    return st;
}

static mf_status far_fill(mf__backend *be, void *to, const void *from, int64_t bytes, mf_error *err) {
    far_backend *far = (far_backend *)be;
    pthread_mutex_lock(&far->lock);
    mf_status st = mf__far_memory_open(&far->mem, err);
    if (st == MF_OK) {
        memcpy(to, from, (size_t)bytes);
        mf__far_memory_shut(&far->mem);
    }
    pthread_mutex_unlock(&far->lock);
    return st;
}

/* Experts are also read where the host has them. */
static mf_status far_host_alloc(mf__backend *be, int64_t bytes, void **out, mf_error *err) {
    (void)be;
    *out = malloc((size_t)bytes);
    return *out ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for %lld bytes of experts", (long long)bytes);
}

static void far_host_release(mf__backend *be, void *mem) {
    (void)be;
    free(mem);
}

static bool far_reads_host(mf__backend *be) {
    (void)be;
    return true;
}

/* One part of a tensor, if it has it. */
static mf_status adopt_part(mf__backend *be, const void *host, int64_t bytes, const void **out, mf_error *err) {
    void *mem;
    *out = NULL;
    if (!host || !bytes) return MF_OK;
    MF__TRY(far_alloc(be, bytes, &mem, err));
    *out = mem;
    return far_fill(be, mem, host, bytes, err);
}

static mf_status far_adopt(mf__backend *be, const mf__tensor *host, mf__tensor *out, mf_error *err) {
    int64_t rows = host->n_planes * host->n_rows;
    *out = *host;
    MF__TRY(adopt_part(be, host->data, rows * mf__tensor_row_bytes(host), &out->data, err));
    MF__TRY(adopt_part(be, host->scales, host->n_planes * mf__tensor_scale_rows(host) * mf__tensor_scale_bytes(host),
                       &out->scales, err));
    return adopt_part(be, host->biases, rows * mf__tensor_bias_bytes(host), &out->biases, err);
}

static bool far_supports(const mf__backend *be, const mf__op *op) {
    const mf__backend *inner = ((const far_backend *)be)->inner;
    return inner->supports(inner, op);
}

static int64_t far_scratch(const mf__backend *be, const mf__graph *g, int32_t n_rows) {
    const mf__backend *inner = ((const far_backend *)be)->inner;
    return inner->scratch(inner, g, n_rows);
}

static mf_status far_reserve(mf__backend *be, int64_t bytes, mf_error *err) {
    far_backend *far = (far_backend *)be;
    pthread_mutex_lock(&far->lock);
    mf_status st = drain(far, err);
    if (st == MF_OK) st = far->inner->reserve(far->inner, bytes, err);
    pthread_mutex_unlock(&far->lock);
    return st;
}

static mf_status far_submit(mf__backend *be, const mf__run *runs, int n_runs, mf__fence *out, mf_error *err) {
    far_backend *far = (far_backend *)be;
    mf__far_command *c;
    *out = 0;
    MF__TRY(mf__far_command_create(MF_FAR_RUNS, &c, err));
    mf_status st = mf__far_command_runs(c, runs, n_runs, err);
    if (st != MF_OK) {
        mf__far_command_free(c);
        return st;
    }
    pthread_mutex_lock(&far->lock);
    st = note(far, c);
    pthread_mutex_unlock(&far->lock);
    return st;
}

static mf_status far_wait(mf__backend *be, mf__fence fence, mf_error *err) {
    far_backend *far = (far_backend *)be;
    (void)fence;
    pthread_mutex_lock(&far->lock);
    mf_status st = catch_up(far, err);
    pthread_mutex_unlock(&far->lock);
    return st;
}

static mf_status far_create(const mf__backend_config *config, mf__backend **out, mf_error *err) {
    const mf__backend_kind *inner = mf__backend_find("ref");
    *out = NULL;
    far_backend *far = calloc(1, sizeof *far);
    if (!far) return mf__fail(err, MF_E_NOMEM, "no memory for the far backend");
    pthread_mutex_init(&far->lock, NULL);
    mf_status st = mf__far_memory_init(&far->mem, FAR_BYTES, err);
    if (st == MF_OK) st = inner->create(config, &far->inner, err);
    if (st != MF_OK) {
        far_free(&far->base);
        return st;
    }
    far->base = (mf__backend){.name = "far",
                              .numerics = far->inner->numerics,
                              .memory_bytes = FAR_BYTES,
                              .free = far_free,
                              .alloc = far_alloc,
                              .release = far_release,
                              .upload = far_upload,
                              .download = far_download,
                              .zero = far_zero,
                              .copy = far_copy,
                              .fill = far_fill,
                              .host_alloc = far_host_alloc,
                              .host_release = far_host_release,
                              .reads_host = far_reads_host,
                              .adopt = far_adopt,
                              .supports = far_supports,
                              .scratch = far_scratch,
                              .reserve = far_reserve,
                              .submit = far_submit,
                              .wait = far_wait};
    *out = &far->base;
    return MF_OK;
}

static bool far_available(char *why, size_t size) {
    snprintf(why, size, "memory that nobody else can read");
    return true;
}

const mf__backend_kind mf__backend_kind_far = {.name = "far",
                                               .summary = "ref in memory of its own, as late as it may be: for tests",
                                               .reference = true,
                                               .available = far_available,
                                               .create = far_create};
