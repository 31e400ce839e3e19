/* Mixture of experts: choosing them, running those that are in the bank, adding them up. */
#include <float.h>
#include <math.h>

#include "backend/ref/dot.h"
#include "backend/ref/ref.h"

/* The top_k largest of p[0..n), largest first; of equals the lower index. */
static void top_k(const float *p, int32_t n, int32_t k, int32_t *ids) {
    for (int32_t slot = 0; slot < k; slot++) {
        int32_t best = -1;
        for (int32_t e = 0; e < n; e++) {
            bool taken = false;
            for (int32_t s = 0; s < slot; s++) taken = taken || ids[s] == e;
            if (!taken && (best < 0 || p[e] > p[best])) best = e;
        }
        ids[slot] = best;
    }
}

/* share = e^logit / sum of e^logit, over all experts or over the chosen ones; or sigmoid(logit) */
static void route_logits(const float *logits, const mf__op_params *p, int32_t *ids, float *shares) {
    float max = -FLT_MAX, total = 0;
    top_k(logits, p->route.n_experts, p->route.top_k, ids);
    for (int32_t k = 0; k < p->route.top_k; k++) shares[k] = mf__ref_sigmoid(logits[ids[k]]);
    if (p->route.kind == MF_ROUTE_TOPK_SIGMOID) return;
    for (int32_t e = 0; e < p->route.n_experts; e++) max = logits[e] > max ? logits[e] : max;
    for (int32_t k = 0; k < p->route.top_k; k++) shares[k] = expf(logits[ids[k]] - max);
    if (p->route.kind == MF_ROUTE_SOFTMAX)
        for (int32_t e = 0; e < p->route.n_experts; e++) total += expf(logits[e] - max);
    else
        for (int32_t k = 0; k < p->route.top_k; k++) total += shares[k];
    for (int32_t k = 0; k < p->route.top_k; k++) shares[k] /= total;
}

/* The sum of the two largest choice values of a group. */
static float group_score(const float *choice, int32_t size) {
    float first = -FLT_MAX, second = -FLT_MAX;
    for (int32_t e = 0; e < size; e++) {
        if (choice[e] > first) {
            second = first;
            first = choice[e];
        } else if (choice[e] > second) {
            second = choice[e];
        }
    }
    return size > 1 ? first + second : first;
}

/* sigmoid(x), or sqrt(ln(1 + e^x)) */
static float score_one(mf__route_kind kind, float x) {
    if (kind == MF_ROUTE_SIGMOID) return mf__ref_sigmoid(x);
    return sqrtf(x > 20.0f ? x : log1pf(expf(x)));
}

/* score: the softmax of the logits, or a function of each */
static void score_all(const float *logits, const mf__op_params *p, float *scores) {
    int32_t n = p->route.n_experts;
    float max = -FLT_MAX, total = 0;
    for (int32_t e = 0; e < n; e++) max = logits[e] > max ? logits[e] : max;
    for (int32_t e = 0; e < n; e++) {
        scores[e] = p->route.kind == MF_ROUTE_SOFTMAX ? expf(logits[e] - max) : score_one(p->route.kind, logits[e]);
        total += scores[e];
    }
    for (int32_t e = 0; p->route.kind == MF_ROUTE_SOFTMAX && e < n; e++) scores[e] /= total;
}

/* choice = score + bias; only the best groups take part; the k largest choices; share = score. mem: scratch of two
 * times n_experts and n_groups values. */
static void route_scored(const float *logits, const float *bias, const mf__op_params *p, float *mem, int32_t *ids,
                         float *shares) {
    int32_t n = p->route.n_experts, n_groups = p->route.n_groups, size = n / n_groups;
    float *scores = mem, *choice = mem + n, *groups = mem + 2 * n;
    score_all(logits, p, scores);
    for (int32_t e = 0; e < n; e++) choice[e] = scores[e] + (bias ? bias[e] : 0);
    for (int32_t g = 0; g < n_groups; g++) groups[g] = group_score(choice + g * size, size);
    for (int32_t drop = n_groups - p->route.top_groups; drop > 0; drop--) { /* the worst group, of equals the last */
        int32_t worst = -1;
        for (int32_t g = 0; g < n_groups; g++)
            if (!isinf(groups[g]) && (worst < 0 || groups[g] <= groups[worst])) worst = g;
        if (worst < 0) break;
        groups[worst] = INFINITY; /* dropped */
        for (int32_t e = 0; e < size; e++) choice[worst * size + e] = -INFINITY;
    }
    top_k(choice, n, p->route.top_k, ids);
    for (int32_t k = 0; k < p->route.top_k; k++) shares[k] = scores[ids[k]];
}

