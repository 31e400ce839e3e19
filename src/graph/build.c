/* Building graphs: one function per op, which checks shapes and appends. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "graph/graph.h"

static void fail(mf__graph *g, const char *fmt, ...) MF__PRINTF(2, 3);
static void fail(mf__graph *g, const char *fmt, ...) {
    if (g->error.status != MF_OK) return; /* the first error is the one that tells */
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    mf__fail(&g->error, MF_E_INTERNAL, "%s", text);
}

static bool failed(const mf__graph *g) {
    return g->error.status != MF_OK;
}

/* ---- weights ---------------------------------------------------------------------------------------------------- */

static mf__w add_weight(mf__graph *g, const char *name, mf__weight_kind kind, int64_t n_rows, int64_t n_cols) {
    if (g->n_weights == MF_MAX_WEIGHTS) fail(g, "more than %d weights", MF_MAX_WEIGHTS);
    if (n_rows <= 0 || n_cols <= 0)
        fail(g, "weight %s has the shape %lld x %lld", name, (long long)n_rows, (long long)n_cols);
    const char *copy = mf__arena_strdup(&g->arena, name);
    if (!copy) fail(g, "no memory");
    if (failed(g)) return MF_NO_WEIGHT;
    g->weights[g->n_weights] = (mf__weight_info){.name = copy, .kind = kind, .n_rows = n_rows, .n_cols = n_cols};
    return (mf__w){(int16_t)g->n_weights++};
}

mf__w mf__g_matrix(mf__graph *g, const char *name, int64_t n_rows, int64_t n_cols) {
    return add_weight(g, name, MF_WEIGHT_MATRIX, n_rows, n_cols);
}

mf__w mf__g_vector(mf__graph *g, const char *name, int64_t n_rows, int64_t n_cols) {
    return add_weight(g, name, MF_WEIGHT_VECTOR, n_rows, n_cols);
}

mf__w mf__g_const(mf__graph *g, const char *name, const float *data, int64_t n) {
    mf__w w = add_weight(g, name, MF_WEIGHT_CONST, 1, n);
    float *copy = failed(g) ? NULL : mf__arena_array(&g->arena, (size_t)n, sizeof(float));
    if (!copy) {
        fail(g, "no memory");
        return MF_NO_WEIGHT;
    }
    memcpy(copy, data, (size_t)n * sizeof(float));
    g->weights[w.id].data = copy;
    return w;
}

static void want_weight(mf__graph *g, const char *op, mf__w w, int64_t n_rows, int64_t n_cols) {
    if (failed(g)) return;
    if (w.id < 0) {
        fail(g, "%s needs a weight", op);
        return;
    }
    const mf__weight_info *i = &g->weights[w.id];
    if (i->n_rows * i->n_cols != n_rows * n_cols || (i->kind == MF_WEIGHT_MATRIX && i->n_cols != n_cols))
        fail(g, "%s: weight %s is %lld x %lld, wanted %lld x %lld", op, i->name, (long long)i->n_rows,
             (long long)i->n_cols, (long long)n_rows, (long long)n_cols);
}

/* ---- buffers ---------------------------------------------------------------------------------------------------- */

static int16_t add_buf(mf__graph *g, const char *label, mf__port port, int32_t cols, bool is_int) {
    if (g->n_bufs == MF_MAX_BUFS) fail(g, "more than %d buffers", MF_MAX_BUFS);
    if (cols <= 0) fail(g, "buffer %s has %d columns", label, cols);
    const char *copy = mf__arena_strdup(&g->arena, label);
    if (!copy) fail(g, "no memory");
    if (failed(g)) return -1;
    g->bufs[g->n_bufs] = (mf__buf_info){.cols = cols, .is_int = is_int, .port = port, .colour = -1, .label = copy};
    return (int16_t)g->n_bufs++;
}

static int32_t cols_of(const mf__graph *g, int16_t id) {
    return failed(g) || id < 0 ? 0 : g->bufs[id].cols;
}

static void want_cols(mf__graph *g, const char *op, int16_t id, int64_t cols) {
    if (failed(g)) return;
    if (id < 0)
        fail(g, "%s: an input is missing", op);
    else if (g->bufs[id].cols != cols)
        fail(g, "%s: input %s has %d columns, wanted %lld", op, g->bufs[id].label, g->bufs[id].cols, (long long)cols);
}

