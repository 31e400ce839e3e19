/* Expectations: plain sums and norms, and the two mixers over time. The experts are in expect_moe.c. */
#include "expect.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double sigmoid(double x) {
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

static double silu(double x) {
    return x * sigmoid(x);
}

/* ---- rows ------------------------------------------------------------------------------------------------------ */

void expect_embed(const op_rig *rig, op_result *want) {
    int32_t cols = rig->g->bufs[rig->op->out[0]].cols;
    for (int32_t t = 0; t < rig->n_rows; t++)
        for (int32_t c = 0; c < cols; c++)
            op_out(rig, want, 0)[t * cols + c] = op_w(rig, 0, (int64_t)op_in_id(rig, 0, t) * cols + c);
}

/* The root of the mean square over the part that element i belongs to. */
static double part_rms(const op_rig *rig, int64_t i, int32_t part, double eps) {
    int64_t first = i / part * part;
    double mean = 0;
    for (int64_t c = first; c < first + part; c++) mean += op_in(rig, 0, c) * op_in(rig, 0, c) / part;
    return sqrt(mean + eps);
}

void expect_rms_norm(const op_rig *rig, op_result *want) {
    int32_t part = rig->op->p.norm.part;
    for (int64_t i = 0; i < (int64_t)rig->n_rows * op_in_cols(rig, 0); i++)
        op_out(rig, want, 0)[i] = op_in(rig, 0, i) / part_rms(rig, i, part, rig->op->p.norm.eps) *
                                  op_w(rig, 0, rig->op->p.norm.apart ? i % op_in_cols(rig, 0) : i % part);
}

void expect_layer_norm(const op_rig *rig, op_result *want) {
    int64_t cols = op_in_cols(rig, 0);
    for (int64_t i = 0; i < rig->n_rows * cols; i++) {
        int64_t first = i / cols * cols;
        double mean = 0, var = 0;
        for (int64_t c = first; c < first + cols; c++) mean += op_in(rig, 0, c) / (double)cols;
        for (int64_t c = first; c < first + cols; c++) var += pow(op_in(rig, 0, c) - mean, 2) / (double)cols;
        op_out(rig, want, 0)[i] = (op_in(rig, 0, i) - mean) / sqrt(var + rig->op->p.norm.eps) * op_w(rig, 0, i % cols) +
                                  op_w(rig, 1, i % cols);
    }
}

/* The norm first, then the gate, which is silu and not sigmoid. */
void expect_gated_norm(const op_rig *rig, op_result *want) {
    expect_rms_norm(rig, want);
    for (int64_t i = 0; i < (int64_t)rig->n_rows * op_in_cols(rig, 0); i++)
        op_out(rig, want, 0)[i] *= rig->op->p.norm.sigmoid ? sigmoid(op_in(rig, 1, i)) : silu(op_in(rig, 1, i));
}

/* Column by column: y = sum_c x_c W[:, c]. */
void expect_matmul(const op_rig *rig, op_result *want) {
    int32_t cols = op_in_cols(rig, 0), rows = rig->g->bufs[rig->op->out[0]].cols;
    double *y = op_out(rig, want, 0);
    for (int64_t t = 0; t < rig->n_rows; t++)
        for (int64_t r = 0; r < rows; r++) y[t * rows + r] = rig->op->w[1] >= 0 ? op_w(rig, 1, r) : 0;
    for (int64_t c = cols - 1; c >= 0; c--)
        for (int64_t t = 0; t < rig->n_rows; t++) {
            double x = op_in(rig, 0, t * cols + c);
            for (int64_t r = 0; r < rows; r++) y[t * rows + r] += op_w(rig, 0, r * cols + c) * x;
        }
}

void expect_add(const op_rig *rig, op_result *want) {
    for (int64_t i = 0; i < (int64_t)rig->n_rows * op_in_cols(rig, 0); i++)
        op_out(rig, want, 0)[i] = op_in(rig, 0, i) + op_in(rig, 1, i);
}

/* silu(gate) up; gelu(gate) up; or the clamped form: the gate from above only, up from both sides and counted from -1
 */
