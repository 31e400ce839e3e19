/* Patterns of decoding: ops that follow one another and can be one launch. What no pattern covers is launched op by op.
 * Fused and plain kernels may differ in the last bits, since some sums run in another order: whether a pattern within a
 * run is taken depends on the graph and on the kind of rows alone (one or several of each sequence). The last pattern,
 * which spans runs, depends on their order and on the bank too; it has the bits of the ops one by one.
 *
 *   norm -> products                                     the norm is every block's own
 *   conv, qk_norm, decay_beta, delta_net                 one row of each sequence
 *   gated_norm -> product (-> add)
 *   product -> add
 *   (split,) norms, ropes, append, attention (, gate)    three launches
 *   norm -> router -> route | gate, up, glu, down (, score) | experts | combine      of four runs: three launches */
#include "backend/cuda/host.h"

/* What a pattern sees: the op at `at` of the run, or the end. */
typedef struct view {
    const mf__cu_step *s;
    const mf__op *end;
} view;

static const mf__op *op_at(const view *v, int i, mf__op_kind kind) {
    const mf__op *op = v->s->op + i;
    return op < v->end && op->kind == kind ? op : NULL;
}

static const float *vector(const mf__cu_step *s, int16_t w) {
    return w < 0 ? NULL : (const float *)s->b->weights[w].data;
}

/* Codes of all integer products of a launch are of one width. */
static bool same_width(const mf__cu_job *jobs, int n) {
    int width = -1;
    for (int i = 0; i < n; i++) {
        if (!mf__cu_is_int8(&jobs[i].w, false)) continue;
        int bits = jobs[i].w.type == MF_CU_MXFP4 ? 0 : jobs[i].w.bits;
        if (width >= 0 && bits != width) return false;
        width = bits;
    }
    return true;
}

/* Whether two buffers may lie in the same memory. Buffers share it where one is dead before the other is written, op by
 * op; in a fused kernel one block still reads what another has written over, so patterns whose input and output share
 * memory are not taken. It depends on the graph alone. */
static bool share(const mf__cu_step *s, int16_t a, int16_t b) {
    if (a < 0 || b < 0) return false;
    const mf__buf_info *x = &s->g->bufs[a], *y = &s->g->bufs[b];
    return x->port != y->port ? false : x->port != MF_PORT_NONE || x->colour == y->colour;
}

/* ---- norm -> products -------------------------------------------------------------------------------------------- */

static mf__cu_input norm_input(const mf__cu_step *s, const mf__op *norm) {
    return (mf__cu_input){.before = MF_CU_NORM,
                          .x = mf__cu_buf(s, norm->in[0]),
                          .w = vector(s, norm->w[0]),
                          .keep = mf__cu_buf(s, norm->out[0]),
                          .n = s->rows->n,
                          .n_cols = s->g->bufs[norm->in[0]].cols,
                          .eps = norm->p.norm.eps};
}

static bool is_row_norm(const mf__cu_step *s, const mf__op *op) {
    return op && op->kind == MF_OP_RMS_NORM && op->in[0] != op->out[0] && op->p.norm.part == s->g->bufs[op->in[0]].cols;
}

static int norm_products(const view *v) {
    const mf__op *norm = v->s->op;
    mf__cu_job jobs[MF_CU_MAX_JOBS];
    if (!is_row_norm(v->s, norm) || !op_at(v, 1, MF_OP_MATMUL) || norm[1].in[0] != norm->out[0] ||
        !mf__cu_few_fits(norm->p.norm.part, true, true))
        return 0;
    mf__cu_step next = *v->s;
    next.op = norm + 1;
    int n = mf__cu_count_products(&next, v->end, false);
    for (int i = 0; i < n; i++) {
        if (share(v->s, norm[1 + i].out[0], norm->in[0])) return 0;
        jobs[i] = mf__cu_job_of(v->s, norm + 1 + i);
    }
    mf__cu_input x = norm_input(v->s, norm);
    mf__cu_few(v->s->cu->stream, &x, jobs, n, false);
    return 1 + n;
}

/* ---- product -> add ---------------------------------------------------------------------------------------------- */