void mf__ref_route(const mf__ref_run *r) {
    const mf__op_params *p = &r->op->p;
    const float *logits = mf__ref_in(r, 0), *bias = mf__ref_vec(r, 0), *factors = mf__ref_vec(r, 1);
    const float *given = mf__ref_in(r, 1);
    int32_t *ids = r->b->bufs[r->op->out[0]];
    float *shares = mf__ref_out(r, 1);
    for (int64_t t = 0; t < r->b->n_rows; t++) {
        for (int32_t k = 0; given && k < p->route.top_k; k++) {
            float id = given[t * p->route.top_k + k]; /* from a file: may be anything */
            ids[k] = id >= 0 && id < (float)p->route.n_experts ? (int32_t)id : 0;
            shares[k] = score_one(p->route.kind, logits[ids[k]]);
        }
        if (given)
            (void)0;
        else if (p->route.kind == MF_ROUTE_SIGMOID || p->route.kind == MF_ROUTE_SQRT_SOFTPLUS || bias ||
                 p->route.n_groups > 1)
            route_scored(logits, bias, p, r->scratch, ids, shares);
        else
            route_logits(logits, p, ids, shares);
        float sum = p->route.eps > 0 ? p->route.eps : 1e-20f;
        for (int32_t k = 0; k < p->route.top_k; k++) sum += shares[k];
        for (int32_t k = 0; k < p->route.top_k; k++)
            shares[k] = (p->route.renorm ? shares[k] / sum : shares[k]) * p->route.scale;
        for (int32_t k = 0; factors && k < p->route.top_k; k++) shares[k] *= factors[ids[k]];
        logits += p->route.n_experts, ids += p->route.top_k, shares += p->route.top_k;
    }
}

/* y = share x: what an expert is to make of x is weighed before it, not after. */
void mf__ref_weigh(const mf__ref_run *r) {
    const float *x = mf__ref_in(r, 0);
    float *y = mf__ref_out(r, 0), *shares = mf__ref_out(r, 1);
    int32_t cols = mf__ref_in_cols(r, 0);
    for (int64_t t = 0; t < r->b->n_rows; t++) {
        for (int32_t c = 0; c < cols; c++) y[t * cols + c] = shares[t] * x[t * cols + c];
        shares[t] = 1;
    }
}

/* y = (sum of the shares of ids that are no experts) x. Those ids become the row's first expert (or 0) with a share of
 * 0, so that nobody has to know of them. */
void mf__ref_identity(const mf__ref_run *r) {
    const float *x = mf__ref_in(r, 0);
    int32_t *ids = r->b->bufs[r->op->out[1]], top = r->op->p.identity.top_k, n = r->op->p.identity.n_experts;
    float *y = mf__ref_out(r, 0), *shares = mf__ref_out(r, 2);
    int32_t cols = mf__ref_in_cols(r, 0);
    for (int64_t t = 0; t < r->b->n_rows; t++, ids += top, shares += top) {
        int32_t first = 0;
        float sum = 0;
        for (int32_t k = top - 1; k >= 0; k--) first = ids[k] < n ? ids[k] : first;
        for (int32_t k = 0; k < top; k++) {
            if (ids[k] < n) continue;
            sum += shares[k];
            ids[k] = first, shares[k] = 0;
        }
        for (int32_t c = 0; c < cols; c++) y[t * cols + c] = sum * x[t * cols + c];
    }
}

int64_t mf__ref_route_scratch(const mf__op *op) {
    return 2 * (int64_t)op->p.route.n_experts + op->p.route.n_groups;
}

int64_t mf__ref_experts_scratch(const mf__graph *g, const mf__op *op) {
    int64_t hidden = g->bufs[op->in[0]].cols, inner = mf__glu_cols(&op->p.moe.glu, op->p.moe.n_inner);
    return (hidden > inner ? hidden : inner) + MF_REF_TILE * inner;
}

/* out[j] = W_down glu(W_gate x[j] + b_gate, W_up x[j] + b_up) + b_down for the rows of one tile; glu is silu(g) * u or
 * the clamped form, and most models have no biases; squares: [relu(g)^2 | relu(u)^2] */
