/* From ops to launches: for each range of rows of a run its ops in order; products that read the same input become one
 * launch. */
#include "backend/cuda/host.h"

/* ---- views ------------------------------------------------------------------------------------------------------- */

static mf__cu_type type_of(mf__type type) {
    switch (type) {
    case MF_TYPE_F16: return MF_CU_F16;
    case MF_TYPE_BF16: return MF_CU_BF16;
    case MF_TYPE_AFFINE: return MF_CU_AFFINE;
    case MF_TYPE_MXFP4: return MF_CU_MXFP4;
    case MF_TYPE_F8_BLOCK: return MF_CU_F8;
    case MF_TYPE_I8: return MF_CU_I8;
    default: return MF_CU_F32;
    }
}

/* What every row of codes lies at a multiple of, for threads that load whole granules. */
static int alignment(const mf__cu_matrix *m) {
    if (m->type == MF_CU_AFFINE && m->bits % 4) return 4;
    return 16;
}

mf__cu_matrix mf__cu_view(const mf__tensor *tensor) {
    mf__tensor t = *tensor;
    mf__tensor_flatten(&t);
    mf__cu_matrix m = {.type = type_of(t.type),
                       .scale_type = type_of(t.scale_type),
                       .n_rows = (int32_t)t.n_rows,
                       .n_cols = (int32_t)t.n_cols,
                       .bits = t.bits,
                       .group = t.group,
                       .block_rows = t.block_rows,
                       .row_bytes = mf__tensor_row_bytes(&t),
                       .data = t.data,
                       .scales = t.scales,
                       .biases = t.biases};
    if (t.group) m.n_groups = (int32_t)((t.n_cols + t.group - 1) / t.group);
    m.wide = (uintptr_t)m.data % alignment(&m) == 0 && m.row_bytes % alignment(&m) == 0;
    return m;
}

static mf__cu_matrix part_view(const mf__expert_layout *layout, mf__expert_part part) {
    mf__tensor t = mf__expert_view(layout, part, NULL);
    mf__cu_matrix m = mf__cu_view(&t);
    bool affine = m.type == MF_CU_AFFINE;
    m.data = (const char *)(intptr_t)layout->part[part].data_off;
    if (t.group) m.scales = (const char *)(intptr_t)layout->part[part].scales_off;
    m.biases = affine ? (const char *)(intptr_t)layout->part[part].biases_off : NULL;
    m.wide = layout->part[part].data_off % alignment(&m) == 0 && m.row_bytes % alignment(&m) == 0;
    return m;
}

static int64_t bias_of(const mf__expert_layout *layout, mf__expert_part part) {
    return layout->part[part].has_bias ? layout->part[part].bias_off : -1;
}

mf__cu_glu mf__cu_glu_of(const mf__glu *g) {
    return (mf__cu_glu){.clamped = g->kind == MF_GLU_CLAMPED, .alpha = g->alpha, .limit = g->limit};
}

/* ---- one op ------------------------------------------------------------------------------------------------------ */

typedef mf__cu_step step;
#define in(s, k) mf__cu_in(s, k)
#define out(s, k) mf__cu_out(s, k)
#define in_cols(s, k) mf__cu_in_cols(s, k)
#define vec(s, k) mf__cu_vec(s, k)

static int64_t round_up(int64_t bytes) {
    return (bytes + 255) / 256 * 256;
}

/* Products of the same input that follow one another, as many as one launch takes. */
int mf__cu_count_products(const step *s, const mf__op *end, bool exact) {
    int n = 0, width = -1;
    for (const mf__op *op = s->op; op < end && n < MF_CU_MAX_JOBS; op++, n++) {
        if (op->kind != MF_OP_MATMUL || op->in[0] != s->op->in[0]) break;
        mf__cu_matrix w = mf__cu_view(&s->b->weights[op->w[0]]);
        if (!mf__cu_is_int8(&w, exact)) continue;
        int bits = w.type == MF_CU_MXFP4 ? 0 : w.bits;
        if (width >= 0 && bits != width) break;
        width = bits;
    }
    return n;
}

