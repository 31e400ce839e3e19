/* The routed experts: pair (t, k) = W_down glu(W_gate x[t], W_up x[t]) of expert ids[t][k], for experts in the bank.
 * Each product may have a bias.
 *
 *   tokens are grouped by expert and cut into batches
 *   1  batches of more than a few tokens are packed into panels         shared out by batch
 *   2  gate and up of all experts, and their activation                  by tile of rows
 *   3  the activations become the next input: quantized                  by batch
 *   4  down                                                             by tile of rows
 *
 * What all batches need at once is bounded: when there are more tokens than fit, the steps are passed through several
 * times, each for some of the experts. */
#include <string.h>

#include "backend/cpu/cpu.h"

#define PASS_BYTES (48 << 20)

/* A batch with what becomes of it. */
typedef struct work {
    mf__cpu_batch in, mid; /* inputs of gate and up, and of down; first: place in order[] */
    float *act;            /* rows: [n][inner] */
} work;

typedef struct expert {
    mf__tensor gate, up, down;
    const float *b_gate, *b_up, *b_down; /* NULL: none */
    int first_work, n_works;
} expert;

typedef struct moe {
    mf__cpu_run *r;
    mf__cpu_bump empty;                             /* scratch at the start of a pass */
    int64_t max_panels, max_rows, n_panels, n_rows; /* batches of each kind in a pass, and so far */
    int64_t hidden, inner;
    int form_in, form_mid; /* group sizes; 0: f32 */
    mf__cpu_rows rows;
    int32_t *order; /* pairs, grouped by expert */
    work *works;
    expert *experts;
    mf__cpu_job *jobs;
    int n_works, n_experts;
    mf__cpu_workspace *first, *second; /* [threads] */
} moe;

/* ---- how much memory --------------------------------------------------------------------------------------------- */

static int64_t panel_bytes(const mf__cpu_kernels *k, int64_t hidden, int64_t inner) {
    return mf__cpu_panel_bytes(k, hidden) + mf__cpu_panel_bytes(k, inner);
}

static int64_t pass_panels(const mf__cpu_kernels *k, int64_t hidden, int64_t inner, int64_t n_pairs) {
    int64_t most = n_pairs / (MF_CPU_FEW + 1), fit = PASS_BYTES / panel_bytes(k, hidden, inner);
    if (fit < 8) fit = 8;
    return most < fit ? most : fit;
}

/* Batches of rows in a pass. */
static int64_t pass_rows(int64_t n_pairs) {
    return n_pairs < 256 ? n_pairs : 256;
}

static int64_t rows_mid_bytes(int64_t inner) {
    return mf__cpu_round(MF_CPU_FEW * inner * 4) + mf__cpu_rows_bytes(MF_CPU_FEW, inner);
}

int64_t mf__cpu_experts_scratch(const mf__cpu_kernels *k, int threads, const mf__graph *g, const mf__op *op,
                                int32_t n) {
    int64_t hidden = g->bufs[op->in[0]].cols, inner = op->p.moe.n_inner, n_pairs = (int64_t)n * op->p.moe.top_k;
    int64_t wide = hidden > inner ? hidden : inner, panels = pass_panels(k, hidden, inner, n_pairs);
    int64_t works = panels + pass_rows(n_pairs);
    return mf__cpu_rows_bytes(n, hidden) + mf__cpu_round(n_pairs * 4) + mf__cpu_round(works * (int64_t)sizeof(work)) +
           mf__cpu_round(works * (int64_t)sizeof(expert)) + mf__cpu_round(works * (int64_t)sizeof(mf__cpu_job)) +
           2 * (mf__cpu_round(threads * (int64_t)sizeof(mf__cpu_workspace)) +
                threads * mf__cpu_workspace_bytes(k, wide)) +
           panels * panel_bytes(k, hidden, inner) + pass_rows(n_pairs) * rows_mid_bytes(inner);
}

/* ---- the steps --------------------------------------------------------------------------------------------------- */