mf__tokens mf__g_in_tokens(mf__graph *g) {
    return (mf__tokens){add_buf(g, "tokens", MF_PORT_TOKENS, 1, true)};
}
mf__residual mf__g_in_residual(mf__graph *g, mf__port port, int32_t cols) {
    return (mf__residual){add_buf(g, mf__port_name(port), port, cols, false)};
}
mf__normed mf__g_in_normed(mf__graph *g, mf__port port, int32_t cols) {
    return (mf__normed){add_buf(g, mf__port_name(port), port, cols, false)};
}
mf__act mf__g_in_act(mf__graph *g, mf__port port, int32_t cols) {
    return (mf__act){add_buf(g, mf__port_name(port), port, cols, false)};
}
mf__ids mf__g_in_ids(mf__graph *g, int32_t cols) {
    return (mf__ids){add_buf(g, "route_ids", MF_PORT_ROUTE_IDS, cols, true)};
}
mf__shares mf__g_in_shares(mf__graph *g, int32_t cols) {
    return (mf__shares){add_buf(g, "route_shares", MF_PORT_ROUTE_SHARES, cols, false)};
}
mf__pairs mf__g_in_pairs(mf__graph *g, int32_t cols) {
    return (mf__pairs){add_buf(g, "pairs", MF_PORT_PAIRS, cols, false)};
}

mf__chosen mf__g_in_picks(mf__graph *g, int32_t cols) {
    return (mf__chosen){add_buf(g, "picks", MF_PORT_PICKS, cols, true)};
}

void mf__g_export(mf__graph *g, int16_t id, mf__port port) {
    if (failed(g)) return;
    if (id < 0 || g->bufs[id].port != MF_PORT_NONE)
        fail(g, "cannot export buffer %d to port %s", id, mf__port_name(port));
    else
        g->bufs[id].port = port;
}

/* ---- ops -------------------------------------------------------------------------------------------------------- */

static mf__op *add_op(mf__graph *g, mf__op_kind kind, const char *label) {
    if (g->n_ops == MF_MAX_OPS) fail(g, "more than %d ops", MF_MAX_OPS);
    if (g->finished) fail(g, "the graph is finished");
    const char *copy = mf__arena_strdup(&g->arena, label);
    if (!copy) fail(g, "no memory");
    mf__op *op = failed(g) ? &g->dropped : &g->ops[g->n_ops++];
    *op = (mf__op){
        .kind = kind, .label = copy, .in = {-1, -1, -1, -1, -1}, .out = {-1, -1, -1}, .w = {-1, -1, -1, -1, -1}};
    return op;
}

mf__residual mf__g_embed(mf__graph *g, mf__tokens t, mf__w table) {
    int32_t cols = failed(g) || table.id < 0 ? 0 : (int32_t)g->weights[table.id].n_cols;
    mf__op *op = add_op(g, MF_OP_EMBED, "embed");
    op->in[0] = t.id;
    op->w[0] = table.id;
    return (mf__residual){op->out[0] = add_buf(g, "embed", MF_PORT_NONE, cols, false)};
}

mf__normed mf__g_norm(mf__graph *g, mf__residual x, mf__w w, float eps) {
    int32_t cols = cols_of(g, x.id);
    want_weight(g, "rms_norm", w, 1, cols);
    mf__op *op = add_op(g, MF_OP_RMS_NORM, "norm");
    op->in[0] = x.id;
    op->w[0] = w.id;
    op->p.norm.eps = eps;
    op->p.norm.part = cols;
    return (mf__normed){op->out[0] = add_buf(g, "normed", MF_PORT_NONE, cols, false)};
}

static mf__act matmul(mf__graph *g, int16_t x, mf__w w, mf__w bias, const char *label) {
    int32_t rows = failed(g) || w.id < 0 ? 0 : (int32_t)g->weights[w.id].n_rows;
    want_weight(g, label, w, rows, cols_of(g, x));
    if (bias.id >= 0) want_weight(g, label, bias, 1, rows);
    mf__op *op = add_op(g, MF_OP_MATMUL, label);
    op->in[0] = x;
    op->w[0] = w.id;
    op->w[1] = bias.id;
    return (mf__act){op->out[0] = add_buf(g, label, MF_PORT_NONE, rows, false)};
}

mf__act mf__g_project(mf__graph *g, mf__normed x, mf__w w, mf__w bias, const char *label) {
    return matmul(g, x.id, w, bias, label);
}

mf__act mf__g_matmul(mf__graph *g, mf__act x, mf__w w, mf__w bias, const char *label) {
    return matmul(g, x.id, w, bias, label);
}

void mf__g_part_norm(mf__graph *g, mf__act x, mf__w w, int32_t part, float eps, const char *label) {
    want_weight(g, label, w, 1, part);
    if (part <= 0 || cols_of(g, x.id) % part)
        fail(g, "%s: %d columns do not split in parts of %d", label, cols_of(g, x.id), part);
    mf__op *op = add_op(g, MF_OP_RMS_NORM, label);
    op->in[0] = op->out[0] = x.id;
    op->w[0] = w.id;
    op->p.norm.eps = eps;
    op->p.norm.part = part;
}