/* Tiles of those jobs that have the same kind of codes as the first of them; returns the jobs that are left. */
static int multiply_alike(const step *s, mf__cu_tiles *t, const mf__cu_input *x, mf__cu_job *jobs, int n) {
    int left = 0;
    t->n_jobs = 0;
    for (int i = 0; i < n; i++) {
        const mf__cu_matrix *a = &jobs[0].w, *b = &jobs[i].w;
        bool int8 = mf__cu_is_int8(a, s->cu->exact);
        if (int8 != mf__cu_is_int8(b, s->cu->exact) ||
            (int8 && (a->type != b->type || a->bits != b->bits || a->group != b->group)))
            jobs[left++] = jobs[i]; /* left <= i: no job is lost */
        else
            t->jobs[t->n_jobs++] = jobs[i];
    }
    if (mf__cu_is_int8(&t->jobs[0].w, s->cu->exact))
        mf__cu_multiply_tiles(s->cu->stream, t);
    else
        mf__cu_multiply_f32(s->cu->stream, t, x->x);
    return left;
}

mf__cu_job mf__cu_job_of(const step *s, const mf__op *op) {
    return (mf__cu_job){.w = mf__cu_view(&s->b->weights[op->w[0]]),
                        .bias = op->w[1] < 0 ? NULL : s->b->weights[op->w[1]].data,
                        .y = mf__cu_buf(s, op->out[0])};
}

static void matmul(const step *s, int n) {
    mf__cu_job jobs[MF_CU_MAX_JOBS];
    mf__cu_input x = {.x = in(s, 0), .n = s->rows->n, .n_cols = in_cols(s, 0)};
    bool planes = false, floats = false;
    for (int i = 0; i < n; i++) {
        jobs[i] = mf__cu_job_of(s, s->op + i);
        bool int8 = mf__cu_is_int8(&jobs[i].w, s->cu->exact);
        planes |= int8;
        floats |= !int8;
    }
    if (s->rows->kind != MF_CU_MANY && mf__cu_few_fits(x.n_cols, planes, floats)) {
        mf__cu_few(s->cu->stream, &x, jobs, n, s->cu->exact);
        return;
    }
    mf__cu_tiles t = {.n = x.n, .n_cols = x.n_cols, .x = mf__cu_planes_at(s->scratch, x.n, x.n_cols)};
    if (planes) mf__cu_quantize(s->cu->stream, &x, &t.x);
    while (n) n = multiply_alike(s, &t, &x, jobs, n);
}

/* Memory for the experts of many rows. */
typedef struct many {
    mf__cu_planes x, mid;
    int32_t *counts, *order, *n_tiles;
    mf__cu_tile *tiles;
    float *gate, *up; /* [pairs][inner] */
    int64_t bytes;
} many;

static void *take(char *mem, int64_t *at, int64_t bytes) {
    void *p = mem + *at;
    *at += round_up(bytes);
    return p;
}

static int32_t max_tiles(int64_t pairs, int32_t n_experts) {
    return (int32_t)(pairs / MF_CU_TILE_ROWS) + n_experts;
}

static many lay_out(char *mem, int64_t n, int32_t top_k, int32_t hidden, int32_t inner, int32_t n_experts) {
    many m = {0};
    int64_t pairs = n * top_k;
    m.x = mf__cu_planes_at(take(mem, &m.bytes, mf__cu_planes_bytes(n, hidden)), n, hidden);
    m.mid = mf__cu_planes_at(take(mem, &m.bytes, mf__cu_planes_bytes(pairs, inner)), pairs, inner);
    m.counts = take(mem, &m.bytes, n_experts * 4);
    m.order = take(mem, &m.bytes, pairs * 4);
    m.n_tiles = take(mem, &m.bytes, 4);
    m.tiles = take(mem, &m.bytes, max_tiles(pairs, n_experts) * (int64_t)sizeof *m.tiles);
    m.gate = take(mem, &m.bytes, pairs * inner * 4);
    m.up = take(mem, &m.bytes, pairs * inner * 4);
    return m;
}

