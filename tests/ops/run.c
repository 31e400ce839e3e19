/* One op at a time: running a rig on a backend, in one submission or cut into many. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "harness.h"

#define MAX_BLOCKS 1100

#define OK(call) assert_int_equal(call, MF_OK)

/* A sequence's state in the backend's memory; recurrent halves trade places after each submission. */
typedef struct live {
    void *blocks[MAX_BLOCKS];
    void *pool, *pages; /* tables in the backend's memory; the pages are numbered backwards */
    void *conv[2], *delta[2];
    int now;
    mf__layer_state state;
} live;

typedef struct runner {
    const op_rig *rig;
    mf__backend *be;
    const op_mode *mode;
    op_result *got;
    live seqs[OP_MAX_SEQS];
    mf__tensor weights[MF_MAX_WEIGHTS];
    const void **blobs; /* [n_experts] in the backend's memory */
} runner;

static void *upload(mf__backend *be, const void *from, int64_t bytes) {
    void *mem = NULL;
    if (!bytes) return NULL;
    OK(be->alloc(be, bytes, &mem, NULL));
    OK(be->upload(be, mem, from, bytes, NULL));
    return mem;
}

/* n values: the first n_first of `first`, then NaNs, which show whoever reads them. */
static void *rubbish_behind(mf__backend *be, const float *first, int64_t n_first, int64_t n) {
    float *nans = malloc((size_t)(n + 1) * sizeof *nans);
    assert_non_null(nans);
    for (int64_t i = 0; i < n; i++) nans[i] = i < n_first ? first[i] : NAN;
    void *mem = upload(be, nans, n * 4);
    free(nans);
    return mem;
}

static void *rubbish(mf__backend *be, int64_t n) {
    return rubbish_behind(be, NULL, 0, n);
}

static void drop(mf__backend *be, void *mem) {
    if (mem) be->release(be, mem);
}

/* ---- states ---------------------------------------------------------------------------------------------------- */

static int64_t block_floats(const op_rig *rig) {
    return op_block_floats(rig->c);
}

static void start_sequence(runner *r, int s) {
    const op_state *st = &r->rig->state[s];
    live *l = &r->seqs[s];
    assert_true(st->n_blocks <= MAX_BLOCKS);
    for (int b = 0; b < st->n_blocks; b++)
        l->blocks[b] = upload(r->be, st->kv_bytes + b * op_block_bytes(r->rig->c), op_block_bytes(r->rig->c));
    void *pool[MAX_BLOCKS];
    int32_t pages[MAX_BLOCKS];
    for (int b = 0; b < st->n_blocks; b++) {
        pages[b] = st->n_blocks - 1 - b;
        pool[pages[b]] = l->blocks[b];
    }
    l->pool = upload(r->be, pool, st->n_blocks * (int64_t)sizeof pool[0]);
    l->pages = upload(r->be, pages, st->n_blocks * (int64_t)sizeof pages[0]);
    l->conv[0] = upload(r->be, st->conv, r->rig->conv_floats * 4);
    l->delta[0] = upload(r->be, st->delta, r->rig->delta_floats * 4);
    /* nothing may be read from there; what lies before a convolution's inputs is another op's */
    int64_t before = r->rig->op->kind == MF_OP_CONV1D ? r->rig->op->p.conv.at : 0;
    l->conv[1] = rubbish_behind(r->be, st->conv, before, r->rig->conv_floats);
    l->delta[1] = rubbish(r->be, r->rig->delta_floats);
}

static void bind_state(runner *r, int s) {
    live *l = &r->seqs[s];
    int to = r->mode->in_place ? l->now : !l->now;
    l->state = (mf__layer_state){.kv = op_kv(r->rig->c, l->pool, l->pages),
                                 .conv_in = l->conv[l->now],
                                 .conv_out = l->conv[to],
                                 .delta_in = l->delta[l->now],
                                 .delta_out = l->delta[to]};
    l->now = to;
}

static void fetch(runner *r, const void *from, int64_t n, double *to) {
    float *x = malloc((size_t)(n + 1) * sizeof *x);
    assert_non_null(x);
    if (n) OK(r->be->download(r->be, x, from, n * 4, NULL));
    for (int64_t i = 0; i < n; i++) to[i] = x[i];
    free(x);
}

