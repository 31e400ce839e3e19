/* What matrix products share: activations in the form kernels read, tiles of weights, and sharing out blocks. */
#include <string.h>

#include "backend/cpu/cpu.h"

void *mf__cpu_take(mf__cpu_bump *bump, int64_t bytes) {
    bytes = mf__cpu_round(bytes);
    if (!bump->at || bytes > bump->left) return NULL;
    void *mem = bump->at;
    bump->at += bytes;
    bump->left -= bytes;
    return mem;
}

static mf_status no_scratch(const mf__cpu_run *r, mf_error *err) {
    return mf__fail(err, MF_E_INTERNAL, "op %s of graph %s needs scratch that was not reserved", r->op->label,
                    r->g->name);
}

int mf__cpu_form(const mf__cpu_run *r, const mf__tensor *w) {
    return w->type == MF_TYPE_AFFINE && !r->exact ? w->group : 0;
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

#define MIN_GROUP 32

static int64_t padded(int64_t cols) {
    return (cols + MF_CPU_PAD - 1) / MF_CPU_PAD * MF_CPU_PAD;
}

int64_t mf__cpu_rows_bytes(int64_t n, int64_t cols) {
    return mf__cpu_round(n * (int64_t)sizeof(mf__cpu_vec)) + mf__cpu_round(n * padded(cols)) +
           2 * mf__cpu_round(n * (cols / MIN_GROUP) * 4);
}

typedef struct quant_job {
    const mf__cpu_run *r;
    mf__cpu_rows *rows;
    const float *x;
    int8_t *q;
    float *scale, *sum;
} quant_job;

static void quant_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const quant_job *job = ctx;
    const mf__cpu_rows *rows = job->rows;
    int64_t groups = rows->cols / rows->group;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        mf__cpu_vec *v = &rows->vecs[t];
        int8_t *q = job->q + t * padded(rows->cols);
        float *scale = job->scale + t * groups, *sum = job->sum + t * groups;
        job->r->k->quant_row(job->x + t * rows->cols, rows->cols, rows->group, q, scale, sum);
        v->q = q, v->scale = scale, v->sum = sum;
    }
}

mf_status mf__cpu_prepare_rows(mf__cpu_run *r, const float *x, int32_t n, int64_t cols, int group, mf__cpu_rows *out,
                               mf_error *err) {
    *out = (mf__cpu_rows){.n = n, .cols = cols, .group = group};
    out->vecs = mf__cpu_take(&r->scratch, n * (int64_t)sizeof *out->vecs);
    if (!out->vecs) return no_scratch(r, err);
    for (int32_t t = 0; t < n; t++) out->vecs[t] = (mf__cpu_vec){.x = x + t * cols};
    if (!group) return MF_OK;
    quant_job job = {.r = r, .rows = out, .x = x};
    job.q = mf__cpu_take(&r->scratch, n * padded(cols));
    job.scale = mf__cpu_take(&r->scratch, n * (cols / group) * 4);
    job.sum = mf__cpu_take(&r->scratch, n * (cols / group) * 4);
    if (!job.q || !job.scale || !job.sum) return no_scratch(r, err);
    mf__pool_run(n * cols < 16384 ? NULL : r->pool, quant_rows, &job, n);
    return MF_OK;
}

int64_t mf__cpu_panel_bytes(const mf__cpu_kernels *k, int64_t cols) {
    return mf__cpu_round(cols * k->lanes * 4) + mf__cpu_round(cols * k->lanes) +
           2 * mf__cpu_round(cols / MIN_GROUP * k->lanes * 4);
}

mf_status mf__cpu_take_panel(mf__cpu_run *r, int64_t cols, int group, bool also_x, mf__cpu_panel *out, mf_error *err) {
    int lanes = r->k->lanes;
    *out = (mf__cpu_panel){0};
    if (!group || also_x) {
        out->x = mf__cpu_take(&r->scratch, cols * lanes * 4);
        if (!out->x) return no_scratch(r, err);
    }
    if (group) {
        out->q = mf__cpu_take(&r->scratch, cols * lanes);
        out->scale = mf__cpu_take(&r->scratch, cols / group * lanes * 4);
        out->sum = mf__cpu_take(&r->scratch, cols / group * lanes * 4);
        if (!out->q || !out->scale || !out->sum) return no_scratch(r, err);
    }
    return MF_OK;
}

