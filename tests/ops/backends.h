/* The backends that tests of ops run on: ref, and the cpu backend on each instruction set, with rounded and with exact
 * activations. A new backend is a row here. */
#ifndef TESTS_OPS_BACKENDS_H
#define TESTS_OPS_BACKENDS_H

#include "harness.h"

typedef struct op_backend {
    char name[32];
    mf__cpu_level level; /* BEST: it is ref */
    bool exact;
    double slack; /* the cases' tolerances are multiplied by this */
} op_backend;

extern op_backend OP_BACKENDS[1 + 2 * MF_CPU_LEVELS];
extern int OP_N_BACKENDS;
extern bool OP_INT8_ALONE; /* only integer products: all else an instruction set shares with one tested elsewhere */

/* Fills OP_BACKENDS: those named ("ref", an instruction set, "best" for the best of those), or all that this machine
 * has; "int8" before them sets OP_INT8_ALONE. Returns 2, after a message, when one of them is not available. */
int op_choose_backends(int n_names, char **names);
bool op_level_chosen(mf__cpu_level level);

/* A backend with its pool. */
typedef struct op_rack {
    mf__pool *pool;
    mf__backend *be;
    const char *name;
} op_rack;
op_rack op_open(const op_backend *row, int n_threads);
op_rack op_open_cpu(mf__cpu_level level, bool exact, int n_threads);
void op_close(op_rack *r);

/* The error allowed for a case: activations of integer products are rounded to one part in 32,000 of a group's largest
 * value each. */
double op_tolerance(const op_backend *row, const op_case *c);
bool op_is_int8(const op_case *c); /* a case of integer products, where activations are not exact */

#endif