static void fetch_block(runner *r, const void *from, double *to) {
    int64_t bytes = op_block_bytes(r->rig->c), n = block_floats(r->rig);
    uint8_t *kept = malloc((size_t)bytes);
    float *values = malloc((size_t)n * sizeof *values);
    assert_true(kept && values);
    OK(r->be->download(r->be, kept, from, bytes, NULL));
    op_decode_block(r->rig->c, kept, values);
    for (int64_t i = 0; i < n; i++) to[i] = values[i];
    free(values);
    free(kept);
}

static void finish_sequence(runner *r, int s) {
    live *l = &r->seqs[s];
    int64_t block = block_floats(r->rig);
    for (int b = 0; b < r->rig->state[s].n_blocks; b++) {
        if (block) fetch_block(r, l->blocks[b], r->got->kv[s] + b * block);
        drop(r->be, l->blocks[b]);
    }
    if (r->rig->conv_floats) fetch(r, l->conv[l->now], r->rig->conv_floats, r->got->conv[s]);
    if (r->rig->delta_floats) fetch(r, l->delta[l->now], r->rig->delta_floats, r->got->delta[s]);
    drop(r->be, l->pool);
    drop(r->be, l->pages);
    for (int half = 0; half < 2; half++) {
        drop(r->be, l->conv[half]);
        drop(r->be, l->delta[half]);
    }
}

/* ---- submissions ----------------------------------------------------------------------------------------------- */

/* Rows of one sequence that take part in a submission. */
typedef struct piece {
    int seq;
    int32_t done, n; /* rows of the sequence before these, and these */
} piece;

static int32_t first_row(const runner *r, int seq) {
    int32_t row = 0;
    for (int s = 0; s < seq; s++) row += r->rig->c->seqs[s].n_rows;
    return row;
}

/* The pieces' rows of a buffer in the backend's memory; what the op makes starts as NaN. */
static void *gather_rows(runner *r, int id, const piece *pieces, int n_pieces, int32_t n_rows) {
    int64_t cols = r->rig->g->bufs[id].cols, at = 0;
    if (!r->rig->in[id]) return rubbish(r->be, n_rows * cols);
    float *rows = malloc((size_t)(n_rows * cols + 1) * sizeof *rows);
    assert_non_null(rows);
    for (int i = 0; i < n_pieces; i++) {
        const float *from = (const float *)r->rig->in[id] + (first_row(r, pieces[i].seq) + pieces[i].done) * cols;
        memcpy(rows + at, from, (size_t)(pieces[i].n * cols) * sizeof *rows);
        at += pieces[i].n * cols;
    }
    void *mem = upload(r->be, rows, n_rows * cols * 4);
    free(rows);
    return mem;
}

static void scatter_rows(runner *r, int id, const void *mem, const piece *pieces, int n_pieces) {
    int64_t cols = r->rig->g->bufs[id].cols;
    for (int i = 0; i < n_pieces; i++) {
        double *to = r->got->out[id] + (first_row(r, pieces[i].seq) + pieces[i].done) * cols;
        int64_t n = pieces[i].n * cols;
        int32_t *bits = malloc((size_t)n * sizeof *bits);
        assert_non_null(bits);
        OK(r->be->download(r->be, bits, mem, n * 4, NULL));
        for (int64_t v = 0; v < n; v++) {
            float f;
            memcpy(&f, &bits[v], sizeof f);
            to[v] = r->rig->g->bufs[id].is_int ? bits[v] : f;
        }
        free(bits);
        mem = (const float *)mem + n;
    }
}

/* Runs the op once per round; a round has every rounds-th expert. */
static void submit_rounds(runner *r, mf__binding *b) {
    const op_case *c = r->rig->c;
    const void *blobs[64];
    mf__bank bank = {.layout = &r->rig->layout, .n_experts = c->n_experts, .blobs = blobs};
    int rounds = c->n_experts ? r->mode->rounds : 1;
    assert_true(c->n_experts <= 64);
    b->bank = c->n_experts ? &bank : NULL;
    for (int round = 0; round < rounds; round++) {
        mf__fence fence;
        for (int32_t e = 0; e < c->n_experts; e++)
            blobs[e] = e % rounds == round && !(c->every_other && e % 2) ? r->blobs[e] : NULL;
        OK(r->be->submit(r->be, &(mf__run){r->rig->g, *b}, 1, &fence, NULL));
        OK(r->be->wait(r->be, fence, NULL));
    }
}

