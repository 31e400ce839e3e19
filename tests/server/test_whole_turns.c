/* The scheduler by itself: who is in which pass. */
#include "client.h"
#include "test_whole.h"

#include "scheduler.h"

enum { PIECE = 32, LONG = 8 * PIECE, SHORT = 12 };

typedef struct stage {
    mf_model *model;
    mf_text *text;
    sched *sched;
    atomic_bool stays, ended;
    seq *short_one;
    int n_long_pieces; /* of the long prompt, read since the short one came... */
    int n_until_first; /* ... until its first token; -1: there was none yet */
} stage;

static int32_t ids[LONG];

static seq *make_seq(stage *g, int index, size_t n_ids) {
    mf_reply_options opt;
    mf_error err = {0};
    seq *q = seq_create(g, index, &g->stays, (uint64_t)index + 1);
    mf_reply_options_init(&opt);
    opt.ids = ids + LONG - n_ids; /* begins otherwise than the long one: nothing is shared */
    opt.n_ids = n_ids;
    opt.max_tokens = 1;
    opt.tokens = true;
    opt.fn = sched_on_event;
    opt.user = q;
    assert_int_equal(mf_reply_create(g->text, mf_model_info_get(g->model), &opt, &q->reply, &err), MF_OK);
    return q;
}

/* When the first piece of the long prompt is read the short one comes. */
static void on_event(void *user, seq *q, const sched_event *e) {
    stage *g = user;
    if (q->index == 0 && e->kind == SCHED_PROGRESS) {
        if (g->short_one) {
            sched_submit(g->sched, &g->short_one, 1);
            g->short_one = NULL;
        } else {
            g->n_long_pieces++;
        }
    }
    if (q->index == 1 && e->kind == SCHED_ENDED) g->n_until_first = g->n_long_pieces;
    if (q->index == 0 && e->kind == SCHED_ENDED) g->ended = true;
}

static void on_deliver(void *user, seq *q) {
    (void)user;
    (void)q;
}

static void on_said(void *user, const int32_t *said, size_t n_prompt, size_t n) {
    (void)user;
    (void)said;
    (void)n_prompt;
    (void)n;
}

static void on_flush(void *user) {
    (void)user;
}

/* A short prompt, cut before its last token as all are, has its answer before the long one goes on. */
void test_short_beside_long(void **state) {
    stage g = {.n_until_first = -1};
    mf_model_options mo;
    mf_error err = {0};
    (void)state;
    mf_model_options_init(&mo);
    mo.n_threads = 1;
    assert_int_equal(mf_model_open(whole_model, &mo, &g.model, &err), MF_OK);
    assert_int_equal(mf_text_open(whole_model, &g.text, &err), MF_OK);
    for (int i = 0; i < LONG; i++) ids[i] = 300 + i * 7;
    sched_options so = {.model = g.model, .piece = PIECE, .max_running = 4, .max_sessions = 4};
    so.event = on_event;
    so.deliver = on_deliver;
    so.said = on_said;
    so.flush = on_flush;
    so.user = &g;
    assert_int_equal(sched_create(&so, &g.sched, &err), MF_OK);
    seq *first = make_seq(&g, 0, LONG);
    g.short_one = make_seq(&g, 1, SHORT);
    sched_submit(g.sched, &first, 1);
    while (!g.ended) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    sched_free(g.sched);
    assert_int_equal(g.n_until_first, 0);
    assert_int_equal(g.n_long_pieces, LONG / PIECE - 1); /* all but the first; the last token is a piece by itself */
    mf_text_close(g.text);
    mf_model_close(g.model);
}
