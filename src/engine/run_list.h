/* Lists of runs: graphs with the addresses of one pass, collected and submitted together. Under the model's lock. */
#ifndef MF_ENGINE_RUN_LIST_H
#define MF_ENGINE_RUN_LIST_H

#include "engine/internal.h"

/* One graph over some rows of the pass. */
typedef struct mf__graph_run {
    const mf__graph *g;
    const mf__tensor *weights;
    int32_t first_row, n_rows; /* ports are bound from first_row on, all but those of the tail */
    const mf__segment *segs;   /* NULL where it does not matter which rows belong together */
    int32_t n_segs;
    const mf__bank *bank; /* valid until the list is submitted */
} mf__graph_run;

mf_status mf__run_list_push(mf_model *m, const mf__graph_run *r, mf_error *err);
mf_status mf__run_list_submit(mf_model *m, mf_error *err); /* nothing to submit: MF_OK */
mf_status mf__run_list_wait(mf_model *m, mf_error *err);   /* submits, and returns when all of it is done */
void mf__run_list_drop(mf_model *m);                       /* after an error: forgets what was not submitted */

/* The rows [first, first + n) of the pass as segments, with the states of one layer (< 0: without); they live as long
 * as the list. */
mf_status mf__run_list_segments(const mf__pass *pass, int layer, int32_t first, int32_t n, mf__graph_run *r,
                                mf_error *err);

mf_status mf__run_list_init(mf__run_list *list, const mf_model *m, mf_error *err);
void mf__run_list_deinit(mf__run_list *list);

#endif