/* The sum that follows the product at `at`, or NULL. */
static const mf__op *sum_of(const view *v, int at) {
    const mf__op *add = op_at(v, at + 1, MF_OP_ADD);
    return add && add->in[1] == v->s->op[at].out[0] ? add : NULL;
}

/* What the product at `at` and its sum write. */
static int16_t product_out(const view *v, int at) {
    const mf__op *add = sum_of(v, at);
    return add ? add->out[0] : v->s->op[at].out[0];
}

/* The product at `at`, with the sum that may follow it; returns the ops. */
static int product_add(const view *v, int at, mf__cu_input *x) {
    const mf__op *add = sum_of(v, at);
    mf__cu_job job = mf__cu_job_of(v->s, v->s->op + at);
    if (add) {
        job.add = mf__cu_buf(v->s, add->in[0]);
        job.y = mf__cu_buf(v->s, add->out[0]);
    }
    mf__cu_few(v->s->cu->stream, x, &job, 1, false);
    return add ? 2 : 1;
}

static bool gated_fits(const view *v) {
    const mf__op *norm = op_at(v, 0, MF_OP_GATED_NORM);
    if (!norm || !op_at(v, 1, MF_OP_MATMUL) || norm[1].in[0] != norm->out[0]) return false;
    int32_t part = norm->p.norm.part, cols = v->s->g->bufs[norm->in[0]].cols;
    int16_t out = product_out(v, 1);
    return part >= 8 && part <= 128 && !(part & (part - 1)) && cols % part == 0 && mf__cu_few_fits(cols, true, true) &&
           !share(v->s, out, norm->in[0]) && !share(v->s, out, norm->in[1]);
}

/* from: what is normed, where it is not in its buffer. */
static int gated_product(const view *v, const float *from) {
    const mf__op *norm = v->s->op;
    if (!gated_fits(v)) return 0;
    mf__cu_input x = {.before = MF_CU_GATED_NORM,
                      .x = from ? from : mf__cu_buf(v->s, norm->in[0]),
                      .x2 = mf__cu_buf(v->s, norm->in[1]),
                      .w = vector(v->s, norm->w[0]),
                      .n = v->s->rows->n,
                      .n_cols = v->s->g->bufs[norm->in[0]].cols,
                      .part = norm->p.norm.part,
                      .eps = norm->p.norm.eps};
    return 1 + product_add(v, 1, &x);
}

static bool plain_fits(const view *v) {
    const mf__op *op = op_at(v, 0, MF_OP_MATMUL);
    return op && sum_of(v, 0) && mf__cu_few_fits(v->s->g->bufs[op->in[0]].cols, true, true) &&
           !share(v->s, product_out(v, 0), op->in[0]);
}

/* from: the product's input, where it is not in its buffer. */
static int plain_product(const view *v, const float *from) {
    const mf__op *op = v->s->op;
    if (!plain_fits(v)) return 0;
    mf__cu_input x = {
        .x = from ? from : mf__cu_buf(v->s, op->in[0]), .n = v->s->rows->n, .n_cols = v->s->g->bufs[op->in[0]].cols};
    return product_add(v, 0, &x);
}

/* Memory for a buffer that lies elsewhere between two kernels; NULL: there is not enough. */
static float *elsewhere(const mf__cu_step *s, int16_t id) {
    int64_t bytes = (int64_t)MF_CU_MOST_FEW * s->g->bufs[id].cols * 4;
    return bytes > s->cu->fused.bytes / 2 ? NULL : s->cu->fused.at;
}

/* Memory for so many floats of every segment, beside that of elsewhere(); NULL: there is not enough. */
static float *shadow_of(const mf__cu_step *s, int64_t floats) {
    int64_t half = s->cu->fused.bytes / 2;
    return s->rows->n_segs * floats * 4 > half ? NULL : (float *)(void *)((char *)s->cu->fused.at + half);
}

/* ---- delta net --------------------------------------------------------------------------------------------------- */