static bool alike(const mf__cu_matrix *a, const mf__cu_matrix *b) {
    return a->type == b->type && a->bits == b->bits && a->group == b->group;
}

/* Grouped by expert: gate and up in one launch, their activation is rounded on its way into down. */
static void experts_many(const step *s, const mf__cu_experts *e) {
    cudaStream_t stream = s->cu->stream;
    int64_t pairs = (int64_t)e->n_rows * e->top_k;
    many m = lay_out(s->scratch, e->n_rows, e->top_k, e->hidden, e->inner, e->bank.n_experts);
    mf__cu_tiles t = {.jobs = {{.w = e->bank.gate, .y = m.gate}, {.w = e->bank.up, .y = m.up}},
                      .n_jobs = 2,
                      .x = m.x,
                      .n_cols = e->hidden,
                      .tiles = m.tiles,
                      .n_tiles = m.n_tiles,
                      .order = m.order,
                      .max_tiles = max_tiles(pairs, e->bank.n_experts),
                      .top_k = e->top_k,
                      .y_sorted = true,
                      .table = e->bank.table,
                      .bias_off = {e->bank.b_gate, e->bank.b_up}};
    mf__cu_sort_pairs(stream, &(mf__cu_sort){.ids = e->ids,
                                             .table = e->bank.table,
                                             .n_pairs = (int32_t)pairs,
                                             .n_experts = e->bank.n_experts,
                                             .counts = m.counts,
                                             .order = m.order,
                                             .tiles = m.tiles,
                                             .n_tiles = m.n_tiles});
    bool int8 = mf__cu_is_int8(&e->bank.gate, e->exact) && alike(&e->bank.gate, &e->bank.up);
    if (int8) {
        mf__cu_quantize(stream, &(mf__cu_input){.x = e->x, .n = e->n_rows, .n_cols = e->hidden}, &m.x);
        mf__cu_multiply_tiles(stream, &t);
    } else {
        mf__cu_multiply_f32(stream, &t, e->x);
    }
    mf__cu_input mid = {
        .before = MF_CU_GLU, .x = m.gate, .x2 = m.up, .n = (int32_t)pairs, .n_cols = e->inner, .glu = e->glu};
    t.jobs[0] = (mf__cu_job){.w = e->bank.down, .y = e->pairs};
    t.bias_off[0] = e->bank.b_down;
    t.n_jobs = 1;
    t.x = m.mid;
    t.n_cols = e->inner;
    t.x_sorted = true;
    t.y_sorted = false;
    if (mf__cu_is_int8(&e->bank.down, e->exact)) {
        mf__cu_quantize(stream, &mid, &m.mid);
        mf__cu_multiply_tiles(stream, &t);
    } else {
        mf__cu_glu_rows(stream, &e->glu, m.gate, m.up, pairs * e->inner, m.gate);
        mf__cu_multiply_f32(stream, &t, m.gate);
    }
}

mf__cu_experts mf__cu_experts_of(const step *s) {
    const mf__bank *bank = s->b->bank;
    return (mf__cu_experts){.bank = {.table = s->table,
                                     .n_experts = bank->n_experts,
                                     .gate = part_view(bank->layout, MF_PART_GATE),
                                     .up = part_view(bank->layout, MF_PART_UP),
                                     .down = part_view(bank->layout, MF_PART_DOWN),
                                     .b_gate = bias_of(bank->layout, MF_PART_GATE),
                                     .b_up = bias_of(bank->layout, MF_PART_UP),
                                     .b_down = bias_of(bank->layout, MF_PART_DOWN)},
                            .glu = mf__cu_glu_of(&s->op->p.moe.glu),
                            .n_rows = s->rows->n,
                            .top_k = s->op->p.moe.top_k,
                            .hidden = in_cols(s, 0),
                            .inner = s->op->p.moe.n_inner,
                            .x = in(s, 0),
                            .ids = (const int32_t *)in(s, 1),
                            .pairs = out(s, 0),
                            .exact = s->cu->exact};
}

