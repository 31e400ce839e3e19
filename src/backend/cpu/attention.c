/* Softmax attention with a KV cache: rotary positions, append, attend. The walk over the keys is attend.c. */
#include <math.h>

#include "backend/cpu/cpu.h"

/* ---- positions --------------------------------------------------------------------------------------------------- */

static void rope_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const mf__op_params *p = &r->op->p;
    const float *inv_freq = mf__cpu_weights(r, 0);
    int32_t half = p->rope.n_rot / 2, s = 0, step = p->rope.interleaved ? 2 : 1;
    int32_t apart = p->rope.interleaved ? 1 : half;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        while (t >= r->b->segs[s].row0 + r->b->segs[s].n_rows) s++;
        float *row = mf__cpu_out(r, 0) + t * p->rope.n_heads * p->rope.head_dim + p->rope.offset;
        float pos = (float)(r->b->segs[s].pos + t - r->b->segs[s].row0);
        for (int32_t i = 0; i < half; i++) {
            float angle = pos * inv_freq[i], cosine = cosf(angle) * p->rope.scale;
            float sine = sinf(p->rope.back ? -angle : angle) * p->rope.scale;
            for (int32_t h = 0; h < p->rope.n_heads; h++) {
                float *at = row + (int64_t)h * p->rope.head_dim + i * step, a = at[0], b = at[apart];
                at[0] = a * cosine - b * sine;
                at[apart] = a * sine + b * cosine;
            }
        }
    }
}

mf_status mf__cpu_rope(mf__cpu_run *r, mf_error *err) {
    (void)err;
    mf__pool_run(r->b->n_rows < 4 ? NULL : r->pool, rope_rows, r, r->b->n_rows);
    return MF_OK;
}

/* ---- cache ------------------------------------------------------------------------------------------------------- */

static void append_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__cpu_run *r = ctx;
    const float *k = mf__cpu_in(r, 0), *v = mf__cpu_in(r, 1);
    int32_t s = 0;
    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        while (t >= r->b->segs[s].row0 + r->b->segs[s].n_rows) s++;
        const mf__kv *kv = &r->b->segs[s].state->kv;
        int64_t pos = r->b->segs[s].pos + t - r->b->segs[s].row0;
        r->k->kv_encode(kv->type, k + t * kv->k_cols, kv->k_cols, mf__kv_k(kv, pos));
        if (v) r->k->kv_encode(kv->type, v + t * kv->v_cols, kv->v_cols, mf__kv_v(kv, pos));
    }
}

mf_status mf__cpu_kv_append(mf__cpu_run *r, mf_error *err) {
    (void)err;
    mf__pool_run(r->b->n_rows < 16 ? NULL : r->pool, append_rows, r, r->b->n_rows);
    return MF_OK;
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static void fetch(const void *row, int64_t first, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += MF_CPU_LINE) __builtin_prefetch((const char *)row + first + i);
}

/* The columns of one kv head, where they lie or decoded; of a decoded tile the next one is fetched here. */
static void head_tile(const mf__cpu_attend *a, const mf__cpu_seq *seq, int32_t kv_head, int thread, float *mem,
                      mf__cpu_keys *keys) {
    const mf__kv *kv = seq->kv;
    int32_t dim = a->k_dim, v_dim = a->v_dim, at = kv_head * dim, v_at = kv_head * v_dim;
    float *v = mem + (int64_t)MF_CPU_KEYS * dim;
    (void)thread;
    keys->f16 = keys->few && kv->type == MF_TYPE_F16;
    if (kv->type == MF_TYPE_F32 || keys->f16) {
        int64_t size = keys->f16 ? 2 : 4, end = keys->first + keys->n, left = seq->pos + seq->n_rows - end;
        int64_t in_block = (kv->block_rows - end % kv->block_rows) % kv->block_rows;
        keys->k = (const char *)mf__kv_k(kv, keys->first) + at * size;
        keys->v = (const char *)mf__kv_v(kv, keys->first) + v_at * size;
        keys->k_stride = kv->k_bytes / size;
        keys->v_stride = kv->v_bytes / size;
        keys->in_place = true;
        if (left > in_block) left = in_block;
        keys->n_next = left < MF_CPU_KEYS ? (int32_t)left : MF_CPU_KEYS;
        return;
    }
    for (int32_t i = 0; i < keys->n; i++) {
        a->r->k->kv_decode(kv->type, mf__kv_k(kv, keys->first + i), kv->k_cols, at, dim, mem + (int64_t)i * dim);
        a->r->k->kv_decode(kv->type, mf__kv_v(kv, keys->first + i), kv->v_cols, v_at, v_dim, v + (int64_t)i * v_dim);
        int64_t next = keys->first + i + MF_CPU_KEYS, size = kv->type == MF_TYPE_F16 ? 2 : 1;
        if (next >= seq->pos + seq->n_rows) continue;
        fetch(mf__kv_k(kv, next), at * size, dim * size);
        fetch(mf__kv_v(kv, next), v_at * size, v_dim * size);
    }
    keys->k = mem, keys->v = v;
    keys->k_stride = dim, keys->v_stride = v_dim;
}

