/* Choosing experts. A small part of the work: plain C, rows shared out. */
#include <float.h>
#include <math.h>

#include "backend/cpu/cpu.h"

#define MAX_ROUTED 4096 /* experts and groups a row's scores are kept for on the stack */

static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

/* The k largest, largest first; of equals the lower index. Each value is compared with the smallest kept so far. */
static void top_k(const float *p, int32_t n, int32_t k, int32_t *ids) {
    int32_t kept = 0;
    for (int32_t e = 0; e < n; e++) {
        if (kept == k && !(p[e] > p[ids[k - 1]])) continue;
        int32_t at = kept < k ? kept++ : k - 1;
        for (; at > 0 && p[e] > p[ids[at - 1]]; at--) ids[at] = ids[at - 1];
        ids[at] = e;
    }
}

static void route_logits(const float *logits, const mf__op_params *p, int32_t *ids, float *shares) {
    float max = -FLT_MAX, total = 0;
    top_k(logits, p->route.n_experts, p->route.top_k, ids);
    for (int32_t k = 0; k < p->route.top_k; k++) shares[k] = sigmoid(logits[ids[k]]);
    if (p->route.kind == MF_ROUTE_TOPK_SIGMOID) return;
    for (int32_t e = 0; e < p->route.n_experts; e++) max = logits[e] > max ? logits[e] : max;
    for (int32_t k = 0; k < p->route.top_k; k++) shares[k] = expf(logits[ids[k]] - max);
    if (p->route.kind == MF_ROUTE_SOFTMAX)
        for (int32_t e = 0; e < p->route.n_experts; e++) total += expf(logits[e] - max);
    else
        for (int32_t k = 0; k < p->route.top_k; k++) total += shares[k];
    for (int32_t k = 0; k < p->route.top_k; k++) shares[k] /= total;
}

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

static float score_one(mf__route_kind kind, float x) {
    return kind == MF_ROUTE_SIGMOID ? sigmoid(x) : sqrtf(x > 20.0f ? x : log1pf(expf(x)));
}

/* The softmax of the logits, or a function of each. */
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

/* Only the best groups take part; of equally bad ones the last goes first. */
static void route_scored(const float *logits, const float *bias, const mf__op_params *p, int32_t *ids, float *shares) {
    float scores[MAX_ROUTED], choice[MAX_ROUTED], groups[MAX_ROUTED];
    int32_t n = p->route.n_experts, n_groups = p->route.n_groups, size = n / n_groups;
    score_all(logits, p, scores);
    for (int32_t e = 0; e < n; e++) choice[e] = scores[e] + (bias ? bias[e] : 0);
    for (int32_t g = 0; g < n_groups; g++) groups[g] = group_score(choice + g * size, size);
    for (int32_t drop = n_groups - p->route.top_groups; drop > 0; drop--) {
        int32_t worst = -1;
        for (int32_t g = 0; g < n_groups; g++)
            if (!isinf(groups[g]) && (worst < 0 || groups[g] <= groups[worst])) worst = g;
        if (worst < 0) break;
        groups[worst] = INFINITY;
        for (int32_t e = 0; e < size; e++) choice[worst * size + e] = -INFINITY;
    }
    top_k(choice, n, p->route.top_k, ids);
    for (int32_t k = 0; k < p->route.top_k; k++) shares[k] = scores[ids[k]];
}

/* Whether the choice is made by scores, which are kept; else by the logits. */
static bool by_scores(const mf__op *op) {
    return op->p.route.kind == MF_ROUTE_SIGMOID || op->p.route.kind == MF_ROUTE_SQRT_SOFTPLUS || op->w[0] >= 0 ||
           op->p.route.n_groups > 1;
}

static void route_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const mf__op_params *p = &r->op->p;
    const float *factors = mf__cpu_weights(r, 1), *given = mf__cpu_in(r, 1);
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        const float *logits = mf__cpu_in(r, 0) + t * p->route.n_experts;
        int32_t *ids = (int32_t *)r->b->bufs[r->op->out[0]] + t * p->route.top_k;
        float *shares = mf__cpu_out(r, 1) + t * p->route.top_k, sum = p->route.eps > 0 ? p->route.eps : 1e-20f;
        for (int32_t k = 0; given && k < p->route.top_k; k++) {
            float id = given[t * p->route.top_k + k]; /* from a file: may be anything */
            ids[k] = id >= 0 && id < (float)p->route.n_experts ? (int32_t)id : 0;
            shares[k] = score_one(p->route.kind, logits[ids[k]]);
        }
        if (given)
            (void)0;
        else if (by_scores(r->op))
            route_scored(logits, mf__cpu_weights(r, 0), p, ids, shares);
        else
            route_logits(logits, p, ids, shares);
        for (int32_t k = 0; k < p->route.top_k; k++) sum += shares[k];
        for (int32_t k = 0; k < p->route.top_k; k++)
            shares[k] = (p->route.renorm ? shares[k] / sum : shares[k]) * p->route.scale;
        for (int32_t k = 0; factors && k < p->route.top_k; k++) shares[k] *= factors[ids[k]];
    }
}

mf_status mf__cpu_route(mf__cpu_run *r, mf_error *err) {
    if (by_scores(r->op) && r->op->p.route.n_experts > MAX_ROUTED)
        return mf__fail(err, MF_E_UNSUPPORTED, "%d experts, the cpu backend chooses among %d at most",
                        r->op->p.route.n_experts, MAX_ROUTED);
    mf__pool_run(r->b->n_rows < 8 ? NULL : r->pool, route_rows, r, r->b->n_rows);
    return MF_OK;
}
