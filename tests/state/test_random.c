/* Random sequences of state operations against a model that is too simple to be wrong: the list of tokens a session
 * should hold, and the logits that a fresh session gives for that list (remembered, since lists are short and tokens
 * few). With run=N each token of a list is a run of N: states end inside windows, blocks and compressed rows, and
 * behind more rows than an index may pick. With "elsewhere" others compute two thirds of the experts, and the lists are
 * evaluated by a model that does all by itself. */
#include "team.h"

#define MAX_LEN 10
#define N_TOKENS 2
#define N_SESSIONS 3
#define N_LISTS (1 << (MAX_LEN + 2))

#define MAX_RUN 64

typedef struct list {
    int n;
    int bit[MAX_LEN + 1];
} list;

typedef struct world {
    mf_model *m, *alone; /* the same, but with a team */
    size_t vocab;
    float *oracle[N_LISTS]; /* logits of the next token's row, by list */
    float *logits;
    mf_session *s[N_SESSIONS];
    list held[N_SESSIONS];
    struct {
        bool used;
        list held;
    } check[N_SESSIONS][MAX_LEN + 1]; /* by position */
    int order[N_SESSIONS][MAX_LEN + 1], n_checks[N_SESSIONS];
    uint8_t *saved;
    size_t saved_size;
    list saved_list;
    uint64_t rng;
} world;

static unsigned draw(world *w, unsigned n) {
    w->rng = w->rng * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(w->rng >> 33) % n;
}

static unsigned index_of(const list *l) {
    unsigned i = 1;
    for (int k = 0; k < l->n; k++) i = i * N_TOKENS + (unsigned)l->bit[k];
    return i;
}

/* The tokens that bits [first, first + n) of a list stand for; returns how many. */
static size_t spell(const list *l, int first, int n, int32_t *tokens) {
    static const int32_t ALPHABET[N_TOKENS] = {5, 131};
    size_t k = 0;
    for (int i = first; i < first + n; i++)
        for (int r = 0; r < any_run; r++) tokens[k++] = r ? (ALPHABET[l->bit[i]] + 37 * r) % 199 : ALPHABET[l->bit[i]];
    return k;
}

/* Logits of the last token of the list, from a session that has never done anything else. */
static const float *oracle(world *w, const list *l) {
    unsigned i = index_of(l);
    if (!w->oracle[i]) {
        int32_t tokens[MAX_LEN * MAX_RUN];
        mf_session *s = any_session(w->alone);
        w->oracle[i] = any_row(w->alone, 1);
        any_eval(w->alone, s, tokens, spell(l, 0, l->n, tokens), w->oracle[i]);
        mf_session_free(s);
    }
    return w->oracle[i];
}

static void evaluate(world *w, int s) {
    list *l = &w->held[s];
    int n = 1 + (int)draw(w, 3);
    int32_t tokens[3 * MAX_RUN];
    if (l->n + n > MAX_LEN) return;
    for (int i = 0; i < n; i++) l->bit[l->n++] = (int)draw(w, N_TOKENS);
    any_eval(w->m, w->s[s], tokens, spell(l, l->n - n, n, tokens), w->logits);
    any_same(w->m, oracle(w, l), w->logits);
}

static void save(world *w, int s) {
    free(w->saved);
    assert_int_equal(mf_state_size(w->s[s], &w->saved_size, NULL), MF_OK);
    w->saved = malloc(w->saved_size);
    assert_int_equal(mf_state_save(w->s[s], w->saved, w->saved_size, NULL, NULL), MF_OK);
    w->saved_list = w->held[s];
}

static void load(world *w, int s) {
    if (!w->saved) return;
    assert_int_equal(mf_state_load(w->s[s], w->saved, w->saved_size, NULL), MF_OK);
    w->held[s] = w->saved_list;
}

static void forget_check(world *w, int s, int pos) {
    int k = 0;
    w->check[s][pos].used = false;
    for (int i = 0; i < w->n_checks[s]; i++)
        if (w->order[s][i] != pos) w->order[s][k++] = w->order[s][i];
    w->n_checks[s] = k;
}

static void checkpoint(world *w, int s) {
    int pos = w->held[s].n;
    assert_int_equal(mf_checkpoint_save(w->s[s], NULL), MF_OK);
    if (w->check[s][pos].used) forget_check(w, s, pos);
    w->check[s][pos].used = true;
    w->check[s][pos].held = w->held[s];
    w->order[s][w->n_checks[s]++] = pos;
    for (int i = 0; w->n_checks[s] > 4 && i + 1 < w->n_checks[s];) {
        if (w->order[s][i] == 0)
            i++;
        else
            forget_check(w, s, w->order[s][i]);
    }
    assert_int_equal(mf_checkpoint_count(w->s[s]), w->n_checks[s]);
}

static void restore(world *w, int s) {
    int pos = (int)draw(w, MAX_LEN + 1);
    mf_status st = mf_checkpoint_restore(w->s[s], (int64_t)pos * any_run, NULL);
    assert_int_equal(st, w->check[s][pos].used ? MF_OK : MF_E_NOT_FOUND);
    if (st != MF_OK) return;
    w->held[s] = w->check[s][pos].held;
    for (int p = pos + 1; p <= MAX_LEN; p++)
        if (w->check[s][p].used) forget_check(w, s, p);
}

