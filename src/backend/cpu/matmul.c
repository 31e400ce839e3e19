/* y = W x (+ bias). Products of the same input that follow one another are one region: their rows are shared out
 * together. */
#include "backend/cpu/cpu.h"

/* Forms that one input may be needed in: f32, and one per group size. */
#define MAX_FORMS 4

typedef struct product {
    const mf__tensor *w;
    const float *bias;
    float *y;
    int form;
} product;

typedef struct form {
    int group;
    mf__cpu_rows rows;
    mf__cpu_batch *batches;
} form;

typedef struct matmul {
    mf__cpu_run *r;
    int n_batches, n_forms;
    form forms[MAX_FORMS];
    product products[MF_MAX_OPS];
    mf__cpu_workspace *workspaces;
} matmul;

static int count_batches(const mf__cpu_kernels *k, int32_t n) {
    int count = 0;
    for (bool is_panel; n > 0; count++) n -= mf__cpu_next_batch(k, n, &is_panel);
    return count;
}

int64_t mf__cpu_matmul_scratch(const mf__cpu_kernels *k, int threads, const mf__graph *g, const mf__op *op, int32_t n) {
    int64_t cols = g->bufs[op->in[0]].cols, batches = count_batches(k, n);
    int64_t one = mf__cpu_rows_bytes(n, cols) + mf__cpu_round(batches * (int64_t)sizeof(mf__cpu_batch));
    if (n > MF_CPU_FEW) one += batches * mf__cpu_panel_bytes(k, cols);
    return MAX_FORMS * one + mf__cpu_round(threads * (int64_t)sizeof(mf__cpu_workspace)) +
           threads * mf__cpu_workspace_bytes(k, cols);
}

/* ---- activations ------------------------------------------------------------------------------------------------- */

typedef struct packing {
    const mf__cpu_run *r;
    form *f;
} packing;

static void pack_batches(void *ctx, int64_t begin, int64_t end, int thread) {
    const packing *job = ctx;
    const mf__cpu_kernels *k = job->r->k;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        mf__cpu_batch *b = &job->f->batches[i];
        const mf__cpu_vec *vecs = job->f->rows.vecs + b->first;
        if (!b->is_panel)
            for (int32_t j = 0; j < b->n; j++) b->vecs[j] = vecs[j];
        else if (job->f->group)
            k->pack_int8(vecs, b->n, job->f->rows.cols, job->f->group, &b->panel);
        else
            k->pack_f32(vecs, b->n, job->f->rows.cols, b->panel.x);
    }
}

static mf_status prepare_form(matmul *m, const float *x, int64_t cols, form *f, mf_error *err) {
    mf__cpu_run *r = m->r;
    int32_t n = r->b->n_rows;
    MF__TRY(mf__cpu_prepare_rows(r, x, n, cols, f->group, &f->rows, err));
    f->batches = mf__cpu_take(&r->scratch, m->n_batches * (int64_t)sizeof *f->batches);
    if (!f->batches) return mf__fail(err, MF_E_INTERNAL, "no scratch for %d batches", m->n_batches);
    int32_t done = 0;
    for (int i = 0; i < m->n_batches; i++) {
        mf__cpu_batch *b = &f->batches[i];
        *b = (mf__cpu_batch){.first = done};
        b->n = mf__cpu_next_batch(r->k, n - done, &b->is_panel);
        done += b->n;
        if (b->is_panel) MF__TRY(mf__cpu_take_panel(r, cols, f->group, false, &b->panel, err));
    }
    packing job = {.r = r, .f = f};
    mf__pool_run(n > MF_CPU_FEW ? r->pool : NULL, pack_batches, &job, m->n_batches);
    return MF_OK;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static void store(const mf__cpu_run *r, const product *p, const mf__cpu_batch *b, int64_t row, int n,
                  const float *out) {
    float *y[MF_CPU_MAX_LANES];
    for (int32_t j = 0; j < b->n; j++) y[j] = p->y + (b->first + j) * p->w->n_rows + row;
    if (b->is_panel)
        r->k->unpack(out, n, b->n, y);
    else
        for (int32_t j = 0; j < b->n; j++)
            for (int i = 0; i < n; i++) y[j][i] = out[j * r->k->tile_rows + i];
    if (p->bias)
        for (int32_t j = 0; j < b->n; j++)
            for (int i = 0; i < n; i++) y[j][i] += p->bias[row + i];
}

/* Blocks are tiles of rows. */
static void run_blocks(void *ctx, int job, int64_t begin, int64_t end, int thread) {
    matmul *m = ctx;
    const product *p = &m->products[job];
    const form *f = &m->forms[p->form];
    mf__cpu_workspace *ws = &m->workspaces[thread];
    int tile_rows = m->r->k->tile_rows;
    for (int64_t block = begin; block < end; block++) {
        int64_t row = block * tile_rows, left = p->w->n_rows - row;
        int n = left < tile_rows ? (int)left : tile_rows;
        if (f->batches[0].is_panel) mf__cpu_load_tile(m->r, p->w, row, n, f->group, &ws->tile);
        for (int i = 0; i < m->n_batches; i++) {
            mf__cpu_multiply(m->r, p->w, row, n, f->group, ws, &f->batches[i]);
            store(m->r, p, &f->batches[i], row, n, ws->out);
        }
    }
}

static int find_form(matmul *m, int group) {
    for (int i = 0; i < m->n_forms; i++)
        if (m->forms[i].group == group) return i;
    m->forms[m->n_forms] = (form){.group = group};
    return m->n_forms++;
}

mf_status mf__cpu_matmul(mf__cpu_run *r, mf_error *err) {
    matmul m = {.r = r, .n_batches = count_batches(r->k, r->b->n_rows)};
    mf__cpu_job jobs[MF_MAX_OPS];
    int threads = mf__pool_threads(r->pool);
    int64_t cols = mf__cpu_in_cols(r, 0);
    for (int i = 0; i < r->n_ops; i++) {
        const mf__op *op = &r->op[i];
        product *p = &m.products[i];
        p->w = &r->b->weights[op->w[0]];
        p->bias = op->w[1] < 0 ? NULL : r->b->weights[op->w[1]].data;
        p->y = r->b->bufs[op->out[0]];
        p->form = find_form(&m, mf__cpu_form(r, p->w));
        mf__tensor row = *p->w;
        row.n_planes = row.n_rows = 1;
        jobs[i].n_blocks = (p->w->n_rows + r->k->tile_rows - 1) / r->k->tile_rows;
        jobs[i].cost = mf__tensor_bytes(&row) + 1;
    }
    for (int i = 0; i < m.n_forms; i++) MF__TRY(prepare_form(&m, mf__cpu_in(r, 0), cols, &m.forms[i], err));
    m.workspaces = mf__cpu_take(&r->scratch, threads * (int64_t)sizeof *m.workspaces);
    if (!m.workspaces) return mf__fail(err, MF_E_INTERNAL, "no scratch for %d threads", threads);
    MF__TRY(mf__cpu_take_workspaces(r, cols, m.workspaces, err));
    mf__cpu_share(r->pool, jobs, r->n_ops, run_blocks, &m);
    return MF_OK;
}