void mf__g_parts_norm(mf__graph *g, mf__act x, mf__w w, int32_t part, float eps, const char *label) {
    int32_t cols = cols_of(g, x.id);
    want_weight(g, label, w, 1, cols);
    if (part <= 0 || cols % part) fail(g, "%s: %d columns do not split in parts of %d", label, cols, part);
    mf__op *op = add_op(g, MF_OP_RMS_NORM, label);
    op->in[0] = op->out[0] = x.id;
    op->w[0] = w.id;
    op->p.norm.eps = eps;
    op->p.norm.part = part;
    op->p.norm.apart = true;
}

mf__act mf__g_part_normed(mf__graph *g, mf__act x, mf__w w, int32_t part, float eps, const char *label) {
    int16_t out = add_buf(g, label, MF_PORT_NONE, cols_of(g, x.id), false);
    mf__g_part_norm(g, x, w, part, eps, label);
    if (!failed(g)) g->ops[g->n_ops - 1].out[0] = out;
    return (mf__act){out};
}

void mf__g_split_q_gate(mf__graph *g, mf__act u, int32_t n_heads, int32_t head_dim, mf__act *q, mf__act *gate) {
    want_cols(g, "split_q_gate", u.id, 2 * (int64_t)n_heads * head_dim);
    mf__op *op = add_op(g, MF_OP_SPLIT_Q_GATE, "q | gate");
    op->in[0] = u.id;
    op->p.split.n_heads = n_heads;
    op->p.split.head_dim = head_dim;
    *q = (mf__act){op->out[0] = add_buf(g, "q", MF_PORT_NONE, n_heads * head_dim, false)};
    *gate = (mf__act){op->out[1] = add_buf(g, "attn_gate", MF_PORT_NONE, n_heads * head_dim, false)};
}

void mf__g_rope(mf__graph *g, mf__act x, mf__w inv_freq, mf__op_params p, const char *label) {
    want_cols(g, label, x.id, (int64_t)p.rope.n_heads * p.rope.head_dim);
    want_weight(g, label, inv_freq, 1, p.rope.n_rot / 2);
    if (p.rope.n_rot % 2 || p.rope.offset < 0 || p.rope.offset + p.rope.n_rot > p.rope.head_dim)
        fail(g, "%s: channels %d..%d do not lie in a head of %d", label, p.rope.offset, p.rope.offset + p.rope.n_rot,
             p.rope.head_dim);
    mf__op *op = add_op(g, MF_OP_ROPE, label);
    op->in[0] = op->out[0] = x.id;
    op->w[0] = inv_freq.id;
    op->p = p;
}

void mf__g_kv_append(mf__graph *g, mf__act k, mf__act v) {
    mf__op *op = add_op(g, MF_OP_KV_APPEND, "kv_append");
    op->in[0] = k.id;
    op->in[1] = v.id;
}

mf__act mf__g_attention(mf__graph *g, mf__act q, mf__w sinks, mf__op_params p) {
    want_cols(g, "attention", q.id, (int64_t)p.attn.n_heads * p.attn.head_dim);
    if (p.attn.n_kv_heads <= 0 || p.attn.n_heads % p.attn.n_kv_heads)
        fail(g, "attention: %d heads cannot share %d kv heads", p.attn.n_heads, p.attn.n_kv_heads);
    if (p.attn.window < p.attn.chunked) fail(g, "attention: a window of %d rows", p.attn.window);
    if (sinks.id >= 0) want_weight(g, "attention", sinks, 1, p.attn.n_heads);
    mf__op *op = add_op(g, MF_OP_ATTENTION, "attention");
    op->in[0] = q.id;
    op->w[0] = sinks.id;
    op->p = p;
    return (mf__act){op->out[0] = add_buf(g, "attn_out", MF_PORT_NONE, p.attn.n_heads * mf__op_v_dim(&p), false)};
}

mf__chosen mf__g_index(mf__graph *g, mf__act q, mf__act a, mf__op_params p) {
    int32_t lists = a.id < 0 ? p.index.n_heads : 1;
    want_cols(g, "index", q.id, (int64_t)p.index.n_heads * p.index.dim);
    if (a.id >= 0) want_cols(g, "index", a.id, p.index.n_heads);
    if (p.index.top_k < 1 || p.index.block < 1 || p.index.local < 0 || p.index.local > p.index.top_k || p.index.at < 0)
        fail(g, "index: the best %d blocks of %d rows, the newest %d among them", p.index.top_k, p.index.block,
             p.index.local);
    mf__op *op = add_op(g, MF_OP_INDEX, "index");
    op->in[0] = q.id;
    op->in[1] = a.id;
    op->p = p;
    return (mf__chosen){op->out[0] = add_buf(g, "picks", MF_PORT_NONE, lists * p.index.top_k, true)};
}

