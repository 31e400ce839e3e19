/* Multi-head latent attention; ref/mla.c has the formulas.
 *
 * Absorbed: the queries of a few rows go down to the latent, all heads of a row lie in the lanes and share the cached
 * rows as they are, and what comes out of the latent goes up again.
 *   q [nope | rope] -> W_UK^T -> [latent | rope] -> attend over [latent | rope] -> z [latent] -> W_UV -> o
 * Unabsorbed: a head's keys and values are made a tile at a time, for all rows of the segment.
 * Matrices are decoded to f32, a head at a time; they are small beside what they are multiplied with. */
#include <string.h>

#include "backend/cpu/cpu.h"

#define WAVE 16            /* rows whose queries are absorbed together */
#define ABSORBED_VECTORS 2 /* of an item: few, or a short context makes too few items */
#define DECODED 32         /* rows of a head's matrices that are decoded together */
#define FEW_ROWS 4         /* of queries: fewer take so many at a time, which stay in the first cache */

typedef struct latent {
    const mf__cpu_run *r;
    const mf__tensor *uk, *uv; /* uv NULL: both are in uk, which is kv_b */
    int32_t heads, n, nope, rope, v_dim;
    char *threads; /* some rows of a head's matrices, or all of them */
    int64_t thread_bytes;
    /* absorbed: a wave of rows from row0 on */
    int64_t row0;
    int32_t n_rows;
    float *q; /* [n_rows][heads][n + rope] */
    float *z; /* [n_rows][heads][n] */
    /* unabsorbed */
    int32_t *loaded; /* [threads] the head whose matrices a thread has, or -1 */
} latent;

static latent latent_of(const mf__op *op) {
    return (latent){.heads = op->p.mla.n_heads,
                    .n = op->p.mla.n_latent,
                    .nope = op->p.mla.n_nope,
                    .rope = op->p.mla.n_rope,
                    .v_dim = op->p.mla.v_dim};
}

/* Row i of W_UV, or of W_UK where that is not stored transposed. */
static void decode_up(const latent *l, int32_t head, int32_t i, bool value, float *out) {
    const mf__tensor *w = value && l->uv ? l->uv : l->uk;
    int64_t row =
        l->uv ? (int64_t)head * l->v_dim + i : (int64_t)head * (l->nope + l->v_dim) + (value ? l->nope : 0) + i;
    l->r->k->decode_row(w, row, out);
}

/* ---- absorbed ---------------------------------------------------------------------------------------------------- */

/* Rows [i, i + n) of what decode_up has, or of W_UK where that is stored transposed, and how far they are apart. */
static int64_t decode_some(const latent *l, int32_t head, int32_t i, int32_t n, bool value, float *rows) {
    int64_t stride = !value && l->uv ? l->nope : l->n;
    for (int32_t k = 0; k < n; k++)
        if (!value && l->uv)
            l->r->k->decode_row(l->uk, (int64_t)head * l->n + i + k, rows + k * stride);
        else
            decode_up(l, head, i + k, value, rows + k * stride);
    return stride;
}

static int32_t decoded_together(const latent *l) {
    return l->n_rows < FEW_ROWS ? FEW_ROWS : DECODED;
}

/* q' = W_UK^T q_nope, and the rotated part behind it. Items are heads. */
static void absorb_heads(void *ctx, int64_t begin, int64_t end, int thread) {
    const latent *l = ctx;
    const mf__cpu_kernels *k = l->r->k;
    int64_t q_dim = l->nope + l->rope, k_dim = l->n + l->rope, q_step = l->heads * q_dim, k_step = l->heads * k_dim;
    float *rows = (float *)(void *)(l->threads + thread * l->thread_bytes);
    int32_t all = l->uv ? l->n : l->nope, most = decoded_together(l), n;
    for (int64_t h = begin; h < end; h++) {
        const float *q = mf__cpu_in(l->r, 0) + l->row0 * q_step + h * q_dim;
        float *to = l->q + h * k_dim;
        for (int32_t t = 0; t < l->n_rows; t++) {
            memset(to + t * k_step, 0, (size_t)l->n * sizeof *to);
            memcpy(to + t * k_step + l->n, q + t * q_step + l->nope, (size_t)l->rope * sizeof *to);
        }
        for (int32_t i = 0; i < all; i += n) {
            n = all - i < most ? all - i : most;
            int64_t stride = decode_some(l, (int32_t)h, i, n, false, rows);
            mf__cpu_cross c = {rows, stride, n, l->uv ? q : q + i, q_step, l->n_rows, stride, to, k_step};
            if (l->uv) c.y += i, k->cross(&c);
            if (!l->uv && l->n_rows >= FEW_ROWS) k->mix_rows(&c);
            for (int32_t t = 0; !l->uv && l->n_rows < FEW_ROWS && t < l->n_rows; t++)
                for (int32_t j = 0; j < n; j++)
                    k->axpy(q[t * q_step + i + j], rows + j * stride, l->n, to + t * k_step);
        }
    }
}

