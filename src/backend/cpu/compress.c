/* Attention over the newest rows and over compressed ones; ref/compress.c has the formulas.
 *
 * Compressing: windows are shared out, each by one thread. Attending: every row is a sequence of its own for attend.c,
 * whose keys are the rows that it sees, in order. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

/* ---- compressing ------------------------------------------------------------------------------------------------- */

typedef struct windows {
    const mf__cpu_run *r;
    const mf__segment *seg;
    int64_t first; /* the row of the segment that completes the first window; may be behind its end */
    char *threads; /* a row, and for each of its channels a maximum and a sum */
    int64_t thread_bytes;
} windows;

static int32_t row_cols(const mf__op *op) {
    return op->p.compress.width[0] + (op->p.compress.n_parts > 1 ? op->p.compress.width[1] : 0);
}

int64_t mf__cpu_compress_scratch(int threads, const mf__op *op) {
    return threads * mf__cpu_round(3 * (int64_t)row_cols(op) * 4);
}

static const float *input_row(const windows *w, int64_t row) {
    int64_t cols = mf__cpu_in_cols(w->r, 0);
    int32_t kept = mf__compress_kept(&w->r->op->p);
    return row < 0 ? w->seg->state->conv_in + (row + kept) * cols : mf__cpu_in(w->r, 0) + (w->seg->row0 + row) * cols;
}

/* One part of the window whose last row is `last`; its a begins at column `at`. */
static void pool_part(const windows *w, int64_t last, int part, int32_t at, float *row, float *max, float *total) {
    const mf__op_params *p = &w->r->op->p;
    const float *ape = mf__cpu_weights(w->r, 1 + 2 * part);
    int32_t width = p->compress.width[part], halves = p->compress.overlap ? 2 : 1, step = p->compress.step;
    bool before = p->compress.overlap && w->seg->pos + last + 1 > step;
    for (int32_t c = 0; c < width; c++) row[c] = total[c] = 0, max[c] = -FLT_MAX;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = before ? -step : 0; i < step; i++) {
            int32_t half = i >= 0 && p->compress.overlap ? width : 0, phase = i < 0 ? i + step : i;
            const float *a = input_row(w, last - step + 1 + i) + at + half, *g = a + halves * width;
            const float *bias = ape + (int64_t)phase * halves * width + half;
            for (int32_t c = 0; pass == 0 && c < width; c++) max[c] = fmaxf(max[c], g[c] + bias[c]);
            for (int32_t c = 0; pass == 1 && c < width; c++) {
                float e = expf(g[c] + bias[c] - max[c]);
                total[c] += e;
                row[c] += e * a[c];
            }
        }
    for (int32_t c = 0; c < width; c++) row[c] /= total[c];
}

static void norm_and_turn(const mf__cpu_run *r, int part, int64_t pos, float *row) {
    const mf__op_params *p = &r->op->p;
    const float *inv_freq = mf__cpu_weights(r, 0);
    int32_t width = p->compress.width[part], n_rot = p->compress.n_rot;
    r->k->rms_norm(row, mf__cpu_weights(r, 2 + 2 * part), p->compress.eps, width, row);
    for (int32_t i = 0; i < n_rot / 2; i++) {
        float angle = (float)pos * inv_freq[i], cosine = cosf(angle), sine = sinf(angle);
        float *at = row + width - n_rot + 2 * i, a = at[0], b = at[1];
        at[0] = a * cosine - b * sine;
        at[1] = a * sine + b * cosine;
    }
}

static void compress_windows(void *ctx, int64_t begin, int64_t end, int thread) {
    const windows *w = ctx;
    const mf__op_params *p = &w->r->op->p;
    const mf__kv *kv = &w->seg->state->kv;
    int32_t cols = row_cols(w->r->op);
    float *row = (float *)(void *)(w->threads + thread * w->thread_bytes);
    for (int64_t i = begin; i < end; i++) {
        int64_t last = w->first + i * p->compress.step, first = w->seg->pos + last - p->compress.step + 1;
        int32_t at = 0, out = 0;
        for (int part = 0; part < p->compress.n_parts; part++) {
            pool_part(w, last, part, at, row + out, row + cols, row + 2 * cols);
            norm_and_turn(w->r, part, first, row + out);
            at += 2 * (p->compress.overlap ? 2 : 1) * p->compress.width[part];
            out += p->compress.width[part];
        }
        w->r->k->kv_encode(kv->type, row, kv->v_cols, mf__kv_v(kv, first));
    }
}

