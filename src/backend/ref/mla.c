/* Multi-head latent attention.
 *
 * A cached row is a latent c (kept after its norm) and one rotated key part k_pe that all heads share. Head h has
 *   k_j = [W_UK c_j | k_pe_j],  v_j = W_UV c_j,  o = sum_j softmax_j(q . k_j * scale) v_j
 * The unabsorbed form computes just that. The absorbed form, the definition, moves the matrices out of the sum:
 *   q' = W_UK^T q_nope,  s_j = (q' . c_j + q_pe . k_pe_j) * scale,  o = W_UV (sum_j softmax_j(s) c_j)
 * Both take the cached rows a tile at a time with a running maximum, so that no length needs memory of its own. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "backend/picks.h"
#include "backend/ref/dot.h"
#include "backend/ref/ref.h"

#define TILE 64 /* cached rows scored together */

/* One thread's scratch. */
typedef struct head {
    const mf__op_params *p;
    float *w_uk; /* [n_nope][n_latent] */
    float *w_uv; /* [v_dim][n_latent] */
    float *row;  /* one decoded row of the transposed spelling [n_nope] */
    float *q;    /* [n_latent] the absorbed query */
    float *z;    /* [n_latent] the mixed latent */
    float *k;    /* [TILE][n_nope] */
    float *v;    /* [TILE][v_dim] */
    float *rows; /* [TILE][n_latent] then [TILE][n_rope]: cached rows, decoded */
    float *max;  /* [n_rows] */
    float *sum;  /* [n_rows] */
} head;

int64_t mf__ref_mla_scratch(const mf__op *op, int32_t n_rows) {
    int64_t latent = op->p.mla.n_latent, nope = op->p.mla.n_nope, v_dim = op->p.mla.v_dim;
    int64_t cached = latent + op->p.mla.n_rope;
    return (nope + v_dim) * latent + nope + 2 * latent + TILE * (nope + v_dim + cached) + 2 * (int64_t)n_rows;
}

static head lay_out(const mf__op_params *p, int32_t n_rows, float *mem) {
    int64_t latent = p->mla.n_latent, nope = p->mla.n_nope, v_dim = p->mla.v_dim;
    head h = {.p = p, .w_uk = mem};
    h.w_uv = h.w_uk + nope * latent;
    h.row = h.w_uv + v_dim * latent;
    h.q = h.row + nope;
    h.z = h.q + latent;
    h.k = h.z + latent;
    h.v = h.k + TILE * nope;
    h.rows = h.v + TILE * v_dim;
    h.max = h.rows + TILE * (latent + p->mla.n_rope);
    h.sum = h.max + n_rows;
    return h;
}

/* The head's matrices as rows over the latent, however they are stored. */
static void load_weights(const mf__ref_run *r, int64_t index, head *h) {
    const mf__tensor *first = mf__ref_w(r, 0), *second = mf__ref_w(r, 1);
    int64_t latent = h->p->mla.n_latent, nope = h->p->mla.n_nope, v_dim = h->p->mla.v_dim;
    if (!second) { /* kv_b: the rows of W_UK, then those of W_UV */
        for (int64_t i = 0; i < nope + v_dim; i++)
            mf__tensor_row_f32(first, index * (nope + v_dim) + i, h->w_uk + i * latent);
        return;
    }
    for (int64_t c = 0; c < latent; c++) {
        mf__tensor_row_f32(first, index * latent + c, h->row);
        for (int64_t i = 0; i < nope; i++) h->w_uk[i * latent + c] = h->row[i];
    }
    for (int64_t i = 0; i < v_dim; i++) mf__tensor_row_f32(second, index * v_dim + i, h->w_uv + i * latent);
}

/* s[j] = (q . key_j + q_pe . k_pe_j) * scale, n of them */
static void score(const head *h, const float *q, const float *const *keys, int32_t dim, const float *q_pe,
                  const float *const *k_pe, int32_t n, float *s) {
    for (int32_t j = 0; j < n; j += MF_REF_TILE) {
        int32_t m = n - j < MF_REF_TILE ? n - j : MF_REF_TILE;
        float a[MF_REF_TILE], b[MF_REF_TILE];
        mf__ref_dots(q, keys + j, m, dim, a);
        mf__ref_dots(q_pe, k_pe + j, m, h->p->mla.n_rope, b);
        for (int32_t i = 0; i < m; i++) s[j + i] = (a[i] + b[i]) * h->p->mla.scale;
    }
}