static void forget(world *w, int s) {
    int pos = (int)draw(w, MAX_LEN + 1);
    mf_checkpoint_forget(w->s[s], (int64_t)pos * any_run);
    if (w->check[s][pos].used) forget_check(w, s, pos);
}

static bool begins_with(const list *l, const list *prefix) {
    for (int i = 0; i < prefix->n; i++)
        if (i >= l->n || l->bit[i] != prefix->bit[i]) return false;
    return true;
}

static void cut(world *w, int s) {
    list *l = &w->held[s];
    int to = (int)draw(w, (unsigned)l->n + 1), nearest = -1;
    int64_t again = -1;
    bool recurrent = mf_model_info_get(w->m)->state_bytes > 0;
    for (int p = 0; p <= to; p++)
        if (w->check[s][p].used && begins_with(l, &w->check[s][p].held)) nearest = p;
    mf_status st = mf_memory_seq_rm(w->s[s], (int64_t)to * any_run, -1, &again, NULL);
    if (to == l->n || to == 0 || !recurrent) {
        assert_int_equal(st, MF_OK);
        assert_int_equal(again, 0);
        l->n = to;
    } else if (nearest < 0) {
        assert_int_equal(st, MF_E_RECURRENT);
    } else {
        assert_int_equal(st, MF_OK);
        assert_int_equal(again, (to - nearest) * any_run);
        l->n = nearest;
    }
}

static void fork_session(world *w, int s) {
    int other = (s + 1) % N_SESSIONS;
    mf_session_free(w->s[other]);
    assert_int_equal(mf_session_fork(w->s[s], &w->s[other], NULL), MF_OK);
    w->held[other] = w->held[s];
    memset(w->check[other], 0, sizeof w->check[other]);
    w->n_checks[other] = 0;
}

static void clear(world *w, int s) {
    mf_memory_clear(w->s[s]);
    w->held[s].n = 0;
    memset(w->check[s], 0, sizeof w->check[s]);
    w->n_checks[s] = 0;
}

static void batch(world *w, int s) {
    mf_session *sessions[2] = {w->s[s], w->s[(s + 1) % N_SESSIONS]};
    list *lists[2] = {&w->held[s], &w->held[(s + 1) % N_SESSIONS]};
    float *rows = any_row(w->m, 2);
    int32_t runs[2][MAX_RUN];
    if (lists[0]->n < MAX_LEN && lists[1]->n < MAX_LEN) {
        for (int i = 0; i < 2; i++) {
            lists[i]->bit[lists[i]->n++] = (int)draw(w, N_TOKENS);
            spell(lists[i], lists[i]->n - 1, 1, runs[i]);
        }
        for (int r = 0; r < any_run; r++)
            assert_int_equal(mf_eval_batch(sessions, (int32_t[]){runs[0][r], runs[1][r]}, 2, rows, 2 * w->vocab, NULL),
                             MF_OK);
        for (int i = 0; i < 2; i++) any_same(w->m, oracle(w, lists[i]), rows + (size_t)i * w->vocab);
    }
    free(rows);
}

typedef void operation(world *w, int s);
static operation *const OPERATIONS[] = {evaluate, evaluate, evaluate, save, load,         checkpoint, checkpoint,
                                        restore,  forget,   cut,      cut,  fork_session, batch,      clear};

static int n_sequences;
static bool elsewhere;

static void test_random_sequences(void **state) {
    static world w;
    team t;
    w.alone = any_open(*state);
    w.m = elsewhere ? open_team(*state, &t) : w.alone;
    w.vocab = any_vocab(w.m);
    w.logits = any_row(w.m, 1);
    w.rng = any_seed;
    for (int seq = 0; seq < n_sequences; seq++) {
        for (int s = 0; s < N_SESSIONS; s++) {
            w.s[s] = any_session(w.m);
            w.held[s].n = w.n_checks[s] = 0;
            memset(w.check[s], 0, sizeof w.check[s]);
        }
        for (int step = 0; step < 14; step++) {
            int s = (int)draw(&w, N_SESSIONS);
            OPERATIONS[draw(&w, sizeof OPERATIONS / sizeof *OPERATIONS)](&w, s);
            assert_int_equal(mf_memory_length(w.s[s]), w.held[s].n * any_run);
        }
        for (int s = 0; s < N_SESSIONS; s++) mf_session_free(w.s[s]);
    }
    for (int i = 0; i < N_LISTS; i++) free(w.oracle[i]);
    free(w.saved);
    free(w.logits);
    if (elsewhere) assert_true(t.n_pairs > 0);
    if (elsewhere) close_team(w.m, &t);
    mf_model_close(w.alone);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_sequences)};
    elsewhere = argc > 4 && !strcmp(argv[4], "elsewhere");
    if (argc < 4 || (n_sequences = atoi(argv[3])) < 1 || !any_options(argc, argv, elsewhere ? 5 : 4)) return 2;
    tiny_checkpoint = argv[1];
    any_chunk = atoi(argv[2]);
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