mf__act mf__g_attention_picked(mf__graph *g, mf__act q, mf__chosen picks, mf__op_params p) {
    int32_t lists = p.attn.n_lists;
    if (lists < 1 || (p.attn.n_kv_heads % lists && lists % p.attn.n_kv_heads) || p.attn.n_heads % lists ||
        p.attn.block < 1 || p.attn.window)
        fail(g, "attention: %d lists of blocks of %d rows for %d kv heads, in a window of %d", lists, p.attn.block,
             p.attn.n_kv_heads, p.attn.window);
    want_cols(g, "attention", picks.id, (int64_t)lists * p.attn.n_picks);
    mf__act o = mf__g_attention(g, q, MF_NO_WEIGHT, p);
    if (!failed(g)) g->ops[g->n_ops - 1].in[1] = picks.id;
    return o;
}

void mf__g_compress(mf__graph *g, mf__act x, const mf__w w[5], mf__op_params p) {
    int64_t halves = p.compress.overlap ? 2 : 1, cols = 0;
    if (p.compress.step < 1 || p.compress.n_parts < 1 || p.compress.n_parts > 2)
        fail(g, "compress: %d parts of windows of %d rows", p.compress.n_parts, p.compress.step);
    want_weight(g, "compress", w[0], 1, p.compress.n_rot / 2);
    for (int i = 0; i < p.compress.n_parts && i < 2; i++) {
        int32_t width = p.compress.width[i];
        if (width < 1 || p.compress.n_rot > width) fail(g, "compress: %d of %d channels turn", p.compress.n_rot, width);
        want_weight(g, "compress", w[1 + 2 * i], p.compress.step, halves * width);
        want_weight(g, "compress", w[2 + 2 * i], 1, width);
        cols += 2 * halves * width;
    }
    want_cols(g, "compress", x.id, cols);
    mf__op *op = add_op(g, MF_OP_COMPRESS, "compress");
    op->in[0] = x.id;
    for (int i = 0; i < 1 + 2 * p.compress.n_parts && i < 5; i++) op->w[i] = w[i].id;
    op->p = p;
}

mf__act mf__g_far_attention(mf__graph *g, mf__act q, mf__chosen picks, mf__w sinks, mf__op_params p) {
    int32_t cols = p.far.n_heads * p.far.dim;
    want_cols(g, "far_attention", q.id, cols);
    want_weight(g, "far_attention", sinks, 1, p.far.n_heads);
    if (picks.id >= 0) want_cols(g, "far_attention", picks.id, p.far.n_picks);
    if (p.far.window < 1 || p.far.step < 0 || (picks.id >= 0 && !p.far.step))
        fail(g, "far_attention: a window of %d, steps of %d", p.far.window, p.far.step);
    mf__op *op = add_op(g, MF_OP_FAR_ATTENTION, "far_attention");
    op->in[0] = q.id;
    op->in[1] = picks.id;
    op->w[0] = sinks.id;
    op->p = p;
    return (mf__act){op->out[0] = add_buf(g, "attn_out", MF_PORT_NONE, cols, false)};
}

mf__residual mf__g_streams_read(mf__graph *g, mf__residual x, mf__act z, mf__w base, mf__w scale, mf__op_params p,
                                mf__act *mix) {
    int32_t n = p.streams.n, cols = cols_of(g, x.id), n_z = p.streams.n_steps ? n * (n + 2) : n;
    if (n < 1 || cols % n) fail(g, "streams_read: %d streams in %d columns", n, cols);
    want_cols(g, "streams_read", z.id, n_z);
    want_weight(g, "streams_read", base, 1, n_z);
    want_weight(g, "streams_read", scale, 1, p.streams.n_steps ? 3 : 1);
    mf__op *op = add_op(g, MF_OP_STREAMS_READ, "streams_read");
    op->in[0] = x.id;
    op->in[1] = z.id;
    op->w[0] = base.id;
    op->w[1] = scale.id;
    op->p = p;
    op->out[0] = add_buf(g, "block_in", MF_PORT_NONE, n > 0 ? cols / n : 0, false);
    if (p.streams.n_steps) op->out[1] = add_buf(g, "stream_mix", MF_PORT_NONE, n + n * n, false);
    if (mix) *mix = (mf__act){op->out[1]};
    return (mf__residual){op->out[0]};
}

mf__residual mf__g_streams_write(mf__graph *g, mf__residual x, mf__act y, mf__act mix, int32_t n) {
    int32_t cols = cols_of(g, x.id);
    want_cols(g, "streams_write", y.id, n > 0 ? cols / n : 0);
    want_cols(g, "streams_write", mix.id, (int64_t)n + (int64_t)n * n);
    mf__op *op = add_op(g, MF_OP_STREAMS_WRITE, "streams_write");
    op->in[0] = x.id;
    op->in[1] = y.id;
    op->in[2] = mix.id;
    op->p.streams.n = n;
    return (mf__residual){op->out[0] = add_buf(g, "streams", MF_PORT_NONE, cols, false)};
}

