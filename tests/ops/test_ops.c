/* Every case on every backend: against the expectation in double, and the same bits however rows are cut into
 * submissions. The command line may name backends (backends.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "backends.h"

static const op_mode MODES[] = {
    {"together", OP_TOGETHER, false, 1, 0},
    {"together, in place", OP_TOGETHER, true, 1, 0},
    {"each alone", OP_ALONE, false, 1, 0},
    {"halves", OP_HALVES, false, 1, 0},
    {"halves, in place", OP_HALVES, true, 1, 0},
    {"row by row", OP_ROW_BY_ROW, true, 2, 0},
    {"experts in three rounds", OP_TOGETHER, false, 3, 0},
};

static void run_case(const op_case *c, const op_backend *row, mf__backend *be) {
    op_rig rig;
    op_result want, first, got;
    char what[160];
    double tolerance = op_tolerance(row, c);
    op_rig_init(&rig, c);
    op_result_init(&want, &rig);
    c->expect(&rig, &want);
    op_result_init(&first, &rig);
    op_run(&rig, be, &MODES[0], &first);
    snprintf(what, sizeof what, "%s on %s", c->name, row->name);
    op_compare(&rig, what, &first, &want, tolerance);
    for (size_t m = 1; m < MF__COUNT(MODES); m++) {
        op_result_init(&got, &rig);
        op_run(&rig, be, &MODES[m], &got);
        snprintf(what, sizeof what, "%s on %s, %s", c->name, row->name, MODES[m].name);
        op_compare(&rig, what, &got, &first, c->cut_matters ? tolerance : 0);
        op_result_free(&got);
    }
    op_result_free(&first);
    op_result_free(&want);
    op_rig_free(&rig);
}

static void test_all_cases(void **state) {
    (void)state;
    for (int b = 0; b < OP_N_BACKENDS; b++) {
        op_rack r = op_open(&OP_BACKENDS[b], 2);
        for (int i = 0; i < OP_N_CASES; i++)
            if (!OP_INT8_ALONE || op_is_int8(&OP_CASES[i])) run_case(&OP_CASES[i], &OP_BACKENDS[b], r.be);
        op_close(&r);
    }
}

/* The number of threads changes no bit. */
static void test_threads(void **state) {
    (void)state;
    for (int b = 0; b < OP_N_BACKENDS; b++) {
        op_rack one = op_open(&OP_BACKENDS[b], 1), five = op_open(&OP_BACKENDS[b], 5);
        for (int i = 0; i < OP_N_CASES; i++) {
            op_rig rig;
            op_result r1, r5;
            if (OP_INT8_ALONE && !op_is_int8(&OP_CASES[i])) continue;
            op_rig_init(&rig, &OP_CASES[i]);
            op_result_init(&r1, &rig);
            op_result_init(&r5, &rig);
            op_run(&rig, one.be, &MODES[0], &r1);
            op_run(&rig, five.be, &MODES[0], &r5);
            op_compare(&rig, OP_CASES[i].name, &r5, &r1, 0);
            op_result_free(&r1);
            op_result_free(&r5);
            op_rig_free(&rig);
        }
        op_close(&one);
        op_close(&five);
    }
}

/* An op without a case would be an op without a test. */
static void test_every_op_has_a_case(void **state) {
    (void)state;
    for (int kind = 0; kind < MF_OP_COUNT; kind++) {
        int n = 0;
        for (int i = 0; i < OP_N_CASES; i++) {
            op_rig rig;
            op_rig_init(&rig, &OP_CASES[i]);
            n += (int)rig.op->kind == kind;
            op_rig_free(&rig);
        }
        if (!n) print_error("no case for %s\n", mf__op_name((mf__op_kind)kind));
        assert_true(n > 0);
    }
}

/* An expectation that says nothing would agree with everything. */
static void test_every_case_expects_something(void **state) {
    (void)state;
    for (int i = 0; i < OP_N_CASES; i++) {
        op_rig rig;
        op_result want;
        op_rig_init(&rig, &OP_CASES[i]);
        op_result_init(&want, &rig);
        OP_CASES[i].expect(&rig, &want);
        bool written = want.kv[0] || want.conv[0] || want.delta[0];
        for (int k = 0; k < MF_OP_OUT; k++) {
            int16_t id = rig.op->out[k];
            for (int64_t v = 0; id >= 0 && v < (int64_t)rig.n_rows * rig.g->bufs[id].cols; v++)
                written = written || want.out[id][v] == want.out[id][v];
        }
        assert_true(written);
        op_result_free(&want);
        op_rig_free(&rig);
    }
}

int main(int argc, char **argv) {
    if (op_choose_backends(argc - 1, argv + 1)) return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_op_has_a_case),
        cmocka_unit_test(test_every_case_expects_something),
        cmocka_unit_test(test_all_cases),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