static void pack_works(void *ctx, int64_t begin, int64_t end, int thread) {
    const moe *m = ctx;
    const mf__cpu_kernels *k = m->r->k;
    int32_t top = m->r->op->p.moe.top_k;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        mf__cpu_batch *b = &m->works[i].in;
        mf__cpu_vec vecs[MF_CPU_MAX_LANES];
        for (int32_t j = 0; j < b->n; j++) vecs[j] = m->rows.vecs[m->order[b->first + j] / top];
        if (!b->is_panel)
            memcpy(b->vecs, vecs, (size_t)b->n * sizeof *vecs);
        else if (m->form_in)
            k->pack_int8(vecs, b->n, m->hidden, m->form_in, &b->panel);
        else
            k->pack_f32(vecs, b->n, m->hidden, b->panel.x);
    }
}

/* bias[row ...] onto a tile's result, in the layout of the batch. */
static void add_bias(const mf__cpu_kernels *k, const float *bias, int64_t row, int n, const mf__cpu_batch *b,
                     float *out) {
    if (!bias) return;
    for (int i = 0; i < n; i++)
        for (int32_t j = 0; j < b->n; j++) out[b->is_panel ? i * k->lanes + j : j * k->tile_rows + i] += bias[row + i];
}

static void gate_up_blocks(void *ctx, int job, int64_t begin, int64_t end, int thread) {
    const moe *m = ctx;
    const mf__cpu_kernels *k = m->r->k;
    const expert *e = &m->experts[job];
    mf__cpu_workspace *gate = &m->first[thread], *up = &m->second[thread];
    const mf__glu *glu = &m->r->op->p.moe.glu;
    for (int64_t block = begin; block < end; block++) {
        int64_t row = block * k->tile_rows, left = m->inner - row;
        int n = left < k->tile_rows ? (int)left : k->tile_rows;
        if (m->works[e->first_work].in.is_panel) {
            mf__cpu_load_tile(m->r, &e->gate, row, n, m->form_in, &gate->tile);
            mf__cpu_load_tile(m->r, &e->up, row, n, m->form_in, &up->tile);
        }
        for (int i = 0; i < e->n_works; i++) {
            work *w = &m->works[e->first_work + i];
            mf__cpu_multiply(m->r, &e->gate, row, n, m->form_in, gate, &w->in);
            mf__cpu_multiply(m->r, &e->up, row, n, m->form_in, up, &w->in);
            add_bias(k, e->b_gate, row, n, &w->in, gate->out);
            add_bias(k, e->b_up, row, n, &w->in, up->out);
            if (w->in.is_panel)
                k->glu(glu, gate->out, up->out, (int64_t)n * k->lanes, w->mid.panel.x + row * k->lanes);
            else
                for (int32_t j = 0; j < w->in.n; j++)
                    k->glu(glu, gate->out + j * k->tile_rows, up->out + j * k->tile_rows, n,
                           w->act + j * m->inner + row);
        }
    }
}

static void quant_works(void *ctx, int64_t begin, int64_t end, int thread) {
    const moe *m = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        work *w = &m->works[i];
        if (w->in.is_panel) {
            m->r->k->quant_panel(&w->mid.panel, m->inner, m->form_mid);
            continue;
        }
        for (int32_t j = 0; j < w->mid.n; j++) {
            const mf__cpu_vec *v = &w->mid.vecs[j];
            m->r->k->quant_row(w->act + j * m->inner, m->inner, m->form_mid, (int8_t *)v->q, (float *)v->scale,
                               (float *)v->sum);
        }
    }
}

static void down_blocks(void *ctx, int job, int64_t begin, int64_t end, int thread) {
    const moe *m = ctx;
    const mf__cpu_kernels *k = m->r->k;
    const expert *e = &m->experts[job];
    mf__cpu_workspace *ws = &m->first[thread];
    float *pairs = mf__cpu_out(m->r, 0);
    for (int64_t block = begin; block < end; block++) {
        int64_t row = block * k->tile_rows, left = m->hidden - row;
        int n = left < k->tile_rows ? (int)left : k->tile_rows;
        if (m->works[e->first_work].mid.is_panel) mf__cpu_load_tile(m->r, &e->down, row, n, m->form_mid, &ws->tile);
        for (int i = 0; i < e->n_works; i++) {
            const mf__cpu_batch *b = &m->works[e->first_work + i].mid;
            float *y[MF_CPU_MAX_LANES];
            mf__cpu_multiply(m->r, &e->down, row, n, m->form_mid, ws, b);
            add_bias(k, e->b_down, row, n, b, ws->out);
            for (int32_t j = 0; j < b->n; j++) y[j] = pairs + m->order[b->first + j] * m->hidden + row;
            if (b->is_panel)
                k->unpack(ws->out, n, b->n, y);
            else
                for (int32_t j = 0; j < b->n; j++) memcpy(y[j], ws->out + j * k->tile_rows, (size_t)n * sizeof(float));
        }
    }
}