int32_t mf__cpu_next_batch(const mf__cpu_kernels *k, int32_t n_left, bool *is_panel) {
    *is_panel = n_left > MF_CPU_FEW;
    return n_left < k->lanes ? n_left : *is_panel ? k->lanes : n_left;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* Rows of f32 tiles are spread a little, so that a power of two does not put them all in the same cache sets. */
static int64_t tile_stride(int64_t cols) {
    return cols + 16;
}

int64_t mf__cpu_workspace_bytes(const mf__cpu_kernels *k, int64_t cols) {
    return mf__cpu_round(k->tile_rows * cols) + 2 * mf__cpu_round(cols / MIN_GROUP * k->tile_rows * 4) +
           mf__cpu_round(k->tile_rows * tile_stride(cols) * 4) + mf__cpu_round(k->tile_rows * k->lanes * 4);
}

mf_status mf__cpu_take_workspaces(mf__cpu_run *r, int64_t cols, mf__cpu_workspace *out, mf_error *err) {
    int rows = r->k->tile_rows;
    for (int t = 0; t < mf__pool_threads(r->pool); t++) {
        mf__cpu_tile *tile = &out[t].tile;
        *tile = (mf__cpu_tile){.stride = tile_stride(cols)};
        tile->codes = mf__cpu_take(&r->scratch, rows * cols);
        tile->scales = mf__cpu_take(&r->scratch, cols / MIN_GROUP * rows * 4);
        tile->biases = mf__cpu_take(&r->scratch, cols / MIN_GROUP * rows * 4);
        tile->w = mf__cpu_take(&r->scratch, rows * tile->stride * 4);
        out[t].out = mf__cpu_take(&r->scratch, rows * r->k->lanes * 4);
        if (!tile->codes || !tile->scales || !tile->biases || !tile->w || !out[t].out) return no_scratch(r, err);
    }
    return MF_OK;
}

void mf__cpu_load_tile(const mf__cpu_run *r, const mf__tensor *w, int64_t row, int n, int group, mf__cpu_tile *tile) {
    if (group) {
        r->k->tile_int8(w, row, n, tile);
        return;
    }
    tile->cols = w->n_cols;
    for (int i = 0; i < n; i++) r->k->decode_row(w, row + i, tile->w + i * tile->stride);
}

void mf__cpu_multiply(const mf__cpu_run *r, const mf__tensor *w, int64_t row, int n, int group, mf__cpu_workspace *ws,
                      const mf__cpu_batch *x) {
    int tile_rows = r->k->tile_rows;
    if (x->is_panel && group) {
        r->k->panel_int8(&ws->tile, &x->panel, ws->out);
    } else if (x->is_panel) {
        r->k->panel_f32(ws->tile.w, ws->tile.stride, w->n_cols, x->panel.x, ws->out);
    } else if (group) {
        r->k->rows_int8(w, row, n, x->vecs, x->n, ws->out, tile_rows);
    } else {
        float sums[MF_CPU_FEW];
        for (int i = 0; i < n; i++) {
            r->k->decode_row(w, row + i, ws->tile.w);
            r->k->dots_f32(ws->tile.w, x->vecs, x->n, w->n_cols, sums);
            for (int j = 0; j < x->n; j++) ws->out[j * tile_rows + i] = sums[j];
        }
    }
}

/* ---- sharing out ------------------------------------------------------------------------------------------------- */

typedef struct share {
    const mf__cpu_job *jobs;
    int n_jobs, n_threads;
    int64_t total;
    mf__cpu_job_fn *fn;
    void *ctx;
} share;

static int64_t clamp(int64_t v, int64_t lo, int64_t hi) {
    return v < lo ? lo : v > hi ? hi : v;
}

static void share_piece(void *ctx, int64_t begin, int64_t end, int thread) {
    const share *s = ctx;
    (void)thread;
    for (int64_t piece = begin; piece < end; piece++) {
        int64_t from = s->total * piece / s->n_threads, to = s->total * (piece + 1) / s->n_threads, at = 0;
        for (int j = 0; j < s->n_jobs && at < to; j++) {
            const mf__cpu_job *job = &s->jobs[j];
            int64_t first = clamp((from - at + job->cost - 1) / job->cost, 0, job->n_blocks);
            int64_t last = clamp((to - at + job->cost - 1) / job->cost, 0, job->n_blocks);
            if (from <= at) first = 0;
            if (first < last) s->fn(s->ctx, j, first, last, (int)piece);
            at += job->n_blocks * job->cost;
        }
    }
}

void mf__cpu_share(mf__pool *pool, const mf__cpu_job *jobs, int n_jobs, mf__cpu_job_fn *fn, void *ctx) {
    share s = {.jobs = jobs, .n_jobs = n_jobs, .n_threads = mf__pool_threads(pool), .fn = fn, .ctx = ctx};
    for (int j = 0; j < n_jobs; j++) s.total += jobs[j].n_blocks * jobs[j].cost;
    mf__pool_run(pool, share_piece, &s, s.n_threads);
}
