/* A model whose experts are computed by others in the same process: workers with experts only, each with a share. */
#ifndef TESTS_STATE_TEAM_H
#define TESTS_STATE_TEAM_H

#include <stdio.h>

#include "any.h"

#define N_WORKERS 2

/* Who computes expert e: 0 is the model itself. */
static inline int owner(int layer, int32_t e) {
    return (layer + e) % (N_WORKERS + 1);
}

/* What finish does wrong with a pair, once. */
typedef enum wrong_pair { PUT_RIGHT, PUT_BELOW, PUT_ABOVE, PUT_NOT_TAKEN, PUT_TWICE, PUT_NOT } wrong_pair;

typedef struct team {
    mf_model *worker[N_WORKERS];
    mf_experts_request request; /* between begin and finish */
    bool begun;
    int64_t n_begun, n_finished, n_dropped, n_pairs, n_hints;
    int64_t fail_begin, fail_finish; /* at which call from now on; 0: none */
    wrong_pair wrong;
} team;

static inline mf_status refuse(mf_error *err, const char *text) {
    if (err) {
        err->status = MF_E_IO;
        snprintf(err->text, sizeof err->text, "%s", text);
    }
    return MF_E_IO;
}

static inline mf_status team_begin(void *user, const mf_experts_request *r, bool *taken, mf_error *err) {
    team *t = user;
    assert_false(t->begun);
    if (t->fail_begin && !--t->fail_begin) return refuse(err, "begin was told to fail");
    int32_t n = 0;
    for (int32_t i = 0; i < r->n_wanted; i++) {
        assert_true(i == 0 || r->wanted[i] > r->wanted[i - 1]);
        taken[r->wanted[i]] = owner(r->layer, r->wanted[i]) != 0;
        n += r->counts[i];
    }
    assert_int_equal(n, r->n_rows * r->top_k);
    t->request = *r;
    t->begun = true;
    t->n_begun++;
    return MF_OK;
}

/* What worker w has to do of the request: rows that go to its experts, in a copy of their own. */
typedef struct share {
    float *rows, *pairs;
    int32_t *ids, *wanted;
    int64_t *pair; /* of the request */
    int64_t n_pairs;
    mf_experts_request r;
} share;

static inline void make_share(share *s, const mf_experts_request *all, int w) {
    size_t places = (size_t)all->n_rows * (size_t)all->top_k, cols = (size_t)all->n_hidden;
    *s = (share){.rows = malloc((size_t)all->n_rows * cols * sizeof(float)),
                 .pairs = malloc(places * cols * sizeof(float)),
                 .ids = malloc(places * sizeof(int32_t)),
                 .wanted = malloc(((size_t)all->n_wanted + 1) * sizeof(int32_t)),
                 .pair = malloc(places * sizeof(int64_t)),
                 .r = *all};
    assert_true(s->rows && s->pairs && s->ids && s->wanted && s->pair);
    s->r.n_rows = s->r.n_wanted = 0;
    for (int32_t i = 0; i < all->n_wanted; i++)
        if (owner(all->layer, all->wanted[i]) == w) s->wanted[s->r.n_wanted++] = all->wanted[i];
    for (int32_t row = 0; row < all->n_rows; row++) {
        int64_t before = s->n_pairs;
        for (int32_t k = 0; k < all->top_k; k++)
            if (owner(all->layer, all->ids[row * all->top_k + k]) == w) s->pair[s->n_pairs++] = row * all->top_k + k;
        if (s->n_pairs == before) continue;
        memcpy(s->ids + s->r.n_rows * all->top_k, all->ids + row * all->top_k, (size_t)all->top_k * sizeof(int32_t));
        memcpy(s->rows + (size_t)s->r.n_rows++ * cols, all->rows + (size_t)row * cols, cols * sizeof(float));
    }
    if (s->r.n_decode > s->r.n_rows) s->r.n_decode = s->r.n_rows;
    s->r.rows = s->rows;
    s->r.ids = s->ids;
    s->r.wanted = s->wanted;
    s->r.counts = NULL;
}

