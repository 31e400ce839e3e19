/* The list of backends. */
#include "backends.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "build.h"

op_backend OP_BACKENDS[1 + 2 * MF_CPU_LEVELS];
int OP_N_BACKENDS;
bool OP_INT8_ALONE;

static bool is_named(int n_names, char **names, const char *name) {
    for (int i = 0; i < n_names; i++)
        if (!strcmp(names[i], name)) return true;
    return false;
}

static void add_level(mf__cpu_level level) {
    for (int exact = 0; exact < (OP_INT8_ALONE ? 1 : 2); exact++) {
        op_backend *b = &OP_BACKENDS[OP_N_BACKENDS++];
        *b = (op_backend){.level = level, .exact = exact, .slack = 2};
        snprintf(b->name, sizeof b->name, "cpu %s %s", mf__cpu_level_name(level), exact ? "exact" : "int8");
    }
}

int op_choose_backends(int n_names, char **names) {
    OP_INT8_ALONE = n_names && !strcmp(names[0], "int8");
    n_names -= OP_INT8_ALONE, names += OP_INT8_ALONE;
    if (!n_names || is_named(n_names, names, "ref"))
        OP_BACKENDS[OP_N_BACKENDS++] = (op_backend){.name = "ref", .slack = 1};
    for (mf__cpu_level level = MF_CPU_SCALAR; level < MF_CPU_LEVELS; level++) {
        bool here = mf__cpu_level_available(level), named = is_named(n_names, names, mf__cpu_level_name(level));
        if (named && !here) {
            print_error("this machine does not have %s\n", mf__cpu_level_name(level));
            return 2;
        }
        if (level == mf__cpu_level_best() && is_named(n_names, names, "best")) named = true;
        if (n_names ? named : here) add_level(level);
    }
    return 0;
}

bool op_level_chosen(mf__cpu_level level) {
    for (int i = 0; i < OP_N_BACKENDS; i++)
        if (OP_BACKENDS[i].level == level) return true;
    return false;
}

op_rack op_open_cpu(mf__cpu_level level, bool exact, int n_threads) {
    op_rack r = {.name = mf__cpu_level_name(level)};
    assert_int_equal(mf__pool_create(n_threads, &r.pool, NULL), MF_OK);
    assert_int_equal(mf__backend_cpu_create(r.pool, &(mf__cpu_options){level, exact}, &r.be, NULL), MF_OK);
    return r;
}

op_rack op_open(const op_backend *row, int n_threads) {
    if (row->level != MF_CPU_BEST) return op_open_cpu(row->level, row->exact, n_threads);
    op_rack r = {.name = row->name};
    assert_int_equal(mf__pool_create(n_threads, &r.pool, NULL), MF_OK);
    assert_int_equal(mf__backend_ref_create(r.pool, &r.be, NULL), MF_OK);
    return r;
}

void op_close(op_rack *r) {
    r->be->free(r->be);
    mf__pool_free(r->pool);
}

bool op_is_int8(const op_case *c) {
    return (c->w_type == MF_TYPE_AFFINE || c->w_type == MF_TYPE_MXFP4) &&
           (c->build == build_matmul || c->build == build_experts);
}

double op_tolerance(const op_backend *row, const op_case *c) {
    bool rounded = row->level != MF_CPU_BEST && !row->exact && op_is_int8(c);
    if (rounded) return c->build == build_experts ? 4e-4 : 8e-5;
    return c->tolerance * row->slack;
}
