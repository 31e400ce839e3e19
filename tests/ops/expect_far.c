/* Expectations: compressed rows, attention over them, hyper-connections. */
#include <math.h>
#include <stdlib.h>

#include "expect.h"

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

/* ---- compressing ------------------------------------------------------------------------------------------------ */

/* Column c of the input of sequence s at position pos; before the run's first row it is state. */
static double input_at(const op_rig *rig, int s, int64_t pos, int64_t c) {
    int64_t cols = op_in_cols(rig, 0), row = pos - rig->c->seqs[s].pos, first = 0;
    for (int k = 0; k < s; k++) first += rig->c->seqs[k].n_rows;
    if (row >= 0) return op_in(rig, 0, (first + row) * cols + c);
    return rig->state[s].conv[(row + mf__compress_kept(&rig->op->p)) * cols + c];
}

/* Weighted mean of channel c over the slots of a window: its own rows, and (overlap) those of the one before. */
static double pooled(const op_rig *rig, int s, int64_t window, int part, int64_t at, int64_t c) {
    const mf__op_params *p = &rig->op->p;
    int64_t step = p->compress.step, width = p->compress.width[part], wide = (p->compress.overlap ? 2 : 1) * width;
    double total = 0, sum = 0;
    for (int64_t pos = (window - p->compress.overlap) * step; pos < (window + 1) * step; pos++) {
        if (pos < 0) continue;
        int64_t channel = p->compress.overlap && pos >= window * step ? width + c : c;
        double e =
            exp(input_at(rig, s, pos, at + wide + channel) + op_w(rig, 1 + 2 * part, pos % step * wide + channel));
        total += e;
        sum += e * input_at(rig, s, pos, at + channel);
    }
    return sum / total;
}

static void expect_window(const op_rig *rig, int s, int64_t window, float *row) {
    const mf__op_params *p = &rig->op->p;
    int64_t at = 0, out = 0;
    for (int part = 0; part < p->compress.n_parts; part++) {
        int64_t width = p->compress.width[part], first = width - p->compress.n_rot;
        double x[64], mean = 0;
        for (int64_t c = 0; c < width; c++) x[c] = pooled(rig, s, window, part, at, c);
        for (int64_t c = 0; c < width; c++) mean += x[c] * x[c] / (double)width;
        for (int64_t c = 0; c < width; c++) x[c] *= op_w(rig, 2 + 2 * part, c) / sqrt(mean + p->compress.eps);
        for (int64_t c = 0; c < width; c++) {
            double angle = (float)(window * p->compress.step) * (float)op_w(rig, 0, c < first ? 0 : (c - first) / 2);
            double y = x[c];
            if (c >= first && (c - first) % 2 == 0) y = x[c] * cos(angle) - x[c + 1] * sin(angle);
            if (c >= first && (c - first) % 2 == 1) y = x[c - 1] * sin(angle) + x[c] * cos(angle);
            row[out + c] = (float)y;
        }
        at += 2 * (p->compress.overlap ? 2 : 1) * width;
        out += width;
    }
}

void expect_compress(const op_rig *rig, op_result *want) {
    int64_t cols = op_in_cols(rig, 0);
    int32_t kept = mf__compress_kept(&rig->op->p), step = rig->op->p.compress.step;
    for (int s = 0; s < rig->n_seqs; s++) {
        int64_t pos = rig->c->seqs[s].pos, end = pos + rig->c->seqs[s].n_rows;
        for (int64_t window = pos / step; window < end / step; window++) {
            float row[128];
            expect_window(rig, s, window, row);
            double *to = want->kv[s] + op_v_at(rig, window * step);
            for (int32_t c = 0; c < rig->c->v_cols; c++) to[c] = row[c];
        }
        for (int32_t k = 0; k < kept; k++)
            for (int64_t c = 0; c < cols; c++) want->conv[s][k * cols + c] = input_at(rig, s, end - kept + k, c);
    }
}

/* ---- attention over them ---------------------------------------------------------------------------------------- */

static bool has_pick(const op_rig *rig, int64_t t, int64_t row) {
    for (int32_t k = 0; k < rig->op->p.far.n_picks; k++)
        if (op_in_id(rig, 1, t * rig->op->p.far.n_picks + k) == row) return true;
    return false;
}

