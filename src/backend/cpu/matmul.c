/* y = W x (+ bias). Products of the same input that follow one another are one region: their rows are shared out
 * together. */
#include "backend/cpu/cpu.h"

/* Forms that one input may be needed in: f32, and two per group size. */
#define MAX_FORMS 7

typedef struct product {
    const mf__tensor *w;
    const float *bias;
    float *y;
    int form;
} product;

typedef struct matmul {
    mf__cpu_run *r;
    int n_forms;
    mf__cpu_rows forms[MAX_FORMS]; /* the input */
    product products[MF_MAX_OPS];
    mf__cpu_workspace *workspaces;
} matmul;

int64_t mf__cpu_matmul_scratch(const mf__cpu_kernels *k, int threads, const mf__graph *g, const mf__op *op, int32_t n) {
    int64_t cols = g->bufs[op->in[0]].cols;
    return MAX_FORMS * mf__cpu_rows_bytes(n, cols) + mf__cpu_workspaces_bytes(k, threads, cols);
}

/* y [n][rows of W]: the block's columns of the tokens from `first` on. */
static void store(const mf__cpu_run *r, const product *p, const mf__cpu_block *b, int64_t first, int n, float *out) {
    for (int j = 0; p->bias && j < n; j++)
        for (int i = 0; i < b->n_rows; i++) out[j * b->ld + i] += p->bias[b->row + i];
    r->k->put(&(mf__cpu_put){.from = out,
                             .to = p->y + first * p->w->n_rows + b->row,
                             .ld = b->ld,
                             .stride = p->w->n_rows,
                             .n = n,
                             .n_cols = b->n_rows,
                             .past = r->b->n_rows >= MF_CPU_BATCH});
}

static void run_blocks(void *ctx, int job, int64_t begin, int64_t end, int thread) {
    const matmul *m = ctx;
    const product *p = &m->products[job];
    const mf__cpu_rows *rows = &m->forms[p->form];
    mf__cpu_workspace *ws = &m->workspaces[thread];
    mf__cpu_batch x;
    for (int32_t t = 0; t < rows->n; t += x.n) {
        mf__cpu_block b;
        x = mf__cpu_batch_at(m->r, p->w, rows->form, rows->vecs, t, rows->n, ws);
        for (int64_t at = begin; at < end; at += b.n_blocks) {
            mf__cpu_block_at(m->r, p->w, at, end, &x, &b);
            mf__cpu_multiply(m->r, &b, &x, ws, 0);
            store(m->r, p, &b, t, x.n, ws->out[0]);
        }
    }
}

static int find_form(matmul *m, mf__cpu_form form) {
    for (int i = 0; i < m->n_forms; i++)
        if (mf__cpu_same_form(m->forms[i].form, form)) return i;
    m->forms[m->n_forms] = (mf__cpu_rows){.form = form};
    return m->n_forms++;
}

mf_status mf__cpu_matmul(mf__cpu_run *r, mf_error *err) {
    matmul m = {.r = r};
    mf__cpu_job jobs[MF_MAX_OPS];
    int64_t cols = mf__cpu_in_cols(r, 0);
    for (int i = 0; i < r->n_ops; i++) {
        const mf__op *op = &r->op[i];
        product *p = &m.products[i];
        p->w = &r->b->weights[op->w[0]];
        p->bias = op->w[1] < 0 ? NULL : r->b->weights[op->w[1]].data;
        p->y = r->b->bufs[op->out[0]];
        p->form = find_form(&m, mf__cpu_form_for(r, p->w));
        mf__tensor row = *p->w;
        row.n_planes = row.n_rows = 1;
        jobs[i].n_blocks = mf__cpu_blocks(r, p->w->n_rows);
        /* few tokens wait for memory, many for arithmetic, of which f32 needs more */
        jobs[i].cost =
            r->b->n_rows > MF_CPU_FEW ? cols * (m.forms[p->form].form.group ? 2 : 5) : mf__tensor_bytes(&row) + 1;
    }
    for (int i = 0; i < m.n_forms; i++) {
        mf__cpu_form form = m.forms[i].form;
        MF__TRY(mf__cpu_prepare_rows(r, mf__cpu_in(r, 0), r->b->n_rows, cols, form, &m.forms[i], err));
    }
    MF__TRY(mf__cpu_take_workspaces(r, cols, &m.workspaces, err));
    mf__cpu_share(r->pool, jobs, r->n_ops, run_blocks, &m);
    return MF_OK;
}