/* o = W_UV z. Items are heads. */
static void lift_heads(void *ctx, int64_t begin, int64_t end, int thread) {
    const latent *l = ctx;
    int64_t z_step = (int64_t)l->heads * l->n, o_step = (int64_t)l->heads * l->v_dim;
    float *rows = (float *)(void *)(l->threads + thread * l->thread_bytes);
    int32_t most = decoded_together(l);
    for (int64_t h = begin; h < end; h++) {
        float *o = mf__cpu_out(l->r, 0) + l->row0 * o_step + h * l->v_dim;
        for (int32_t i = 0, n; i < l->v_dim; i += n) {
            n = l->v_dim - i < most ? l->v_dim - i : most;
            int64_t stride = decode_some(l, (int32_t)h, i, n, true, rows);
            l->r->k->cross(&(mf__cpu_cross){rows, stride, n, l->z + h * l->n, z_step, l->n_rows, l->n, o + i, o_step});
        }
    }
}

/* Cached rows as keys [latent | rope]; their latents are the values. */
static void latent_tile(const mf__cpu_attend *a, const mf__cpu_seq *seq, int32_t kv_head, int thread, float *mem,
                        mf__cpu_keys *keys) {
    const mf__kv *kv = seq->kv;
    (void)kv_head, (void)thread;
    for (int32_t i = 0; i < keys->n; i++) {
        float *row = mem + (int64_t)i * a->k_dim;
        int64_t pos = mf__picks_row(&seq->picks, keys->first + i);
        a->r->k->kv_decode(kv->type, mf__kv_k(kv, pos), kv->k_cols, 0, kv->k_cols, row);
        a->r->k->kv_decode(kv->type, mf__kv_v(kv, pos), kv->v_cols, 0, a->k_dim - kv->k_cols, row + kv->k_cols);
    }
    keys->k = keys->v = mem;
    keys->k_stride = keys->v_stride = a->k_dim;
}

static mf__cpu_attend absorbed_attend(const mf__op *op) {
    int32_t k_dim = op->p.mla.n_latent + op->p.mla.n_rope;
    return (mf__cpu_attend){.n_heads = op->p.mla.n_heads,
                            .n_kv_heads = 1,
                            .k_dim = k_dim,
                            .v_dim = op->p.mla.n_latent,
                            .scale = op->p.mla.scale,
                            .item_vectors = ABSORBED_VECTORS,
                            .tile = latent_tile,
                            .tile_floats = (int64_t)MF_CPU_KEYS * k_dim};
}

static int64_t absorbed_thread_bytes(const latent *l) {
    return mf__cpu_round((int64_t)DECODED * (l->n > l->nope ? l->n : l->nope) * 4);
}

static int64_t absorbed_bytes(const mf__cpu_kernels *k, int threads, const mf__op *op, int32_t n_rows) {
    latent l = latent_of(op);
    mf__cpu_attend a = absorbed_attend(op);
    int32_t rows = n_rows < WAVE ? n_rows : WAVE;
    int64_t wave = (int64_t)rows * l.heads;
    return threads * absorbed_thread_bytes(&l) + mf__cpu_round(wave * (l.n + l.rope) * 4) +
           mf__cpu_round(wave * l.n * 4) + mf__cpu_attend_bytes(k, threads, &a, rows);
}

static mf_status no_scratch(const mf__cpu_run *r, mf_error *err) {
    return mf__fail(err, MF_E_INTERNAL, "no scratch for latent attention in graph %s", r->g->name);
}

/* Whether some row of the segment sees less than all. */
static bool picks_matter(const mf__op *op, const mf__segment *seg) {
    return op->in[1] >= 0 && seg->pos + seg->n_rows > op->p.mla.n_picks;
}

