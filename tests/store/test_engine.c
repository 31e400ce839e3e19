/* The engine over the store: whatever way experts come, however little memory they have and whoever foretold them,
 * logits are the same bit for bit; a failed read changes nothing; sessions take their memory from the cache. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../golden/tiny.h"
#include "engine/experts.h"
#include "engine/internal.h"
#include "engine/lossy.h"
#include "store/internal.h"

#define N_PROMPT 37
#define N_DECODE 9
#define RAM ((int64_t)256 << 20)

static mf_model *open_with(const char *dir, const mf_model_options *opt) {
    mf_error err = {0};
    mf_model *m = NULL;
    if (mf_model_open(dir, opt, &m, &err) != MF_OK) fail_msg("%s", err.text);
    return m;
}

static mf_model_options options(mf_io io, mf_switch direct, mf_switch prefetch) {
    mf_model_options opt;
    mf_model_options_init(&opt);
    opt.backend = "ref";
    opt.n_threads = 1;
    opt.ram_bytes = RAM;
    opt.io = io;
    opt.direct = direct;
    opt.prefetch = prefetch;
    return opt;
}

/* A prompt in chunks, then tokens one by one; the rows of all decoded tokens. */
static void evaluate(mf_model *m, float logits[N_DECODE + 1][TINY_VOCAB]) {
    mf_session *s = tiny_session(m, 64, 16);
    tiny_eval(s, N_PROMPT, logits[0]);
    for (int i = 0; i < N_DECODE; i++) tiny_eval(s, 1, logits[i + 1]);
    mf_session_free(s);
}

static void expect_same(mf_model *m, float want[N_DECODE + 1][TINY_VOCAB], const char *what) {
    static float got[N_DECODE + 1][TINY_VOCAB];
    mf_error err = {0};
    for (int again = 0; again < 2; again++) { /* cold, then with whatever is in memory */
        evaluate(m, got);
        if (memcmp(got, want, sizeof got)) fail_msg("%s: other logits (%s)", what, again ? "warm" : "cold");
    }
    if (mf__store_check(m->store, &err) != MF_OK) fail_msg("%s: %s", what, err.text);
}

static float reference[N_DECODE + 1][TINY_VOCAB];

static void make_reference(const char *dir) {
    mf_model_options opt = options(MF_IO_MMAP, MF_SWITCH_AUTO, MF_SWITCH_OFF);
    mf_model *m = open_with(dir, &opt);
    evaluate(m, reference);
    mf_model_close(m);
}

/* Room for n experts: a huge page, the least a budget can be, holds many of these small ones. */
static void shrink_to(mf_model *m, int n) {
    mf__store *s = m->store;
    pthread_mutex_lock(&s->lock);
    s->cap = n;
    mf__slots_apply_limit(s);
    pthread_mutex_unlock(&s->lock);
}

static void same_logits_by_every_way(void **state) {
    static const char *const policies[] = {"horizons", "lfu", "lru"};
    make_reference(*state);
    for (int io = MF_IO_AUTO; io <= MF_IO_URING; io++)
        for (int direct = MF_SWITCH_ON; direct <= MF_SWITCH_OFF; direct++)
            for (int prefetch = MF_SWITCH_ON; prefetch <= MF_SWITCH_OFF; prefetch++) {
                char what[96];
                mf_model_options opt = options((mf_io)io, (mf_switch)direct, (mf_switch)prefetch);
                opt.policy = policies[(io + direct + prefetch) % 3];
                opt.n_io_threads = prefetch == MF_SWITCH_ON ? 8 : 1;
                mf_model *m = open_with(*state, &opt);
                snprintf(what, sizeof what, "io %d, direct %d, prefetch %d, policy %s", io, direct, prefetch,
                         opt.policy);
                expect_same(m, reference, what);
                mf_model_close(m);
            }
}