/* ---- one pass ---------------------------------------------------------------------------------------------------- */

static void set_costs(moe *m, int64_t n_rows) {
    for (int i = 0; i < m->n_experts; i++) {
        const expert *e = &m->experts[i];
        int64_t cost = 8; /* fetching and decoding the weights */
        for (int j = 0; j < e->n_works; j++) {
            const mf__cpu_batch *b = &m->works[e->first_work + j].in;
            cost += b->is_panel ? 16 : 2 * b->n;
        }
        int tile = m->r->k->tile_rows;
        m->jobs[i] = (mf__cpu_job){.n_blocks = (n_rows + tile - 1) / tile, .cost = cost};
    }
}

static void run_pass(moe *m) {
    mf__pool *pool = m->n_works > m->n_experts || m->works[0].in.is_panel ? m->r->pool : NULL; /* steps 1 and 3 */
    mf__pool_run(pool, pack_works, m, m->n_works);
    set_costs(m, m->inner);
    mf__cpu_share(m->r->pool, m->jobs, m->n_experts, gate_up_blocks, m);
    if (m->form_mid) mf__pool_run(pool, quant_works, m, m->n_works);
    set_costs(m, m->hidden);
    mf__cpu_share(m->r->pool, m->jobs, m->n_experts, down_blocks, m);
    m->n_works = m->n_experts = 0;
    m->n_panels = m->n_rows = 0;
    m->r->scratch = m->empty;
}

/* Memory of the second input of a batch. */
static mf_status take_mid(moe *m, work *w, mf_error *err) {
    mf__cpu_run *r = m->r;
    w->mid = w->in;
    if (w->in.is_panel) {
        MF__TRY(mf__cpu_take_panel(r, m->hidden, m->form_in, false, &w->in.panel, err));
        return mf__cpu_take_panel(r, m->inner, m->form_mid, true, &w->mid.panel, err);
    }
    int64_t n = w->in.n, padded = (m->inner + MF_CPU_PAD - 1) / MF_CPU_PAD * MF_CPU_PAD;
    int64_t groups = m->form_mid ? m->inner / m->form_mid : 0;
    w->act = mf__cpu_take(&r->scratch, n * m->inner * 4);
    int8_t *q = mf__cpu_take(&r->scratch, n * padded);
    float *scale = mf__cpu_take(&r->scratch, n * groups * 4), *sum = mf__cpu_take(&r->scratch, n * groups * 4);
    if (!w->act || !q || !scale || !sum)
        return mf__fail(err, MF_E_INTERNAL, "op %s of graph %s needs scratch that was not reserved", r->op->label,
                        r->g->name);
    for (int64_t j = 0; j < n; j++)
        w->mid.vecs[j] = (mf__cpu_vec){
            .q = q + j * padded, .scale = scale + j * groups, .sum = sum + j * groups, .x = w->act + j * m->inner};
    return MF_OK;
}

/* Adds batches for the n pairs of an expert from order[first] on, and runs what has gathered when the memory of a pass
 * is used up. */
static mf_status add_expert(moe *m, int32_t id, int64_t first, int32_t n, mf_error *err) {
    const mf__bank *bank = m->r->b->bank;
    const void *blob = bank->blobs[id];
    expert *e = NULL;
    while (n > 0) {
        bool is_panel;
        int32_t len = mf__cpu_next_batch(m->r->k, n, &is_panel);
        if (is_panel ? m->n_panels == m->max_panels : m->n_rows == m->max_rows) {
            run_pass(m);
            e = NULL;
        }
        if (!e) {
            e = &m->experts[m->n_experts++];
            *e = (expert){.gate = mf__expert_view(bank->layout, MF_PART_GATE, blob),
                          .up = mf__expert_view(bank->layout, MF_PART_UP, blob),
                          .down = mf__expert_view(bank->layout, MF_PART_DOWN, blob),
                          .b_gate = mf__expert_bias(bank->layout, MF_PART_GATE, blob),
                          .b_up = mf__expert_bias(bank->layout, MF_PART_UP, blob),
                          .b_down = mf__expert_bias(bank->layout, MF_PART_DOWN, blob),
                          .first_work = m->n_works};
        }
        work *w = &m->works[m->n_works++];
        *w = (work){.in = {.n = len, .is_panel = is_panel, .first = first}};
        MF__TRY(take_mid(m, w, err));
        e->n_works++;
        m->n_panels += is_panel;
        m->n_rows += !is_panel;
        first += len;
        n -= len;
    }
    return MF_OK;
}

