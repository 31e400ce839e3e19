/* Expectations: routing, experts, combining. */
#include <math.h>
#include <stdlib.h>

#include "expect.h"

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* ---- routing --------------------------------------------------------------------------------------------------- */

#define MAX_EXPERTS 64

/* How many of the others come before e: larger ones, and equal ones with lower numbers. */
static int rank_of(const double *x, int n, int e) {
    int rank = 0;
    for (int i = 0; i < n; i++) rank += x[i] > x[e] || (x[i] == x[e] && i < e);
    return rank;
}

/* Experts outside the best groups get -infinity; a group counts as much as its two best together. */
static void keep_best_groups(double *choice, const mf__op_params *p) {
    int n_groups = p->route.n_groups, size = p->route.n_experts / n_groups;
    double score[MAX_EXPERTS];
    for (int g = 0; g < n_groups; g++) {
        score[g] = 0;
        for (int e = 0; e < size; e++)
            if (rank_of(choice + g * size, size, e) < 2) score[g] += choice[g * size + e];
    }
    for (int g = 0; g < n_groups; g++)
        for (int e = 0; e < size && rank_of(score, n_groups, g) >= p->route.top_groups; e++)
            choice[g * size + e] = -INFINITY;
}

/* Whether scores are compared, not logits. */
static bool by_scores(const op_rig *rig) {
    const mf__op_params *p = &rig->op->p;
    return p->route.kind == MF_ROUTE_SIGMOID || p->route.kind == MF_ROUTE_SQRT_SOFTPLUS || rig->op->w[0] >= 0 ||
           p->route.n_groups > 1;
}

static void route_row(const op_rig *rig, int64_t t, double *ids, double *shares) {
    const mf__op_params *p = &rig->op->p;
    int n = p->route.n_experts;
    double choice[MAX_EXPERTS], value[MAX_EXPERTS], all = 0, sum = 0;
    for (int e = 0; e < n; e++) {
        double x = op_in(rig, 0, t * n + e);
        bool sigmoids = p->route.kind == MF_ROUTE_SIGMOID || p->route.kind == MF_ROUTE_TOPK_SIGMOID;
        value[e] = sigmoids ? sigmoid(x) : p->route.kind == MF_ROUTE_SQRT_SOFTPLUS ? sqrt(log1p(exp(x))) : exp(x);
        all += value[e];
    }
    for (int e = 0; e < n; e++) {
        if (p->route.kind == MF_ROUTE_SOFTMAX) value[e] /= all;
        /* floats decide who is chosen: equal floats must be equal here too */
        choice[e] = by_scores(rig) ? (double)((float)value[e]) : op_in(rig, 0, t * n + e);
        if (rig->op->w[0] >= 0) choice[e] += op_w(rig, 0, e);
    }
    if (by_scores(rig)) keep_best_groups(choice, p);
    for (int e = 0; e < n; e++) {
        int rank = rank_of(choice, n, e);
        if (rig->op->in[1] >= 0) /* given */
            for (rank = 0; rank < p->route.top_k && op_in(rig, 1, t * p->route.top_k + rank) != e;) rank++;
        if (rank >= p->route.top_k) continue;
        sum += value[e];
        ids[rank] = e;
        shares[rank] = value[e] * p->route.scale * (rig->op->w[1] >= 0 ? op_w(rig, 1, e) : 1);
    }
    bool divided = p->route.renorm || p->route.kind == MF_ROUTE_TOPK_SOFTMAX;
    for (int k = 0; divided && k < p->route.top_k; k++) shares[k] /= sum;
}

void expect_route(const op_rig *rig, op_result *want) {
    int k = rig->op->p.route.top_k;
    for (int64_t t = 0; t < rig->n_rows; t++)
        route_row(rig, t, op_out(rig, want, 0) + t * k, op_out(rig, want, 1) + t * k);
}

/* Ids that are no experts: their shares times x; they go to the first of the others, for nothing. */
void expect_identity(const op_rig *rig, op_result *want) {
    int64_t cols = op_in_cols(rig, 0), top = op_in_cols(rig, 2);
    const int32_t *ids = rig->in[rig->op->in[1]];
    for (int64_t t = 0; t < rig->n_rows; t++, ids += top) {
        double sum = 0, first = -1;
        for (int64_t k = 0; k < top; k++) {
            bool real = ids[k] < rig->op->p.identity.n_experts;
            if (real && first < 0) first = ids[k];
            sum += real ? 0 : op_in(rig, 2, t * top + k);
        }
        for (int64_t k = 0; k < top; k++) {
            bool real = ids[k] < rig->op->p.identity.n_experts;
            op_out(rig, want, 1)[t * top + k] = real ? ids[k] : first < 0 ? 0 : first;
            op_out(rig, want, 2)[t * top + k] = real ? op_in(rig, 2, t * top + k) : 0;
        }
        for (int64_t c = 0; c < cols; c++) op_out(rig, want, 0)[t * cols + c] = sum * op_in(rig, 0, t * cols + c);
    }
}

