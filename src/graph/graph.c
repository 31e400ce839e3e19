/* Graphs: creation, checks, lifetimes, colouring, placement. Building is in build.c. */
#include "graph/graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"

const char *mf__op_name(mf__op_kind kind) {
    static const char *const names[] = {
#define NAME(id, name, doc) name,
        MF_OPS(NAME)
#undef NAME
    };
    return (unsigned)kind < MF_OP_COUNT ? names[kind] : "unknown";
}

const char *mf__port_name(mf__port port) {
    static const char *const names[] = {
#define NAME(id, name) name,
        MF_PORTS(NAME)
#undef NAME
    };
    return port >= 0 && port < MF_PORT_COUNT ? names[port] : "none";
}

mf_status mf__graph_create(const char *name, mf__graph **out, mf_error *err) {
    *out = NULL;
    mf__graph *g = calloc(1, sizeof *g);
    if (!g) return mf__fail(err, MF_E_NOMEM, "no memory for the graph %s", name);
    g->name = mf__arena_strdup(&g->arena, name);
    if (!g->name) {
        free(g);
        return mf__fail(err, MF_E_NOMEM, "no memory for the graph %s", name);
    }
    *out = g;
    return MF_OK;
}

void mf__graph_free(mf__graph *g) {
    if (!g) return;
    mf__arena_free(&g->arena);
    free(g);
}

/* Interval of a buffer: first writing op .. last reading op. Written but never read: a single point. Only read: an
 * input, which never shares memory. */
static void lifetimes(mf__graph *g) {
    for (int b = 0; b < g->n_bufs; b++) g->bufs[b].first = g->bufs[b].last = -1;
    for (int i = 0; i < g->n_ops; i++) {
        const mf__op *op = &g->ops[i];
        for (int k = 0; k < MF_OP_IN; k++)
            if (op->in[k] >= 0) g->bufs[op->in[k]].last = i;
        for (int k = 0; k < MF_OP_OUT; k++) {
            if (op->out[k] < 0) continue;
            mf__buf_info *b = &g->bufs[op->out[k]];
            if (b->first < 0 && b->last < 0) b->first = i;
            b->last = i;
        }
    }
}

/* Greedy: buffers in order of first write (building order is that order) take the lowest colour that is free. A colour
 * is free when its last use is strictly before: a buffer read by op i never shares with one written by op i. */
static void colour(mf__graph *g) {
    int32_t busy_until[MF_MAX_BUFS];
    g->n_colours = 0;
    for (int i = 0; i < g->n_ops; i++) {
        for (int b = 0; b < g->n_bufs; b++) {
            mf__buf_info *buf = &g->bufs[b];
            if (buf->port != MF_PORT_NONE || buf->first != i) continue;
            int c = 0;
            while (c < g->n_colours && busy_until[c] >= i) c++;
            if (c == g->n_colours) g->colour_cols[g->n_colours++] = 0;
            busy_until[c] = buf->last;
            buf->colour = c;
            if (g->colour_cols[c] < buf->cols) g->colour_cols[c] = buf->cols;
        }
    }
}

mf_status mf__graph_finish(mf__graph *g, mf_error *err) {
    if (g->error.status != MF_OK) return mf__fail(err, g->error.status, "graph %s: %s", g->name, g->error.text);
    lifetimes(g);
    for (int b = 0; b < g->n_bufs; b++) {
        const mf__buf_info *buf = &g->bufs[b];
        if (buf->port == MF_PORT_NONE && buf->first < 0 && buf->last >= 0)
            return mf__fail(err, MF_E_INTERNAL, "graph %s: buffer %d (%s) is read but never written", g->name, b,
                            buf->label);
        for (int o = 0; o < b; o++)
            if (buf->port != MF_PORT_NONE && g->bufs[o].port == buf->port)
                return mf__fail(err, MF_E_INTERNAL, "graph %s: port %s is used twice", g->name,
                                mf__port_name(buf->port));
    }
    colour(g);
    g->finished = true;
    return MF_OK;
}