/* Piece by piece, as they come; each writes the pairs of its experts. */
static void experts_in_pieces(const step *s, mf__cu_experts e) {
    for (int i = 0; i < s->n_pieces; i++) {
        if (s->pieces[i].first == s->pieces[i].end) continue; /* nothing is on the device */
        e.bank.table = s->pieces[i].table;
        mf__cu_piece_begin(s->cu, s->b->bank, &s->pieces[i]);
        experts_many(s, &e);
        mf__cu_piece_end(s->cu, &s->pieces[i]);
    }
}

static void experts(const step *s) {
    mf__cu_experts e = mf__cu_experts_of(s);
    if (s->rows->kind == MF_CU_MANY && s->n_pieces && mf__cu_wants_all(e.n_rows, e.top_k, e.bank.n_experts))
        experts_in_pieces(s, e);
    else if (s->rows->kind == MF_CU_MANY)
        experts_many(s, &e);
    else
        mf__cu_experts_few(s->cu->stream, &e, (float *)s->scratch);
}

/* Whether KV rows can be copied sixteen bytes at a time, all of them in the same way. */
static bool wide_kv(const step *s) {
    for (int32_t i = 0; i < s->rows->n_segs; i++) {
        const mf__kv *kv = &s->b->segs[s->rows->first_seg + i].state->kv;
        if (kv->type != MF_TYPE_F16 || kv->k_bytes != kv->v_bytes || kv->k_bytes % 16 || kv->off % 16) return false;
    }
    return true;
}

/* As many rows at a time as there is memory for their shares. */
void mf__cu_attend_rows(const step *s, mf__cu_attention a) {
    a.narrow = s->rows->kind != MF_CU_MANY && !s->cu->exact && mf__cu_narrow_fits(&a) && wide_kv(s);
    int64_t one = mf__cu_attention_bytes(1, a.n_heads, a.v_dim, a.n_splits);
    int32_t n_rows = a.n_rows, most = (int32_t)(s->cu->parts.bytes / one);
    mf__cu_attention all = a;
    if (most > 32768) most = 32768;
    for (int32_t t = 0; t < n_rows; t += most) {
        a.n_rows = n_rows - t < most ? n_rows - t : most;
        a.row0 = t;
        a.q = all.q + (int64_t)t * a.n_heads * a.q_stride;
        a.o = all.o + (int64_t)t * a.n_heads * a.v_dim;
        if (a.gate) a.gate = all.gate + (int64_t)t * a.n_heads * a.gate_step;
        mf__cu_attend(s->cu->stream, &a);
    }
}

mf__cu_attention mf__cu_attention_of(const step *s) {
    const mf__op_params *p = &s->op->p;
    return (mf__cu_attention){.q = in(s, 0),
                              .sinks = vec(s, 0),
                              .o = out(s, 0),
                              .parts = s->cu->parts.at,
                              .n_rows = s->rows->n,
                              .n_heads = p->attn.n_heads,
                              .n_kv_heads = p->attn.n_kv_heads,
                              .k_dim = p->attn.head_dim,
                              .v_dim = p->attn.head_dim,
                              .q_stride = p->attn.head_dim,
                              .n_splits = s->rows->n_splits,
                              .window = p->attn.window,
                              .scale = p->attn.scale,
                              .segs = s->rows->segs};
}

static void attention(const step *s) {
    mf__cu_attention a = mf__cu_attention_of(s);
    if (s->rows->kind == MF_CU_MANY && !s->cu->exact && mf__cu_flash_fits(&a) && wide_kv(s))
        mf__cu_flash(s->cu->stream, &a);
    else
        mf__cu_attend_rows(s, a);
}