/* n_rows rows from row0 on, of the segments from seg on, all absorbed. */
static mf_status run_wave(latent l, int32_t seg, int64_t row0, int32_t n_rows, mf_error *err) {
    const mf__cpu_run *r = l.r;
    mf__cpu_bump scratch = r->scratch;
    mf__cpu_attend a = absorbed_attend(r->op);
    l.row0 = row0;
    l.n_rows = n_rows;
    l.thread_bytes = absorbed_thread_bytes(&l);
    l.threads = mf__cpu_take(&scratch, mf__pool_threads(r->pool) * l.thread_bytes);
    l.q = mf__cpu_take(&scratch, (int64_t)n_rows * l.heads * a.k_dim * 4);
    l.z = mf__cpu_take(&scratch, (int64_t)n_rows * l.heads * l.n * 4);
    if (!l.threads || !l.q || !l.z) return no_scratch(r, err);
    mf__pool_run(r->pool, absorb_heads, &l, l.heads);
    mf__cpu_seq seqs[WAVE];
    a.r = r;
    a.seqs = seqs;
    for (int64_t row = row0; row < row0 + n_rows;) {
        const mf__segment *s = &r->b->segs[seg];
        int64_t left = row0 + n_rows - row, in_segment = s->row0 + s->n_rows - row;
        mf__cpu_seq *seq = &seqs[a.n_seqs++];
        *seq = (mf__cpu_seq){.kv = &s->state->kv,
                             .pos = s->pos + row - s->row0,
                             .n_rows = (int32_t)(left < in_segment ? left : in_segment),
                             .q = l.q + (row - row0) * l.heads * a.k_dim,
                             .o = l.z + (row - row0) * l.heads * l.n};
        if (picks_matter(r->op, s)) {
            const int32_t *picks = r->b->bufs[r->op->in[1]];
            int32_t n_picks = r->op->p.mla.n_picks;
            seq->picks = mf__picks_of(picks + row * n_picks, n_picks, 1, seq->pos);
            seq->pos = seq->picks.n_rows - 1;
            seq->n_rows = 1;
        }
        row += seq->n_rows;
        if (row == s->row0 + s->n_rows) seg++;
    }
    MF__TRY(mf__cpu_attend_rows(&a, scratch, err));
    mf__pool_run(r->pool, lift_heads, &l, l.heads);
    return MF_OK;
}

/* ---- unabsorbed -------------------------------------------------------------------------------------------------- */

/* A power of two as a stride would put all rows in the same cache sets. */
static int64_t matrix_stride(const latent *l) {
    return l->n + 16;
}

/* A thread's matrices, W_UK then W_UV [nope + v_dim][stride], and one row of the transposed spelling. */
static int64_t matrices_bytes(const latent *l) {
    return mf__cpu_round((l->nope + l->v_dim) * matrix_stride(l) * 4) + mf__cpu_round(l->nope * 4);
}

static void load_matrices(const latent *l, int32_t head, float *w) {
    int64_t stride = matrix_stride(l);
    float *row = w + mf__cpu_round((l->nope + l->v_dim) * stride * 4) / 4;
    for (int32_t i = 0; !l->uv && i < l->nope; i++) decode_up(l, head, i, false, w + i * stride);
    for (int32_t c = 0; l->uv && c < l->n; c++) {
        l->r->k->decode_row(l->uk, (int64_t)head * l->n + c, row);
        for (int32_t i = 0; i < l->nope; i++) w[i * stride + c] = row[i];
    }
    for (int32_t i = 0; i < l->v_dim; i++) decode_up(l, head, i, true, w + (l->nope + i) * stride);
}

/* Keys [nope | rope] and values of one head, made from the latents. mem: keys, values, latents. */
static void expanded_tile(const mf__cpu_attend *a, const mf__cpu_seq *seq, int32_t head, int thread, float *mem,
                          mf__cpu_keys *keys) {
    const latent *l = a->ctx;
    const mf__cpu_kernels *k = l->r->k;
    const mf__kv *kv = seq->kv;
    int64_t stride = matrix_stride(l);
    float *w = (float *)(void *)(l->threads + thread * l->thread_bytes);
    float *values = mem + (int64_t)MF_CPU_KEYS * a->k_dim, *latents = values + (int64_t)MF_CPU_KEYS * l->v_dim;
    if (l->loaded[thread] != head) load_matrices(l, head, w);
    l->loaded[thread] = head;
    for (int32_t i = 0; i < keys->n; i++) {
        int64_t pos = keys->first + i;
        k->kv_decode(kv->type, mf__kv_k(kv, pos), kv->k_cols, 0, l->n, latents + (int64_t)i * l->n);
        k->kv_decode(kv->type, mf__kv_v(kv, pos), kv->v_cols, 0, l->rope, mem + (int64_t)i * a->k_dim + l->nope);
    }
    k->cross(&(mf__cpu_cross){w, stride, l->nope, latents, l->n, keys->n, l->n, mem, a->k_dim});
    k->cross(&(mf__cpu_cross){w + l->nope * stride, stride, l->v_dim, latents, l->n, keys->n, l->n, values, l->v_dim});
    keys->k = mem, keys->v = values;
    keys->k_stride = a->k_dim, keys->v_stride = l->v_dim;
}