static bool changes_state(const mf__op *op) {
    return op->kind == MF_OP_KV_APPEND || op->kind == MF_OP_CONV1D || op->kind == MF_OP_DELTA_NET ||
           op->kind == MF_OP_SSM || op->kind == MF_OP_COMPRESS;
}

mf_status mf__graph_state_part(const mf__graph *g, mf__graph **out, mf_error *err) {
    bool needed[MF_MAX_BUFS] = {false}, keep[MF_MAX_OPS];
    MF__TRY(mf__graph_create(g->name, out, err));
    mf__graph *part = *out;
    memcpy(part->bufs, g->bufs, sizeof part->bufs);
    memcpy(part->weights, g->weights, sizeof part->weights);
    part->n_bufs = g->n_bufs;
    part->n_weights = g->n_weights;
    for (int i = g->n_ops - 1; i >= 0; i--) {
        const mf__op *op = &g->ops[i];
        keep[i] = changes_state(op);
        for (int k = 0; k < MF_OP_OUT; k++) keep[i] = keep[i] || (op->out[k] >= 0 && needed[op->out[k]]);
        for (int k = 0; keep[i] && k < MF_OP_IN; k++)
            if (op->in[k] >= 0) needed[op->in[k]] = true;
    }
    for (int i = 0; i < g->n_ops; i++)
        if (keep[i]) part->ops[part->n_ops++] = g->ops[i];
    for (int b = 0; b < part->n_bufs; b++)
        if (part->bufs[b].port == MF_PORT_NONE) part->bufs[b].colour = 0; /* also of those that nobody uses any more */
    return mf__graph_finish(part, err);
}

static int64_t colour_bytes(const mf__graph *g, int c, int32_t n_rows) {
    return ((int64_t)g->colour_cols[c] * 4 * n_rows + 63) / 64 * 64;
}

int64_t mf__graph_scratch_bytes(const mf__graph *g, int32_t n_rows) {
    int64_t total = 0;
    for (int c = 0; c < g->n_colours; c++) total += colour_bytes(g, c, n_rows);
    return total;
}

void mf__graph_place(const mf__graph *g, int32_t n_rows, void *scratch, void **addr) {
    int64_t offset[MF_MAX_BUFS + 1];
    offset[0] = 0;
    for (int c = 0; c < g->n_colours; c++) offset[c + 1] = offset[c] + colour_bytes(g, c, n_rows);
    for (int b = 0; b < g->n_bufs; b++)
        if (g->bufs[b].port == MF_PORT_NONE) addr[b] = (char *)scratch + offset[g->bufs[b].colour];
}

static bool dump_ids(mf__strbuf *s, const mf__graph *g, const int16_t *ids, int n) {
    for (int k = 0; k < n; k++) {
        if (ids[k] < 0) continue;
        const mf__buf_info *b = &g->bufs[ids[k]];
        mf_status st = b->port != MF_PORT_NONE ? mf__strbuf_printf(s, NULL, " %s", mf__port_name(b->port))
                                               : mf__strbuf_printf(s, NULL, " %%%d", ids[k]);
        if (st) return false;
    }
    return true;
}

char *mf__graph_dump(const mf__graph *g) {
    mf__strbuf s = {0};
    for (int i = 0; i < g->n_ops; i++) {
        const mf__op *op = &g->ops[i];
        if (mf__strbuf_printf(&s, NULL, "%3d  %-14s %-16s", i, mf__op_name(op->kind), op->label) ||
            !dump_ids(&s, g, op->in, MF_OP_IN) || mf__strbuf_append(&s, " ->", 3, NULL) ||
            !dump_ids(&s, g, op->out, MF_OP_OUT) || mf__strbuf_append(&s, "\n", 1, NULL)) {
            mf__strbuf_free(&s);
            return NULL;
        }
    }
    if (!s.data) return calloc(1, 1);
    return s.data;
}
