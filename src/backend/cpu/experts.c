/* The routed experts: pair (t, k) = W_down glu(W_gate x[t], W_up x[t]) of expert ids[t][k], for experts in the bank.
 * Each product may have a bias.
 *
 *   pairs are grouped by expert
 *   1  gate and up of all experts, and their activation      shared out by blocks of rows
 *   2  the activations become the next input: quantized       by pair
 *   3  down                                                   by blocks of rows
 *
 * What all pairs need at once is bounded: when there are more than fit, the steps are passed through several times,
 * each for some of the experts. */
#include <string.h>

#include "backend/cpu/cpu.h"

#define PASS_BYTES (48 << 20)
#define PASS_LEAST 256 /* pairs */
#define CHAINS 512

/* One expert and its pairs in a pass. */
typedef struct expert {
    mf__tensor gate, up, down;
    const float *b_gate, *b_up, *b_down; /* NULL: none */
    int64_t first;                       /* place of its first pair */
    int32_t n;
} expert;

typedef struct moe {
    mf__cpu_run *r;
    int64_t hidden, inner, wide; /* inner: rows of gate and up; wide: columns of down */
    mf__cpu_form form_in, form_mid;
    mf__cpu_rows rows;                     /* the tokens */
    int32_t max_pairs, n_pairs, n_experts; /* of a pass, and so far */
    int32_t first[CHAINS], *next;          /* [n * top_k]: pairs of experts that are equal modulo CHAINS, in order */
    int32_t *pairs;                        /* [max_pairs]: token * top_k + k */
    mf__cpu_vec *in;                       /* [max_pairs]: the token's */
    mf__cpu_rows mid;                      /* [max_pairs]: inputs of down */
    float *act;                            /* [max_pairs][wide] */
    expert *experts;                       /* [max_pairs] at most */
    mf__cpu_job *jobs;
    mf__cpu_workspace *workspaces; /* [threads] */
} moe;

/* ---- how much memory --------------------------------------------------------------------------------------------- */

static int64_t max_pairs(int64_t inner, int64_t n_pairs) {
    int64_t fit = PASS_BYTES / (inner * 4 + mf__cpu_rows_bytes(1, inner));
    if (fit < PASS_LEAST) fit = PASS_LEAST;
    return n_pairs < fit ? n_pairs : fit;
}

int64_t mf__cpu_experts_scratch(const mf__cpu_kernels *k, int threads, const mf__graph *g, const mf__op *op,
                                int32_t n) {
    int64_t hidden = g->bufs[op->in[0]].cols, inner = mf__glu_cols(&op->p.moe.glu, op->p.moe.n_inner);
    int64_t wide = hidden > inner ? hidden : inner, pairs = max_pairs(inner, (int64_t)n * op->p.moe.top_k);
    return mf__cpu_rows_bytes(n, hidden) + mf__cpu_rows_bytes(pairs, inner) + mf__cpu_round(pairs * inner * 4) +
           mf__cpu_round((int64_t)n * op->p.moe.top_k * 4) + mf__cpu_round(pairs * 4) +
           mf__cpu_round(pairs * (int64_t)sizeof(mf__cpu_vec)) + mf__cpu_round(pairs * (int64_t)sizeof(expert)) +
           mf__cpu_round(pairs * (int64_t)sizeof(mf__cpu_job)) + mf__cpu_workspaces_bytes(k, threads, wide);
}

/* ---- the steps --------------------------------------------------------------------------------------------------- */

/* bias[row ...] onto the products of a block. */
static void add_bias(const float *bias, const mf__cpu_block *b, int n, float *out) {
    if (!bias) return;
    for (int j = 0; j < n; j++, out += b->ld)
        for (int i = 0; i < b->n_rows; i++) out[i] += bias[b->row + i];
}

/* Without a gate: two halves of one matrix, side by side. */
static void squares(const mf__cpu_run *r, const float *first, const float *second, int n, float *a, float *b) {
    const mf__op_params p = {.map = {.kind = MF_MAP_RELU2}};
    memcpy(a, first, (size_t)n * sizeof *a);
    memcpy(b, second, (size_t)n * sizeof *b);
    r->k->map(&p, 1, n, a);
    r->k->map(&p, 1, n, b);
}