static mf__cpu_attend expanded_attend(const mf__op *op) {
    int32_t k_dim = op->p.mla.n_nope + op->p.mla.n_rope, v_dim = op->p.mla.v_dim;
    return (mf__cpu_attend){.n_heads = op->p.mla.n_heads,
                            .n_kv_heads = op->p.mla.n_heads,
                            .k_dim = k_dim,
                            .v_dim = v_dim,
                            .scale = op->p.mla.scale,
                            .item_vectors = MF_CPU_MAX_VECTORS,
                            .tile = expanded_tile,
                            .tile_floats = (int64_t)MF_CPU_KEYS * (k_dim + v_dim + op->p.mla.n_latent)};
}

static int64_t expanded_bytes(const mf__cpu_kernels *k, int threads, const mf__op *op) {
    latent l = latent_of(op);
    mf__cpu_attend a = expanded_attend(op);
    return mf__cpu_round(threads * (int64_t)sizeof *l.loaded) + threads * matrices_bytes(&l) +
           mf__cpu_attend_bytes(k, threads, &a, 1);
}

static mf_status run_expanded(latent l, const mf__segment *seg, mf_error *err) {
    const mf__cpu_run *r = l.r;
    int threads = mf__pool_threads(r->pool);
    mf__cpu_bump scratch = r->scratch;
    mf__cpu_attend a = expanded_attend(r->op);
    l.thread_bytes = matrices_bytes(&l);
    l.loaded = mf__cpu_take(&scratch, threads * (int64_t)sizeof *l.loaded);
    l.threads = mf__cpu_take(&scratch, threads * l.thread_bytes);
    if (!l.loaded || !l.threads) return no_scratch(r, err);
    for (int i = 0; i < threads; i++) l.loaded[i] = -1;
    a.r = r;
    a.ctx = &l;
    mf__cpu_seq seq = {.kv = &seg->state->kv,
                       .pos = seg->pos,
                       .n_rows = seg->n_rows,
                       .q = mf__cpu_in(r, 0) + (int64_t)seg->row0 * l.heads * a.k_dim,
                       .o = mf__cpu_out(r, 0) + (int64_t)seg->row0 * l.heads * a.v_dim};
    a.seqs = &seq;
    a.n_seqs = 1;
    return mf__cpu_attend_rows(&a, scratch, err);
}

/* ---- the op ------------------------------------------------------------------------------------------------------ */

int64_t mf__cpu_mla_scratch(const mf__cpu_kernels *k, int threads, const mf__op *op, int32_t n_rows) {
    int64_t absorbed = absorbed_bytes(k, threads, op, n_rows), expanded = expanded_bytes(k, threads, op);
    return absorbed > expanded ? absorbed : expanded;
}

static bool is_absorbed(const mf__op *op, const mf__segment *seg) {
    return picks_matter(op, seg) || mf__mla_choose(&op->p, seg->pos, seg->n_rows) == MF_MLA_ABSORBED;
}

mf_status mf__cpu_mla_attention(mf__cpu_run *r, mf_error *err) {
    latent l = latent_of(r->op);
    l.r = r;
    l.uk = &r->b->weights[r->op->w[0]];
    l.uv = r->op->w[1] < 0 ? NULL : &r->b->weights[r->op->w[1]];
    for (int32_t s = 0; s < r->b->n_segs;) {
        const mf__segment *segs = r->b->segs;
        if (!is_absorbed(r->op, &segs[s])) {
            MF__TRY(run_expanded(l, &segs[s++], err));
            continue;
        }
        if (segs[s].n_rows > WAVE) { /* a segment of its own, so that how it is cut depends on nothing else */
            for (int32_t done = 0; done < segs[s].n_rows; done += WAVE) {
                int32_t left = segs[s].n_rows - done;
                MF__TRY(run_wave(l, s, segs[s].row0 + done, left < WAVE ? left : WAVE, err));
            }
            s++;
            continue;
        }
        int32_t first = s, n_rows = 0; /* short ones together: the matrices are decoded once */
        while (s < r->b->n_segs && n_rows + segs[s].n_rows <= WAVE && is_absorbed(r->op, &segs[s]))
            n_rows += segs[s++].n_rows;
        MF__TRY(run_wave(l, first, segs[first].row0, n_rows, err));
    }
    return MF_OK;
}