static void mla(const step *s) {
    const mf__op_params *p = &s->op->p;
    int64_t pairs = (int64_t)s->rows->n * p->mla.n_heads;
    float *q = (float *)s->scratch,
          *z = (float *)(s->scratch + round_up(pairs * (p->mla.n_latent + p->mla.n_rope) * 4));
    bool joint = s->op->w[1] < 0;
    mf__cu_mla m = {.q = in(s, 0),
                    .o = out(s, 0),
                    .w_uk = mf__cu_view(&s->b->weights[s->op->w[0]]),
                    .joint = joint,
                    .n_rows = s->rows->n,
                    .n_heads = p->mla.n_heads,
                    .n_latent = p->mla.n_latent,
                    .n_nope = p->mla.n_nope,
                    .n_rope = p->mla.n_rope,
                    .v_dim = p->mla.v_dim,
                    .scale = p->mla.scale};
    if (!joint) m.w_uv = mf__cu_view(&s->b->weights[s->op->w[1]]);
    mf__cu_mla_absorb(s->cu->stream, &m, q);
    mf__cu_attend_rows(s, (mf__cu_attention){.q = q,
                                             .o = z,
                                             .parts = s->cu->parts.at,
                                             .n_rows = s->rows->n,
                                             .n_heads = p->mla.n_heads,
                                             .n_kv_heads = 1,
                                             .k_dim = p->mla.n_latent,
                                             .v_dim = p->mla.n_latent,
                                             .n_rope = p->mla.n_rope,
                                             .q_stride = p->mla.n_latent + p->mla.n_rope,
                                             .n_splits = s->rows->n_splits,
                                             .scale = p->mla.scale,
                                             .segs = s->rows->segs});
    mf__cu_mla_expand(s->cu->stream, &m, z);
}

static void rope(const step *s) {
    const mf__op_params *p = &s->op->p;
    mf__cu_rope_rows(s->cu->stream, &(mf__cu_rope){.x = out(s, 0),
                                                   .inv_freq = vec(s, 0),
                                                   .n_rows = s->rows->n,
                                                   .n_heads = p->rope.n_heads,
                                                   .head_dim = p->rope.head_dim,
                                                   .offset = p->rope.offset,
                                                   .n_rot = p->rope.n_rot,
                                                   .interleaved = p->rope.interleaved,
                                                   .scale = p->rope.scale,
                                                   .segs = s->rows->segs});
}

mf__cu_delta mf__cu_delta_of(const step *s) {
    const mf__op_params *p = &s->op->p;
    return (mf__cu_delta){.qkv = in(s, 0),
                          .decay = in(s, 1),
                          .beta = in(s, 2),
                          .o = out(s, 0),
                          .n_rows = s->rows->n,
                          .n_cols = in_cols(s, 0),
                          .n_k_heads = p->delta.n_k_heads,
                          .k_dim = p->delta.k_dim,
                          .n_v_heads = p->delta.n_v_heads,
                          .v_dim = p->delta.v_dim,
                          .segs = s->rows->segs};
}

mf__cu_route mf__cu_route_of(const step *s) {
    const mf__op_params *p = &s->op->p;
    return (mf__cu_route){.logits = in(s, 0),
                          .bias = vec(s, 0),
                          .ids = (int32_t *)out(s, 0),
                          .shares = out(s, 1),
                          .n_rows = s->rows->n,
                          .kind = (int32_t)p->route.kind,
                          .n_experts = p->route.n_experts,
                          .top_k = p->route.top_k,
                          .n_groups = p->route.n_groups,
                          .top_groups = p->route.top_groups,
                          .renorm = p->route.renorm,
                          .scale = p->route.scale};
}