double expect_act(const mf__glu *glu, double gate, double up) {
    double limit = glu->limit;
    if (glu->kind == MF_GLU_SILU) return silu(gate) * up;
    if (glu->kind == MF_GLU_LIMITED) return silu(fmin(gate, limit)) * fmax(fmin(up, limit), -limit);
    if (glu->kind == MF_GLU_CUT) return fmin(silu(gate), limit) * fmax(fmin(up, limit), -limit);
    if (glu->kind == MF_GLU_PRODUCT) return gate * up;
    if (glu->kind == MF_GLU_GELU)
        return up * gate / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (gate + 0.044715 * pow(gate, 3))));
    if (gate > limit) gate = limit;
    if (up > limit) up = limit;
    if (up < -limit) up = -limit;
    return gate / (1 + exp(-(double)glu->alpha * gate)) * (1 + up);
}

void expect_glu(const op_rig *rig, op_result *want) {
    for (int64_t i = 0; i < (int64_t)rig->n_rows * op_in_cols(rig, 0); i++)
        op_out(rig, want, 0)[i] = expect_act(&rig->op->p.glu, op_in(rig, 0, i), op_in(rig, 1, i));
}

void expect_sigmoid_gate(const op_rig *rig, op_result *want) {
    int64_t part = op_in_cols(rig, 0) / op_in_cols(rig, 1);
    for (int64_t i = 0; i < (int64_t)rig->n_rows * op_in_cols(rig, 0); i++)
        op_out(rig, want, 0)[i] = op_in(rig, 0, i) * sigmoid(op_in(rig, 1, i / part));
}

/* Head j: channels [2 dim j, 2 dim j + dim) are the query, the dim after them the gate. */
void expect_split_q_gate(const op_rig *rig, op_result *want) {
    int32_t heads = rig->op->p.split.n_heads, dim = rig->op->p.split.head_dim;
    for (int64_t t = 0; t < rig->n_rows; t++)
        for (int64_t i = 0; i < 2 * (int64_t)heads * dim; i++) {
            int64_t head = i / (2 * dim), channel = i % (2 * dim);
            op_out(rig, want, channel / dim ? 1 : 0)[(t * heads + head) * dim + channel % dim] =
                op_in(rig, 0, t * 2 * heads * dim + i);
        }
}

/* ---- softmax attention ----------------------------------------------------------------------------------------- */

/* The sequence and the position of a row. */
int op_sequence_of(const op_rig *rig, int32_t row, int64_t *pos) {
    int s = 0;
    while (row >= rig->c->seqs[s].n_rows) row -= rig->c->seqs[s++].n_rows;
    *pos = rig->c->seqs[s].pos + row;
    return s;
}

void expect_map(const op_rig *rig, op_result *want) {
    const mf__op_params *p = &rig->op->p;
    int64_t cols = op_in_cols(rig, 0);
    double a = p->map.a, w = rig->op->w[0] >= 0 ? op_w(rig, 0, 0) : 1;
    for (int64_t i = 0; i < rig->n_rows * cols; i++) {
        double x = op_in(rig, 0, i), y = a * w * x;
        int64_t pos;
        op_sequence_of(rig, (int32_t)(i / cols), &pos);
        if (p->map.kind == MF_MAP_CLAMP) y = x > a ? a : x < -a ? -a : x;
        if (p->map.kind == MF_MAP_RELU2) y = x > 0 ? x * x : 0;
        if (p->map.kind == MF_MAP_CAP) y = a * tanh(x / a);
        if (p->map.kind == MF_MAP_POSITION) y = x * (1 + a * log(1 + floor(((double)pos + p->map.c) / p->map.b)));
        op_out(rig, want, 0)[i] = y;
    }
}

/* Multiplication of (a + ib) by scale e^(i angle). The angle is a product of floats, as everywhere: at position 4,000
 * its rounding is what two implementations must share. */
