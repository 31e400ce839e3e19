/* Attention over the newest rows and over compressed ones.
 *
 * A cached K row is key and value at once. Of every `step` rows one is made, which is kept in the V rows of the state
 * (one V row for as many positions): per channel a weighted mean, with weights that the rows bring along,
 *   row_c = sum_i softmax_i(g_ic + ape_ic) a_ic,   then its norm, then rope at the window's first position.
 * With overlap, rows bring two halves of a and g: a window takes the second halves of its own rows and the first halves
 * of the window before it. Several parts (a row, and the key that an index finds it by) lie side by side.
 *
 * The last rows of the input are state: [2 step - 1 or step - 1][channels], oldest first. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "backend/ref/ref.h"

/* Row `row` of a segment, counted from its first; rows before it are in the state. */
static const float *input_row(const mf__ref_run *r, const mf__segment *seg, int64_t row) {
    int64_t cols = mf__ref_in_cols(r, 0);
    int32_t kept = mf__compress_kept(&r->op->p);
    return row < 0 ? seg->state->conv_in + (row + kept) * cols : mf__ref_in(r, 0) + (seg->row0 + row) * cols;
}

/* Channel c of a part whose a begins at `at`, of the window whose last row is `last`. */
static float pool(const mf__ref_run *r, const mf__segment *seg, int64_t last, int part, int32_t at, int32_t c) {
    const mf__op_params *p = &r->op->p;
    const float *ape = mf__ref_vec(r, 1 + 2 * part);
    int32_t width = p->compress.width[part], halves = p->compress.overlap ? 2 : 1, step = p->compress.step;
    bool before = p->compress.overlap && seg->pos + last + 1 > step;
    float max = -FLT_MAX, sum = 0, total = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = before ? -step : 0; i < step; i++) {
            const float *x = input_row(r, seg, last - step + 1 + i) + at;
            int32_t half = i >= 0 && p->compress.overlap ? width + c : c, phase = i < 0 ? i + step : i;
            float g = x[halves * width + half] + ape[(int64_t)phase * halves * width + half];
            if (pass == 0) {
                max = fmaxf(max, g);
                continue;
            }
            float e = expf(g - max);
            total += e;
            sum += e * x[half];
        }
    return sum / total;
}

static void norm_and_turn(const mf__ref_run *r, int part, int64_t pos, float *row) {
    const mf__op_params *p = &r->op->p;
    const float *w = mf__ref_vec(r, 2 + 2 * part), *inv_freq = mf__ref_vec(r, 0);
    int32_t width = p->compress.width[part], n_rot = p->compress.n_rot;
    float sum = 0;
    for (int32_t c = 0; c < width; c++) sum += row[c] * row[c];
    float scale = 1.0f / sqrtf(sum / (float)width + p->compress.eps);
    for (int32_t c = 0; c < width; c++) row[c] *= scale * w[c];
    for (int32_t i = 0; i < n_rot / 2; i++) {
        float angle = (float)pos * inv_freq[i], cosine = cosf(angle), sine = sinf(angle);
        float *at = row + width - n_rot + 2 * i, a = at[0], b = at[1];
        at[0] = a * cosine - b * sine;
        at[1] = a * sine + b * cosine;
    }
}

static void keep_inputs(const mf__ref_run *r, const mf__segment *seg) {
    int64_t cols = mf__ref_in_cols(r, 0);
    int32_t kept = mf__compress_kept(&r->op->p);
    for (int32_t k = 0; k < kept; k++) /* going up, a row is read before it is overwritten */
        memmove(seg->state->conv_out + k * cols, input_row(r, seg, seg->n_rows - kept + k),
                (size_t)cols * sizeof(float));
}

void mf__ref_compress(const mf__ref_run *r) {
    const mf__op_params *p = &r->op->p;
    for (int32_t s = 0; s < r->b->n_segs; s++) {
        const mf__segment *seg = &r->b->segs[s];
        const mf__kv *kv = &seg->state->kv;
        for (int32_t t = 0; t < seg->n_rows; t++) {
            int64_t pos = seg->pos + t, first = pos - p->compress.step + 1;
            int32_t at = 0, out = 0;
            if ((pos + 1) % p->compress.step) continue;
            for (int part = 0; part < p->compress.n_parts; part++) {
                int32_t width = p->compress.width[part];
                for (int32_t c = 0; c < width; c++) r->scratch[out + c] = pool(r, seg, t, part, at, c);
                norm_and_turn(r, part, first, r->scratch + out);
                at += 2 * (p->compress.overlap ? 2 : 1) * width;
                out += width;
            }
            mf__kv_encode_row(kv->type, r->scratch, kv->v_cols, mf__kv_v(kv, first));
        }
        keep_inputs(r, seg);
    }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* The i-th of the rows that a row at pos sees: newest K rows, then compressed ones. */
static const float *seen_row(const mf__ref_run *r, const mf__kv *kv, const int32_t *picks, int64_t pos, int64_t i,
                             float *mem) {
    const mf__op_params *p = &r->op->p;
    int64_t near = mf__far_near(p, pos);
    if (i < near) return mf__ref_k_row(kv, pos - near + 1 + i, 0, p->far.dim, mem);
    int64_t far = picks ? picks[i - near] : i - near;
    return mf__ref_v_row(kv, far * p->far.step, 0, p->far.dim, mem);
}

/* Items are (row, head) pairs. A sink is one more logit of the softmax, without a value. */
static void attend(void *ctx, int64_t begin, int64_t end, int thread) {
    const mf__ref_run *r = ctx;
    const mf__op_params *p = &r->op->p;
    const float *sinks = mf__ref_vec(r, 0);
    const int32_t *all_picks = r->op->in[1] < 0 ? NULL : r->b->bufs[r->op->in[1]];
    int32_t dim = p->far.dim, s = 0;
    float *mem = r->scratch + thread * r->scratch_floats;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / p->far.n_heads, head = i % p->far.n_heads;
        while (row >= r->b->segs[s].row0 + r->b->segs[s].n_rows) s++;
        const mf__kv *kv = &r->b->segs[s].state->kv;
        const int32_t *picks = all_picks ? all_picks + row * p->far.n_picks : NULL;
        int64_t pos = r->b->segs[s].pos + row - r->b->segs[s].row0, n = mf__far_seen(p, picks, pos);
        const float *q = mf__ref_in(r, 0) + i * dim;
        float *o = mf__ref_out(r, 0) + i * dim, max = sinks[head], total;
        for (int pass = 0; pass < 2; pass++) {
            total = expf(sinks[head] - max);
            memset(o, 0, (size_t)dim * sizeof(float));
            for (int64_t k = 0; k < n; k++) {
                const float *key = seen_row(r, kv, picks, pos, k, mem);
                float dot = 0;
                for (int32_t c = 0; c < dim; c++) dot += q[c] * key[c];
                if (pass == 0) {
                    max = fmaxf(max, dot * p->far.scale);
                    continue;
                }
                float e = expf(dot * p->far.scale - max);
                total += e;
                for (int32_t c = 0; c < dim; c++) o[c] += e * key[c];
            }
        }
        for (int32_t c = 0; c < dim; c++) o[c] /= total;
    }
}

void mf__ref_far_attention(const mf__ref_run *r) {
    mf__pool_run(r->pool, attend, (void *)r, (int64_t)r->b->n_rows * r->op->p.far.n_heads);
}