/* From room for one expert to room for most. */
static void same_logits_with_little_memory(void **state) {
    static const int rooms[] = {1, 2, 5, 9, 20, 60};
    make_reference(*state);
    for (size_t i = 0; i < MF__COUNT(rooms); i++) {
        char what[64];
        mf_stats st;
        mf_model_options opt = options(i % 2 ? MF_IO_URING : MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
        mf_model *m = open_with(*state, &opt);
        snprintf(what, sizeof what, "room for %d experts", rooms[i]);
        if (rooms[i] >= m->info.n_expert_layers * m->info.n_experts) { /* of a model with fewer */
            mf_model_close(m);
            break;
        }
        mf_session *s = tiny_session(m, 64, 16); /* takes its memory first */
        shrink_to(m, rooms[i]);
        static float got[N_DECODE + 1][TINY_VOCAB];
        tiny_eval(s, N_PROMPT, got[0]);
        for (int t = 0; t < N_DECODE; t++) tiny_eval(s, 1, got[t + 1]);
        if (memcmp(got, reference, sizeof got)) fail_msg("%s: other logits", what);
        mf_model_stats_get(m, &st);
        assert_true(st.evictions > 0);
        assert_true(st.cache_bytes <= rooms[i] * m->layout.bytes);
        mf_session_stats_get(s, &st);
        assert_true(st.wanted > 0 && st.hits < st.wanted);
        mf_session_free(s);
        mf_model_close(m);
    }
}

static void forgetting_changes_no_logits(void **state) {
    make_reference(*state);
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
    mf_model *m = open_with(*state, &opt);
    mf_session *s = tiny_session(m, 64, 16);
    float got[TINY_VOCAB];
    mf_stats st;
    shrink_to(m, 6);
    tiny_eval(s, N_PROMPT, got);
    for (int i = 0; i < N_DECODE; i++) {
        mf_prefetch_forget(m);
        tiny_eval(s, 1, got);
        assert_memory_equal(got, reference[i + 1], sizeof got);
    }
    mf_model_stats_get(m, &st);
    const mf_predictor_stats *p = &st.predictors[MF_PREDICTOR_NEXT_ROUTER];
    assert_true(p->foretold > 0 && p->right > 0 && p->right <= p->foretold && p->right <= p->wanted);
    mf_session_free(s);
    mf_model_close(m);
}

/* ---- reading less at a loss ---- */

static mf_stats lossy_run(const char *dir, const mf_lossy *lossy, int way, float logits[N_DECODE + 1][TINY_VOCAB]) {
    mf_model_options opt =
        options(way == 1 ? MF_IO_URING : MF_IO_PREAD, MF_SWITCH_AUTO, way == 0 ? MF_SWITCH_OFF : MF_SWITCH_ON);
    mf_stats st;
    opt.n_io_threads = way == 2 ? 1 : 8;
    opt.lossy = *lossy;
    opt.most_experts = 12;
    mf_model *m = open_with(dir, &opt);
    evaluate(m, logits);
    mf_error err = {0};
    if (mf__store_check(m->store, &err) != MF_OK) fail_msg("%s", err.text);
    mf_model_stats_get(m, &st);
    mf_model_close(m);
    return st;
}

/* Results differ from the model's, as was asked for, and are the same however reads come; prompts are the model's. */
static void lossy_results_do_not_depend_on_reads(void **state) {
    static const mf_lossy settings[] = {{.bonus = 9, .protect = 1},
                                        {.skip = 0.9, .protect = 1},
                                        {.small = 2, .promote = 0.3, .small_ram = 0.5, .protect = 1},
                                        {.bonus = 9, .sure = 0.9, .small = 2, .small_ram = 0.7},
                                        {.bonus = 9, .tail = 1.5},
                                        {.bonus = 2, .skip = 0.3, .small = 0.5, .most = 5}};
    static float first[N_DECODE + 1][TINY_VOCAB], again[N_DECODE + 1][TINY_VOCAB];
    make_reference(*state);
    for (size_t i = 0; i < MF__COUNT(settings); i++) {
        mf_stats st = lossy_run(*state, &settings[i], 0, first);
        assert_true(st.lossy_experts > 0);
        if (settings[i].bonus >= 9) assert_true(st.lossy_replaced > 0);
        if (settings[i].skip >= 0.9) assert_true(st.lossy_skipped > 0);
        if (settings[i].promote > 0) assert_true(st.lossy_small > 0 && st.lossy_small_bytes > 0);
        if (settings[i].most) assert_true(st.lossy_replaced + st.lossy_skipped <= N_DECODE * settings[i].most);
        assert_memory_equal(first[0], reference[0], sizeof first[0]);
        if (!memcmp(first, reference, sizeof first)) fail_msg("setting %d changes nothing", (int)i);
        for (int way = 1; way < 3; way++) {
            lossy_run(*state, &settings[i], way, again);
            if (memcmp(first, again, sizeof first)) fail_msg("setting %d: other results by way %d", (int)i, way);
        }
    }
    mf_lossy none = {0};
    mf_stats st = lossy_run(*state, &none, 1, first);
    assert_memory_equal(first, reference, sizeof first);
    assert_int_equal(st.lossy_experts, 0);
}

/* Where hardly any memory is left for the experts themselves, promote brings in those that stay, not one after the
 * other that it would have to read again. */
static void promoted_experts_stay(void **state) {
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_OFF);
    float logits[TINY_VOCAB];
    mf_stats st;
    opt.lossy = (mf_lossy){.small = 2, .small_ram = 0.9, .promote = 0.15};
    opt.most_experts = 20; /* two in full, and copies of all the others */
    mf_model *m = open_with(*state, &opt);
    mf_session *s = tiny_session(m, 128, 16);
    tiny_eval(s, N_PROMPT, logits);
    for (int i = 0; i < 64; i++) {
        if (i == 24) mf_model_stats_reset(m);
        tiny_eval(s, 1, logits);
    }
    mf_model_stats_get(m, &st);
    int64_t all = st.lossy_experts * m->layout.bytes;
    if (st.bytes_read > all / 8) fail_msg("%lld bytes read for %lld", (long long)st.bytes_read, (long long)all);
    mf_session_free(s);
    mf_model_close(m);
}

