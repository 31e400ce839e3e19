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

mf__cpu_form mf__cpu_form_for(const mf__cpu_run *r, const mf__tensor *w) {
    if ((w->type != MF_TYPE_AFFINE && w->type != MF_TYPE_MXFP4) || r->exact) return (mf__cpu_form){0};
    return (mf__cpu_form){.group = w->group, .pairs = mf__cpu_pairs(w, r->k->lanes)};
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

#define MIN_GROUP 32
#define PACKED_BYTES (512 << 10)
#define LEAST_BATCH 32

static int64_t padded(int64_t cols) {
    return (cols + MF_CPU_PAD - 1) / MF_CPU_PAD * MF_CPU_PAD;
}

/* Scales and sums are read by whole vectors. */
static int64_t padded_groups(int64_t groups) {
    return (groups + MF_CPU_MAX_LANES - 1) / MF_CPU_MAX_LANES * MF_CPU_MAX_LANES;
}

int64_t mf__cpu_rows_bytes(int64_t n, int64_t cols) {
    return mf__cpu_round(n * (int64_t)sizeof(mf__cpu_vec)) + mf__cpu_round(MF_CPU_PLANES * n * padded(cols)) +
           mf__cpu_round(2 * n * padded_groups(cols / MIN_GROUP) * 4);
}

mf_status mf__cpu_take_rows(mf__cpu_run *r, int32_t n, int64_t cols, mf__cpu_form form, mf__cpu_rows *out,
                            mf_error *err) {
    *out = (mf__cpu_rows){.n = n, .cols = cols, .form = form};
    out->vecs = mf__cpu_take(&r->scratch, n * (int64_t)sizeof *out->vecs);
    if (!out->vecs) return no_scratch(r, err);
    memset(out->vecs, 0, (size_t)n * sizeof *out->vecs);
    if (!form.group) return MF_OK;
    int64_t groups = padded_groups(cols / form.group), bytes = padded(cols);
    int8_t *q = mf__cpu_take(&r->scratch, MF_CPU_PLANES * n * bytes);
    float *scale = mf__cpu_take(&r->scratch, 2 * n * groups * 4);
    if (!q || !scale) return no_scratch(r, err);
    for (int32_t t = 0; t < n; t++) {
        mf__cpu_vec *v = &out->vecs[t];
        for (int k = 0; k < MF_CPU_PLANES; k++) v->q[k] = q + (MF_CPU_PLANES * t + k) * bytes;
        v->scale = scale + 2 * t * groups;
        v->sum = v->scale + groups;
    }
    return MF_OK;
}

typedef struct quant_job {
    const mf__cpu_run *r;
    const mf__cpu_rows *rows;
} quant_job;

static void quant_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const quant_job *job = ctx;
    const mf__cpu_rows *rows = job->rows;
    (void)thread;
    for (int64_t t = begin; t < end; t++) job->r->k->quant_row(&rows->form, rows->cols, &rows->vecs[t]);
}

void mf__cpu_quant_rows(const mf__cpu_run *r, const mf__cpu_rows *rows) {
    quant_job job = {.r = r, .rows = rows};
    if (rows->form.group) mf__pool_run(rows->n * rows->cols < 16384 ? NULL : r->pool, quant_rows, &job, rows->n);
}