void expect_rope(const op_rig *rig, op_result *want) {
    const mf__op_params *p = &rig->op->p;
    int32_t dim = p->rope.head_dim, half = p->rope.n_rot / 2;
    int64_t cols = op_in_cols(rig, 0);
    double *y = op_out(rig, want, 0);
    for (int64_t i = 0; i < rig->n_rows * cols; i++) y[i] = op_in(rig, 0, i);
    for (int32_t t = 0; t < rig->n_rows; t++) {
        int64_t pos;
        op_sequence_of(rig, t, &pos);
        for (int64_t h = 0; h < p->rope.n_heads; h++)
            for (int32_t i = 0; i < half; i++) {
                double angle = (float)pos * (float)op_w(rig, 0, i) * (p->rope.back ? -1 : 1);
                int64_t at = t * cols + h * dim + p->rope.offset;
                int64_t ia = at + (p->rope.interleaved ? 2 * i : i), ib = p->rope.interleaved ? ia + 1 : ia + half;
                double a = op_in(rig, 0, ia), b = op_in(rig, 0, ib);
                y[ia] = p->rope.scale * (a * cos(angle) - b * sin(angle));
                y[ib] = p->rope.scale * (a * sin(angle) + b * cos(angle));
            }
    }
}

/* What is left of a row after being kept: by the definition, which has tests of its own. */
static void expect_kept(const op_rig *rig, int k, int64_t t, int32_t cols, double *to) {
    uint8_t row[4096];
    float x[512] = {0};
    if (cols > 512) abort();
    for (int32_t c = 0; c < cols; c++) x[c] = (float)op_in(rig, k, t * cols + c);
    mf__kv_encode_row(rig->c->kv_type, x, cols, row);
    mf__kv_decode_row(rig->c->kv_type, row, cols, 0, cols, x);
    for (int32_t c = 0; c < cols; c++) to[c] = x[c];
}

void expect_kv_append(const op_rig *rig, op_result *want) {
    for (int32_t t = 0; t < rig->n_rows; t++) {
        int64_t pos;
        int s = op_sequence_of(rig, t, &pos);
        expect_kept(rig, 0, t, rig->c->k_cols, want->kv[s] + op_k_at(rig, pos));
        expect_kept(rig, 1, t, rig->c->v_cols, want->kv[s] + op_v_at(rig, pos));
    }
}

/* Whether a list of picks of row t, from `at` on, has the block of cached row i; or there are no picks. */
static bool is_picked(const op_rig *rig, int64_t at, int32_t n, int32_t block, int64_t i) {
    if (rig->op->in[1] < 0) return true;
    for (int32_t k = 0; k < n; k++)
        if (op_in_id(rig, 1, at + k) >= 0 && i / block == op_in_id(rig, 1, at + k)) return true;
    return false;
}

/* Query heads j * n_heads / n_kv_heads ... share a key head; position p sees 0 .. p. */
void expect_attention(const op_rig *rig, op_result *want) {
    const mf__op_params *p = &rig->op->p;
    int32_t dim = p->attn.head_dim, heads = p->attn.n_heads, v_dim = p->attn.v_dim ? p->attn.v_dim : dim;
    for (int32_t t = 0; t < rig->n_rows; t++) {
        int64_t pos;
        const float *kv = rig->state[op_sequence_of(rig, t, &pos)].kv;
        double *weight = calloc((size_t)pos + 1, sizeof *weight);
        for (int32_t h = 0; h < heads; h++) {
            int32_t kv_head = h * p->attn.n_kv_heads / heads;
            int64_t q = ((int64_t)t * heads + h) * dim;
            double *o = op_out(rig, want, 0) + ((int64_t)t * heads + h) * v_dim;
            double total = rig->op->w[0] >= 0 ? exp(op_w(rig, 0, h)) : 0; /* a sink takes a share and gives nothing */
            for (int64_t i = 0; i <= pos; i++) {
                double dot = 0;
                for (int32_t c = 0; c < dim; c++) dot += op_in(rig, 0, q + c) * kv[op_k_at(rig, i) + kv_head * dim + c];
                bool seen = !p->attn.window ||
                            (p->attn.chunked ? pos / p->attn.window == i / p->attn.window : pos - i < p->attn.window);
                int64_t list = t * (int64_t)p->attn.n_lists + (int64_t)h * p->attn.n_lists / heads;
                seen = seen && is_picked(rig, list * p->attn.n_picks, p->attn.n_picks, p->attn.block, i);
                total += weight[i] = seen ? exp(dot * p->attn.scale) : 0; /* scores of test data are small */
            }
            for (int32_t c = 0; c < v_dim; c++) {
                o[c] = 0;
                for (int64_t i = 0; i <= pos; i++)
                    o[c] += weight[i] / total * kv[op_v_at(rig, i) + kv_head * v_dim + c];
            }
        }
        free(weight);
    }
}

