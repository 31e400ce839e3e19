/* Choices that know the cache; see engine/lossy.h for the rules. */
#include "engine/lossy.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LAST_ROWS 256 /* over which shares of last choices are averaged, about */

/* ---- what one row does -------------------------------------------------------------------------------------------- */

/* A row's choice while it is decided about. */
typedef struct choice {
    const mf_model *m;
    mf__lossy *x;
    int layer;
    int32_t *ids;  /* [top_k] */
    float *shares; /* [top_k] */
    float total;   /* of the shares, as the router gave them */
    float skipped; /* ... of those that were left out */
    int32_t left;  /* changes that are still allowed */
    float log_sum; /* of the softmax over all experts */
    bool counts;   /* it will be done, not only foretold */
} choice;

static float score_of(const choice *c, int32_t e) {
    float l = c->x->scores[e];
    switch (c->m->bp.config.has.route) {
    case MF_ROUTE_TOPK_SIGMOID:
    case MF_ROUTE_SIGMOID: return 1.0f / (1.0f + expf(-l));
    case MF_ROUTE_SQRT_SOFTPLUS: return sqrtf(l > 20.0f ? l : log1pf(expf(l)));
    default: return expf(l - c->log_sum);
    }
}

/* What the router compares. */
static float worth_of(const choice *c, int32_t e) {
    return score_of(c, e) + (c->x->bias[c->layer] ? c->x->bias[c->layer][e] : 0);
}

static float log_sum(const float *scores, int32_t n) {
    float max = -FLT_MAX, sum = 0;
    for (int32_t e = 0; e < n; e++) max = scores[e] > max ? scores[e] : max;
    for (int32_t e = 0; e < n; e++) sum += expf(scores[e] - max);
    return max + logf(sum);
}

static bool is_chosen(const choice *c, int32_t e) {
    for (int32_t k = 0; k < c->m->bp.config.moe.top_k; k++)
        if (c->ids[k] == e) return true;
    return false;
}

/* Routers of groups choose among the best of them: those that have something chosen. */
static bool group_takes_part(const choice *c, int32_t e) {
    int32_t n_groups = c->m->bp.config.moe.n_groups, size = n_groups > 1 ? c->m->bp.config.moe.n_experts / n_groups : 0;
    if (!size) return true;
    for (int32_t k = 0; k < c->m->bp.config.moe.top_k; k++)
        if (c->ids[k] >= 0 && c->ids[k] / size == e / size) return true;
    return false;
}

static bool small_will_do(const choice *c, int32_t k) {
    return c->x->store && c->shares[k] < c->x->opt.small * c->total;
}

/* The best expert that is there and not chosen, if it is close enough to choice k; -1: none. */
static int32_t find_other(const choice *c, int32_t k) {
    float least = worth_of(c, c->ids[k]) * expf(-(float)c->x->opt.bonus), best = 0;
    bool small = small_will_do(c, k);
    int32_t found = -1;
    for (int32_t e = 0; least > 0 && e < c->m->bp.config.moe.n_experts; e++) {
        bool there = c->x->resident[e] || (small && c->x->small_resident[e]);
        if (!there || is_chosen(c, e) || !group_takes_part(c, e)) continue;
        float worth = worth_of(c, e);
        if (worth < least || (found >= 0 && worth <= best)) continue;
        found = e;
        best = worth;
    }
    return found;
}

/* The router is sure of choice k: its share is large, or larger than what its layer gives to last choices. */
static bool is_sure(const choice *c, int32_t k) {
    const mf_lossy *opt = &c->x->opt;
    return (opt->sure > 0 && c->shares[k] >= opt->sure * c->total) ||
           (opt->tail > 0 && c->shares[k] >= opt->tail * c->x->last[c->layer] * c->total);
}

static bool replace(choice *c, int32_t k) {
    const mf_lossy *opt = &c->x->opt;
    if (c->m->bp.kinds[c->m->bp.kind_of[c->layer]].hashed) return false; /* a table chose, not the scores */
    if (opt->bonus <= 0 || c->left < 1 || is_sure(c, k)) return false;
    float score = score_of(c, c->ids[k]);
    int32_t other = score > 0 ? find_other(c, k) : -1; /* 0: a correction chose it, and its share is none */
    if (other < 0) return false;
    c->shares[k] *= score_of(c, other) / score; /* its own score, without the bonus */
    c->ids[k] = other;
    if (c->x->resident[other])
        c->x->served[other] = MF_SERVED_FULL;
    else if (!c->x->served[other])
        c->x->served[other] = MF_SERVED_SMALL;
    c->x->n_replaced += c->counts;
    c->left--;
    return true;
}

/* A pair that nobody wants stays a pair: of the first choice, with no share. */
static bool skip(choice *c, int32_t k) {
    if (c->left < 1 || k == 0 || c->shares[k] >= c->x->opt.skip * c->total) return false;
    c->skipped += c->shares[k];
    c->shares[k] = 0;
    c->ids[k] = -1;
    c->x->n_skipped += c->counts;
    c->left--;
    return true;
}

