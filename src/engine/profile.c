/* Where the time of evaluations goes, by layer and kind of op; counting what ops touch and compute. */
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"

#define HEAD MF_OP_COUNT /* the product with the vocabulary, apart from the other products */
#define KINDS (MF_OP_COUNT + 1)

struct mf__profile {
    int last;              /* the layer of the last op */
    mf_profile_row rows[]; /* [1 + n_layers][KINDS]; the first are of no layer */
};

typedef struct cost {
    double bytes, flops;
} cost;

static cost product_cost(const mf__op_done *d) {
    cost c = {0};
    for (int i = 0; i < d->n_ops; i++) {
        const mf__tensor *w = &d->b->weights[d->op[i].w[0]];
        c.bytes += (double)mf__tensor_bytes(w);
        c.flops += 2.0 * (double)d->b->n_rows * (double)w->n_rows * (double)w->n_cols;
    }
    return c;
}

static cost experts_cost(const mf__op_done *d) {
    double wide = d->g->bufs[d->op->in[0]].cols, inner = d->op->p.moe.n_inner;
    double all = 2 * inner + (double)mf__glu_cols(&d->op->p.moe.glu, d->op->p.moe.n_inner);
    return (cost){.bytes = (double)d->n_experts * (double)d->b->bank->layout->bytes,
                  .flops = 2.0 * (double)d->n_pairs * wide * all};
}

/* What a row of an attention op sees: with picks, a window or (at most) a chunk no more than `most` rows (0: all). */
static int64_t rows_seen(int64_t pos, int64_t most) {
    return most && pos + 1 > most ? most : pos + 1;
}

/* flops_each: per row of the state that a query row sees. Bytes are those of the rows that some query row sees, once;
 * of picked ones those of the last row, times the segment's rows as long as there are as many. */
static cost attention_cost(const mf__op_done *d, int64_t most, bool picked, double flops_each) {
    cost c = {0};
    for (int32_t i = 0; i < d->b->n_segs; i++) {
        const mf__segment *s = &d->b->segs[i];
        const mf__kv *kv = &s->state->kv;
        int64_t all = s->pos + s->n_rows, seen = rows_seen(all - 1, most);
        if (most && picked) seen *= s->n_rows;
        if (most && !picked) seen += s->n_rows - 1;
        c.bytes += (double)((seen < all ? seen : all) * (kv->k_bytes + kv->v_bytes));
        for (int64_t pos = s->pos; pos < all; pos++) c.flops += flops_each * (double)rows_seen(pos, most);
    }
    return c;
}

/* Every key is compared with every query head of the rows that come after it. */
static cost index_cost(const mf__op_done *d) {
    const mf__op_params *p = &d->op->p;
    int64_t step = p->index.step ? p->index.step : 1;
    cost c = {0};
    for (int32_t i = 0; i < d->b->n_segs; i++) {
        const mf__segment *s = &d->b->segs[i];
        int64_t all = s->pos + s->n_rows;
        if ((all / step - 1) / p->index.block < p->index.top_k) continue; /* all are picked without a look */
        c.bytes += (double)(all / step * mf__kv_row_bytes(s->state->kv.type, p->index.dim));
        for (int64_t pos = s->pos; pos < all; pos++)
            c.flops += 2.0 * p->index.n_heads * p->index.dim * (double)((pos + 1) / step);
    }
    return c;
}

static cost far_cost(const mf__op_done *d) {
    const mf__op_params *p = &d->op->p;
    cost c = {0};
    for (int32_t i = 0; i < d->b->n_segs; i++) {
        const mf__segment *s = &d->b->segs[i];
        const mf__kv *kv = &s->state->kv;
        int64_t all = s->pos + s->n_rows, near = mf__far_near(p, all - 1) + s->n_rows - 1, far = 0;
        for (int64_t pos = s->pos; pos < all; pos++) {
            far = p->far.step ? (pos + 1) / p->far.step : 0;
            if (p->far.n_picks && far > p->far.n_picks) far = p->far.n_picks;
            c.flops += 4.0 * p->far.n_heads * p->far.dim * (double)(mf__far_near(p, pos) + far);
        }
        int64_t there = p->far.step ? all / p->far.step : 0, read = p->far.n_picks ? far * s->n_rows : far;
        c.bytes += (double)(near < all ? near : all) * (double)kv->k_bytes;
        c.bytes += (double)(read < there ? read : there) * (double)mf__kv_row_bytes(kv->type, p->far.dim);
    }
    return c;
}

/* A row of the streams is read once and, when it is written, read and added up once for each stream. */
static cost streams_cost(const mf__op_done *d) {
    double n = d->op->p.streams.n, wide = d->g->bufs[d->op->in[0]].cols, rows = d->b->n_rows;
    return (cost){0, d->op->kind == MF_OP_STREAMS_READ ? 4.0 * wide * rows : 2.0 * wide * (n + 1) * rows};
}

/* Two passes over the rows of every window that is completed, each with an addition and an exponential. */
static cost compress_cost(const mf__op_done *d) {
    const mf__op_params *p = &d->op->p;
    double width = p->compress.width[0] + (p->compress.n_parts > 1 ? p->compress.width[1] : 0);
    return (cost){0, (p->compress.overlap ? 2.0 : 1.0) * 6.0 * width * d->b->n_rows};
}

