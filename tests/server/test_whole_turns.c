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

/* ---- a stream of others ------------------------------------------------------------------------------------------- */

typedef struct crowd {
    stage g;
    size_t n_ids;   /* of each of the others */
    int n_clients;  /* whom they belong to, in turns; 0: every one to another */
    int n_others;   /* that have come */
    int n_before;   /* ... until the long prompt had its answer; -1: it has none yet */
    int n_progress; /* pieces of the long prompt */
} crowd;

enum { MOST_OTHERS = 200 };

static seq *make_other(crowd *c) {
    int n = ++c->n_others;
    for (size_t i = 0; i < c->n_ids; i++) ids[LONG - 1 - i] = 300 + (n * 13 + (int)i * 7) % 3000;
    seq *q = make_seq(&c->g, n, c->n_ids);
    q->client = (uint64_t)(c->n_clients ? n % c->n_clients : n) + 100;
    q->fresh = true;
    return q;
}

/* As soon as one of the others ends the next comes. */
static void on_crowd_event(void *user, seq *q, const sched_event *e) {
    crowd *c = user;
    if (q->index == 0 && e->kind == SCHED_PROGRESS) c->n_progress++;
    if (e->kind != SCHED_ENDED) return;
    if (e->status != MF_OK) fail_msg("sequence %d: %s", q->index, e->error);
    if (q->index == 0) {
        c->n_before = c->n_others;
        c->g.ended = true;
    } else if (!c->g.ended && c->n_others < MOST_OTHERS) {
        seq *next = make_other(c);
        sched_submit(c->g.sched, &next, 1);
    } else if (c->n_others >= MOST_OTHERS) {
        c->g.ended = true;
    }
}

/* How many others came before the long prompt, which is there from the beginning, had its answer. */
static int others_before(size_t n_ids, int at_once, int max_running, size_t n_long, int n_clients) {
    crowd c = {.n_ids = n_ids, .n_before = -1, .n_clients = n_clients};
    mf_model_options mo;
    mf_error err = {0};
    mf_model_options_init(&mo);
    mo.n_threads = 1;
    assert_int_equal(mf_model_open(whole_model, &mo, &c.g.model, &err), MF_OK);
    assert_int_equal(mf_text_open(whole_model, &c.g.text, &err), MF_OK);
    for (int i = 0; i < LONG; i++) ids[i] = 300 + i * 7;
    sched_options so = {.model = c.g.model, .piece = PIECE, .max_running = max_running, .max_sessions = max_running};
    so.event = on_crowd_event;
    so.deliver = on_deliver;
    so.said = on_said;
    so.flush = on_flush;
    so.user = &c;
    assert_int_equal(sched_create(&so, &c.g.sched, &err), MF_OK);
    seq *all[8] = {make_seq(&c.g, 0, n_long)};
    all[0]->fresh = true;
    for (int i = 0; i < at_once; i++) all[i + 1] = make_other(&c);
    if (!c.n_clients) all[0]->client = all[1]->client; /* who has its turn first, and asks again */
    sched_submit(c.g.sched, c.n_clients ? all : all + 1, at_once + (c.n_clients > 0));
    if (!c.n_clients) sched_submit(c.g.sched, all, 1);
    while (!c.g.ended) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    sched_free(c.g.sched);
    mf_text_close(c.g.text);
    mf_model_close(c.g.model);
    return c.n_before;
}

/* However many come: short ones leave a long prompt at least every fourth pass, and those that are long themselves at
 * first, by a little, take turns with it. */
void test_long_beside_stream(void **state) {
    (void)state;
    int n = others_before(SHORT, 3, 4, LONG, 3);
    if (n < 0 || n > 100) fail_msg("%d short prompts were read before a long one", n);
    n = others_before(PIECE + 4, 3, 4, LONG, 3);
    if (n < 0 || n > 100) fail_msg("%d prompts of little more than a piece were read before a long one", n);
}

/* Nor does a stream of new clients keep one out for ever that had its turn once. */
void test_waiting_beside_stream(void **state) {
    (void)state;
    int n = others_before(SHORT, 4, 1, SHORT + 1, 0);
    if (n < 0 || n > 10) fail_msg("%d requests of others had their turn before one that had waited", n);
}

/* ---- one beside one ----------------------------------------------------------------------------------------------- */

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