static void gate_up_blocks(void *ctx, int job, int64_t begin, int64_t end, int thread) {
    const moe *m = ctx;
    const mf__cpu_run *r = m->r;
    const expert *e = &m->experts[job];
    mf__cpu_workspace *ws = &m->workspaces[thread];
    float *gate = ws->out[0], *up = ws->out[1];
    mf__cpu_batch x;
    for (int32_t at = 0; at < e->n; at += x.n) {
        mf__cpu_block g, u;
        x = mf__cpu_batch_at(r, &e->gate, m->form_in, m->in + e->first, at, e->n, ws);
        for (int64_t i = begin; i < end; i += g.n_blocks) {
            mf__cpu_block_at(r, &e->gate, i, end, &x, &g);
            mf__cpu_block_at(r, &e->up, i, end, &x, &u);
            mf__cpu_multiply(r, &g, &x, ws, 0);
            mf__cpu_multiply(r, &u, &x, ws, 1);
            add_bias(e->b_gate, &g, x.n, gate);
            add_bias(e->b_up, &u, x.n, up);
            float *act = m->act + (e->first + at) * m->wide + g.row;
            for (int j = 0; j < x.n; j++, act += m->wide)
                if (m->wide == m->inner)
                    r->k->glu(&r->op->p.moe.glu, gate + j * g.ld, up + j * u.ld, g.n_rows, act);
                else
                    squares(r, gate + j * g.ld, up + j * u.ld, g.n_rows, act, act + m->inner);
        }
    }
}

static void down_blocks(void *ctx, int job, int64_t begin, int64_t end, int thread) {
    const moe *m = ctx;
    const mf__cpu_run *r = m->r;
    const expert *e = &m->experts[job];
    mf__cpu_workspace *ws = &m->workspaces[thread];
    float *y = mf__cpu_out(r, 0), *out = ws->out[0];
    mf__cpu_batch x;
    for (int32_t at = 0; at < e->n; at += x.n) {
        const int32_t *pairs = m->pairs + e->first + at;
        mf__cpu_block b;
        x = mf__cpu_batch_at(r, &e->down, m->form_mid, m->mid.vecs + e->first, at, e->n, ws);
        for (int64_t i = begin; i < end; i += b.n_blocks) {
            mf__cpu_block_at(r, &e->down, i, end, &x, &b);
            mf__cpu_multiply(r, &b, &x, ws, 0);
            add_bias(e->b_down, &b, x.n, out);
            r->k->put(&(mf__cpu_put){.from = out,
                                     .to = y + b.row,
                                     .rows = pairs,
                                     .ld = b.ld,
                                     .stride = m->hidden,
                                     .n = x.n,
                                     .n_cols = b.n_rows,
                                     .past = r->b->n_rows >= MF_CPU_BATCH});
        }
    }
}

/* ---- one pass ---------------------------------------------------------------------------------------------------- */

/* Fetching and decoding the weights, and what each token costs then. */
static void set_costs(moe *m, int64_t n_rows) {
    for (int i = 0; i < m->n_experts; i++) {
        int64_t n = m->experts[i].n;
        m->jobs[i] = (mf__cpu_job){.n_blocks = mf__cpu_blocks(m->r, n_rows), .cost = 5 + (n > MF_CPU_FEW ? 2 : 3) * n};
    }
}

static void run_pass(moe *m) {
    set_costs(m, m->inner);
    mf__cpu_share(m->r->pool, m->jobs, m->n_experts, gate_up_blocks, m);
    m->mid.n = m->n_pairs;
    mf__cpu_quant_rows(m->r, &m->mid);
    set_costs(m, m->hidden);
    mf__cpu_share(m->r->pool, m->jobs, m->n_experts, down_blocks, m);
    m->n_pairs = m->n_experts = 0;
}

static void add_expert(moe *m, int32_t id) {
    const mf__bank *bank = m->r->b->bank;
    const void *blob = bank->blobs[id];
    m->experts[m->n_experts++] = (expert){.gate = mf__expert_view(bank->layout, MF_PART_GATE, blob),
                                          .up = mf__expert_view(bank->layout, MF_PART_UP, blob),
                                          .down = mf__expert_view(bank->layout, MF_PART_DOWN, blob),
                                          .b_gate = mf__expert_bias(bank->layout, MF_PART_GATE, blob),
                                          .b_up = mf__expert_bias(bank->layout, MF_PART_UP, blob),
                                          .b_down = mf__expert_bias(bank->layout, MF_PART_DOWN, blob),
                                          .first = m->n_pairs};
}