/* The pairs of one expert, in order. Returns how many. */
static int64_t group_pairs(const mf__cpu_run *r, int32_t expert_id, int32_t *order) {
    const int32_t *ids = r->b->bufs[r->op->in[1]];
    int64_t n_pairs = (int64_t)r->b->n_rows * r->op->p.moe.top_k, n = 0;
    for (int64_t i = 0; i < n_pairs; i++)
        if (ids[i] == expert_id) order[n++] = (int32_t)i;
    return n;
}

static int common_form(const mf__cpu_run *r, const mf__expert_layout *layout) {
    mf__tensor gate = mf__expert_view(layout, MF_PART_GATE, NULL), up = mf__expert_view(layout, MF_PART_UP, NULL);
    int a = mf__cpu_form(r, &gate), b = mf__cpu_form(r, &up);
    return a == b ? a : 0;
}

static mf_status set_up(moe *m, int64_t works, mf_error *err) {
    mf__cpu_run *r = m->r;
    int threads = mf__pool_threads(r->pool);
    int64_t n_pairs = (int64_t)r->b->n_rows * r->op->p.moe.top_k, wide = m->hidden > m->inner ? m->hidden : m->inner;
    MF__TRY(mf__cpu_prepare_rows(r, mf__cpu_in(r, 0), r->b->n_rows, m->hidden, m->form_in, &m->rows, err));
    m->order = mf__cpu_take(&r->scratch, n_pairs * 4);
    m->works = mf__cpu_take(&r->scratch, works * (int64_t)sizeof *m->works);
    m->experts = mf__cpu_take(&r->scratch, works * (int64_t)sizeof *m->experts);
    m->jobs = mf__cpu_take(&r->scratch, works * (int64_t)sizeof *m->jobs);
    m->first = mf__cpu_take(&r->scratch, threads * (int64_t)sizeof *m->first);
    m->second = mf__cpu_take(&r->scratch, threads * (int64_t)sizeof *m->second);
    if (!m->order || !m->works || !m->experts || !m->jobs || !m->first || !m->second)
        return mf__fail(err, MF_E_INTERNAL, "op %s of graph %s needs scratch that was not reserved", r->op->label,
                        r->g->name);
    MF__TRY(mf__cpu_take_workspaces(r, wide, m->first, err));
    return mf__cpu_take_workspaces(r, wide, m->second, err);
}

mf_status mf__cpu_experts(mf__cpu_run *r, mf_error *err) {
    const mf__bank *bank = r->b->bank;
    moe m = {.r = r, .hidden = mf__cpu_in_cols(r, 0), .inner = r->op->p.moe.n_inner};
    int64_t n_pairs = (int64_t)r->b->n_rows * r->op->p.moe.top_k;
    int64_t first = 0;
    m.max_panels = pass_panels(r->k, m.hidden, m.inner, n_pairs);
    m.max_rows = pass_rows(n_pairs);
    mf__tensor down = mf__expert_view(bank->layout, MF_PART_DOWN, NULL);
    m.form_in = common_form(r, bank->layout);
    m.form_mid = mf__cpu_form(r, &down);
    MF__TRY(set_up(&m, m.max_panels + m.max_rows, err));
    m.empty = r->scratch;
    for (int32_t e = 0; e < bank->n_experts; e++) {
        if (!bank->blobs[e]) continue;
        int64_t n = group_pairs(r, e, m.order + first);
        MF__TRY(add_expert(&m, e, first, (int32_t)n, err));
        first += n;
    }
    if (m.n_works) run_pass(&m);
    return MF_OK;
}