/* ---- an index -------------------------------------------------------------------------------------------------- */

void expect_join(const op_rig *rig, op_result *want) {
    int64_t a = op_in_cols(rig, 0), b = rig->op->in[1] < 0 ? 0 : op_in_cols(rig, 1);
    for (int64_t i = 0; i < rig->n_rows * (a + b); i++) {
        int64_t t = i / (a + b), c = i % (a + b);
        op_out(rig, want, 0)[i] = c < a ? op_in(rig, 0, t * a + c) : op_in(rig, 1, t * b + c - a);
    }
}

static double index_score(const op_rig *rig, int64_t t, int64_t list, const float *key) {
    const mf__op_params *p = &rig->op->p;
    double total = 0;
    for (int64_t h = 0; h < p->index.n_heads; h++) {
        double dot = 0;
        for (int32_t c = 0; c < p->index.dim; c++)
            dot += op_in(rig, 0, (t * p->index.n_heads + h) * p->index.dim + c) * key[c];
        if (rig->op->in[1] >= 0)
            total += op_in(rig, 1, t * p->index.n_heads + h) * (dot > 0 ? dot : 0);
        else if (h == list)
            total = dot;
    }
    return total;
}

/* A block is picked if fewer than top_k others are better: newer ones that are always picked, or with a better row. */
void expect_index(const op_rig *rig, op_result *want) {
    const mf__op_params *p = &rig->op->p;
    int32_t lists = rig->op->in[1] >= 0 ? 1 : p->index.n_heads, top_k = p->index.top_k;
    for (int64_t i = 0; i < (int64_t)rig->n_rows * lists; i++) {
        int64_t pos, t = i / lists;
        const float *kv = rig->state[op_sequence_of(rig, (int32_t)t, &pos)].kv;
        int64_t step = p->index.step ? p->index.step : 1, keys = (pos + 1) / step;
        int64_t n = (keys + p->index.block - 1) / p->index.block, picked = 0;
        double *score = calloc((size_t)n + 1, sizeof *score), *out = op_out(rig, want, 0) + i * top_k;
        for (int64_t b = 0; b < n; b++) score[b] = n - 1 - b < p->index.local ? INFINITY : -INFINITY;
        for (int64_t j = 0; j < keys; j++)
            score[j / p->index.block] = fmax(score[j / p->index.block],
                                             index_score(rig, t, i % lists, kv + op_v_at(rig, j * step) + p->index.at));
        for (int64_t b = 0; b < n; b++) {
            int64_t better = 0;
            for (int64_t k = 0; k < n; k++) better += score[k] > score[b] || (score[k] == score[b] && k < b);
            if (better < top_k) out[picked++] = (double)b;
        }
        for (; picked < top_k; picked++) out[picked] = -1;
        free(score);
    }
}

/* ---- latent attention ------------------------------------------------------------------------------------------ */

void expect_split(const op_rig *rig, op_result *want) {
    int32_t cols = op_in_cols(rig, 0), first = rig->op->p.cut.n_first, rest = cols - first;
    for (int64_t i = 0; i < (int64_t)rig->n_rows * cols; i++) {
        int64_t t = i / cols, c = i % cols;
        if (c < first)
            op_out(rig, want, 0)[t * first + c] = op_in(rig, 0, i);
        else
            op_out(rig, want, 1)[t * rest + c - first] = op_in(rig, 0, i);
    }
}

/* Row i of W_UK (i < n_nope) or of W_UV of a head, times the latent at kv. */
static double up_project(const op_rig *rig, int32_t h, int32_t i, const float *latent) {
    const mf__op_params *p = &rig->op->p;
    int64_t n = p->mla.n_latent, nope = p->mla.n_nope, v_dim = p->mla.v_dim;
    double sum = 0;
    for (int64_t c = 0; c < n; c++) {
        double w = rig->op->w[1] < 0 ? op_w(rig, 0, (h * (nope + v_dim) + i) * n + c)
                   : i < nope        ? op_w(rig, 0, (h * n + c) * nope + i)
                                     : op_w(rig, 1, (h * v_dim + i - nope) * n + c);
        sum += w * latent[c];
    }
    return sum;
}