/* acc and sum, which are relative to e^max, take in n more scores and their values. */
static void fold(const float *s, const float *const *values, int32_t n, int32_t dim, float *max, float *sum,
                 float *acc) {
    float top = *max;
    for (int32_t j = 0; j < n; j++) top = s[j] > top ? s[j] : top;
    float keep = expf(*max - top);
    *sum *= keep;
    for (int32_t c = 0; c < dim; c++) acc[c] *= keep;
    for (int32_t j = 0; j < n; j++) {
        float e = expf(s[j] - top);
        *sum += e;
        for (int32_t c = 0; c < dim; c++) acc[c] += e * values[j][c];
    }
    *max = top;
}

static void tile_rows(const head *h, const mf__kv *kv, const mf__picks *picks, int64_t first, int32_t n,
                      const float **latents, const float **k_pe) {
    int32_t latent = h->p->mla.n_latent, rope = h->p->mla.n_rope;
    for (int32_t j = 0; j < n; j++) {
        int64_t row = mf__picks_row(picks, first + j);
        latents[j] = mf__ref_k_row(kv, row, 0, latent, h->rows + (int64_t)j * latent);
        k_pe[j] = mf__ref_v_row(kv, row, 0, rope, h->rows + (int64_t)TILE * latent + (int64_t)j * rope);
    }
}

static int32_t tile_size(int64_t first, int64_t end) {
    return end - first < TILE ? (int32_t)(end - first) : TILE;
}

/* One row, which sees the cached rows 0 .. pos, or those that were picked. */
static void absorbed(const head *h, const mf__kv *kv, const float *q, const mf__picks *picks, float *o) {
    int32_t latent = h->p->mla.n_latent, nope = h->p->mla.n_nope;
    float max = -FLT_MAX, sum = 0, s[TILE];
    const float *latents[TILE], *k_pe[TILE];
    memset(h->q, 0, (size_t)latent * sizeof(float));
    memset(h->z, 0, (size_t)latent * sizeof(float));
    for (int32_t i = 0; i < nope; i++)
        for (int32_t c = 0; c < latent; c++) h->q[c] += q[i] * h->w_uk[(int64_t)i * latent + c];
    for (int64_t first = 0; first < picks->n_rows; first += TILE) {
        int32_t n = tile_size(first, picks->n_rows);
        tile_rows(h, kv, picks, first, n, latents, k_pe);
        score(h, h->q, latents, latent, q + nope, k_pe, n, s);
        fold(s, latents, n, latent, &max, &sum, h->z);
    }
    for (int32_t c = 0; c < latent; c++) h->z[c] /= sum;
    for (int32_t i = 0; i < h->p->mla.v_dim; i++) {
        const float *z = h->z;
        mf__ref_dots(h->w_uv + (int64_t)i * latent, &z, 1, latent, &o[i]);
    }
}

/* Keys and values of n cached rows. */
static void expand(const head *h, const float *const *latents, int32_t n) {
    int32_t latent = h->p->mla.n_latent, nope = h->p->mla.n_nope, v_dim = h->p->mla.v_dim;
    for (int32_t i = 0; i < nope + v_dim; i++) {
        const float *w = h->w_uk + (int64_t)i * latent; /* W_UV follows */
        for (int32_t j = 0; j < n; j += MF_REF_TILE) {
            int32_t m = n - j < MF_REF_TILE ? n - j : MF_REF_TILE;
            float y[MF_REF_TILE];
            mf__ref_dots(w, latents + j, m, latent, y);
            for (int32_t a = 0; a < m; a++)
                *(i < nope ? &h->k[(j + a) * nope + i] : &h->v[(j + a) * v_dim + i - nope]) = y[a];
        }
    }
}