static void combine(const step *s) {
    mf__cu_combine_rows(s->cu->stream, &(mf__cu_combine){.n_rows = s->rows->n,
                                                         .top_k = s->op->p.moe.top_k,
                                                         .hidden = in_cols(s, 0),
                                                         .h = in(s, 0),
                                                         .pairs = in(s, 1),
                                                         .shares = in(s, 2),
                                                         .shared = in(s, 3),
                                                         .score = in(s, 4),
                                                         .y = out(s, 0)});
}

/* Runs the op, or several; returns how many. */
static int emit_op(const step *s, const mf__op *end) {
    const mf__op_params *p = &s->op->p;
    cudaStream_t stream = s->cu->stream;
    int32_t n = s->rows->n, cols = s->op->in[0] < 0 ? 0 : in_cols(s, 0);
    int64_t all = (int64_t)n * cols;
    switch (s->op->kind) {
    case MF_OP_EMBED: {
        mf__cu_matrix w = mf__cu_view(&s->b->weights[s->op->w[0]]);
        mf__cu_embed(stream, &w, (const int32_t *)in(s, 0), n, out(s, 0));
        break;
    }
    case MF_OP_RMS_NORM:
        mf__cu_rms_norm(stream, in(s, 0), vec(s, 0), all / p->norm.part, p->norm.part, p->norm.eps, out(s, 0));
        break;
    case MF_OP_MATMUL: {
        int products = mf__cu_count_products(s, end, s->cu->exact);
        matmul(s, products);
        return products;
    }
    case MF_OP_SPLIT_Q_GATE:
        mf__cu_split_q_gate(stream, in(s, 0), (int64_t)n * p->split.n_heads, p->split.head_dim, out(s, 0), out(s, 1));
        break;
    case MF_OP_ROPE: rope(s); break;
    case MF_OP_KV_APPEND:
        mf__cu_kv_append(stream, &(mf__cu_append){.k = in(s, 0),
                                                  .v = in(s, 1),
                                                  .n_rows = n,
                                                  .k_cols = cols,
                                                  .v_cols = in_cols(s, 1),
                                                  .segs = s->rows->segs});
        break;
    case MF_OP_ATTENTION: attention(s); break;
    case MF_OP_SPLIT: mf__cu_split(stream, in(s, 0), n, cols, p->cut.n_first, out(s, 0), out(s, 1)); break;
    case MF_OP_MLA_ATTENTION: mla(s); break;
    case MF_OP_SIGMOID_GATE: mf__cu_sigmoid_gate(stream, out(s, 0), in(s, 1), all); break;
    case MF_OP_CONV1D:
        mf__cu_conv1d(stream, &(mf__cu_conv){.x = in(s, 0),
                                             .w = vec(s, 0),
                                             .y = out(s, 0),
                                             .n_rows = n,
                                             .n_channels = p->conv.n_channels,
                                             .n_kernel = p->conv.n_kernel,
                                             .segs = s->rows->segs});
        break;
    case MF_OP_QK_NORM: mf__cu_qk_norm(stream, out(s, 0), n, cols, p->delta.n_k_heads, p->delta.k_dim); break;
    case MF_OP_DECAY_BETA:
        mf__cu_decay_beta(stream, in(s, 0), in(s, 1), vec(s, 0), vec(s, 1), n, cols, out(s, 0), out(s, 1));
        break;
    case MF_OP_DELTA_NET: {
        mf__cu_delta d = mf__cu_delta_of(s);
        mf__cu_delta_net(stream, &d);
        break;
    }
    case MF_OP_GATED_NORM:
        mf__cu_gated_norm(stream, in(s, 0), in(s, 1), vec(s, 0), all / p->norm.part, p->norm.part, p->norm.eps,
                          out(s, 0));
        break;
    case MF_OP_ADD: mf__cu_add(stream, in(s, 0), in(s, 1), all, out(s, 0)); break;
    case MF_OP_ROUTE: {
        mf__cu_route r = mf__cu_route_of(s);
        mf__cu_route_rows(stream, &r);
        break;
    }
    case MF_OP_GLU: {
        mf__cu_glu glu = mf__cu_glu_of(&p->glu);
        mf__cu_glu_rows(stream, &glu, in(s, 0), in(s, 1), all, out(s, 0));
        break;
    }
    case MF_OP_EXPERTS: experts(s); break;
    case MF_OP_COMBINE: combine(s); break;
    default: break;
    }
    return 1;
}

