/* What tests of stores share: opening one, whole turns of it, and waiting until nothing is read any more. */
#ifndef MF_TESTS_STORE_TURNS_H
#define MF_TESTS_STORE_TURNS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "expert_files.h"
#include "slot_memory.h"
#include "store/internal.h"

#define MB ((int64_t)1 << 20)

static inline mf__store_config config_of(const expert_files *f) {
    return (mf__store_config){.n_layers = f->n_layers,
                              .n_dirs = 1,
                              .files = f->files,
                              .n_experts = f->n_experts,
                              .stride = f->stride,
                              .bytes = f->bytes,
                              .io = MF_IO_PREAD,
                              .direct = MF_SWITCH_OFF,
                              .prefetch = MF_SWITCH_OFF};
}

static inline mf__store *open_store(const mf__store_config *c) {
    mf_error err = {0};
    mf__store *s = NULL;
    if (mf__store_open(c, &s, &err) != MF_OK) fail_msg("%s", err.text);
    return s;
}

static inline mf__turn *new_turn(mf__store *s) {
    mf__turn *t = NULL;
    assert_int_equal(mf__turn_create(s, &t, NULL), MF_OK);
    return t;
}

static inline void check(mf__store *s) {
    mf_error err = {0};
    if (mf__store_check(s, &err) != MF_OK) fail_msg("%s", err.text);
}

static inline int pins_of_all(mf__store *s) {
    int pins = 0;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n_slots; i++) pins += s->slots[i].pins;
    pthread_mutex_unlock(&s->lock);
    return pins;
}

/* Where the test finds the bytes of a blob that a turn gave out. */
static inline const void *bytes_of(const mf__store *s, const void *blob) {
    if (s->config.memory.alloc != slot_memory_alloc) return blob;
    const void *view = slot_memory_view(s->config.memory.user, blob);
    assert_non_null(view);
    return view;
}

/* One whole turn; every expert must come exactly once with its own bytes. Returns the number of rounds. */
static inline int turn_all(mf__turn *t, const expert_files *f, int layer, const int32_t *ids, int n) {
    mf_error err = {0};
    int32_t got[256];
    const void *blobs[256];
    bool seen[256] = {false};
    int n_got, total = 0, rounds = 0;
    if (mf__turn_begin(t, layer, ids, NULL, n, 1, &err) != MF_OK) fail_msg("%s", err.text);
    for (;; rounds++) {
        if (mf__turn_next(t, got, blobs, &n_got, &err) != MF_OK) fail_msg("%s", err.text);
        if (!n_got) break;
        check(t->store);
        for (int i = 0; i < n_got; i++) {
            assert_false(seen[got[i]]);
            seen[got[i]] = true;
            assert_true(blob_is(f, layer, got[i], bytes_of(t->store, blobs[i])));
        }
        total += n_got;
        mf__turn_done(t, got, n_got);
    }
    mf__turn_end(t);
    check(t->store);
    assert_int_equal(total, n);
    for (int i = 0; i < n; i++) assert_true(seen[ids[i]]);
    return rounds;
}

static inline void expect_failure(const mf__store_config *c, mf_status status, const char *text) {
    mf_error err = {0};
    mf__store *s = NULL;
    assert_int_equal(mf__store_open(c, &s, &err), status);
    assert_null(s);
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

static inline void wait_idle(mf__store *s) {
    for (int i = 0; i < 120000; i++) { /* two minutes: a busy machine is no reason to fail */
        pthread_mutex_lock(&s->lock);
        bool idle = !s->n_guesses && !s->filling && !s->in_flight[0] && !s->in_flight[1] && s->queues[1].head < 0;
        pthread_mutex_unlock(&s->lock);
        if (idle) return;
        usleep(1000);
    }
    fail_msg("reads go on for ever");
}

#endif