/* What is read ahead of small copies, and waited for, is told by who foretold it. */
static void small_copies_have_their_predictors(void **state) {
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
    float logits[N_DECODE + 1][TINY_VOCAB];
    mf_stats all, full, small;
    opt.lossy = (mf_lossy){.small = 2, .small_ram = 0.5};
    opt.most_experts = 12;
    mf_model *m = open_with(*state, &opt);
    for (int i = 0; i < 3; i++) evaluate(m, logits);
    mf__store_stats_get(m->store, &full);
    mf__store_stats_get(m->lossy->store, &small);
    mf_model_stats_get(m, &all);
    const int who = MF_PREDICTOR_NEXT_ROUTER;
    assert_true(small.predictors[who].wanted > 0);
    assert_int_equal(all.predictors[who].wanted, full.predictors[who].wanted + small.predictors[who].wanted);
    assert_int_equal(all.predictors[who].right, full.predictors[who].right + small.predictors[who].right);
    mf_model_close(m);
}

/* Decodes until small copies serve some of a layer's experts; the session's is the model's reading. */
static void decode_small(mf_model *m) {
    mf_stats of_session, of_model;
    float logits[TINY_VOCAB];
    mf_session *s = tiny_session(m, 64, 16);
    tiny_eval(s, N_PROMPT, logits);
    for (int i = 0; i < N_DECODE || (!m->lossy->n_wanted && i < 20); i++) tiny_eval(s, 1, logits);
    assert_true(m->lossy->n_wanted > 0);
    mf_session_stats_get(s, &of_session);
    mf_model_stats_get(m, &of_model);
    assert_true(of_model.lossy_small_bytes > 0);
    assert_int_equal(of_session.bytes_read, of_model.bytes_read); /* nothing is foretold here */
    assert_int_equal(of_session.stall_ns, of_model.stall_ns);
    mf_session_free(s);
}

#define TOP 3

/* Three experts of a layer, for one row. */
static void compute_for_others(mf_model *m, int layer, int32_t first, float pairs[TOP * TINY_HIDDEN]) {
    int32_t ids[TOP] = {first, first + 1, first + 2};
    float row[TINY_HIDDEN];
    mf_error err = {0};
    for (int i = 0; i < TINY_HIDDEN; i++) row[i] = (float)(i % 7) - 3.0f;
    const mf_experts_request r = {.layer = layer,
                                  .n_rows = 1,
                                  .n_hidden = TINY_HIDDEN,
                                  .top_k = TOP,
                                  .n_decode = 1,
                                  .rows = row,
                                  .ids = ids,
                                  .wanted = ids,
                                  .n_wanted = TOP};
    assert_int_equal(m->info.n_experts_per_token, TOP);
    if (mf_experts_compute(m, &r, pairs, TOP * TINY_HIDDEN, &err) != MF_OK) fail_msg("%s", err.text);
}

/* What a model computes for others is what the files say, whatever was decided for tokens of its own. */
static void experts_for_others_are_never_lossy(void **state) {
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_OFF);
    mf_model *plain = open_with(*state, &opt);
    opt.lossy = (mf_lossy){.small = 2, .small_ram = 0.5};
    opt.most_experts = 12;
    mf_model *lossy = open_with(*state, &opt);
    float pairs[2][TOP * TINY_HIDDEN];
    decode_small(lossy);
    int32_t small = lossy->lossy->wanted[0], first = small < TOP ? small : small - TOP + 1;
    compute_for_others(plain, TINY_LAYERS - 1, first, pairs[0]);
    compute_for_others(lossy, TINY_LAYERS - 1, first, pairs[1]);
    assert_memory_equal(pairs[0], pairs[1], sizeof pairs[0]);
    mf_prefetch_forget(lossy);
    for (int l = 0; l < TINY_LAYERS; l++) assert_int_equal(lossy->lossy->store->n_last[l], 0);
    mf_model_close(lossy);
    mf_model_close(plain);
}