mf__cu_step mf__cu_step_of(const mf__cu_list *list, int run, const mf__cu_range *rows) {
    const mf__run *r = &list->runs[run];
    return (step){.cu = list->cu,
                  .g = r->g,
                  .b = &r->b,
                  .op = r->g->ops,
                  .rows = rows,
                  .table = list->tables[run],
                  .scratch = list->cu->scratch.at,
                  .pieces = list->pieces + list->first_piece[run],
                  .n_pieces = list->first_piece[run + 1] - list->first_piece[run]};
}

/* The op of a group that stands for it where time is measured: the one that moves most. */
static mf__op_done op_done(const step *s, int n) {
    mf__op_done done = {.g = s->g, .b = s->b, .op = s->op, .n_ops = 1};
    int at = 0;
    for (int i = n - 1; i >= 0; i--) switch (s->op[i].kind) {
        case MF_OP_MATMUL:
        case MF_OP_ATTENTION:
        case MF_OP_MLA_ATTENTION:
        case MF_OP_DELTA_NET:
        case MF_OP_EXPERTS: at = i; break;
        default: break;
        }
    done.op += at;
    while (at + done.n_ops < n && done.op->kind == MF_OP_MATMUL && done.op[done.n_ops].kind == MF_OP_MATMUL)
        done.n_ops++;
    if (done.op->kind == MF_OP_EXPERTS) { /* as if every row had experts of its own, up to all of them */
        done.n_pairs = (int64_t)s->rows->n * done.op->p.moe.top_k;
        done.n_experts = done.n_pairs < s->b->bank->n_experts ? done.n_pairs : s->b->bank->n_experts;
    }
    return done;
}

/* One range of one run. */
static mf_status emit_range(const mf__cu_list *list, int run, const mf__cu_range *rows, mf_error *err) {
    mf__cu *cu = list->cu;
    step s = mf__cu_step_of(list, run, rows);
    const mf__op *end = s.g->ops + s.g->n_ops;
    bool watched = cu->base.watch.fn;
    while (s.op < end) {
        if (watched) MF__TRY(mf__cu_check(cudaEventRecord(cu->watch[0], cu->stream), "measuring", err));
        int n = mf__cu_fuse(list, run, &s, end);
        if (!n) n = emit_op(&s, end);
        MF__TRY(mf__cu_check(cudaGetLastError(), s.op->label, err));
        if (watched) {
            float ms = 0;
            mf__op_done done = op_done(&s, n);
            MF__TRY(mf__cu_check(cudaEventRecord(cu->watch[1], cu->stream), "measuring", err));
            MF__TRY(mf__cu_check(cudaEventSynchronize(cu->watch[1]), s.op->label, err));
            MF__TRY(mf__cu_check(cudaEventElapsedTime(&ms, cu->watch[0], cu->watch[1]), "measuring", err));
            cu->base.watch.fn(cu->base.watch.user, &done, (int64_t)((double)ms * 1e6));
        }
        s.op += n;
    }
    return MF_OK;
}

mf_status mf__cu_emit(const mf__cu_list *list, mf_error *err) {
    for (int i = 0; i < list->first_range[list->n_runs]; i++) list->ranges[i].done = false;
    for (int run = 0; run < list->n_runs; run++)
        for (int i = list->first_range[run]; i < list->first_range[run + 1]; i++)
            if (!list->ranges[i].done) MF__TRY(emit_range(list, run, &list->ranges[i], err));
    return MF_OK;
}

/* ---- what is possible -------------------------------------------------------------------------------------------- */