mf__residual mf__g_copy(mf__graph *g, mf__residual x) {
    mf__op *op = add_op(g, MF_OP_JOIN, "copy");
    op->in[0] = x.id;
    return (mf__residual){op->out[0] = add_buf(g, "copy", MF_PORT_NONE, cols_of(g, x.id), false)};
}

mf__act mf__g_join(mf__graph *g, mf__act a, mf__act b, const char *label) {
    int32_t cols = cols_of(g, a.id) + cols_of(g, b.id);
    mf__op *op = add_op(g, MF_OP_JOIN, label);
    op->in[0] = a.id;
    op->in[1] = b.id;
    return (mf__act){op->out[0] = add_buf(g, label, MF_PORT_NONE, cols, false)};
}

void mf__g_layer_norm(mf__graph *g, mf__act x, mf__w w, mf__w bias, float eps, const char *label) {
    int32_t cols = cols_of(g, x.id);
    want_weight(g, label, w, 1, cols);
    want_weight(g, label, bias, 1, cols);
    mf__op *op = add_op(g, MF_OP_LAYER_NORM, label);
    op->in[0] = op->out[0] = x.id;
    op->w[0] = w.id;
    op->w[1] = bias.id;
    op->p.norm.eps = eps;
    op->p.norm.part = cols;
}

void mf__g_sigmoid_gate(mf__graph *g, mf__act x, mf__act gate) {
    int32_t cols = cols_of(g, x.id), gates = cols_of(g, gate.id);
    if (gates < 1 || cols % gates) fail(g, "sigmoid_gate: %d columns cannot share %d gates", cols, gates);
    mf__op *op = add_op(g, MF_OP_SIGMOID_GATE, "attn gate");
    op->p.gate.part = gates < 1 ? 1 : cols / gates;
    op->in[0] = op->out[0] = x.id;
    op->in[1] = gate.id;
}

mf__act mf__g_conv1d(mf__graph *g, mf__act x, mf__w w, mf__w bias, mf__op_params p) {
    int32_t cols = cols_of(g, x.id);
    want_weight(g, "conv1d", w, cols, p.conv.n_kernel);
    if (bias.id >= 0) want_weight(g, "conv1d", bias, 1, cols);
    mf__op *op = add_op(g, MF_OP_CONV1D, "conv");
    op->in[0] = x.id;
    op->w[0] = w.id;
    op->w[1] = bias.id;
    op->p = p;
    op->p.conv.n_channels = cols;
    return (mf__act){op->out[0] = add_buf(g, "conv", MF_PORT_NONE, cols, false)};
}

static int64_t delta_cols(const mf__op_params *p) {
    return 2 * (int64_t)p->delta.n_k_heads * p->delta.k_dim + (int64_t)p->delta.n_v_heads * p->delta.v_dim;
}

void mf__g_qk_norm(mf__graph *g, mf__act qkv, mf__op_params p) {
    want_cols(g, "qk_norm", qkv.id, delta_cols(&p));
    mf__op *op = add_op(g, MF_OP_QK_NORM, "qk_norm");
    op->in[0] = op->out[0] = qkv.id;
    op->p = p;
}

void mf__g_decay_beta(mf__graph *g, mf__act a, mf__act b, mf__w a_log, mf__w dt_bias, mf__act *decay, mf__act *beta) {
    int32_t cols = cols_of(g, a.id), heads = cols_of(g, b.id);
    if (heads <= 0 || cols % heads) fail(g, "decay_beta: %d decays for %d heads", cols, heads);
    want_weight(g, "decay_beta", a_log, 1, heads);
    want_weight(g, "decay_beta", dt_bias, 1, cols);
    mf__op *op = add_op(g, MF_OP_DECAY_BETA, "decay, beta");
    op->in[0] = a.id;
    op->in[1] = b.id;
    op->w[0] = a_log.id;
    op->w[1] = dt_bias.id;
    op->p.delta.by_channel = cols != heads;
    *decay = (mf__act){op->out[0] = add_buf(g, "decay", MF_PORT_NONE, cols, false)};
    *beta = (mf__act){op->out[1] = add_buf(g, "beta", MF_PORT_NONE, heads, false)};
}