static void chain_pairs(moe *m) {
    const int32_t *ids = m->r->b->bufs[m->r->op->in[1]];
    for (int i = 0; i < CHAINS; i++) m->first[i] = -1;
    for (int32_t i = m->r->b->n_rows * m->r->op->p.moe.top_k - 1; i >= 0; i--) {
        int32_t *first = &m->first[(uint32_t)ids[i] % CHAINS];
        m->next[i] = *first;
        *first = i;
    }
}

/* Gathers the pairs of an expert, and runs what has gathered when the memory of a pass is used up. */
static void add_pairs(moe *m, int32_t id) {
    const int32_t *ids = m->r->b->bufs[m->r->op->in[1]];
    int32_t top = m->r->op->p.moe.top_k;
    bool added = false;
    for (int32_t i = m->first[id % CHAINS]; i >= 0; i = m->next[i]) {
        if (ids[i] != id) continue;
        if (m->n_pairs == m->max_pairs) {
            run_pass(m);
            added = false;
        }
        if (!added) add_expert(m, id);
        added = true;
        m->pairs[m->n_pairs] = i;
        m->in[m->n_pairs++] = m->rows.vecs[i / top];
        m->experts[m->n_experts - 1].n++;
    }
}

static mf__cpu_form common_form(const mf__cpu_run *r, const mf__expert_layout *layout) {
    mf__tensor gate = mf__expert_view(layout, MF_PART_GATE, NULL), up = mf__expert_view(layout, MF_PART_UP, NULL);
    mf__cpu_form form = mf__cpu_form_for(r, &gate);
    return mf__cpu_same_form(form, mf__cpu_form_for(r, &up)) ? form : (mf__cpu_form){0};
}

static mf_status set_up(moe *m, mf_error *err) {
    mf__cpu_run *r = m->r;
    int64_t n = m->max_pairs, wide = m->hidden > m->wide ? m->hidden : m->wide;
    MF__TRY(mf__cpu_prepare_rows(r, mf__cpu_in(r, 0), r->b->n_rows, m->hidden, m->form_in, &m->rows, err));
    MF__TRY(mf__cpu_take_rows(r, m->max_pairs, m->wide, m->form_mid, &m->mid, err));
    MF__TRY(mf__cpu_take_workspaces(r, wide, &m->workspaces, err));
    m->act = mf__cpu_take(&r->scratch, n * m->wide * 4);
    m->next = mf__cpu_take(&r->scratch, (int64_t)r->b->n_rows * r->op->p.moe.top_k * 4);
    m->pairs = mf__cpu_take(&r->scratch, n * 4);
    m->in = mf__cpu_take(&r->scratch, n * (int64_t)sizeof *m->in);
    m->experts = mf__cpu_take(&r->scratch, n * (int64_t)sizeof *m->experts);
    m->jobs = mf__cpu_take(&r->scratch, n * (int64_t)sizeof *m->jobs);
    if (!m->act || !m->next || !m->pairs || !m->in || !m->experts || !m->jobs)
        return mf__fail(err, MF_E_INTERNAL, "op %s of graph %s needs scratch that was not reserved", r->op->label,
                        r->g->name);
    for (int64_t i = 0; i < n; i++) m->mid.vecs[i].x = m->act + i * m->wide;
    return MF_OK;
}

mf_status mf__cpu_experts(mf__cpu_run *r, mf_error *err) {
    const mf__bank *bank = r->b->bank;
    moe m = {.r = r, .hidden = mf__cpu_in_cols(r, 0), .inner = r->op->p.moe.n_inner};
    m.wide = mf__glu_cols(&r->op->p.moe.glu, m.inner);
    m.max_pairs = (int32_t)max_pairs(m.wide, (int64_t)r->b->n_rows * r->op->p.moe.top_k);
    mf__tensor down = mf__expert_view(bank->layout, MF_PART_DOWN, NULL);
    m.form_in = common_form(r, bank->layout);
    m.form_mid = mf__cpu_form_for(r, &down);
    MF__TRY(set_up(&m, err));
    chain_pairs(&m);
    for (int32_t e = 0; e < bank->n_experts; e++)
        if (bank->blobs[e]) add_pairs(&m, e);
    if (m.n_pairs) run_pass(&m);
    return MF_OK;
}