bool mf__cu_supports(const mf__backend *be, const mf__op *op) {
    (void)be;
    switch (op->kind) {
    case MF_OP_ATTENTION:
        return op->p.attn.head_dim <= 256 && mf__op_v_dim(&op->p) == op->p.attn.head_dim && op->in[1] < 0 &&
               !op->p.attn.chunked;
    case MF_OP_MLA_ATTENTION: return op->p.mla.n_latent <= 512 && op->p.mla.n_rope <= 64 && op->in[1] < 0;
    case MF_OP_SIGMOID_GATE: return op->p.gate.part == 1;
    case MF_OP_ROPE: return !op->p.rope.back;
    case MF_OP_KV_APPEND: return op->in[1] >= 0;
    case MF_OP_CONV1D: return op->p.conv.n_kernel <= 8 && !op->p.conv.plain && !op->p.conv.at && op->w[1] < 0;
    case MF_OP_DECAY_BETA: return !op->p.delta.by_channel;
    case MF_OP_DELTA_NET: return op->p.delta.k_dim <= 256 && !op->p.delta.by_channel;
    case MF_OP_GATED_NORM: return !op->p.norm.sigmoid;
    case MF_OP_ROUTE:
        if (op->w[1] >= 0 || op->in[1] >= 0 || op->p.route.kind >= MF_ROUTE_SQRT_SOFTPLUS || op->p.route.eps > 0)
            return false;
        if (op->p.route.kind == MF_ROUTE_SOFTMAX && (op->w[0] >= 0 || op->p.route.n_groups > 1)) return false;
        return op->p.route.n_experts <= MF_CU_MAX_EXPERTS && op->p.route.top_k <= MF_CU_MAX_TOPK;
    case MF_OP_RMS_NORM: return !op->p.norm.apart;
    case MF_OP_SSM:
    case MF_OP_COMPRESS:
    case MF_OP_FAR_ATTENTION:
    case MF_OP_STREAMS_READ:
    case MF_OP_STREAMS_WRITE:
    case MF_OP_INDEX:
    case MF_OP_JOIN:
    case MF_OP_LAYER_NORM:
    case MF_OP_WEIGH:
    case MF_OP_IDENTITY:
    case MF_OP_MAP: return false;
    case MF_OP_GLU: return op->p.glu.kind == MF_GLU_SILU || op->p.glu.kind == MF_GLU_CLAMPED;
    case MF_OP_EXPERTS: return op->p.moe.glu.kind == MF_GLU_SILU || op->p.moe.glu.kind == MF_GLU_CLAMPED;
    case MF_OP_COMBINE: return op->in[0] >= 0;
    default: return (unsigned)op->kind < MF_OP_COUNT;
    }
}

static int64_t op_scratch(const mf__graph *g, const mf__op *op, int32_t n) {
    int32_t cols = op->in[0] < 0 ? 0 : g->bufs[op->in[0]].cols;
    if (op->kind == MF_OP_MATMUL) return mf__cu_planes_bytes(n, cols);
    if (op->kind == MF_OP_EXPERTS) {
        many m = lay_out(NULL, n, op->p.moe.top_k, cols, op->p.moe.n_inner, MF_CU_MAX_EXPERTS);
        return m.bytes;
    }
    if (op->kind == MF_OP_MLA_ATTENTION) {
        int64_t pairs = (int64_t)n * op->p.mla.n_heads;
        return round_up(pairs * (op->p.mla.n_latent + op->p.mla.n_rope) * 4) + pairs * op->p.mla.n_latent * 4;
    }
    return 0;
}

int64_t mf__cu_scratch(const mf__backend *be, const mf__graph *g, int32_t n_rows) {
    int64_t most = 0;
    (void)be;
    for (int i = 0; i < g->n_ops; i++) {
        int64_t bytes = op_scratch(g, &g->ops[i], n_rows);
        if (bytes > most) most = bytes;
    }
    return most;
}