/* The first output is x times the share, the second the share as it is for combine. */
void expect_weigh(const op_rig *rig, op_result *want) {
    int64_t cols = op_in_cols(rig, 0);
    for (int64_t i = 0; i < rig->n_rows * cols; i++)
        op_out(rig, want, 0)[i] = op_in(rig, 0, i) * op_in(rig, 1, i / cols);
    for (int64_t t = 0; t < rig->n_rows; t++) op_out(rig, want, 1)[t] = 1;
}

/* ---- experts --------------------------------------------------------------------------------------------------- */

static double *part_values(const op_rig *rig, int32_t expert, mf__expert_part part) {
    mf__tensor t = mf__expert_view(&rig->layout, part, rig->blobs + expert * rig->layout.bytes);
    double *v = calloc((size_t)(t.n_rows * t.n_cols), sizeof *v);
    float *row = calloc((size_t)t.n_cols, sizeof *row);
    for (int64_t r = 0; v && row && r < t.n_rows; r++) {
        mf__tensor_row_f32(&t, r, row);
        for (int64_t c = 0; c < t.n_cols; c++) v[r * t.n_cols + c] = row[c];
    }
    free(row);
    return v;
}

static double bias_of(const op_rig *rig, int32_t expert, mf__expert_part part, int32_t row) {
    const float *bias = mf__expert_bias(&rig->layout, part, rig->blobs + expert * rig->layout.bytes);
    return bias ? bias[row] : 0;
}

/* y = W_down act(W_gate x + b_gate, W_up x + b_up) + b_down, one inner channel after the other */
static void expert_row(const op_rig *rig, int32_t expert, double *const parts[MF_PART_COUNT], int64_t t, double *y) {
    int32_t hidden = op_in_cols(rig, 0), inner = rig->op->p.moe.n_inner;
    const double *gate = parts[MF_PART_GATE], *up = parts[MF_PART_UP], *down = parts[MF_PART_DOWN];
    bool squares = rig->op->p.moe.glu.kind == MF_GLU_RELU2;
    int32_t wide = squares ? 2 * inner : inner;
    for (int32_t c = 0; c < hidden; c++) y[c] = bias_of(rig, expert, MF_PART_DOWN, c);
    for (int32_t i = 0; i < inner; i++) {
        double a = bias_of(rig, expert, MF_PART_GATE, i), b = bias_of(rig, expert, MF_PART_UP, i);
        for (int32_t c = 0; c < hidden; c++) {
            double x = op_in(rig, 0, t * hidden + c);
            a += gate[i * hidden + c] * x;
            b += up[i * hidden + c] * x;
        }
        if (squares) {
            for (int32_t c = 0; c < hidden; c++)
                y[c] += down[c * wide + i] * pow(fmax(a, 0), 2) + down[c * wide + inner + i] * pow(fmax(b, 0), 2);
            continue;
        }
        double act = expect_act(&rig->op->p.moe.glu, a, b);
        for (int32_t c = 0; c < hidden; c++) y[c] += down[c * wide + i] * act;
    }
}

/* Pairs of experts that are not in the bank stay as they were. */
void expect_experts(const op_rig *rig, op_result *want) {
    int32_t hidden = op_in_cols(rig, 0), top = rig->op->p.moe.top_k;
    for (int32_t e = 0; e < rig->c->n_experts; e++) {
        if (rig->c->every_other && e % 2) continue;
        double *parts[MF_PART_COUNT];
        for (int p = 0; p < MF_PART_COUNT; p++) parts[p] = part_values(rig, e, (mf__expert_part)p);
        for (int64_t i = 0; i < (int64_t)rig->n_rows * top; i++)
            if (op_in_id(rig, 1, i) == e) expert_row(rig, e, parts, i / top, op_out(rig, want, 0) + i * hidden);
        for (int p = 0; p < MF_PART_COUNT; p++) free(parts[p]);
    }
}

void expect_combine(const op_rig *rig, op_result *want) {
    int32_t top = op_in_cols(rig, 2), hidden = op_in_cols(rig, 1) / top;
    bool shared = rig->op->in[3] >= 0, score = rig->op->in[4] >= 0;
    for (int64_t i = 0; i < (int64_t)rig->n_rows * hidden; i++) {
        int64_t t = i / hidden, c = i % hidden;
        double y = rig->op->in[0] >= 0 ? op_in(rig, 0, i) : 0;
        for (int64_t k = 0; k < top; k++) y += op_in(rig, 2, t * top + k) * op_in(rig, 1, (t * top + k) * hidden + c);
        if (shared) y += op_in(rig, 3, i) * (score ? sigmoid(op_in(rig, 4, t)) : 1);
        op_out(rig, want, 0)[i] = y;
    }
}
