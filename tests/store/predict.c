/* What each predictor knows, and what listening to it costs or saves:
 *
 *   test_store_predict MODEL [TOKENS ROOM RUNS]
 *
 * Decodes TOKENS tokens with room for ROOM experts, all reads past the page cache, with each set of predictors in turn,
 * RUNS times. Prints recall (experts foretold of those wanted), what became of the reads, and medians of the speed. As
 * a test (MODEL alone, a few tokens) it judges recall, which no clock has a part in, and that the tokens are the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/internal.h"
#include "store/internal.h"

#define MAX_RUNS 32

typedef struct way {
    const char *name;
    mf_switch prefetch;
    uint8_t listens;
    double speed[MAX_RUNS], stall[MAX_RUNS];
    mf_stats stats; /* of the last run */
    uint64_t tokens;
} way;

static way ways[] = {
    {.name = "none", .prefetch = MF_SWITCH_OFF},
    {.name = "last token", .prefetch = MF_SWITCH_ON, .listens = 1 << MF_PREDICT_LAST},
    {.name = "next router", .prefetch = MF_SWITCH_ON, .listens = 1 << MF_PREDICT_ROUTER},
    {.name = "next router, early", .prefetch = MF_SWITCH_ON, .listens = 1 << MF_PREDICT_EARLY},
    {.name = "both routers", .prefetch = MF_SWITCH_ON, .listens = 1 << MF_PREDICT_EARLY | 1 << MF_PREDICT_ROUTER},
    {.name = "and the one after", .prefetch = MF_SWITCH_ON, .listens = 0xff & ~(1 << MF_PREDICT_LAST)},
    {.name = "auto", .prefetch = MF_SWITCH_AUTO, .listens = 0xff}};

/* The likeliest token or, every third time, the second: a text that does not go in circles. */
static int32_t choose(const float *logits, int n, int i) {
    int best = 0, second = -1;
    for (int k = 1; k < n; k++) {
        if (logits[k] > logits[best]) {
            second = best;
            best = k;
        } else if (second < 0 || logits[k] > logits[second]) {
            second = k;
        }
    }
    return i % 3 == 2 ? second : best;
}

static mf_status decode(mf_model *m, way *w, int n_tokens, int run, mf_error *err) {
    int n_vocab = mf_model_info_get(m)->n_vocab;
    mf_session_options so;
    mf_session *s;
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    mf_session_options_init(&so);
    so.n_ctx = n_tokens + 1;
    if (!logits) return mf__fail(err, MF_E_NOMEM, "no memory for logits");
    mf_status st = mf_session_create(m, &so, &s, err);
    if (st == MF_OK) st = mf_eval_token(s, 1, 0, logits, (size_t)n_vocab, err);
    mf_model_stats_reset(m);
    int64_t began = mf__clock_ns();
    w->tokens = 0;
    for (int i = 0; st == MF_OK && i < n_tokens; i++) {
        int32_t token = choose(logits, n_vocab, i);
        w->tokens = w->tokens * 31 + (uint64_t)token;
        st = mf_eval_token(s, token, i + 1, logits, (size_t)n_vocab, err);
    }
    mf_model_stats_get(m, &w->stats);
    w->speed[run] = n_tokens / ((double)(mf__clock_ns() - began) * 1e-9);
    w->stall[run] = (double)w->stats.stall_ns * 1e-9;
    mf_session_free(s);
    free(logits);
    return st;
}

static mf_status one(const char *dir, way *w, int n_tokens, int room, int run, mf_error *err) {
    mf_model_options opt;
    mf_model *m;
    mf_model_options_init(&opt);
    opt.io = MF_IO_PREAD;
    opt.direct = MF_SWITCH_ON;
    opt.prefetch = w->prefetch;
    MF__TRY(mf_model_open(dir, &opt, &m, err));
    pthread_mutex_lock(&m->store->lock);
    m->store->cap = room;
    m->store->listens = w->listens;
    mf__slots_apply_limit(m->store);
    pthread_mutex_unlock(&m->store->lock);
    mf_status st = decode(m, w, n_tokens, run, err);
    mf_model_close(m);
    return st;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double share(int64_t a, int64_t b) {
    return b ? 100.0 * (double)a / (double)b : 0;
}

static void print_way(way *w, int runs) {
    const mf_stats *s = &w->stats;
    qsort(w->speed, (size_t)runs, sizeof *w->speed, by_value);
    qsort(w->stall, (size_t)runs, sizeof *w->stall, by_value);
    printf("| %s | %.1f | %.1f to %.1f | %.2f | %.1f %% | %.1f MB |", w->name, w->speed[runs / 2], w->speed[0],
           w->speed[runs - 1], w->stall[runs / 2], share(s->hits, s->wanted),
           (double)(s->bytes_read + s->bytes_prefetched) * 1e-6);
    for (int p = 0; p < MF_PREDICTORS; p++) {
        const mf_predictor_stats *k = &s->predictors[p];
        printf(" %.1f %% (%lld read, %lld useful, %lld late, %lld useless) |", share(k->right, k->wanted),
               (long long)k->read, (long long)k->useful, (long long)k->late, (long long)k->useless);
    }
    printf("\n");
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    int n_tokens = argc > 2 ? atoi(argv[2]) : 40, room = argc > 3 ? atoi(argv[3]) : 64;
    int runs = argc > 4 ? atoi(argv[4]) : 1, n = (int)MF__COUNT(ways);
    mf_error err = {0};
    if (runs < 1 || runs > MAX_RUNS || n_tokens < 1 || room < 1) return 2;
    for (int r = 0; r < runs; r++)
        for (int i = 0; i < n; i++)
            if (one(argv[1], &ways[(i + r) % n], n_tokens, room, r, &err) != MF_OK) {
                fprintf(stderr, "%s\n", err.text);
                return 1;
            }
    printf("%d tokens, room for %d experts, medians of %d runs\n\n| listening to | tokens/s | range | waited, s | hits "
           "| read "
           "| recall of the last token | recall of the next router | ... early | ... of the one after it |\n"
           "|---|---|---|---|---|---|---|---|---|---|\n",
           n_tokens, room, runs);
    int bad = 0;
    for (int i = 0; i < n; i++) {
        print_way(&ways[i], runs);
        if (ways[i].tokens != ways[0].tokens) bad++, printf("other tokens than without reading ahead\n");
    }
    const mf_predictor_stats *last = &ways[1].stats.predictors[MF_PREDICTOR_LAST_TOKEN];
    const mf_predictor_stats *router = &ways[2].stats.predictors[MF_PREDICTOR_NEXT_ROUTER];
    const mf_predictor_stats *early = &ways[3].stats.predictors[MF_PREDICTOR_EARLY_ROUTER];
    if (argc > 2) return bad > 0;
    if (share(last->right, last->wanted) < 20) bad++, printf("the last token recalls too little\n");
    if (share(router->right, router->wanted) < 60) bad++, printf("the next router recalls too little\n");
    if (share(early->right, early->wanted) < 50) bad++, printf("the early router recalls too little\n");
    if (early->useful + early->late == 0) bad++, printf("no early read was of use\n");
    if (last->useful + last->late == 0 || router->useful + router->late == 0) bad++, printf("no read was of use\n");
    return bad > 0;
}
