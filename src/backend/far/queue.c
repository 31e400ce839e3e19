/* Commands, with copies of everything they need from the host. */
#include <stdlib.h>
#include <string.h>

#include "backend/far/far.h"

mf_status mf__far_command_create(mf__far_what what, mf__far_command **out, mf_error *err) {
    mf__far_command *c = calloc(1, sizeof *c);
    if (!c) return mf__fail(err, MF_E_NOMEM, "no memory for a command");
    c->what = what;
    *out = c;
    return MF_OK;
}

void mf__far_command_free(mf__far_command *c) {
    if (!c) return;
    mf__arena_free(&c->arena);
    free(c);
}

/* n things of the host's, copied; NULL for NULL and when out of memory, which *full says. */
static void *keep(mf__far_command *c, const void *from, size_t n, size_t size, bool *full) {
    if (!from || !n) return NULL;
    void *to = mf__arena_array(&c->arena, n, size);
    if (to)
        memcpy(to, from, n * size);
    else
        *full = true;
    return to;
}

static const mf__bank *keep_bank(mf__far_command *c, const mf__bank *from, bool *full) {
    mf__bank *bank = keep(c, from, 1, sizeof *from, full);
    if (!bank) return NULL;
    bank->layout = keep(c, from->layout, 1, sizeof *from->layout, full);
    bank->blobs = keep(c, from->blobs, (size_t)from->n_experts, sizeof *from->blobs, full);
    return bank;
}

static const mf__segment *keep_segments(mf__far_command *c, const mf__binding *b, bool *full) {
    mf__segment *segs = keep(c, b->segs, (size_t)b->n_segs, sizeof *segs, full);
    for (int32_t i = 0; segs && i < b->n_segs; i++)
        if (segs[i].state) segs[i].state = keep(c, segs[i].state, 1, sizeof *segs[i].state, full);
    return segs;
}

mf_status mf__far_command_runs(mf__far_command *c, const mf__run *runs, int n_runs, mf_error *err) {
    bool full = false;
    c->runs = keep(c, runs, (size_t)n_runs, sizeof *runs, &full);
    c->n_runs = n_runs;
    for (int i = 0; !full && i < n_runs; i++) {
        mf__binding *b = &c->runs[i].b;
        b->bufs = keep(c, b->bufs, (size_t)runs[i].g->n_bufs, sizeof *b->bufs, &full);
        b->weights = keep(c, b->weights, (size_t)runs[i].g->n_weights, sizeof *b->weights, &full);
        b->segs = keep_segments(c, b, &full);
        b->bank = keep_bank(c, b->bank, &full);
    }
    return full ? mf__fail(err, MF_E_NOMEM, "no memory for a list of %d runs", n_runs) : MF_OK;
}