static void expert_tile(const mf__bank *bank, const mf__glu *glu, int32_t expert, const float *const *x,
                        float *const *out, int32_t n, float *scratch) {
    const void *blob = bank->blobs[expert];
    mf__tensor gate = mf__expert_view(bank->layout, MF_PART_GATE, blob);
    mf__tensor up = mf__expert_view(bank->layout, MF_PART_UP, blob);
    mf__tensor down = mf__expert_view(bank->layout, MF_PART_DOWN, blob);
    const float *b_gate = mf__expert_bias(bank->layout, MF_PART_GATE, blob);
    const float *b_up = mf__expert_bias(bank->layout, MF_PART_UP, blob);
    const float *b_down = mf__expert_bias(bank->layout, MF_PART_DOWN, blob);
    int64_t hidden = gate.n_cols, rows = gate.n_rows, inner = mf__glu_cols(glu, rows);
    float *row = scratch, *act = scratch + (hidden > inner ? hidden : inner);
    const float *acts[MF_REF_TILE];
    float a[MF_REF_TILE], b[MF_REF_TILE];
    for (int32_t j = 0; j < n; j++) acts[j] = act + j * inner;
    for (int64_t i = 0; i < rows; i++) {
        mf__tensor_row_f32(&gate, i, row);
        mf__ref_dots(row, x, n, hidden, a);
        mf__tensor_row_f32(&up, i, row);
        mf__ref_dots(row, x, n, hidden, b);
        for (int32_t j = 0; j < n; j++) {
            float g = b_gate ? a[j] + b_gate[i] : a[j], u = b_up ? b[j] + b_up[i] : b[j];
            if (glu->kind == MF_GLU_RELU2) {
                act[j * inner + i] = g > 0 ? g * g : 0;
                act[j * inner + rows + i] = u > 0 ? u * u : 0;
            } else {
                act[j * inner + i] = mf__ref_glu_one(glu, g, u);
            }
        }
    }
    for (int64_t i = 0; i < hidden; i++) {
        mf__tensor_row_f32(&down, i, row);
        mf__ref_dots(row, acts, n, inner, a);
        for (int32_t j = 0; j < n; j++) out[j][i] = b_down ? a[j] + b_down[i] : a[j];
    }
}

/* Items are experts. Each collects its (token, slot) pairs, a tile at a time. */
static void run_experts(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__ref_run *r = ctx;
    const mf__bank *bank = r->b->bank;
    int32_t hidden = mf__ref_in_cols(r, 0), top = r->op->p.moe.top_k;
    const float *x = mf__ref_in(r, 0);
    const int32_t *ids = r->b->bufs[r->op->in[1]];
    float *pairs = mf__ref_out(r, 0), *scratch = r->scratch + thread * r->scratch_floats;
    int64_t n_pairs = (int64_t)r->b->n_rows * top;
    for (int64_t e = begin; e < end; e++) {
        const float *xs[MF_REF_TILE];
        float *outs[MF_REF_TILE];
        int32_t n = 0;
        if (!bank->blobs[e]) continue;
        for (int64_t i = 0; i < n_pairs; i++) {
            if (ids[i] != e) continue;
            xs[n] = x + i / top * hidden;
            outs[n++] = pairs + i * hidden;
            if (n < MF_REF_TILE) continue;
            expert_tile(bank, &r->op->p.moe.glu, (int32_t)e, xs, outs, n, scratch);
            n = 0;
        }
        if (n) expert_tile(bank, &r->op->p.moe.glu, (int32_t)e, xs, outs, n, scratch);
    }
}

void mf__ref_experts(const mf__ref_run *r) {
    mf__pool_run(r->pool, run_experts, (void *)r, r->b->bank->n_experts);
}

/* y = h (if there is one) + (sum_k share_k * pair_k + sigmoid(score) * shared). Slots are added in order whatever order
 * the experts were computed in, so that caching and prefetching cannot change a bit. */
void mf__ref_combine(const mf__ref_run *r) {
    const float *h = mf__ref_in(r, 0), *pairs = mf__ref_in(r, 1), *shares = mf__ref_in(r, 2);
    const float *shared = mf__ref_in(r, 3), *score = mf__ref_in(r, 4);
    float *y = mf__ref_out(r, 0);
    int32_t hidden = r->g->bufs[r->op->out[0]].cols, top = r->op->p.moe.top_k;
    for (int64_t t = 0; t < r->b->n_rows; t++) {
        float weight = score ? mf__ref_sigmoid(score[t]) : 1.0f;
        for (int32_t c = 0; c < hidden; c++) {
            float sum = 0;
            for (int32_t k = 0; k < top; k++) sum += shares[t * top + k] * pairs[(t * top + k) * hidden + c];
            if (shared) sum += weight * shared[t * hidden + c];
            y[t * hidden + c] = h ? h[t * hidden + c] + sum : sum;
        }
    }
}