/* Likely to be wanted again soon: once read, it stays and is of use. Where small copies have most of the memory many
 * are, and only the likeliest of them stay. */
static bool is_hot(const mf__lossy *x, int32_t e) {
    return x->opt.promote > 0 && x->chance[e] >= x->opt.promote && x->chance[e] >= x->least;
}

/* Its small copy is there, or will be for a row before. */
static bool small_is_there(const choice *c, int32_t k) {
    int32_t e = c->ids[k];
    if (!small_will_do(c, k) || (!c->x->small_resident[e] && c->x->served[e] != MF_SERVED_SMALL)) return false;
    c->x->served[e] = MF_SERVED_SMALL;
    return true;
}

/* Where the router makes its shares add up, so do we; what is left out goes to the others in any case. */
static void rescale(choice *c) {
    const mf__config *cfg = &c->m->bp.config;
    bool renorm = cfg->moe.renorm || cfg->has.route == MF_ROUTE_TOPK_SOFTMAX;
    float sum = 0;
    for (int32_t k = 0; k < cfg->moe.top_k; k++) sum += c->shares[k];
    float factor = sum > 0 ? (renorm ? c->total : sum + c->skipped) / sum : 0;
    for (int32_t k = 0; k < cfg->moe.top_k; k++) {
        c->shares[k] *= factor;
        if (c->ids[k] < 0) c->ids[k] = c->ids[0];
    }
}

/* What last choices have in this layer, with one row more; later rows count for more once there are many. */
static void note_last(mf__lossy *x, int layer, int32_t top_k) {
    double total = 0;
    for (int32_t k = 0; k < top_k; k++) total += x->shares[k];
    if (!(total > 0 && total < FLT_MAX)) return;
    if (x->n_last[layer] < LAST_ROWS) x->n_last[layer]++;
    x->last[layer] += (x->shares[top_k - 1] / total - x->last[layer]) / x->n_last[layer];
}

/* Decides about ids and x->shares of one row, whose scores are in x->scores; true if they changed. counts: into the
 * counters. */
static bool choose_row(const mf_model *m, int layer, int32_t *ids, int32_t *changed, bool counts) {
    mf__lossy *x = m->lossy;
    int32_t top_k = m->bp.config.moe.top_k, most = x->opt.most ? x->opt.most : INT32_MAX;
    choice c = {.m = m, .x = x, .layer = layer, .ids = ids, .shares = x->shares, .left = most - *changed};
    c.counts = counts;
    for (int32_t k = 0; k < top_k; k++) c.total += c.shares[k];
    bool sound = c.total > 0 && c.total < FLT_MAX;
    if (x->opt.bonus > 0) c.log_sum = log_sum(x->scores, m->bp.config.moe.n_experts);
    int32_t before = c.left;
    for (int32_t k = 0; k < top_k; k++) /* what is there, or left alone, or wanted by a row before */
        if (!sound || k < x->opt.protect || x->resident[ids[k]] || is_hot(x, ids[k]))
            x->served[ids[k]] = MF_SERVED_FULL;
    for (int32_t k = top_k - 1; k >= 0; k--) {
        if (x->served[ids[k]] == MF_SERVED_FULL || small_is_there(&c, k) || replace(&c, k) || skip(&c, k)) continue;
        x->served[ids[k]] = small_will_do(&c, k) ? MF_SERVED_SMALL : MF_SERVED_FULL;
    }
    for (int32_t k = 0; counts && k < top_k; k++) x->n_small += ids[k] >= 0 && x->served[ids[k]] == MF_SERVED_SMALL;
    x->n_pairs += counts ? top_k : 0;
    if (c.left == before) return false;
    rescale(&c);
    *changed += before - c.left;
    return true;
}

/* ---- a layer ------------------------------------------------------------------------------------------------------ */

/* The part whose only row this is; -1: a row of a prompt. */
static int decoding_part(const mf__pass *pass, int32_t row) {
    for (int i = 0; i < pass->n; i++)
        if (pass->parts[i].row0 == row) return pass->parts[i].n_rows == 1 ? i : -1;
    return -1;
}

static mf_status fetch_row(mf_model *m, int32_t row, mf__port shares, mf__port scores, mf_error *err) {
    mf__lossy *x = m->lossy;
    int64_t top_k = m->bp.config.moe.top_k, n = m->bp.config.moe.n_experts;
    MF__TRY(m->be->download(m->be, x->shares, (const float *)m->ws.ports[shares] + row * top_k, top_k * 4, err));
    return m->be->download(m->be, x->scores, (const float *)m->ws.ports[scores] + row * n, n * 4, err);
}

static mf_status store_row(mf_model *m, int32_t row, const int32_t *ids, mf_error *err) {
    int64_t top_k = m->bp.config.moe.top_k;
    MF__TRY(m->be->upload(m->be, (int32_t *)m->ws.ports[MF_PORT_ROUTE_IDS] + row * top_k, ids, top_k * 4, err));
    return m->be->upload(m->be, (float *)m->ws.ports[MF_PORT_ROUTE_SHARES] + row * top_k, m->lossy->shares, top_k * 4,
                         err);
}