/* Nor is anything foretold from rows of theirs. */
static void experts_for_others_foretell_nothing(void **state) {
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
    mf_model *m = open_with(*state, &opt);
    float pairs[TOP * TINY_HIDDEN];
    mf_stats st;
    for (int l = 0; l < TINY_LAYERS; l++) compute_for_others(m, l, 1, pairs);
    mf_model_stats_get(m, &st);
    assert_int_equal(st.predictors[MF_PREDICTOR_EARLY_ROUTER].foretold, 0);
    mf_model_close(m);
}

/* Small copies have a part of the memory that nobody else gets: mf_model_memory counts with it. */
static void lossy_memory_is_counted(void **state) {
    static const double parts[] = {0, 0.1, 0.5, 0.9};
    for (size_t i = 0; i < MF__COUNT(parts); i++) {
        mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_OFF, MF_SWITCH_OFF);
        mf_memory_needs needs, without;
        mf_model *m = NULL;
        mf_error err = {0};
        float logits[TINY_VOCAB];
        if (mf_model_memory(*state, &opt, 64, 16, &without, &err)) fail_msg("%s", err.text);
        opt.lossy = (mf_lossy){.small = 2, .small_ram = parts[i]};
        if (mf_model_memory(*state, &opt, 64, 16, &needs, &err)) fail_msg("%s", err.text);
        assert_true(needs.total > without.total);
        assert_int_equal(needs.total,
                         needs.program + needs.trunk + needs.workspace + needs.state + needs.kv + needs.experts);
        opt.ram_bytes = needs.total;
        m = open_with(*state, &opt);
        mf_session *s = tiny_session(m, 0, 16);
        tiny_eval(s, 63, logits);
        tiny_eval(s, 1, logits);
        mf_session *second = NULL;
        mf_session_options so;
        mf_session_options_init(&so);
        while (mf__model_borrow(m, 1 << 16)) {
        }
        mf_status st = mf_session_create(m, &so, &second, &err);
        if (st == MF_OK) st = mf_eval_token(second, 1, 0, logits, TINY_VOCAB, &err);
        char allowed[64];
        assert_int_equal(st, MF_E_NOMEM);
        snprintf(allowed, sizeof allowed, "and %lld MB are allowed", (long long)(needs.total >> 20));
        if (!strstr(err.text, allowed)) fail_msg("\"%s\" does not say \"%s\"", err.text, allowed);
        mf_session_free(second);
        mf_session_free(s);
        mf_model_close(m);
    }
}

static void lossy_settings_are_checked(void **state) {
    static const struct {
        mf_lossy lossy;
        const char *text;
    } cases[] = {{{.bonus = -1}, "bonus is -1"},
                 {{.skip = 2}, "skip is 2"},
                 {{.most = 3}, "does nothing"},
                 {{.promote = 0.1}, "does nothing without bonus"},
                 {{.skip = 0.1, .sure = 1}, "bonus"},
                 {{.protect = 1}, "does nothing"},
                 {{.small = 2, .tail = 1}, "tail does nothing without bonus"},
                 {{.bonus = 1, .tail = 65}, "tail is 65"}};
    for (size_t i = 0; i < MF__COUNT(cases); i++) {
        mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
        mf_model *m = NULL;
        mf_error err = {0};
        opt.lossy = cases[i].lossy;
        assert_int_equal(mf_model_open(*state, &opt, &m, &err), MF_E_INVALID);
        assert_null(m);
        if (!strstr(err.text, cases[i].text)) fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].text);
    }
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
    mf_model *m = NULL;
    mf_error err = {0};
    opt.most_experts = -1;
    assert_int_equal(mf_model_open(*state, &opt, &m, &err), MF_E_INVALID);
    assert_non_null(strstr(err.text, "most_experts is -1"));
}

static void write_whole(const char *path, const char *bytes, size_t size) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, size, f), size);
    fclose(f);
}

