/* mf_eval in random company: chunks of prompts and single tokens of up to 64 sessions in one call, some of them
 * cancelled at a random layer, some refused. Each session has a twin that is evaluated alone, and only where the part
 * succeeded: logits must agree bit for bit, now and in all that follows.
 *
 *   test_state_parts MODEL SESSIONS PASSES [OPTIONS of any.h] [writers=N]
 *
 * writers: so many threads at once, each with its own share of the sessions. */
#include "any.h"

#include <pthread.h>

#define MAX_SESSIONS MF_MAX_PARTS
#define MAX_TOKENS 40
#define N_CTX 96
#define MAX_WRITERS 8

typedef struct pair {
    mf_session *s, *twin;
} pair;

typedef struct world {
    mf_model *m;
    size_t vocab;
    int n;
    pair *p;      /* [n] */
    float *rows;  /* [n][MAX_TOKENS][vocab] */
    float *alone; /* [MAX_TOKENS][vocab] */
    int n_passes;
    uint64_t rng;
    int64_t n_parts, n_cancelled, n_refused; /* what happened */
} world;

static int n_sessions = 6, n_passes = 40, n_writers = 1;

static unsigned draw(world *w, unsigned n) {
    w->rng = w->rng * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(w->rng >> 33) % n;
}

/* Says yes when it has been asked so many times. */
static bool countdown(void *user) {
    int *left = user;
    return --*left < 0;
}

/* What one part is to be. */
typedef struct wish {
    int32_t tokens[MAX_TOKENS];
    int left;     /* layers until it is cancelled */
    bool refused; /* has a token that there is not */
} wish;

static mf_part make_part(world *w, int i, wish *its) {
    size_t n = draw(w, 3) ? 1 : 1 + draw(w, MAX_TOKENS);
    if (mf_memory_length(w->p[i].s) + (int64_t)n > N_CTX) {
        mf_memory_clear(w->p[i].s);
        mf_memory_clear(w->p[i].twin);
    }
    for (size_t t = 0; t < n; t++) its->tokens[t] = (int32_t)draw(w, 200);
    its->refused = !draw(w, 20);
    if (its->refused) its->tokens[draw(w, (unsigned)n)] = (int32_t)w->vocab;
    mf_part part = {.session = w->p[i].s,
                    .tokens = its->tokens,
                    .n_tokens = n,
                    .logits = w->rows + (size_t)i * MAX_TOKENS * w->vocab,
                    .n_logits = draw(w, 4) ? draw(w, 2) : draw(w, (unsigned)n + 1)};
    if (!draw(w, 6)) {
        its->left = (int)draw(w, 2 * (unsigned)mf_model_info_get(w->m)->n_layers);
        part.cancel = countdown;
        part.cancel_user = &its->left;
    }
    return part;
}

/* The twin, alone. */
static void compare(world *w, int i, const mf_part *part) {
    mf_error err = {0};
    mf_part same = *part;
    same.session = w->p[i].twin;
    same.logits = w->alone;
    same.cancel = NULL;
    if (mf_eval(w->m, &same, 1, &err) != MF_OK) fail_msg("%s", err.text);
    if (memcmp(w->alone, part->logits, part->n_logits * w->vocab * sizeof *w->alone))
        fail_msg("session %d: %zu tokens to position %lld are others in company", i, part->n_tokens,
                 (long long)mf_memory_length(w->p[i].s));
}