static int delta_step(const view *v) {
    const mf__op *conv = op_at(v, 0, MF_OP_CONV1D), *unit = op_at(v, 1, MF_OP_QK_NORM);
    const mf__op *decay = op_at(v, 2, MF_OP_DECAY_BETA), *delta = op_at(v, 3, MF_OP_DELTA_NET);
    if (v->s->rows->kind != MF_CU_ONE || !conv || !unit || !decay || !delta || conv->out[0] != unit->in[0] ||
        conv->out[0] != delta->in[0] || delta->p.delta.k_dim % 4 || delta->in[1] != decay->out[0] ||
        delta->in[2] != decay->out[1])
        return 0;
    mf__cu_step s = *v->s, rest = *v->s;
    s.op = delta;
    rest.op = delta + 1;
    view after = {&rest, v->end};
    mf__cu_delta_step p = {.d = mf__cu_delta_of(&s),
                           .x = mf__cu_buf(v->s, conv->in[0]),
                           .w_conv = vector(v->s, conv->w[0]),
                           .a = mf__cu_buf(v->s, decay->in[0]),
                           .b = mf__cu_buf(v->s, decay->in[1]),
                           .a_log = vector(v->s, decay->w[0]),
                           .dt_bias = vector(v->s, decay->w[1]),
                           .n_kernel = conv->p.conv.n_kernel};
    if (v->s->rows->in_place && !(p.shadow = shadow_of(v->s, (int64_t)(p.n_kernel - 1) * p.d.n_cols))) return 0;
    int16_t out = delta->out[0];
    bool apart = share(v->s, out, conv->in[0]) || share(v->s, out, decay->in[0]) || share(v->s, out, decay->in[1]);
    if (apart) p.d.o = elsewhere(v->s, out);
    if (apart && (!p.d.o || !gated_fits(&after) || rest.op->in[0] != out)) return 0;
    mf__cu_delta_one(v->s->cu->stream, &p);
    return 4 + (apart ? gated_product(&after, p.d.o) : 0);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static bool head_norm(const mf__op *op, int16_t x, int32_t dim) {
    return op && op->in[0] == x && op->out[0] == x && op->p.norm.part == dim;
}

static int attention(const view *v) {
    const mf__cu_step *s = v->s;
    const mf__op *split = op_at(v, 0, MF_OP_SPLIT_Q_GATE), *q_norm = NULL, *k_norm = NULL;
    int i = split ? 1 : 0;
    if (op_at(v, i, MF_OP_RMS_NORM) && op_at(v, i + 1, MF_OP_RMS_NORM))
        q_norm = s->op + i, k_norm = s->op + i + 1, i += 2;
    const mf__op *q_rope = op_at(v, i, MF_OP_ROPE), *k_rope = op_at(v, i + 1, MF_OP_ROPE);
    const mf__op *append = op_at(v, i + 2, MF_OP_KV_APPEND), *attend = op_at(v, i + 3, MF_OP_ATTENTION);
    const mf__op *gate = op_at(v, i + 4, MF_OP_SIGMOID_GATE);
    if (!q_rope || !k_rope || !append || !attend || s->b->n_segs < 1) return 0;
    int16_t q = attend->in[0], k = append->in[0];
    int32_t dim = attend->p.attn.head_dim;
    const mf__op_params *r = &q_rope->p, *kr = &k_rope->p;
    if (q_rope->out[0] != q || k_rope->out[0] != k || dim > 256 || r->rope.offset || kr->rope.offset ||
        r->rope.n_rot != kr->rope.n_rot || r->rope.interleaved != kr->rope.interleaved ||
        q_rope->w[0] != k_rope->w[0] || r->rope.head_dim != dim ||
        s->b->segs[s->rows->first_seg].state->kv.type == MF_TYPE_I8)
        return 0;
    if (q_norm &&
        (!head_norm(q_norm, q, dim) || !head_norm(k_norm, k, dim) || q_norm->p.norm.eps != k_norm->p.norm.eps))
        return 0;
    if (split && (split->out[0] != q || (gate && split->out[1] != gate->in[1]))) return 0;
    mf__cu_heads h = {.q = mf__cu_buf(s, split ? split->in[0] : q),
                      .k = mf__cu_buf(s, k),
                      .v = mf__cu_buf(s, append->in[1]),
                      .q_norm = q_norm ? vector(s, q_norm->w[0]) : NULL,
                      .k_norm = k_norm ? vector(s, k_norm->w[0]) : NULL,
                      .inv_freq = vector(s, q_rope->w[0]),
                      .q_out = mf__cu_buf(s, q),
                      .n_rows = s->rows->n,
                      .n_heads = attend->p.attn.n_heads,
                      .n_kv_heads = attend->p.attn.n_kv_heads,
                      .head_dim = dim,
                      .n_rot = r->rope.n_rot,
                      .q_step = split ? 2 * dim : dim,
                      .interleaved = r->rope.interleaved,
                      .eps = q_norm ? q_norm->p.norm.eps : 0,
                      .rope_scale = r->rope.scale,
                      .segs = s->rows->segs};
    mf__cu_step a = *s;
    a.op = attend;
    mf__cu_attention att = mf__cu_attention_of(&a);
    bool gated = split && gate && gate->in[0] == attend->out[0];
    if (split && !gated) return 0;
    mf__cu_step rest = *s;
    rest.op = s->op + i + 5;
    view after = {&rest, v->end};
    bool apart = gated && share(s, attend->out[0], split->in[0]);
    if (apart) att.o = elsewhere(s, attend->out[0]);
    if (apart && (!att.o || !plain_fits(&after) || rest.op->in[0] != gate->out[0])) return 0;
    if (gated) att.gate = h.q + dim, att.gate_step = 2 * dim;
    mf__cu_heads_rows(s->cu->stream, &h);
    mf__cu_attend_rows(s, att);
    return i + 4 + (gated ? 1 : 0) + (apart ? plain_product(&after, att.o) : 0);
}

/* ---- experts ----------------------------------------------------------------------------------------------------- */

/* The shared expert's run: gate, up, glu, down (, score). */
static bool is_shared(const mf__run *r) {
    const mf__op *op = r->g->ops;
    int n = r->g->n_ops;
    return (n == 4 || n == 5) && op[0].kind == MF_OP_MATMUL && op[1].kind == MF_OP_MATMUL && op[2].kind == MF_OP_GLU &&
           op[3].kind == MF_OP_MATMUL && op[1].in[0] == op[0].in[0] && op[2].in[0] == op[0].out[0] &&
           op[2].in[1] == op[1].out[0] && op[3].in[0] == op[2].out[0] && op[3].w[1] < 0 &&
           (n == 4 || (op[4].kind == MF_OP_MATMUL && op[4].in[0] == op[0].in[0]));
}

static bool is_one(const mf__run *r, mf__op_kind kind) {
    return r->g->n_ops == 1 && r->g->ops[0].kind == kind;
}

/* The same rows of a later run, or NULL. */
static mf__cu_range *same_rows(const mf__cu_list *list, int run, const mf__cu_range *rows) {
    for (int i = list->first_range[run]; i < list->first_range[run + 1]; i++) {
        mf__cu_range *r = &list->ranges[i];
        if (r->first == rows->first && r->n == rows->n && r->kind == rows->kind) return r;
    }
    return NULL;
}

static float *take(char **mem, int64_t *left, int64_t floats) {
    float *at = (float *)(void *)*mem;
    int64_t bytes = (floats * 4 + 255) / 256 * 256;
    *mem += bytes;
    *left -= bytes;
    return at;
}

/* From the router's norm to the sum of all experts: the rest of this run and those that follow. */
static int mixture(const mf__cu_list *list, int i, const view *v) {
    const mf__cu_step *s = v->s;
    const mf__op *norm = s->op, *router = op_at(v, 1, MF_OP_MATMUL), *route = op_at(v, 2, MF_OP_ROUTE);
    if (!is_row_norm(s, norm) || !router || !route || norm + 3 != v->end || router->in[0] != norm->out[0] ||
        route->in[0] != router->out[0])
        return 0;
    int at = i + 1, left_runs = list->n_runs - at;
    bool shared = left_runs > 2 && is_shared(&list->runs[at]);
    if (shared) at++;
    if (list->n_runs - at < 2 || !is_one(&list->runs[at], MF_OP_EXPERTS) || !is_one(&list->runs[at + 1], MF_OP_COMBINE))
        return 0;
    mf__cu_range *rows[3] = {same_rows(list, i + 1, s->rows), same_rows(list, at, s->rows),
                             same_rows(list, at + 1, s->rows)};
    if (!rows[0] || !rows[1] || !rows[2]) return 0;
    mf__cu_step own = mf__cu_step_of(list, i + 1, rows[0]), experts = mf__cu_step_of(list, at, rows[1]);
    mf__cu_step combine = mf__cu_step_of(list, at + 1, rows[2]);
    int32_t n = s->rows->n;
    const mf__bank *bank = experts.b->bank;
    if (!bank || !bank->whole || mf__cu_in(&experts, 0) != mf__cu_buf(s, norm->out[0]) ||
        (mf__cu_in(&combine, 3) != NULL) != shared)
        return 0;
    char *mem = list->cu->fused.at;
    int64_t left = list->cu->fused.bytes;
    mf__cu_step routing = *s;
    routing.op = route;
    mf__cu_moe m = {.e = mf__cu_experts_of(&experts),
                    .route = mf__cu_route_of(&routing),
                    .h = mf__cu_in(&combine, 0),
                    .y = mf__cu_out(&combine, 0)};
    float *logits = take(&mem, &left, (int64_t)n * m.route.n_experts);
    mf__cu_job jobs[4] = {mf__cu_job_of(s, router)};
    int n_jobs = 1;
    m.act = take(&mem, &left, (int64_t)n * m.e.top_k * m.e.inner);
    m.route.logits = jobs[0].y = logits;
    if (shared) {
        const mf__op *op = own.op;
        int32_t inner = own.g->bufs[op[0].out[0]].cols;
        if (mf__cu_in(&own, 0) != mf__cu_buf(s, norm->out[0])) return 0;
        float *gate = take(&mem, &left, (int64_t)n * inner), *up = take(&mem, &left, (int64_t)n * inner);
        jobs[1] = mf__cu_job_of(&own, &op[0]), jobs[1].y = gate;
        jobs[2] = mf__cu_job_of(&own, &op[1]), jobs[2].y = up;
        n_jobs = 3;
        if (own.g->n_ops == 5) jobs[n_jobs++] = mf__cu_job_of(&own, &op[4]);
        m.shared = mf__cu_view(&own.b->weights[op[3].w[0]]);
        m.shared_gate = gate;
        m.shared_up = up;
        m.score = mf__cu_in(&combine, 4);
        mf__cu_glu glu = mf__cu_glu_of(&op[2].p.glu);
        if (glu.clamped != m.e.glu.clamped || glu.alpha != m.e.glu.alpha || glu.limit != m.e.glu.limit) return 0;
    }
    if (left < 0 || !same_width(jobs, n_jobs) || !mf__cu_moe_fits(&m) || !mf__cu_few_fits(m.e.hidden, true, true))
        return 0;
    mf__cu_input x = norm_input(s, norm);
    mf__cu_few(s->cu->stream, &x, jobs, n_jobs, false);
    mf__cu_moe_rows(s->cu->stream, &m);
    for (int k = 0; k < 3; k++) rows[k]->done = true;
    return 3;
}

int mf__cu_fuse(const mf__cu_list *list, int run, const mf__cu_step *s, const mf__op *end) {
    view v = {s, end};
    int n = 0;
    if (s->cu->exact || s->cu->plain || s->rows->kind == MF_CU_MANY) return 0;
    switch (s->op->kind) {
    case MF_OP_RMS_NORM: n = mixture(list, run, &v); return n ? n : norm_products(&v);
    case MF_OP_MATMUL: return plain_product(&v, NULL);
    case MF_OP_GATED_NORM: return gated_product(&v, NULL);
    case MF_OP_CONV1D: return delta_step(&v);
    case MF_OP_SPLIT_Q_GATE:
    case MF_OP_ROPE: return attention(&v);
    default: return 0;
    }
}