mf_status mf__cpu_compress(mf__cpu_run *r, mf_error *err) {
    const mf__op_params *p = &r->op->p;
    int32_t kept = mf__compress_kept(p), step = p->compress.step;
    int64_t cols = mf__cpu_in_cols(r, 0);
    windows w = {.r = r, .thread_bytes = mf__cpu_round(3 * (int64_t)row_cols(r->op) * 4)};
    w.threads = mf__cpu_take(&r->scratch, mf__pool_threads(r->pool) * w.thread_bytes);
    if (!w.threads) return mf__fail(err, MF_E_INTERNAL, "no scratch for compressing in graph %s", r->g->name);
    for (int32_t s = 0; s < r->b->n_segs; s++) {
        w.seg = &r->b->segs[s];
        w.first = step - 1 - w.seg->pos % step;
        int64_t n = (w.seg->pos + w.seg->n_rows) / step - w.seg->pos / step;
        mf__pool_run(n < 2 ? NULL : r->pool, compress_windows, &w, n);
        for (int32_t k = 0; k < kept; k++) /* going up, a row is read before it is overwritten */
            memmove(w.seg->state->conv_out + k * cols, input_row(&w, w.seg->n_rows - kept + k),
                    (size_t)cols * sizeof(float));
    }
    return MF_OK;
}

/* ---- attending --------------------------------------------------------------------------------------------------- */

#define ROWS 32 /* at a time */

/* seq->picks.block is not used: picks are compressed rows. kv_head holds how many K rows come first. */
static void seen_tile(const mf__cpu_attend *a, const mf__cpu_seq *seq, int32_t kv_head, int thread, float *mem,
                      mf__cpu_keys *keys) {
    const mf__kv *kv = seq->kv;
    const int64_t *pos = a->ctx;
    int64_t near = seq->kv_head, at = pos[seq - a->seqs];
    (void)kv_head, (void)thread;
    for (int32_t i = 0; i < keys->n; i++) {
        int64_t k = keys->first + i, far = k - near;
        if (k >= near && seq->picks.ids) far = seq->picks.ids[far];
        if (k < near)
            a->r->k->kv_decode(kv->type, mf__kv_k(kv, at - near + 1 + k), kv->k_cols, 0, a->k_dim, mem + i * a->k_dim);
        else
            a->r->k->kv_decode(kv->type, mf__kv_v(kv, far * a->r->op->p.far.step), kv->v_cols, 0, a->k_dim,
                               mem + i * a->k_dim);
    }
    keys->k = keys->v = mem;
    keys->k_stride = keys->v_stride = a->k_dim;
}

static mf__cpu_attend attend_of(const mf__op *op) {
    return (mf__cpu_attend){.n_heads = op->p.far.n_heads,
                            .n_kv_heads = 1,
                            .k_dim = op->p.far.dim,
                            .v_dim = op->p.far.dim,
                            .scale = op->p.far.scale,
                            .item_vectors = 2,
                            .tile = seen_tile,
                            .tile_floats = (int64_t)MF_CPU_KEYS * op->p.far.dim};
}

int64_t mf__cpu_far_scratch(const mf__cpu_kernels *k, int threads, const mf__op *op) {
    mf__cpu_attend a = attend_of(op);
    return mf__cpu_attend_bytes(k, threads, &a, ROWS);
}

mf_status mf__cpu_far_attention(mf__cpu_run *r, mf_error *err) {
    const mf__op_params *p = &r->op->p;
    mf__cpu_attend a = attend_of(r->op);
    mf__cpu_seq seqs[ROWS];
    int64_t pos[ROWS], cols = (int64_t)p->far.n_heads * p->far.dim;
    const int32_t *picks = r->op->in[1] < 0 ? NULL : r->b->bufs[r->op->in[1]];
    a.r = r;
    a.sinks = mf__cpu_weights(r, 0);
    a.seqs = seqs;
    a.ctx = pos;
    int32_t s = 0;
    for (int64_t row = 0; row < r->b->n_rows; row++) {
        while (row >= r->b->segs[s].row0 + r->b->segs[s].n_rows) s++;
        const mf__segment *seg = &r->b->segs[s];
        int64_t at = pos[a.n_seqs] = seg->pos + row - seg->row0;
        const int32_t *ids = picks ? picks + row * p->far.n_picks : NULL;
        seqs[a.n_seqs++] = (mf__cpu_seq){.kv = &seg->state->kv,
                                         .pos = mf__far_seen(p, ids, at) - 1,
                                         .n_rows = 1,
                                         .q = mf__cpu_in(r, 0) + row * cols,
                                         .o = mf__cpu_out(r, 0) + row * cols,
                                         .picks = {.ids = ids},
                                         .kv_head = (int32_t)mf__far_near(p, at)};
        if (a.n_seqs < ROWS && row + 1 < r->b->n_rows) continue;
        MF__TRY(mf__cpu_attend_rows(&a, r->scratch, err));
        a.n_seqs = 0;
    }
    return MF_OK;
}
