/* The stages of a conversion: every item once, in order, whatever stage is slow, and the first error ends it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "convert/pipe.h"

enum { SLOTS = 3, ITEMS = 200 };

typedef struct stages {
    int slots[SLOTS];
    int loaded, worked, put;
    int slow;                           /* which stage dawdles: 0 none */
    int fail_load, fail_work, fail_put; /* the item that fails; -1: none */
} stages;

static void dawdle(const stages *s, int stage, int item) {
    struct timespec t = {.tv_nsec = 200000};
    if (s->slow == stage && item % 10 == 0) nanosleep(&t, NULL);
}

static mf_status load(void *ctx, void *slot, bool *end, mf_error *err) {
    stages *s = ctx;
    dawdle(s, 1, s->loaded);
    if (s->loaded == s->fail_load) return mf__fail(err, MF_E_IO, "load %d", s->loaded);
    *end = s->loaded == ITEMS;
    if (!*end) *(int *)slot = s->loaded++;
    return MF_OK;
}

static mf_status work(void *ctx, void *slot, mf_error *err) {
    stages *s = ctx;
    int *item = slot;
    assert_int_equal(*item, s->worked);
    dawdle(s, 2, *item);
    if (*item == s->fail_work) return mf__fail(err, MF_E_FORMAT, "work %d", *item);
    *item += 1000;
    s->worked++;
    return MF_OK;
}

static mf_status put(void *ctx, void *slot, mf_error *err) {
    stages *s = ctx;
    int item = *(int *)slot - 1000;
    dawdle(s, 3, item);
    if (item != s->put) return mf__fail(err, MF_E_INTERNAL, "item %d, expected %d", item, s->put);
    if (item == s->fail_put) return mf__fail(err, MF_E_NO_SPACE, "put %d", item);
    s->put++;
    return MF_OK;
}

static mf_status run(stages *s, mf_error *err) {
    void *slots[SLOTS];
    for (int i = 0; i < SLOTS; i++) slots[i] = &s->slots[i];
    mf__pipe pipe = {.ctx = s, .n_slots = SLOTS, .slots = slots, .load = load, .work = work, .put = put};
    return mf__pipe_run(&pipe, err);
}

static void all_in_order(void **state) {
    (void)state;
    for (int slow = 0; slow <= 3; slow++) {
        stages s = {.slow = slow, .fail_load = -1, .fail_work = -1, .fail_put = -1};
        mf_error err = {0};
        if (run(&s, &err)) fail_msg("%s", err.text);
        assert_int_equal(s.loaded, ITEMS);
        assert_int_equal(s.worked, ITEMS);
        assert_int_equal(s.put, ITEMS);
    }
}

static void errors_end_it(void **state) {
    (void)state;
    for (int stage = 0; stage < 3; stage++)
        for (int item = 0; item < 20; item += 3) {
            stages s = {.fail_load = stage == 0 ? item : -1,
                        .fail_work = stage == 1 ? item : -1,
                        .fail_put = stage == 2 ? item : -1};
            mf_error err = {0};
            static const mf_status want[] = {MF_E_IO, MF_E_FORMAT, MF_E_NO_SPACE};
            assert_int_equal(run(&s, &err), want[stage]);
            assert_non_null(strstr(err.text, stage == 0 ? "load" : stage == 1 ? "work" : "put"));
            assert_true(s.put <= item && s.loaded <= item + 2 * SLOTS);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_in_order), cmocka_unit_test(errors_end_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