/* A layer's file is cut while the session holds tokens, and comes back. */
static void fail_and_go_on(const char *dir, mf_io io, mf_switch direct) {
    mf_model_options opt = options(io, direct, MF_SWITCH_ON);
    mf_model *m = open_with(dir, &opt);
    mf_session *s = tiny_session(m, 64, 16);
    float got[TINY_VOCAB];
    mf_error err = {0};
    char path[300];
    char *bytes;
    size_t size;
    int n_failed = 0;
    snprintf(path, sizeof path, "%s/packed_experts/layer_05.bin", dir);
    assert_int_equal(mf__file_read(path, 1 << 30, &bytes, &size, &err), MF_OK);
    if (io != MF_IO_MMAP) shrink_to(m, 9);
    tiny_eval(s, N_PROMPT, got);
    for (int i = 0; i < N_DECODE; i++) {
        int32_t token = tiny_token(N_PROMPT + i);
        assert_int_equal(truncate(path, 100), 0);
        int64_t before = mf_memory_length(s);
        mf_status st = mf_eval_token(s, token, before, got, TINY_VOCAB, &err);
        write_whole(path, bytes, size);
        if (st != MF_OK) {
            n_failed++;
            assert_int_equal(st, io == MF_IO_MMAP ? MF_E_FORMAT : MF_E_IO);
            assert_non_null(strstr(err.text, "layer_05.bin"));
            assert_int_equal(mf_memory_length(s), before);
            tiny_eval(s, 1, got);
        }
        assert_memory_equal(got, reference[i + 1], sizeof got);
    }
    assert_true(n_failed > 0);
    free(bytes);
    mf_session_free(s);
    mf_model_close(m);
}

static void a_failed_read_changes_nothing(void **state) {
    make_reference(*state);
    fail_and_go_on(*state, MF_IO_PREAD, MF_SWITCH_OFF);
    fail_and_go_on(*state, MF_IO_URING, MF_SWITCH_ON);
    fail_and_go_on(*state, MF_IO_MMAP, MF_SWITCH_AUTO);
}

/* The resident weights are cut in the middle of a pass: the call fails, and so does every other until the model is
 * opened again. */
static char trunk_path[300];
static bool cut_now;

static void cut_trunk(void *user, int layer, const int32_t *ids, int n_rows, int top_k) {
    (void)user, (void)ids, (void)n_rows, (void)top_k;
    if (layer == 2 && cut_now) assert_int_equal(truncate(trunk_path, 5000), 0);
}

static void resident_weights_cut_in_use(void **state) {
    make_reference(*state);
    assert_int_equal(mf_guard_install(NULL), MF_OK);
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_OFF, MF_SWITCH_OFF);
    opt.routes.fn = cut_trunk;
    mf_model *m = open_with(*state, &opt);
    mf_session *s = tiny_session(m, 64, 16);
    float got[TINY_VOCAB];
    mf_error err = {0};
    char *bytes;
    size_t size;
    snprintf(trunk_path, sizeof trunk_path, "%s/model_weights.bin", (const char *)*state);
    assert_int_equal(mf__file_read(trunk_path, 1 << 30, &bytes, &size, &err), MF_OK);
    tiny_eval(s, N_PROMPT, got);
    cut_now = true;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(mf_eval_token(s, 3, N_PROMPT, got, TINY_VOCAB, &err), MF_E_IO);
        assert_non_null(strstr(err.text, "model_weights.bin was cut"));
        assert_int_equal(mf_memory_length(s), N_PROMPT);
        cut_now = false;
    }
    write_whole(trunk_path, bytes, size);
    mf_session_free(s);
    mf_model_close(m);
    opt.routes.fn = NULL;
    m = open_with(*state, &opt);
    expect_same(m, reference, "after the cut");
    mf_model_close(m);
    free(bytes);
}

static void sessions_borrow_from_the_cache(void **state) {
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
    mf_model *m = open_with(*state, &opt);
    mf_stats before, with_session, grown, after;
    mf_error err = {0};
    float logits[TINY_VOCAB];
    mf_model_stats_get(m, &before);
    mf_session *s = tiny_session(m, 1024, 16);
    mf_model_stats_get(m, &with_session);
    assert_true(with_session.budget < before.budget);
    tiny_eval(s, 300, logits); /* two pages */
    mf_model_stats_get(m, &grown);
    assert_int_equal(with_session.budget - grown.budget, 2 * 256 * m->info.kv_bytes_per_token);
    /* A context that does not fit is refused, and the session stays usable. */
    mf__store_lend(m->store, grown.budget - mf__slot_memory_least(m->store) - 1000, &err);
    int32_t more[300];
    for (int i = 0; i < 300; i++) more[i] = tiny_token(300 + i);
    assert_int_equal(mf_eval_prompt(s, more, 300, 300, logits, TINY_VOCAB, &err), MF_E_NOMEM);
    assert_non_null(strstr(err.text, "at least --ram"));
    assert_int_equal(mf_memory_length(s), 300);
    tiny_eval(s, 50, logits);
    mf__store_lend(m->store, -(grown.budget - mf__slot_memory_least(m->store) - 1000), &err);
    mf_session_free(s);
    mf_model_stats_get(m, &after);
    assert_true(after.budget > grown.budget);
    mf_model_close(m);

    opt.ram_bytes = 1 << 20;
    m = NULL;
    assert_int_equal(mf_model_open(*state, &opt, &m, &err), MF_E_NOMEM);
    assert_non_null(strstr(err.text, "--ram 1M is too little"));
}