/* The same of rows that were picked: always decoded. */
static void picked_tile(const mf__cpu_attend *a, const mf__cpu_seq *seq, int32_t kv_head, int thread, float *mem,
                        mf__cpu_keys *keys) {
    const mf__kv *kv = seq->kv;
    int32_t head = seq->kv_head + kv_head;
    float *v = mem + (int64_t)MF_CPU_KEYS * a->k_dim;
    (void)thread;
    for (int32_t i = 0; i < keys->n; i++) {
        int64_t row = mf__picks_row(&seq->picks, keys->first + i);
        a->r->k->kv_decode(kv->type, mf__kv_k(kv, row), kv->k_cols, head * a->k_dim, a->k_dim, mem + i * a->k_dim);
        a->r->k->kv_decode(kv->type, mf__kv_v(kv, row), kv->v_cols, head * a->v_dim, a->v_dim, v + i * a->v_dim);
    }
    keys->k = mem, keys->v = v;
    keys->k_stride = a->k_dim, keys->v_stride = a->v_dim;
}

static mf__cpu_attend attend_of(const mf__op *op) {
    int32_t dim = op->p.attn.head_dim, v_dim = mf__op_v_dim(&op->p);
    return (mf__cpu_attend){.n_heads = op->p.attn.n_heads,
                            .n_kv_heads = op->p.attn.n_kv_heads,
                            .k_dim = dim,
                            .v_dim = v_dim,
                            .scale = op->p.attn.scale,
                            .window = op->p.attn.window,
                            .chunked = op->p.attn.chunked,
                            .item_vectors = 8,
                            .tile = head_tile,
                            .tile_floats = (int64_t)MF_CPU_KEYS * (dim + v_dim)};
}

/* With picks: the heads of one list, each list of each row as a sequence of its own. */
#define PICKED 64 /* at a time */

static mf__cpu_attend picked_of(const mf__op *op) {
    mf__cpu_attend a = attend_of(op);
    a.n_heads /= op->p.attn.n_lists;
    a.n_kv_heads = a.n_kv_heads > op->p.attn.n_lists ? a.n_kv_heads / op->p.attn.n_lists : 1;
    a.tile = picked_tile;
    return a;
}

int64_t mf__cpu_attention_scratch(const mf__cpu_kernels *k, int threads, const mf__op *op, int32_t n_rows) {
    bool picked = op->in[1] >= 0;
    mf__cpu_attend a = picked ? picked_of(op) : attend_of(op);
    int64_t n = picked ? PICKED : n_rows;
    return mf__cpu_round(n * (int64_t)sizeof(mf__cpu_seq)) + mf__cpu_attend_bytes(k, threads, &a, (int32_t)n);
}

static mf_status attend_picked(mf__cpu_run *r, mf_error *err) {
    const mf__op_params *p = &r->op->p;
    mf__cpu_attend a = picked_of(r->op);
    int64_t lists = p->attn.n_lists, n = r->b->n_rows * lists;
    const int32_t *picks = r->b->bufs[r->op->in[1]];
    mf__cpu_seq *seqs = mf__cpu_take(&r->scratch, PICKED * (int64_t)sizeof *seqs);
    if (!seqs) return mf__fail(err, MF_E_INTERNAL, "no scratch for attention in graph %s", r->g->name);
    a.r = r;
    a.seqs = seqs;
    int32_t s = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t row = i / lists;
        while (row >= r->b->segs[s].row0 + r->b->segs[s].n_rows) s++;
        const mf__segment *seg = &r->b->segs[s];
        mf__cpu_seq *seq = &seqs[a.n_seqs++];
        *seq = (mf__cpu_seq){.kv = &seg->state->kv,
                             .n_rows = 1,
                             .q = mf__cpu_in(r, 0) + i * a.n_heads * a.k_dim,
                             .o = mf__cpu_out(r, 0) + i * a.n_heads * a.v_dim,
                             .picks = mf__picks_of(picks + i * p->attn.n_picks, p->attn.n_picks, p->attn.block,
                                                   seg->pos + row - seg->row0),
                             .kv_head = (int32_t)(i % lists * p->attn.n_kv_heads / lists)};
        seq->pos = seq->picks.n_rows - 1;
        if (a.n_seqs < PICKED && i + 1 < n) continue;
        MF__TRY(mf__cpu_attend_rows(&a, r->scratch, err));
        a.n_seqs = 0;
    }
    return MF_OK;
}

mf_status mf__cpu_attention(mf__cpu_run *r, mf_error *err) {
    if (r->op->in[1] >= 0) return attend_picked(r, err);
    mf__cpu_attend a = attend_of(r->op);
    int64_t q_cols = (int64_t)a.n_heads * a.k_dim, o_cols = (int64_t)a.n_heads * a.v_dim;
    mf__cpu_seq *seqs = mf__cpu_take(&r->scratch, r->b->n_segs * (int64_t)sizeof *seqs);
    if (!seqs) return mf__fail(err, MF_E_INTERNAL, "no scratch for attention in graph %s", r->g->name);
    for (int32_t s = 0; s < r->b->n_segs; s++) {
        const mf__segment *seg = &r->b->segs[s];
        seqs[s] = (mf__cpu_seq){.kv = &seg->state->kv,
                                .pos = seg->pos,
                                .n_rows = seg->n_rows,
                                .q = mf__cpu_in(r, 0) + seg->row0 * q_cols,
                                .o = mf__cpu_out(r, 0) + seg->row0 * o_cols};
    }
    a.r = r;
    a.sinks = mf__cpu_weights(r, 0);
    a.seqs = seqs;
    a.n_seqs = r->b->n_segs;
    return mf__cpu_attend_rows(&a, r->scratch, err);
}