/* Keys and values made from every cached latent, then plain attention. */
void expect_mla_attention(const op_rig *rig, op_result *want) {
    const mf__op_params *p = &rig->op->p;
    int32_t nope = p->mla.n_nope, rope = p->mla.n_rope, v_dim = p->mla.v_dim, heads = p->mla.n_heads;
    for (int32_t t = 0; t < rig->n_rows; t++) {
        int64_t pos;
        const float *kv = rig->state[op_sequence_of(rig, t, &pos)].kv;
        for (int32_t h = 0; h < heads; h++) {
            int64_t q = ((int64_t)t * heads + h) * (nope + rope);
            double total = 0, *o = op_out(rig, want, 0) + ((int64_t)t * heads + h) * v_dim;
            for (int32_t c = 0; c < v_dim; c++) o[c] = 0;
            for (int64_t i = 0; i <= pos; i++) {
                double dot = 0;
                if (!is_picked(rig, t * (int64_t)p->mla.n_picks, p->mla.n_picks, 1, i)) continue;
                for (int32_t c = 0; c < nope; c++)
                    dot += op_in(rig, 0, q + c) * up_project(rig, h, c, kv + op_k_at(rig, i));
                for (int32_t c = 0; c < rope; c++) dot += op_in(rig, 0, q + nope + c) * kv[op_v_at(rig, i) + c];
                double e = exp(dot * p->mla.scale);
                total += e;
                for (int32_t c = 0; c < v_dim; c++) o[c] += e * up_project(rig, h, nope + c, kv + op_k_at(rig, i));
            }
            for (int32_t c = 0; c < v_dim; c++) o[c] /= total;
        }
    }
}

/* ---- Gated DeltaNet -------------------------------------------------------------------------------------------- */

/* Channel c of the input of a sequence at time i, counted from the first row of the run; earlier ones are state. */
static double conv_input(const op_rig *rig, int s, int32_t row0, int64_t i, int32_t c) {
    int32_t channels = rig->op->p.conv.n_channels, kernel = rig->op->p.conv.n_kernel;
    return i >= 0 ? op_in(rig, 0, (row0 + i) * channels + c)
                  : rig->state[s].conv[rig->op->p.conv.at + (kernel - 1 + i) * channels + c];
}

void expect_conv1d(const op_rig *rig, op_result *want) {
    int32_t channels = rig->op->p.conv.n_channels, kernel = rig->op->p.conv.n_kernel, row0 = 0;
    for (int s = 0; s < rig->n_seqs; row0 += rig->c->seqs[s++].n_rows)
        for (int32_t c = 0; c < channels; c++) {
            int32_t n = rig->c->seqs[s].n_rows;
            for (int64_t t = 0; t < n; t++) {
                double sum = rig->op->w[1] >= 0 ? op_w(rig, 1, c) : 0;
                for (int32_t back = 0; back < kernel; back++) /* the last weight belongs to the present */
                    sum += op_w(rig, 0, c * kernel + kernel - 1 - back) * conv_input(rig, s, row0, t - back, c);
                op_out(rig, want, 0)[(row0 + t) * channels + c] = rig->op->p.conv.plain ? sum : silu(sum);
            }
            for (int32_t k = 0; k + 1 < kernel; k++)
                want->conv[s][rig->op->p.conv.at + k * channels + c] =
                    conv_input(rig, s, row0, n - (kernel - 1) + k, c);
        }
}

void expect_qk_norm(const op_rig *rig, op_result *want) {
    int32_t heads = rig->op->p.delta.n_k_heads, dim = rig->op->p.delta.k_dim;
    int64_t cols = op_in_cols(rig, 0);
    for (int64_t i = 0; i < rig->n_rows * cols; i++) {
        int64_t head = i % cols / dim, first = i - i % cols % dim;
        double x = op_in(rig, 0, i), square = 0;
        for (int32_t c = 0; head < 2 * heads && c < dim; c++) square += pow(op_in(rig, 0, first + c), 2);
        if (head < 2 * heads) x /= sqrt(square + 1e-6);
        op_out(rig, want, 0)[i] = head < heads ? x / sqrt(dim) : x;
    }
}