/* The state is read and written once per segment; a row decays it, reads it, adds to it and reads it again. */
static cost delta_cost(const mf__op_done *d) {
    double state = (double)d->op->p.delta.n_v_heads * d->op->p.delta.v_dim * d->op->p.delta.k_dim;
    return (cost){2.0 * 4.0 * state * d->b->n_segs, 7.0 * state * d->b->n_rows};
}

static cost ssm_cost(const mf__op_done *d) {
    double state = (double)d->op->p.ssm.n_heads * d->op->p.ssm.dim * d->op->p.ssm.n_state;
    return (cost){2.0 * 4.0 * state * d->b->n_segs, 5.0 * state * d->b->n_rows};
}

static cost state_or_weight_cost(const mf__op_done *d) {
    const mf__op_params *p = &d->op->p;
    bool picked = d->op->in[1] >= 0;
    switch (d->op->kind) {
    case MF_OP_MATMUL: return product_cost(d);
    case MF_OP_EXPERTS: return experts_cost(d);
    case MF_OP_ATTENTION:
        return attention_cost(d, picked ? (int64_t)p->attn.n_picks * p->attn.block : p->attn.window, picked,
                              2.0 * p->attn.n_heads * (p->attn.head_dim + mf__op_v_dim(p)));
    case MF_OP_MLA_ATTENTION:
        return attention_cost(d, p->mla.n_picks, picked,
                              2.0 * p->mla.n_heads * (2.0 * p->mla.n_latent + p->mla.n_rope));
    case MF_OP_INDEX: return index_cost(d);
    case MF_OP_FAR_ATTENTION: return far_cost(d);
    case MF_OP_COMPRESS: return compress_cost(d);
    case MF_OP_STREAMS_READ:
    case MF_OP_STREAMS_WRITE: return streams_cost(d);
    case MF_OP_DELTA_NET: return delta_cost(d);
    case MF_OP_SSM: return ssm_cost(d);
    case MF_OP_CONV1D: return (cost){0, 2.0 * p->conv.n_channels * p->conv.n_kernel * d->b->n_rows};
    default: return (cost){0};
    }
}

/* Graphs are shared between layers of a kind; their weights are not. */
static bool is_of_layer(const mf_model *m, int layer, const mf__tensor *weights) {
    if (layer < 0) return weights == m->embed || weights == m->tail;
    for (int i = 0; i < MF_LAYER_GRAPHS; i++)
        if (weights == m->layers[layer][i]) return true;
    return weights == m->ahead[layer];
}

static int layer_of(const mf_model *m, const mf__op_done *d) {
    int last = m->profile->last;
    if (is_of_layer(m, last, d->b->weights)) return last;
    for (int l = -1; l < m->info.n_layers; l++)
        if (is_of_layer(m, l, d->b->weights)) return l;
    return -1;
}

static void add_up(void *user, const mf__op_done *d, int64_t ns) {
    mf_model *m = user;
    bool head = d->op->kind == MF_OP_MATMUL && d->g == m->bp.tail;
    int layer = m->profile->last = layer_of(m, d);
    mf_profile_row *row = &m->profile->rows[(layer + 1) * KINDS + (head ? HEAD : (int)d->op->kind)];
    cost c = state_or_weight_cost(d);
    for (int i = 0; i < d->n_ops; i++) {
        for (int k = 0; k < MF_OP_IN; k++)
            if (d->op[i].in[k] >= 0) c.bytes += 4.0 * d->b->n_rows * d->g->bufs[d->op[i].in[k]].cols;
        for (int k = 0; k < MF_OP_OUT; k++)
            if (d->op[i].out[k] >= 0) c.bytes += 4.0 * d->b->n_rows * d->g->bufs[d->op[i].out[k]].cols;
    }
    row->n_runs++;
    row->ns += ns;
    row->bytes += c.bytes;
    row->flops += c.flops;
}

mf_status mf_profile_start(mf_model *m, mf_error *err) {
    if (!m) return mf__fail(err, MF_E_INVALID, "mf_profile_start: model is NULL");
    size_t n = (size_t)(m->info.n_layers + 1) * KINDS;
    struct mf__profile *made = calloc(1, sizeof *made + n * sizeof made->rows[0]);
    if (!made) return mf__fail(err, MF_E_NOMEM, "no memory for a profile of %d layers", m->info.n_layers);
    made->last = -1;
    for (size_t i = 0; i < n; i++) {
        int kind = (int)(i % KINDS);
        made->rows[i].op = kind == HEAD ? "head" : mf__op_name((mf__op_kind)kind);
        made->rows[i].layer = (int32_t)(i / KINDS) - 1;
    }
    mf__model_lock(m);
    free(m->profile);
    m->profile = made;
    m->be->watch = (mf__op_watch){add_up, m};
    mf__model_unlock(m);
    return MF_OK;
}

void mf_profile_stop(mf_model *m) {
    if (!m) return;
    mf__model_lock(m);
    m->be->watch = (mf__op_watch){0};
    mf__model_unlock(m);
}

mf_status mf_profile_get(mf_model *m, mf_profile_row *rows, size_t max, size_t *n, mf_error *err) {
    if (!m || !n || (max && !rows)) return mf__fail(err, MF_E_INVALID, "mf_profile_get: an argument is NULL");
    *n = 0;
    mf__model_lock(m);
    for (int i = 0; m->profile && i < (m->info.n_layers + 1) * KINDS; i++) {
        if (!m->profile->rows[i].n_runs) continue;
        if (*n < max) rows[*n] = m->profile->rows[i];
        ++*n;
    }
    mf__model_unlock(m);
    return MF_OK;
}