static void one_pass(world *w) {
    static _Thread_local wish wishes[MAX_SESSIONS];
    mf_part parts[MAX_SESSIONS];
    int who[MAX_SESSIONS], order[MAX_SESSIONS], n = 1 + (int)draw(w, draw(w, 3) ? 4u : (unsigned)w->n);
    int64_t before[MAX_SESSIONS];
    if (n > w->n) n = w->n;
    for (int i = 0; i < w->n; i++) order[i] = i;
    for (int i = 0; i < n; i++) {
        int k = i + (int)draw(w, (unsigned)(w->n - i)), other = order[k];
        order[k] = order[i];
        order[i] = who[i] = other;
        parts[i] = make_part(w, who[i], &wishes[i]);
        before[i] = mf_memory_length(w->p[who[i]].s);
    }
    mf_status st = mf_eval(w->m, parts, (size_t)n, NULL), first = MF_OK;
    for (int i = 0; i < n; i++) {
        int64_t length = mf_memory_length(w->p[who[i]].s);
        if (first == MF_OK) first = parts[i].status;
        w->n_parts++;
        if (wishes[i].refused) {
            assert_int_equal(parts[i].status, MF_E_TOKEN);
            w->n_refused++;
        } else if (parts[i].status != MF_OK) {
            assert_int_equal(parts[i].status, MF_E_CANCELLED);
            assert_non_null(parts[i].cancel);
            w->n_cancelled++;
        } else if (parts[i].cancel && wishes[i].left < 0) {
            fail_msg("session %d was told to stop, and went on", who[i]);
        }
        assert_int_equal(length, before[i] + (parts[i].status == MF_OK ? (int64_t)parts[i].n_tokens : 0));
        if (parts[i].status == MF_OK) compare(w, who[i], &parts[i]);
    }
    assert_int_equal(st, first);
}

static mf_session *session(mf_model *m, int chunk) {
    mf_session_options opt;
    mf_session *s = NULL;
    mf_error err = {0};
    mf_session_options_init(&opt);
    opt.n_ctx = N_CTX;
    opt.n_chunk = chunk;
    if (mf_session_create(m, &opt, &s, &err) != MF_OK) fail_msg("%s", err.text);
    return s;
}

static void *writer(void *user) {
    world *w = user;
    for (int i = 0; i < w->n_passes; i++) one_pass(w);
    return NULL;
}

static void test_company_changes_nothing(void **state) {
    mf_model *m = any_open(*state);
    world worlds[MAX_WRITERS];
    pthread_t threads[MAX_WRITERS];
    int64_t n_parts = 0, n_cancelled = 0, n_refused = 0;
    for (int k = 0; k < n_writers; k++) {
        world *w = &worlds[k];
        *w = (world){.m = m,
                     .vocab = any_vocab(m),
                     .n = n_sessions / n_writers,
                     .n_passes = n_passes / n_writers,
                     .rng = any_seed + (uint64_t)k};
        w->p = calloc((size_t)w->n, sizeof *w->p);
        w->rows = any_row(m, w->n * MAX_TOKENS);
        w->alone = any_row(m, MAX_TOKENS);
        assert_non_null(w->p);
        for (int i = 0; i < w->n; i++) { /* chunks of several sizes: long parts take several passes */
            int chunk = any_chunk ? any_chunk : 7 + 9 * (i % 4);
            w->p[i] = (pair){session(m, chunk), session(m, chunk)};
        }
    }
    for (int k = 1; k < n_writers; k++) assert_int_equal(pthread_create(&threads[k], NULL, writer, &worlds[k]), 0);
    writer(&worlds[0]);
    for (int k = 0; k < n_writers; k++) {
        world *w = &worlds[k];
        if (k) pthread_join(threads[k], NULL);
        n_parts += w->n_parts, n_cancelled += w->n_cancelled, n_refused += w->n_refused;
        for (int i = 0; i < w->n; i++) {
            mf_session_free(w->p[i].s);
            mf_session_free(w->p[i].twin);
        }
        free(w->p);
        free(w->rows);
        free(w->alone);
    }
    print_message("%lld parts, %lld cancelled, %lld refused\n", (long long)n_parts, (long long)n_cancelled,
                  (long long)n_refused);
    assert_true(n_cancelled > 0 && n_refused > 0);
    mf_model_close(m);
}

int main(int argc, char **argv) {
    int n_own = argc;
    if (argc < 4) return 2;
    n_sessions = atoi(argv[2]);
    n_passes = atoi(argv[3]);
    if (!strncmp(argv[argc - 1], "writers=", 8)) n_writers = atoi(argv[--n_own] + 8);
    if (n_sessions < 1 || n_sessions > MAX_SESSIONS || n_writers < 1 || n_writers > MAX_WRITERS ||
        !any_options(n_own, argv, 4))
        return 2;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_company_changes_nothing)};
    tiny_checkpoint = argv[1];
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