mf__act mf__g_delta_net(mf__graph *g, mf__act qkv, mf__act decay, mf__act beta, mf__op_params p) {
    want_cols(g, "delta_net", qkv.id, delta_cols(&p));
    want_cols(g, "delta_net", decay.id, (int64_t)p.delta.n_v_heads * (p.delta.by_channel ? p.delta.k_dim : 1));
    want_cols(g, "delta_net", beta.id, p.delta.n_v_heads);
    if (p.delta.n_k_heads <= 0 || p.delta.n_v_heads % p.delta.n_k_heads)
        fail(g, "delta_net: %d value heads cannot share %d key heads", p.delta.n_v_heads, p.delta.n_k_heads);
    mf__op *op = add_op(g, MF_OP_DELTA_NET, "delta_net");
    op->in[0] = qkv.id;
    op->in[1] = decay.id;
    op->in[2] = beta.id;
    op->p = p;
    return (mf__act){op->out[0] = add_buf(g, "delta_out", MF_PORT_NONE, p.delta.n_v_heads * p.delta.v_dim, false)};
}

mf__act mf__g_gated_norm(mf__graph *g, mf__act x, mf__act z, mf__w w, mf__op_params p) {
    int32_t cols = cols_of(g, x.id), part = p.norm.part;
    want_cols(g, "gated_norm", z.id, cols);
    want_weight(g, "gated_norm", w, 1, part);
    if (part <= 0 || cols % part) fail(g, "gated_norm: %d columns do not split in parts of %d", cols, part);
    mf__op *op = add_op(g, MF_OP_GATED_NORM, "gated_norm");
    op->in[0] = x.id;
    op->in[1] = z.id;
    op->w[0] = w.id;
    op->p = p;
    return (mf__act){op->out[0] = add_buf(g, "gated", MF_PORT_NONE, cols, false)};
}

mf__act mf__g_ssm(mf__graph *g, mf__act xbc, mf__act dt, const mf__w w[3], mf__op_params p) {
    int32_t heads = p.ssm.n_heads, groups = p.ssm.n_groups;
    want_cols(g, "ssm", xbc.id, (int64_t)heads * p.ssm.dim + 2 * (int64_t)groups * p.ssm.n_state);
    want_cols(g, "ssm", dt.id, heads);
    if (groups <= 0 || heads % groups) fail(g, "ssm: %d heads cannot share %d groups", heads, groups);
    mf__op *op = add_op(g, MF_OP_SSM, "ssm");
    op->in[0] = xbc.id;
    op->in[1] = dt.id;
    for (int i = 0; i < 3; i++) {
        want_weight(g, "ssm", w[i], 1, heads);
        op->w[i] = w[i].id;
    }
    op->p = p;
    return (mf__act){op->out[0] = add_buf(g, "ssm", MF_PORT_NONE, heads * p.ssm.dim, false)};
}

mf__residual mf__g_add(mf__graph *g, mf__residual h, mf__act a) {
    int32_t cols = cols_of(g, h.id);
    want_cols(g, "add", a.id, cols);
    mf__op *op = add_op(g, MF_OP_ADD, "residual");
    op->in[0] = h.id;
    op->in[1] = a.id;
    return (mf__residual){op->out[0] = add_buf(g, "residual", MF_PORT_NONE, cols, false)};
}

mf__act mf__g_sum(mf__graph *g, mf__act a, mf__act b) {
    return (mf__act){mf__g_add(g, (mf__residual){a.id}, b).id};
}

void mf__g_map(mf__graph *g, int16_t id, mf__w w, mf__op_params p, const char *label) {
    if (w.id >= 0) want_weight(g, label, w, 1, 1);
    if (w.id >= 0 && p.map.kind != MF_MAP_SCALE) fail(g, "%s: only a scale takes a weight", label);
    if ((p.map.kind == MF_MAP_CLAMP || p.map.kind == MF_MAP_CAP) && !(p.map.a > 0))
        fail(g, "%s: a limit of %g", label, (double)p.map.a);
    if (p.map.kind == MF_MAP_POSITION && !(p.map.b >= 1)) fail(g, "%s: steps of %g positions", label, (double)p.map.b);
    if (id < 0) fail(g, "%s: an input is missing", label);
    mf__op *op = add_op(g, MF_OP_MAP, label);
    op->in[0] = op->out[0] = id;
    op->w[0] = w.id;
    op->p = p;
}