/* Borrows all but `left` bytes of what the store can do without; returns how much. */
static int64_t leave(mf_model *m, int64_t left) {
    mf_stats now;
    mf_error err = {0};
    mf_model_stats_get(m, &now);
    int64_t lent = now.budget - mf__slot_memory_least(m->store) - left;
    if (mf__store_lend(m->store, lent, &err) != MF_OK) fail_msg("%s", err.text);
    return lent;
}

/* A prompt that shares nothing with what the session holds, or only its beginning, needs no memory beside it: the old
 * pages and the old recurrent state make way for the new, and none is copied. */
static void a_prompt_takes_the_room_of_the_one_before(void **state) {
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
    mf_model *m = open_with(*state, &opt);
    mf_session *s = tiny_session(m, 1024, 64), *fresh = tiny_session(m, 1024, 64);
    mf_error err = {0};
    float got[TINY_VOCAB], want[TINY_VOCAB];
    int32_t other[600];
    int64_t recurrent = m->recurrent_floats * (int64_t)sizeof(float), lefts[] = {m->kv.page_bytes + recurrent, 0};
    for (int i = 0; i < 600; i++) other[i] = tiny_token(i + 7);
    assert_int_equal(mf_eval_prompt(fresh, other, 600, 0, want, TINY_VOCAB, &err), MF_OK);
    mf_session_free(fresh);
    for (size_t i = 0; i < MF__COUNT(lefts); i++) {
        mf_memory_clear(s);
        tiny_eval(s, 600, got); /* three pages */
        int64_t lent = leave(m, lefts[i]);
        if (mf_prompt(s, other, 600, NULL, 0, got, TINY_VOCAB, NULL, &err) != MF_OK) fail_msg("%s", err.text);
        assert_memory_equal(got, want, sizeof got);
        assert_int_equal(mf_memory_length(s), 600);
        mf__store_lend(m->store, -lent, NULL);
    }
    mf_session_free(s);
    mf_model_close(m);
}

/* A prompt that goes on needs its own pages and nothing else, also where states are to be kept on the way. */
static void a_prompt_that_goes_on_copies_no_state(void **state) {
    for (int cached = 0; cached < 2; cached++) {
        mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
        opt.prompt_cache_ram = cached ? RAM : 0;
        mf_model *m = open_with(*state, &opt);
        mf_session *s = tiny_session(m, 1024, 64);
        mf_error err = {0};
        float got[TINY_VOCAB];
        int32_t tokens[600];
        int64_t marks[] = {550, 560, 570}, reused;
        for (int i = 0; i < 600; i++) tokens[i] = tiny_token(i);
        tiny_eval(s, 530, got);
        int64_t lent = leave(m, 0);
        if (mf_prompt(s, tokens, 580, marks, 3, got, TINY_VOCAB, &reused, &err) != MF_OK) fail_msg("%s", err.text);
        assert_int_equal(reused, 530);
        assert_int_equal(mf_memory_length(s), 580);
        mf__store_lend(m->store, -lent, NULL);
        mf_session_free(s);
        mf_model_close(m);
    }
}

/* A backend with memory of its own, over a store in the host's, over the files: with room for everything, where passes
 * need no turns once all of it is there, and with room for a few experts in each. */
static void experts_in_two_tiers(void **state) {
    static float got[N_DECODE + 1][TINY_VOCAB];
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_AUTO);
    opt.backend = "far";
    mf_model *m = open_with(*state, &opt);
    assert_ptr_not_equal(m->store, m->host_store);
    expect_same(m, reference, "two tiers");
    mf_session *s = tiny_session(m, 64, 16); /* from here on the rest is brought in */
    const void *const *whole = NULL;
    for (int i = 0; i < 120000 && !whole; i++) {
        uint64_t version;
        whole = mf__store_whole(m->store, &version);
        if (whole)
            mf__store_whole_release(m->store);
        else
            usleep(1000);
    }
    assert_non_null(whole);
    mf_stats before, after;
    mf_model_stats_get(m, &before);
    evaluate(m, got);
    assert_memory_equal(got, reference, sizeof got);
    mf_model_stats_get(m, &after);
    assert_true(after.wanted > before.wanted);
    assert_int_equal(after.wanted - before.wanted, after.hits - before.hits);
    mf_session_free(s);
    mf_model_close(m);

    for (int prefetch = MF_SWITCH_ON; prefetch <= MF_SWITCH_OFF; prefetch++) {
        opt.prefetch = (mf_switch)prefetch;
        m = open_with(*state, &opt);
        shrink_to(m, 5); /* of the far ones: what is used late must still be there */
        mf__store_budget_set(m->host_store, mf__slot_memory_least(m->host_store));
        expect_same(m, reference, prefetch == MF_SWITCH_ON ? "small tiers" : "small tiers, nothing foretold");
        mf_error err = {0};
        if (mf__store_check(m->host_store, &err) != MF_OK) fail_msg("%s", err.text);
        mf_model_close(m);
    }
}