void expect_decay_beta(const op_rig *rig, op_result *want) {
    int32_t cols = op_in_cols(rig, 0), heads = op_in_cols(rig, 1);
    for (int64_t i = 0; i < (int64_t)rig->n_rows * cols; i++) {
        double x = op_in(rig, 0, i) + op_w(rig, 1, i % cols), softplus = x > 40 ? x : log1p(exp(x));
        op_out(rig, want, 0)[i] = exp(-exp(op_w(rig, 0, i % cols * heads / cols)) * softplus);
    }
    for (int64_t i = 0; i < (int64_t)rig->n_rows * heads; i++) op_out(rig, want, 1)[i] = sigmoid(op_in(rig, 1, i));
}

/* S' = S G (I - beta k k^T) + beta v k^T, o = S' q: the rule in its closed form, G being diagonal. */
static void delta_step(double *S, const double *q, const double *k, const double *v, const double *g, double beta,
                       int32_t v_dim, int32_t k_dim, double *o) {
    for (int32_t i = 0; i < v_dim; i++) {
        double Sk = 0;
        for (int32_t j = 0; j < k_dim; j++) Sk += S[i * k_dim + j] * g[j] * k[j];
        o[i] = 0;
        for (int32_t j = 0; j < k_dim; j++) {
            S[i * k_dim + j] = g[j] * S[i * k_dim + j] - beta * Sk * k[j] + beta * v[i] * k[j];
            o[i] += S[i * k_dim + j] * q[j];
        }
    }
}

void expect_delta_net(const op_rig *rig, op_result *want) {
    const mf__op_params *p = &rig->op->p;
    int32_t nk = p->delta.n_k_heads, kd = p->delta.k_dim, nv = p->delta.n_v_heads, vd = p->delta.v_dim, row0 = 0;
    int64_t cols = op_in_cols(rig, 0);
    double q[256], k[256], v[256], g[256];
    for (int s = 0; s < rig->n_seqs; row0 += rig->c->seqs[s++].n_rows)
        for (int32_t t = 0; t < rig->c->seqs[s].n_rows; t++)
            for (int32_t h = 0; h < nv; h++) {
                int64_t row = (row0 + t) * cols;
                int32_t kh = h * nk / nv; /* neighbours share: 0 0 1 1, not 0 1 0 1 */
                for (int32_t c = 0; c < kd; c++) q[c] = op_in(rig, 0, row + kh * kd + c);
                for (int32_t c = 0; c < kd; c++) k[c] = op_in(rig, 0, row + (nk + kh) * kd + c);
                for (int32_t c = 0; c < vd; c++) v[c] = op_in(rig, 0, row + 2 * nk * kd + h * vd + c);
                int64_t at = (int64_t)(row0 + t) * nv + h;
                for (int32_t c = 0; c < kd; c++) g[c] = op_in(rig, 1, p->delta.by_channel ? at * kd + c : at);
                delta_step(want->delta[s] + (int64_t)h * vd * kd, q, k, v, g, op_in(rig, 2, at), vd, kd,
                           op_out(rig, want, 0) + at * vd);
            }
}

/* S' = e^(-e^A step) S + step u B^T, y = S' C + D u, value by value. */
void expect_ssm(const op_rig *rig, op_result *want) {
    const mf__op_params *p = &rig->op->p;
    int32_t heads = p->ssm.n_heads, dim = p->ssm.dim, n = p->ssm.n_state, row0 = 0;
    int64_t cols = op_in_cols(rig, 0), inner = (int64_t)heads * dim;
    for (int s = 0; s < rig->n_seqs; row0 += rig->c->seqs[s++].n_rows)
        for (int64_t t = row0; t < row0 + rig->c->seqs[s].n_rows; t++)
            for (int64_t i = 0; i < inner; i++) {
                int64_t h = i / dim, group = h * p->ssm.n_groups / heads; /* neighbours share */
                double x = op_in(rig, 1, t * heads + h) + op_w(rig, 1, h), step = x > 40 ? x : log1p(exp(x));
                double u = op_in(rig, 0, t * cols + i), sum = op_w(rig, 2, h) * u, *S = want->delta[s] + i * n;
                for (int32_t j = 0; j < n; j++) {
                    int64_t at = t * cols + inner + group * n + j;
                    S[j] = exp(-exp(op_w(rig, 0, h)) * step) * S[j] + step * u * op_in(rig, 0, at);
                    sum += S[j] * op_in(rig, 0, at + (int64_t)p->ssm.n_groups * n);
                }
                op_out(rig, want, 0)[t * inner + i] = sum;
            }
}