void mf__g_route(mf__graph *g, mf__act logits, mf__w bias, mf__w factors, mf__op_params p, mf__ids *ids,
                 mf__shares *shares) {
    want_cols(g, "route", logits.id, p.route.n_experts);
    if (p.route.top_k < 1 || p.route.top_k > p.route.n_experts || p.route.top_k > MF_MAX_TOPK)
        fail(g, "route: top %d of %d experts (at most %d)", p.route.top_k, p.route.n_experts, MF_MAX_TOPK);
    if (bias.id >= 0) want_weight(g, "route", bias, 1, p.route.n_experts);
    if (factors.id >= 0) want_weight(g, "route", factors, 1, p.route.n_experts);
    bool by_logits = p.route.kind == MF_ROUTE_TOPK_SOFTMAX || p.route.kind == MF_ROUTE_TOPK_SIGMOID;
    if (by_logits && (bias.id >= 0 || p.route.n_groups > 1))
        fail(g, "route: the largest logits are chosen without bias and groups");
    if (!by_logits && (p.route.n_groups < 1 || p.route.n_experts % p.route.n_groups || p.route.top_groups < 1 ||
                       p.route.top_groups > p.route.n_groups ||
                       p.route.top_k > p.route.n_experts / p.route.n_groups * p.route.top_groups))
        fail(g, "route: top %d of the best %d of %d groups of %d experts", p.route.top_k, p.route.top_groups,
             p.route.n_groups, p.route.n_experts);
    mf__op *op = add_op(g, MF_OP_ROUTE, "route");
    op->in[0] = logits.id;
    op->w[0] = bias.id;
    op->w[1] = factors.id;
    op->p = p;
    *ids = (mf__ids){op->out[0] = add_buf(g, "route_ids", MF_PORT_NONE, p.route.top_k, true)};
    *shares = (mf__shares){op->out[1] = add_buf(g, "route_shares", MF_PORT_NONE, p.route.top_k, false)};
}

void mf__g_route_given(mf__graph *g, mf__act logits, mf__act ids_as_values, mf__op_params p, mf__ids *ids,
                       mf__shares *shares) {
    want_cols(g, "route", ids_as_values.id, p.route.top_k);
    if (p.route.kind != MF_ROUTE_SQRT_SOFTPLUS && p.route.kind != MF_ROUTE_SIGMOID)
        fail(g, "route: given experts are weighed one by one");
    mf__g_route(g, logits, MF_NO_WEIGHT, MF_NO_WEIGHT, p, ids, shares);
    if (!failed(g)) g->ops[g->n_ops - 1].in[1] = ids_as_values.id;
}

mf__normed mf__g_weigh(mf__graph *g, mf__normed x, mf__shares shares) {
    want_cols(g, "weigh", shares.id, 1);
    mf__op *op = add_op(g, MF_OP_WEIGH, "weigh");
    op->in[0] = x.id;
    op->in[1] = op->out[1] = shares.id;
    return (mf__normed){op->out[0] = add_buf(g, "weighed", MF_PORT_NONE, cols_of(g, x.id), false)};
}

mf__act mf__g_identity(mf__graph *g, mf__normed x, mf__ids ids, mf__shares shares, int32_t n_experts) {
    int32_t top_k = cols_of(g, ids.id);
    want_cols(g, "identity", shares.id, top_k);
    if (n_experts < 1) fail(g, "identity: %d experts", n_experts);
    mf__op *op = add_op(g, MF_OP_IDENTITY, "identity");
    op->in[0] = x.id;
    op->in[1] = op->out[1] = ids.id;
    op->in[2] = op->out[2] = shares.id;
    op->p.identity.n_experts = n_experts;
    op->p.identity.top_k = top_k;
    return (mf__act){op->out[0] = add_buf(g, "identity", MF_PORT_NONE, cols_of(g, x.id), false)};
}

mf__act mf__g_glu(mf__graph *g, mf__act gate, mf__act up, mf__glu glu) {
    int32_t cols = cols_of(g, gate.id);
    want_cols(g, "glu", up.id, cols);
    if (glu.kind == MF_GLU_RELU2) fail(g, "glu: squares have no gate");
    mf__op *op = add_op(g, MF_OP_GLU, "glu");
    op->in[0] = gate.id;
    op->in[1] = up.id;
    op->p.glu = glu;
    return (mf__act){op->out[0] = add_buf(g, "glu", MF_PORT_NONE, cols, false)};
}

mf__pairs mf__g_experts(mf__graph *g, mf__normed x, mf__ids ids, mf__op_params p) {
    want_cols(g, "experts", ids.id, p.moe.top_k);
    mf__op *op = add_op(g, MF_OP_EXPERTS, "experts");
    op->in[0] = x.id;
    op->in[1] = ids.id;
    op->p = p;
    return (mf__pairs){op->out[0] = add_buf(g, "pairs", MF_PORT_NONE, p.moe.top_k * cols_of(g, x.id), false)};
}

mf__residual mf__g_combine(mf__graph *g, mf__residual h, mf__pairs pairs, mf__shares shares, mf__act shared,
                           mf__act score) {
    int32_t cols = cols_of(g, h.id), top_k = cols_of(g, shares.id);
    want_cols(g, "combine", pairs.id, (int64_t)top_k * cols);
    if (shared.id >= 0) want_cols(g, "combine", shared.id, cols);
    if (score.id >= 0) want_cols(g, "combine", score.id, 1);
    mf__op *op = add_op(g, MF_OP_COMBINE, "combine");
    op->in[0] = h.id;
    op->in[1] = pairs.id;
    op->in[2] = shares.id;
    op->in[3] = shared.id;
    op->in[4] = score.id;
    op->p.moe.top_k = top_k;
    return (mf__residual){op->out[0] = add_buf(g, "combined", MF_PORT_NONE, cols, false)};
}