static void submit(runner *r, const piece *pieces, int n_pieces) {
    void *bufs[MF_MAX_BUFS] = {NULL};
    mf__segment segs[OP_MAX_SEQS];
    int32_t n_rows = 0;
    for (int i = 0; i < n_pieces; i++) {
        const piece *p = &pieces[i];
        bind_state(r, p->seq);
        segs[i] = (mf__segment){.row0 = n_rows,
                                .n_rows = p->n,
                                .pos = r->rig->c->seqs[p->seq].pos + p->done,
                                .state = &r->seqs[p->seq].state};
        n_rows += p->n;
    }
    for (int i = 0; i < r->rig->g->n_bufs; i++) bufs[i] = gather_rows(r, i, pieces, n_pieces, n_rows);
    mf__binding b = {.n_rows = n_rows, .bufs = bufs, .weights = r->weights, .segs = segs, .n_segs = n_pieces};
    submit_rounds(r, &b);
    for (int i = 0; i < r->rig->g->n_bufs; i++) {
        if (r->got->out[i]) scatter_rows(r, i, bufs[i], pieces, n_pieces);
        drop(r->be, bufs[i]);
    }
}

static void run_together(runner *r) {
    piece pieces[OP_MAX_SEQS];
    for (int s = 0; s < r->rig->n_seqs; s++) pieces[s] = (piece){s, 0, r->rig->c->seqs[s].n_rows};
    submit(r, pieces, r->rig->n_seqs);
}

static void run_pieces(runner *r, int s, int32_t length) {
    int32_t n_rows = r->rig->c->seqs[s].n_rows;
    for (piece p = {.seq = s}; p.done < n_rows; p.done += p.n) {
        p.n = n_rows - p.done < length ? n_rows - p.done : length;
        submit(r, &p, 1);
    }
}

static uint32_t draw(uint64_t *random, uint32_t below) {
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*random >> 33) % below;
}

/* Submissions of some of the sequences, in random order, each with all its rows or (cut) some of those that are left: a
 * single one in half of the cases. */
static void run_mixed(runner *r, bool cut) {
    uint64_t random = r->mode->seed;
    int32_t done[OP_MAX_SEQS] = {0};
    for (int left = r->rig->n_seqs; left;) {
        piece pieces[OP_MAX_SEQS];
        int n = 0, first = (int)draw(&random, OP_MAX_SEQS);
        for (int i = 0; i < OP_MAX_SEQS; i++) {
            int s = (first + i) % OP_MAX_SEQS;
            int32_t rest = s < r->rig->n_seqs ? r->rig->c->seqs[s].n_rows - done[s] : 0;
            if (!rest || draw(&random, 3) == 0) continue;
            int32_t some = cut ? draw(&random, 2) ? 1 : 1 + (int32_t)draw(&random, (uint32_t)rest) : rest;
            pieces[n++] = (piece){s, done[s], some};
            done[s] += some;
            left -= some == rest;
        }
        if (n) submit(r, pieces, n);
    }
}

void op_run(const op_rig *rig, mf__backend *be, const op_mode *mode, op_result *got) {
    runner r = {.rig = rig, .be = be, .mode = mode, .got = got};
    const void *blobs[64] = {NULL};
    assert_true(be->supports(be, rig->op));
    if (be->reserve) OK(be->reserve(be, be->scratch ? be->scratch(be, rig->g, rig->n_rows) : 0, NULL));
    for (int i = 0; i < rig->g->n_weights; i++) {
        r.weights[i] = rig->weights[i];
        if (be->adopt) OK(be->adopt(be, &rig->weights[i], &r.weights[i], NULL));
    }
    for (int32_t e = 0; e < rig->c->n_experts; e++)
        blobs[e] = upload(be, rig->blobs + e * rig->layout.bytes, rig->layout.bytes);
    r.blobs = blobs;
    for (int s = 0; s < rig->n_seqs; s++) start_sequence(&r, s);
    if (mode->cut == OP_TOGETHER) run_together(&r);
    if (mode->cut == OP_COMPANY || mode->cut == OP_MIXED) run_mixed(&r, mode->cut == OP_MIXED);
    for (int s = 0; mode->cut < OP_TOGETHER && s < rig->n_seqs; s++) {
        int32_t n = rig->c->seqs[s].n_rows;
        run_pieces(&r, s, mode->cut == OP_ALONE ? n : mode->cut == OP_HALVES ? (n + 1) / 2 : 1);
    }
    for (int s = 0; s < rig->n_seqs; s++) finish_sequence(&r, s);
    for (int32_t e = 0; e < rig->c->n_experts; e++) drop(be, (void *)blobs[e]);
}