void expect_far_attention(const op_rig *rig, op_result *want) {
    const mf__op_params *p = &rig->op->p;
    int32_t dim = p->far.dim, heads = p->far.n_heads;
    for (int32_t t = 0; t < rig->n_rows; t++) {
        int64_t pos;
        const float *kv = rig->state[op_sequence_of(rig, t, &pos)].kv;
        for (int32_t h = 0; h < heads; h++) {
            double *o = op_out(rig, want, 0) + ((int64_t)t * heads + h) * dim, total = exp(op_w(rig, 0, h));
            for (int32_t c = 0; c < dim; c++) o[c] = 0;
            for (int64_t i = 0; i <= pos + (p->far.step ? (pos + 1) / p->far.step : 0); i++) {
                const float *row = kv + (i <= pos ? op_k_at(rig, i) : op_v_at(rig, (i - pos - 1) * p->far.step));
                bool seen = i <= pos ? pos - i < p->far.window : rig->op->in[1] < 0 || has_pick(rig, t, i - pos - 1);
                double dot = 0;
                for (int32_t c = 0; seen && c < dim; c++)
                    dot += op_in(rig, 0, ((int64_t)t * heads + h) * dim + c) * row[c];
                double e = seen ? exp(dot * p->far.scale) : 0;
                total += e;
                for (int32_t c = 0; seen && c < dim; c++) o[c] += e * row[c];
            }
            for (int32_t c = 0; c < dim; c++) o[c] /= total;
        }
    }
}

/* ---- streams ---------------------------------------------------------------------------------------------------- */

static void expect_mix(const op_rig *rig, const double *z, double *mix) {
    const mf__op_params *p = &rig->op->p;
    int n = p->streams.n;
    double e = p->streams.hc_eps, *c = mix + n;
    for (int i = 0; i < n; i++) {
        double sum = 0;
        mix[i] = 2 * sigmoid(z[n + i] * op_w(rig, 1, 1) + op_w(rig, 0, n + i));
        for (int j = 0; j < n; j++)
            sum += c[i * n + j] = exp(z[2 * n + i * n + j] * op_w(rig, 1, 2) + op_w(rig, 0, 2 * n + i * n + j));
        for (int j = 0; j < n; j++) c[i * n + j] = c[i * n + j] / sum + e;
    }
    for (int step = 0; step < 2 * p->streams.n_steps - 1; step++) /* columns first and last, rows in between */
        for (int a = 0; a < n; a++) {
            double sum = e;
            for (int b = 0; b < n; b++) sum += step % 2 ? c[a * n + b] : c[b * n + a];
            for (int b = 0; b < n; b++) *(step % 2 ? &c[a * n + b] : &c[b * n + a]) /= sum;
        }
}

void expect_streams_read(const op_rig *rig, op_result *want) {
    const mf__op_params *p = &rig->op->p;
    int64_t n = p->streams.n, wide = op_in_cols(rig, 0), cols = wide / n, n_z = op_in_cols(rig, 1);
    for (int64_t t = 0; t < rig->n_rows; t++) {
        double mean = 0, z[64];
        for (int64_t c = 0; c < wide; c++) mean += pow(op_in(rig, 0, t * wide + c), 2) / (double)wide;
        for (int64_t i = 0; i < n_z; i++) z[i] = op_in(rig, 1, t * n_z + i) / sqrt(mean + p->streams.eps);
        for (int64_t c = 0; c < cols; c++) {
            double sum = 0;
            for (int64_t i = 0; i < n; i++)
                sum += (sigmoid(z[i] * op_w(rig, 1, 0) + op_w(rig, 0, i)) + p->streams.hc_eps) *
                       op_in(rig, 0, t * wide + i * cols + c);
            op_out(rig, want, 0)[t * cols + c] = sum;
        }
        if (rig->op->out[1] >= 0) expect_mix(rig, z, op_out(rig, want, 1) + t * (n + n * n));
    }
}

void expect_streams_write(const op_rig *rig, op_result *want) {
    int64_t n = rig->op->p.streams.n, wide = op_in_cols(rig, 0), cols = wide / n, n_mix = n + n * n;
    for (int64_t i = 0; i < rig->n_rows * wide; i++) {
        int64_t t = i / wide, to = i % wide / cols, c = i % cols;
        double sum = op_in(rig, 2, t * n_mix + to) * op_in(rig, 1, t * cols + c);
        for (int64_t from = 0; from < n; from++)
            sum += op_in(rig, 2, t * n_mix + n + from * n + to) * op_in(rig, 0, t * wide + from * cols + c);
        op_out(rig, want, 0)[i] = sum;
    }
}