/* All rows of a segment; row t sees the cached rows 0 .. pos + t. q and o step over the other heads. */
static void unabsorbed(const head *h, const mf__segment *seg, const float *q, int64_t q_step, float *o,
                       int64_t o_step) {
    int32_t nope = h->p->mla.n_nope, v_dim = h->p->mla.v_dim;
    int64_t end = seg->pos + seg->n_rows;
    const float *latents[TILE], *k_pe[TILE], *keys[TILE], *values[TILE];
    float s[TILE];
    for (int32_t j = 0; j < TILE; j++) {
        keys[j] = h->k + (int64_t)j * nope;
        values[j] = h->v + (int64_t)j * v_dim;
    }
    for (int32_t t = 0; t < seg->n_rows; t++) {
        h->max[t] = -FLT_MAX, h->sum[t] = 0;
        memset(o + t * o_step, 0, (size_t)v_dim * sizeof(float));
    }
    for (int64_t first = 0; first < end; first += TILE) {
        int32_t n = tile_size(first, end);
        tile_rows(h, &seg->state->kv, &(mf__picks){0}, first, n, latents, k_pe);
        expand(h, latents, n);
        int32_t t = first > seg->pos ? (int32_t)(first - seg->pos) : 0; /* rows before see nothing of this tile */
        for (; t < seg->n_rows; t++) {
            int32_t seen = tile_size(first, seg->pos + t + 1);
            score(h, q + t * q_step, keys, nope, q + t * q_step + nope, k_pe, seen, s);
            fold(s, values, seen, v_dim, &h->max[t], &h->sum[t], o + t * o_step);
        }
    }
    for (int32_t t = 0; t < seg->n_rows; t++)
        for (int32_t c = 0; c < v_dim; c++) o[t * o_step + c] /= h->sum[t];
}

/* Items are heads. */
static void attend(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__ref_run *r = ctx;
    const mf__op_params *p = &r->op->p;
    int64_t q_dim = p->mla.n_nope + p->mla.n_rope, q_step = q_dim * p->mla.n_heads;
    int64_t v_dim = p->mla.v_dim, o_step = v_dim * p->mla.n_heads;
    const int32_t *picks = r->op->in[1] < 0 ? NULL : r->b->bufs[r->op->in[1]];
    head h = lay_out(p, r->b->n_rows, r->scratch + thread * r->scratch_floats);
    for (int64_t i = begin; i < end; i++) {
        load_weights(r, i, &h);
        for (int32_t k = 0; k < r->b->n_segs; k++) {
            const mf__segment *seg = &r->b->segs[k];
            const float *q = mf__ref_in(r, 0) + seg->row0 * q_step + i * q_dim;
            float *o = mf__ref_out(r, 0) + seg->row0 * o_step + i * v_dim;
            if (!picks && mf__mla_choose(p, seg->pos, seg->n_rows) == MF_MLA_UNABSORBED) {
                unabsorbed(&h, seg, q, q_step, o, o_step);
                continue;
            }
            for (int32_t t = 0; t < seg->n_rows; t++) {
                const int32_t *ids = picks ? picks + (seg->row0 + t) * (int64_t)p->mla.n_picks : NULL;
                mf__picks seen = mf__picks_of(ids, p->mla.n_picks, 1, seg->pos + t);
                absorbed(&h, &seg->state->kv, q + t * q_step, &seen, o + t * o_step);
            }
        }
    }
}

void mf__ref_mla_attention(const mf__ref_run *r) {
    mf__pool_run(r->pool, attend, (void *)r, r->op->p.mla.n_heads);
}

/* a = x[0 .. n_first), b = the rest */
void mf__ref_split(const mf__ref_run *r) {
    int32_t n_first = r->op->p.cut.n_first, cols = mf__ref_in_cols(r, 0);
    const float *x = mf__ref_in(r, 0);
    float *a = mf__ref_out(r, 0), *b = mf__ref_out(r, 1);
    for (int32_t t = 0; t < r->b->n_rows; t++, x += cols, a += n_first, b += cols - n_first) {
        memcpy(a, x, (size_t)n_first * sizeof(float));
        memcpy(b, x + n_first, (size_t)(cols - n_first) * sizeof(float));
    }
}

/* y = a, then b */
void mf__ref_join(const mf__ref_run *r) {
    int32_t n_a = mf__ref_in_cols(r, 0), n_b = r->op->in[1] < 0 ? 0 : mf__ref_in_cols(r, 1);
    const float *a = mf__ref_in(r, 0), *b = n_b ? mf__ref_in(r, 1) : a;
    float *y = mf__ref_out(r, 0);
    for (int32_t t = 0; t < r->b->n_rows; t++, a += n_a, b += n_b, y += n_a + n_b) {
        memcpy(y, a, (size_t)n_a * sizeof(float));
        memcpy(y + n_a, b, (size_t)n_b * sizeof(float));
    }
}