/* Where everything fits, all of it comes with the first session: a model that nobody talks to leaves the drive alone,
 * and what is measured on its store is what the measurement asked for. */
static void a_model_without_sessions_reads_nothing(void **state) {
    for (int io = MF_IO_MMAP; io <= MF_IO_URING; io++) {
        mf_model_options opt = options((mf_io)io, MF_SWITCH_AUTO, MF_SWITCH_AUTO);
        mf_model *m = open_with(*state, &opt);
        int64_t all = (int64_t)m->info.n_expert_layers * m->info.n_experts * m->layout.bytes;
        mf_stats st;
        usleep(20000);
        mf_model_stats_get(m, &st);
        assert_int_equal(st.bytes_read + st.bytes_prefetched, 0);
        mf_session *s = tiny_session(m, 64, 16);
        for (int i = 0; i < 120000 && st.bytes_prefetched < all; i++) { /* two minutes: the machine may be busy */
            usleep(1000);
            mf_model_stats_get(m, &st);
        }
        assert_int_equal(st.bytes_prefetched, all);
        mf_session_free(s);
        s = tiny_session(m, 64, 16); /* all is there already */
        usleep(20000);
        mf_model_stats_get(m, &st);
        assert_int_equal(st.bytes_prefetched, all);
        mf_session_free(s);
        mf_model_close(m);
    }
}

/* Mapped experts count in the budget, and prompts kept in memory make way for a session that needs it. */
static void all_memory_is_in_the_budget(void **state) {
    mf_error err = {0};
    mf_model_options opt = options(MF_IO_MMAP, MF_SWITCH_AUTO, MF_SWITCH_OFF);
    opt.prompt_cache_ram = RAM;
    mf_model *m = open_with(*state, &opt);
    int64_t budget = m->store_config.budget, page = MF_KV_BLOCK * m->info.kv_bytes_per_token;
    mf_session *s = tiny_session(m, 1024, 16);
    float logits[TINY_VOCAB];
    int32_t tokens[300];
    for (int i = 0; i < 300; i++) tokens[i] = tiny_token(i);
    int64_t mark = 270;
    assert_int_equal(mf_prompt(s, tokens, 300, &mark, 1, logits, TINY_VOCAB, NULL, &err), MF_OK);
    mf_memory_clear(s); /* the cache alone holds the pages now */
    mf_stats st;
    int64_t low = 0, high = budget;
    while (high - low > 1000) { /* what is left to lend */
        int64_t middle = low + (high - low) / 2;
        if (mf__store_lend(m->store, middle, NULL) == MF_OK) {
            mf__store_lend(m->store, -middle, NULL);
            low = middle;
        } else {
            high = middle;
        }
    }
    mf_model_stats_get(m, &st);
    assert_in_range(low, 1, budget - m->info.expert_bytes);
    assert_int_equal(mf__store_lend(m->store, low - page / 2, &err), MF_OK); /* less than a page is left */
    assert_int_equal(mf_eval_prompt(s, tokens, 20, 0, logits, TINY_VOCAB, &err), MF_OK);
    int64_t reused = -1;
    assert_int_equal(mf_prompt(s, tokens, 280, NULL, 0, logits, TINY_VOCAB, &reused, &err), MF_OK);
    assert_true(reused < mark); /* it had to go */
    int32_t more[600] = {0};
    assert_int_equal(mf_eval_prompt(s, more, 600, 280, logits, TINY_VOCAB, &err), MF_E_NOMEM);
    assert_non_null(strstr(err.text, "at least --ram"));
    assert_int_equal(mf_memory_length(s), 280);
    mf__store_lend(m->store, -(low - page / 2), NULL);
    mf_session_free(s);
    mf_model_close(m);
}