mf__act mf__g_combine_alone(mf__graph *g, mf__pairs pairs, mf__shares shares, mf__act shared) {
    int32_t top_k = cols_of(g, shares.id), cols = top_k ? cols_of(g, pairs.id) / top_k : 0;
    want_cols(g, "combine", pairs.id, (int64_t)top_k * cols);
    if (shared.id >= 0) want_cols(g, "combine", shared.id, cols);
    mf__op *op = add_op(g, MF_OP_COMBINE, "combine");
    op->in[1] = pairs.id;
    op->in[2] = shares.id;
    op->in[3] = shared.id;
    op->p.moe.top_k = top_k;
    return (mf__act){op->out[0] = add_buf(g, "combined", MF_PORT_NONE, cols, false)};
}

/* ---- latent attention ------------------------------------------------------------------------------------------- */

void mf__g_split(mf__graph *g, mf__act x, int32_t n_first, mf__act *a, mf__act *b, const char *label) {
    int32_t cols = cols_of(g, x.id);
    if (n_first <= 0 || n_first >= cols) fail(g, "%s: the first %d of %d columns", label, n_first, cols);
    mf__op *op = add_op(g, MF_OP_SPLIT, label);
    op->in[0] = x.id;
    op->p.cut.n_first = n_first;
    *a = (mf__act){op->out[0] = add_buf(g, label, MF_PORT_NONE, n_first, false)};
    *b = (mf__act){op->out[1] = add_buf(g, label, MF_PORT_NONE, cols - n_first, false)};
}

mf__act mf__g_mla_attention(mf__graph *g, mf__act q, mf__w kv_b_or_uk, mf__w w_uv, mf__op_params p) {
    int64_t heads = p.mla.n_heads, latent = p.mla.n_latent;
    if (p.mla.n_heads < 1 || p.mla.n_latent < 1 || p.mla.n_nope < 1 || p.mla.n_rope < 1 || p.mla.v_dim < 1)
        fail(g, "mla_attention: %d heads of %d + %d and %d channels over a latent of %d", p.mla.n_heads, p.mla.n_nope,
             p.mla.n_rope, p.mla.v_dim, p.mla.n_latent);
    want_cols(g, "mla_attention", q.id, heads * (p.mla.n_nope + p.mla.n_rope));
    if (w_uv.id < 0) {
        want_weight(g, "mla_attention", kv_b_or_uk, heads * (p.mla.n_nope + p.mla.v_dim), latent);
    } else {
        want_weight(g, "mla_attention", kv_b_or_uk, heads * latent, p.mla.n_nope);
        want_weight(g, "mla_attention", w_uv, heads * p.mla.v_dim, latent);
    }
    mf__op *op = add_op(g, MF_OP_MLA_ATTENTION, "mla_attention");
    op->in[0] = q.id;
    op->w[0] = kv_b_or_uk.id;
    op->w[1] = w_uv.id;
    op->p = p;
    return (mf__act){op->out[0] = add_buf(g, "attn_out", MF_PORT_NONE, p.mla.n_heads * p.mla.v_dim, false)};
}

void mf__g_mla_pick(mf__graph *g, mf__act o, mf__chosen picks) {
    if (failed(g)) return;
    mf__op *op = &g->ops[g->n_ops - 1];
    if (op->kind != MF_OP_MLA_ATTENTION || op->out[0] != o.id) {
        fail(g, "mla_attention: picks for another op");
        return;
    }
    want_cols(g, "mla_attention", picks.id, op->p.mla.n_picks);
    op->in[1] = picks.id;
}

mf__mla_form mf__mla_choose(const mf__op_params *p, int64_t pos, int32_t n_rows) {
    double expand = (double)(p->mla.n_nope + p->mla.v_dim) * p->mla.n_latent;
    double pairs = (double)n_rows * (double)pos + 0.5 * n_rows * (n_rows + 1.0);
    double absorbed = n_rows * expand + pairs * (2.0 * p->mla.n_latent + p->mla.n_rope);
    double unabsorbed = ((double)pos + n_rows) * expand + pairs * (p->mla.n_nope + p->mla.n_rope + p->mla.v_dim);
    if (p->mla.form != MF_MLA_BY_COST) return p->mla.form;
    return absorbed <= unabsorbed ? MF_MLA_ABSORBED : MF_MLA_UNABSORBED;
}