static inline void free_share(share *s) {
    free(s->rows);
    free(s->pairs);
    free(s->ids);
    free(s->wanted);
    free(s->pair);
}

/* Instead of put for pair; the mistake is made if the request has occasion for it. */
static inline mf_status put_wrong(team *t, mf_put_pair *put, void *put_user, int64_t pair, const float *values,
                                  mf_error *err) {
    const mf_experts_request *r = &t->request;
    int64_t n = (int64_t)r->n_rows * r->top_k, at = 0;
    while (at < n && owner(r->layer, r->ids[at])) at++;
    if (t->wrong == PUT_RIGHT || (t->wrong == PUT_NOT_TAKEN && at == n)) return put(put_user, pair, values, err);
    wrong_pair wrong = t->wrong;
    t->wrong = PUT_RIGHT;
    if (wrong == PUT_NOT) return MF_OK;
    if (wrong == PUT_TWICE && put(put_user, pair, values, err) != MF_OK) return MF_E_INTERNAL;
    return put(put_user,
               wrong == PUT_BELOW   ? -1
               : wrong == PUT_ABOVE ? n
               : wrong == PUT_TWICE ? pair
                                    : at,
               values, err);
}

static inline mf_status work(team *t, int w, mf_put_pair *put, void *put_user, mf_error *err) {
    share s;
    mf_status st = MF_OK;
    make_share(&s, &t->request, w + 1);
    if (s.r.n_rows) st = mf_experts_compute(t->worker[w], &s.r, s.pairs, (size_t)s.n_pairs * (size_t)s.r.n_hidden, err);
    for (int64_t i = 0; st == MF_OK && i < s.n_pairs; i++)
        st = put_wrong(t, put, put_user, s.pair[i], s.pairs + i * s.r.n_hidden, err);
    t->n_pairs += s.n_pairs;
    free_share(&s);
    return st;
}

static inline mf_status team_finish(void *user, mf_put_pair *put, void *put_user, mf_error *err) {
    team *t = user;
    mf_status st = MF_OK;
    assert_true(t->begun);
    t->begun = false;
    t->n_finished++;
    t->n_dropped += !put;
    if (t->fail_finish && !--t->fail_finish) return refuse(err, "finish was told to fail");
    for (int w = 0; put && w < N_WORKERS && st == MF_OK; w++) st = work(t, w, put, put_user, err);
    return st;
}

static inline void team_hint(void *user, int layer, const int32_t *ids, int n, bool *taken) {
    team *t = user;
    t->n_hints++;
    for (int i = 0; i < n; i++) taken[ids[i]] = owner(layer, ids[i]) != 0;
    for (int w = 0; w < N_WORKERS; w++) mf_experts_hint(t->worker[w], layer, ids, n);
}

static inline bool team_wants_hints(void *user) {
    (void)user;
    return true;
}

static inline mf_model *open_with(const char *dir, const mf_elsewhere *elsewhere, bool experts_only) {
    mf_model_options opt;
    mf_model *m = NULL;
    mf_error err = {0};
    any_model_options(&opt, 1);
    if (elsewhere) opt.elsewhere = *elsewhere;
    opt.experts_only = experts_only;
    if (experts_only || elsewhere) opt.io = MF_IO_PREAD;
    if (mf_model_open(dir, &opt, &m, &err) != MF_OK) fail_msg("%s", err.text);
    return m;
}

static inline mf_model *open_team(const char *dir, team *t) {
    mf_elsewhere e = {team_begin, team_finish, team_hint, team_wants_hints, t};
    *t = (team){0};
    for (int w = 0; w < N_WORKERS; w++) t->worker[w] = open_with(dir, NULL, true);
    return open_with(dir, &e, false);
}

static inline void close_team(mf_model *m, team *t) {
    mf_model_close(m);
    assert_false(t->begun);
    assert_int_equal(t->n_begun, t->n_finished);
    for (int w = 0; w < N_WORKERS; w++) mf_model_close(t->worker[w]);
}

#endif
