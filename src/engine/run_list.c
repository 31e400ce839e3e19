/* Collecting runs. A list holds every pointer that its runs need until it is submitted: buffers, segments, states. */
#include "engine/run_list.h"

#include <stdlib.h>

/* Runs of a layer at most: keys and values, mix, shared, experts, combine, lookahead; experts in rounds are submitted
 * one by one. */
#define RUNS_PER_LAYER 8

mf_status mf__run_list_init(mf__run_list *list, const mf_model *m, mf_error *err) {
    int n_layers = m->info.n_layers;
    *list = (mf__run_list){.max_runs = RUNS_PER_LAYER * n_layers + 2, .max_segs = (5 * n_layers + 2) * MF_MAX_BATCH};
    list->runs = calloc((size_t)list->max_runs, sizeof *list->runs);
    list->bufs = calloc((size_t)list->max_runs * MF_MAX_BUFS, sizeof *list->bufs);
    list->segs = calloc((size_t)list->max_segs, sizeof *list->segs);
    list->states = calloc((size_t)list->max_segs, sizeof *list->states);
    if (list->runs && list->bufs && list->segs && list->states) return MF_OK;
    mf__run_list_deinit(list);
    return mf__fail(err, MF_E_NOMEM, "no memory for the runs of %d layers", n_layers);
}

void mf__run_list_deinit(mf__run_list *list) {
    free(list->runs);
    free(list->bufs);
    free(list->segs);
    free(list->states);
    *list = (mf__run_list){0};
}

void mf__run_list_drop(mf_model *m) {
    m->ws.list.n_runs = m->ws.list.n_segs = 0;
}

mf_status mf__run_list_submit(mf_model *m, mf_error *err) {
    mf__run_list *list = &m->ws.list;
    int n = list->n_runs;
    mf__run_list_drop(m);
    return n ? m->be->submit(m->be, list->runs, n, &list->fence, err) : MF_OK;
}

mf_status mf__run_list_wait(mf_model *m, mf_error *err) {
    MF__TRY(mf__run_list_submit(m, err));
    return m->be->wait(m->be, m->ws.list.fence, err);
}

mf_status mf__run_list_push(mf_model *m, const mf__graph_run *r, mf_error *err) {
    mf__workspace *ws = &m->ws;
    if (ws->list.n_runs == ws->list.max_runs)
        return mf__fail(err, MF_E_INTERNAL, "more than %d runs in a list", ws->list.max_runs);
    void **addr = ws->list.bufs + (size_t)ws->list.n_runs * MF_MAX_BUFS;
    mf__graph_place(r->g, r->n_rows, ws->scratch, addr);
    for (int b = 0; b < r->g->n_bufs; b++) {
        mf__port port = r->g->bufs[b].port;
        if (port == MF_PORT_NONE) continue;
        addr[b] = ws->ports[port];
        if (port != MF_PORT_FINAL_NORM && port != MF_PORT_LOGITS)
            addr[b] = (float *)addr[b] + (int64_t)r->first_row * ws->port_cols[port];
    }
    ws->list.runs[ws->list.n_runs++] = (mf__run){.g = r->g,
                                                 .b = {.n_rows = r->n_rows,
                                                       .bufs = addr,
                                                       .weights = r->weights,
                                                       .segs = r->segs,
                                                       .n_segs = r->n_segs,
                                                       .bank = r->bank}};
    return MF_OK;
}

mf_status mf__run_list_segments(const mf__pass *pass, int layer, int32_t first, int32_t n, mf__graph_run *r,
                                mf_error *err) {
    mf__run_list *list = &pass->model->ws.list;
    if (list->n_segs + pass->n > list->max_segs) MF__TRY(mf__run_list_submit(pass->model, err));
    r->first_row = first;
    r->n_rows = n;
    r->segs = list->segs + list->n_segs;
    r->n_segs = 0;
    for (int i = 0; i < pass->n; i++) {
        const mf__pass_part *p = &pass->parts[i];
        int32_t from = p->row0 > first ? p->row0 : first;
        int32_t to = p->row0 + p->n_rows < first + n ? p->row0 + p->n_rows : first + n;
        if (from >= to) continue;
        mf__layer_state *state = layer < 0 ? NULL : &list->states[list->n_segs];
        if (state) mf__session_bind_state(p->session, layer, p->fresh, state);
        list->segs[list->n_segs++] =
            (mf__segment){.row0 = from - first, .n_rows = to - from, .pos = p->pos + (from - p->row0), .state = state};
        r->n_segs++;
    }
    return MF_OK;
}