/* Who serves what of the rows' experts; a row of a prompt wants all of them in full. */
static void count_served(mf_model *m, int32_t n_rows) {
    mf__workspace *ws = &m->ws;
    mf__lossy *x = m->lossy;
    int32_t n_experts = m->bp.config.moe.n_experts;
    x->n_wanted = 0;
    mf__count_routes(m, n_rows);
    for (int32_t e = 0; e < n_experts; e++) {
        if (!ws->n_wanting[e] || x->served[e] != MF_SERVED_SMALL) continue;
        x->wanted[x->n_wanted] = e;
        x->counts[x->n_wanted++] = ws->n_wanting[e];
    }
}

/* What the rows' routers chose, before anything is changed. */
static void note_used(mf_model *m, int32_t n_rows) {
    mf__workspace *ws = &m->ws;
    mf__lossy *x = m->lossy;
    int32_t n_experts = m->bp.config.moe.n_experts;
    x->n_used = 0;
    mf__count_routes(m, n_rows);
    for (int32_t e = 0; e < n_experts; e++) {
        if (!ws->n_wanting[e]) continue;
        x->used[x->n_used] = e;
        x->used_counts[x->n_used++] = ws->n_wanting[e];
    }
}

void mf__lossy_begin_pass(mf__pass *pass) {
    mf__lossy *x = pass->model->lossy;
    int n_single = 0;
    memset(x->changed, 0, sizeof x->changed);
    for (int i = 0; i < pass->n; i++) n_single += pass->parts[i].n_rows == 1;
    if (x->turn) mf__turn_decode_set(x->turn, n_single);
    if (x->opt.promote > 0 && n_single) x->least = mf__store_logical_least(pass->model->store);
}

/* What is in memory, as far as choices may know; false: not all of it is in use yet. */
static bool look(mf_model *m, int layer) {
    mf__lossy *x = m->lossy;
    if (x->store) mf__store_logical(x->store, layer, x->small_resident, x->scores); /* the chances are not of use */
    return mf__store_logical(m->store, layer, x->resident, x->chance);
}

mf_status mf__lossy_choose(const mf__pass *pass, int layer, const mf__rows *rows, mf_error *err) {
    mf_model *m = pass->model;
    mf__lossy *x = m->lossy;
    int32_t top_k = m->bp.config.moe.top_k, *ids = m->ws.route_ids;
    bool full = look(m, layer);
    memset(x->served, MF_SERVED_NOT, (size_t)m->bp.config.moe.n_experts);
    note_used(m, rows->n_rows);
    for (int i = 0; full && i < rows->n; i++)
        for (int32_t r = 0; r < rows->r[i].n; r++, ids += top_k) {
            int part = decoding_part(pass, rows->r[i].first + r);
            for (int32_t k = 0; part < 0 && k < top_k; k++) x->served[ids[k]] = MF_SERVED_FULL;
        }
    ids = m->ws.route_ids;
    for (int i = 0; full && i < rows->n; i++)
        for (int32_t r = 0; r < rows->r[i].n; r++, ids += top_k) {
            int32_t row = rows->r[i].first + r;
            int part = decoding_part(pass, row);
            if (part < 0) continue;
            MF__TRY(fetch_row(m, row, MF_PORT_ROUTE_SHARES, MF_PORT_ROUTE_SCORES, err));
            note_last(x, layer, top_k);
            if (choose_row(m, layer, ids, &x->changed[part], true)) MF__TRY(store_row(m, row, ids, err));
        }
    count_served(m, rows->n_rows);
    return MF_OK;
}

mf_status mf__lossy_look_ahead(mf_model *m, mf__predictor who, int layer, int32_t n_rows, mf_error *err) {
    mf__lossy *x = m->lossy;
    int32_t n_experts = m->bp.config.moe.n_experts, top_k = m->bp.config.moe.top_k, *ids = m->ws.route_ids;
    int n_full = 0, n_small = 0;
    bool full = look(m, layer);
    memset(x->served, MF_SERVED_NOT, (size_t)n_experts);
    for (int32_t r = 0; r < n_rows; r++, ids += top_k) {
        int32_t changed = 0;
        MF__TRY(fetch_row(m, r, MF_PORT_AHEAD_SHARES, MF_PORT_AHEAD_SCORES, err));
        if (full) choose_row(m, layer, ids, &changed, false);
        for (int32_t k = 0; !full && k < top_k; k++) x->served[ids[k]] = MF_SERVED_FULL;
    }
    int32_t *small = x->ahead;
    for (int32_t e = 0; e < n_experts; e++) {
        if (x->served[e] == MF_SERVED_FULL) m->ws.ahead[n_full++] = e;
        if (x->served[e] == MF_SERVED_SMALL) small[n_small++] = e;
    }
    mf__store_hint(m->store, who, layer, m->ws.ahead, n_full);
    if (x->store) mf__store_hint(x->store, who, layer, small, n_small);
    return MF_OK;
}