/* A state belongs to the experts it was made with, wherever they lie. */
static void other_experts_are_another_model(void **state) {
    char other[64], path[300];
    mf_error err = {0};
    mf_session *s[2];
    mf_model *m[2];
    char buf[1 << 16];
    snprintf(other, sizeof other, "changed_%ld", (long)getpid());
    assert_int_equal(mf__dir_make(other, &err), MF_OK);
    snprintf(path, sizeof path, "%s/packed_experts/layer_03.bin", (const char *)*state);
    char *bytes;
    size_t size, written;
    assert_int_equal(mf__file_read(path, 1 << 30, &bytes, &size, &err), MF_OK);
    bytes[17] ^= 1;
    snprintf(path, sizeof path, "%s/layer_03.bin", other);
    assert_int_equal(mf__file_replace(path, bytes, size, &err), MF_OK);
    const char *dirs[1] = {other};
    for (int i = 0; i < 2; i++) {
        mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_OFF);
        opt.experts_dirs = dirs;
        opt.n_experts_dirs = i;
        m[i] = open_with(*state, &opt);
        s[i] = tiny_session(m[i], 16, 16);
    }
    float logits[TINY_VOCAB];
    tiny_eval(s[0], 1, logits);
    size_t need;
    assert_int_equal(mf_state_size(s[0], &need, &err), MF_OK);
    char *state_bytes = need <= sizeof buf ? buf : malloc(need);
    assert_int_equal(mf_state_save(s[0], state_bytes, need, &written, &err), MF_OK);
    assert_int_equal(mf_state_load(s[1], state_bytes, written, &err), MF_E_MISMATCH);
    assert_int_equal(mf_state_load(s[0], state_bytes, written, &err), MF_OK);
    if (state_bytes != buf) free(state_bytes);
    for (int i = 0; i < 2; i++) {
        mf_session_free(s[i]);
        mf_model_close(m[i]);
    }
    free(bytes);
    assert_int_equal(mf__dir_remove(other, &err), MF_OK);
}

static void experts_in_other_directories(void **state) {
    char other[64], from[300], to[300];
    mf_error err = {0};
    make_reference(*state);
    snprintf(other, sizeof other, "other_%ld", (long)getpid());
    assert_int_equal(mf__dir_make(other, &err), MF_OK);
    for (int l = 0; l < TINY_LAYERS; l += 2) {
        snprintf(from, sizeof from, "%s/packed_experts/layer_%02d.bin", (const char *)*state, l);
        snprintf(to, sizeof to, "%s/layer_%02d.bin", other, l);
        assert_int_equal(mf__file_copy(from, to, &err), MF_OK);
    }
    const char *dirs[2] = {other, *state};
    for (int n = 1; n <= 2; n++) {
        mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
        opt.experts_dirs = dirs;
        opt.n_experts_dirs = n;
        mf_model *m = open_with(*state, &opt);
        expect_same(m, reference, "two directories");
        mf_model_close(m);
    }
    mf_model_options opt = options(MF_IO_PREAD, MF_SWITCH_AUTO, MF_SWITCH_ON);
    const char *nowhere[1] = {"no_such_directory"};
    mf_model *m = NULL;
    opt.experts_dirs = nowhere;
    opt.n_experts_dirs = 1;
    assert_int_equal(mf_model_open(*state, &opt, &m, &err), MF_E_NOT_FOUND);
    assert_non_null(strstr(err.text, "no_such_directory"));
    assert_int_equal(mf__dir_remove(other, &err), MF_OK);
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    tiny_checkpoint = argv[1];
    tiny_also_bits = 2;
    const struct CMUnitTest same[] = {
        cmocka_unit_test(same_logits_by_every_way),     cmocka_unit_test(same_logits_with_little_memory),
        cmocka_unit_test(forgetting_changes_no_logits), cmocka_unit_test(lossy_results_do_not_depend_on_reads),
        cmocka_unit_test(promoted_experts_stay),        cmocka_unit_test(small_copies_have_their_predictors)};
    const struct CMUnitTest rest[] = {
        cmocka_unit_test(lossy_settings_are_checked),
        cmocka_unit_test(experts_for_others_are_never_lossy),
        cmocka_unit_test(experts_for_others_foretell_nothing),
        cmocka_unit_test(lossy_memory_is_counted),
        cmocka_unit_test(a_failed_read_changes_nothing),
        cmocka_unit_test(sessions_borrow_from_the_cache),
        cmocka_unit_test(a_prompt_takes_the_room_of_the_one_before),
        cmocka_unit_test(a_prompt_that_goes_on_copies_no_state),
        cmocka_unit_test(experts_in_two_tiers),
        cmocka_unit_test(all_memory_is_in_the_budget),
        cmocka_unit_test(experts_in_other_directories),
        cmocka_unit_test(other_experts_are_another_model),
        cmocka_unit_test(resident_weights_cut_in_use),
        cmocka_unit_test(a_model_without_sessions_reads_nothing),
    };
    int failed = cmocka_run_group_tests(same, tiny_setup, tiny_teardown);
    if (argc > 2) return failed; /* "same": another family, which differs in what it computes alone */
    return failed + cmocka_run_group_tests(rest, tiny_setup, tiny_teardown);
}