mf_status mf__cpu_prepare_rows(mf__cpu_run *r, const float *x, int32_t n, int64_t cols, mf__cpu_form form,
                               mf__cpu_rows *out, mf_error *err) {
    MF__TRY(mf__cpu_take_rows(r, n, cols, form, out, err));
    for (int32_t t = 0; t < n; t++) out->vecs[t].x = x + t * cols;
    mf__cpu_quant_rows(r, out);
    return MF_OK;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* Rows of f32 tiles are spread a little, so that a power of two does not put them all in the same cache sets. */
static int64_t tile_stride(int64_t cols) {
    return cols + 16;
}

/* Tokens of a batch, packed for tiles: as many as half of a second cache holds. */
static int64_t batch_tokens(int64_t cols) {
    int64_t fit = PACKED_BYTES / MF_CPU_PACKED_BYTES(cols, cols / MIN_GROUP);
    return fit < LEAST_BATCH ? LEAST_BATCH : fit < MF_CPU_BATCH ? fit : MF_CPU_BATCH;
}

/* Room for a batch of any matrix with at most so many columns: with fewer, more tokens fit. */
static int64_t packed_batch_bytes(int64_t cols) {
    int64_t token = MF_CPU_PACKED_BYTES(cols, cols / MIN_GROUP);
    int64_t most = token * MF_CPU_BATCH < PACKED_BYTES ? token * MF_CPU_BATCH : PACKED_BYTES;
    return token * LEAST_BATCH > most ? token * LEAST_BATCH : most;
}

static int64_t workspace_bytes(const mf__cpu_kernels *k, int64_t cols) {
    return mf__cpu_round(k->lanes * padded(cols)) + 2 * mf__cpu_round(cols / MIN_GROUP * k->lanes * 4) +
           mf__cpu_round(k->lanes * tile_stride(cols) * 4) + mf__cpu_round(packed_batch_bytes(cols)) +
           2 * mf__cpu_round(MF_CPU_BATCH * k->lanes * 4);
}

int64_t mf__cpu_workspaces_bytes(const mf__cpu_kernels *k, int threads, int64_t cols) {
    return mf__cpu_round(threads * (int64_t)sizeof(mf__cpu_workspace)) + threads * workspace_bytes(k, cols);
}

mf_status mf__cpu_take_workspaces(mf__cpu_run *r, int64_t cols, mf__cpu_workspace **out, mf_error *err) {
    int lanes = r->k->lanes, threads = mf__pool_threads(r->pool);
    *out = mf__cpu_take(&r->scratch, threads * (int64_t)sizeof **out);
    for (int t = 0; t < threads && *out; t++) {
        mf__cpu_workspace *ws = &(*out)[t];
        ws->tile = (mf__cpu_tile){.stride = tile_stride(cols)};
        ws->tile.codes = mf__cpu_take(&r->scratch, lanes * padded(cols));
        ws->tile.scales = mf__cpu_take(&r->scratch, cols / MIN_GROUP * lanes * 4);
        ws->tile.biases = mf__cpu_take(&r->scratch, cols / MIN_GROUP * lanes * 4);
        ws->tile.w = mf__cpu_take(&r->scratch, lanes * ws->tile.stride * 4);
        ws->packed = mf__cpu_take(&r->scratch, packed_batch_bytes(cols));
        for (int k = 0; k < 2; k++) ws->out[k] = mf__cpu_take(&r->scratch, MF_CPU_BATCH * lanes * 4);
        if (!ws->out[1]) *out = NULL; /* the last one: it is missing if any is */
    }
    return *out ? MF_OK : no_scratch(r, err);
}

/* Whether products decode tiles: faster from some tokens on, and the same bits. */
static bool tiled(const mf__cpu_batch *x) {
    return x->all > MF_CPU_FEW;
}

mf__cpu_batch mf__cpu_batch_at(const mf__cpu_run *r, const mf__tensor *w, mf__cpu_form form, const mf__cpu_vec *x,
                               int64_t at, int64_t all, mf__cpu_workspace *ws) {
    int64_t most = batch_tokens(w->n_cols), left = all - at, batches = (left + most - 1) / most;
    int64_t n = (left + batches - 1) / batches;
    mf__cpu_batch batch = {.x = x + at, .n = (int)n, .all = all, .form = form};
    if (form.group && tiled(&batch)) r->k->pack_int8(w, batch.x, batch.n, ws->packed);
    return batch;
}

/* Into *out and not by value: a copy of what was just written, read in wider parts, waits for all stores before it, and
 * those are results on their way to memory. */
void mf__cpu_block_at(const mf__cpu_run *r, const mf__tensor *w, int64_t begin, int64_t end, const mf__cpu_batch *x,
                      mf__cpu_block *out) {
    int64_t most = x->form.group && !tiled(x) ? MF_CPU_BATCH / x->n : 1;
    int n_blocks = (int)(most < end - begin ? most : end - begin), n_rows = n_blocks * r->k->lanes;
    int64_t row = begin * r->k->lanes, left = w->n_rows - row;
    out->w = w;
    out->row = row;
    out->n_rows = left < n_rows ? (int)left : n_rows;
    out->n_blocks = n_blocks;
    out->ld = n_rows;
}

void mf__cpu_multiply(const mf__cpu_run *r, const mf__cpu_block *b, const mf__cpu_batch *x, mf__cpu_workspace *ws,
                      int k) {
    float *out = ws->out[k];
    if (!x->form.group) {
        if (!tiled(x) && r->k->rows_f32(b->w, b->row, b->n_rows, x->x, x->n, out)) return;
        ws->tile.cols = b->w->n_cols;
        for (int i = 0; i < b->n_rows; i++) r->k->decode_row(b->w, b->row + i, ws->tile.w + i * ws->tile.stride);
        r->k->many_f32(&ws->tile, b->n_rows, x->x, x->n, out);
    } else if (tiled(x)) {
        r->k->tile_int8(b->w, b->row, b->n_rows, &ws->tile);
        r->k->many_int8(&ws->tile, ws->packed, x->n, out);
    } else {
        for (int j = 0, few = MF_CPU_FEW; j < x->n; j += few)
            r->k->rows_int8(b->w, b->row, b->n_rows, x->x + j, x->n - j < few ? x->n - j : few,
                            out + (int64_t)j * b->ld, b->ld);
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
