#include "convert/encode.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "quant/affine.h"
#include "quant/fit.h"
#include "quant/gguf_types.h"
#include "quant/half.h"

#define NO_ROW INT64_MAX
#define FIT_VALUES 4096   /* rows are fitted together up to that: few lanes are idle, and the first cache holds them */
#define TAKE_VALUES 65536 /* what a thread takes at a time */

typedef struct region {
    const mf__encode *e;
    bool copy, repack;
    int64_t row, scale, bias; /* bytes of a row of each piece of dst */
    int64_t take;             /* rows that a thread takes at a time */
    _Atomic int64_t next;     /* the first row that none has taken */
    _Atomic int64_t bad_row;  /* the first one with a NaN or an infinity */
} region;

bool mf__same_form(const mf__tensor *a, const mf__tensor *b) {
    return a->type == b->type &&
           (!mf__type_has_scales(a->type) ||
            (a->bits == b->bits && a->group == b->group && mf__source_scale_type(a) == b->scale_type &&
             (a->block_rows == b->block_rows || b->block_rows == 1)));
}

void mf__loss_add(mf__loss *sum, const mf__loss *more) {
    if (more->worst > sum->worst) {
        sum->worst = more->worst;
        sum->expert = more->expert;
        sum->row = more->row;
        sum->col = more->col;
    }
    sum->error += more->error;
    sum->total += more->total;
}

double mf__loss_rms(const mf__loss *loss) {
    return loss->total > 0 ? sqrt(loss->error / loss->total) : 0;
}

/* The exponent of a NaN or an infinity is all ones. OR-ing the tests keeps the loop free of branches. */
static bool all_finite(const float *x, int64_t n) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        bad |= (u & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

static void note_bad(region *r, int64_t row) {
    int64_t old = atomic_load(&r->bad_row);
    while (row < old && !atomic_compare_exchange_weak(&r->bad_row, &old, row)) {
    }
}

static void store_floats(mf__type type, const float *x, int64_t n, uint8_t *out) {
    if (type == MF_TYPE_F32) {
        memcpy(out, x, (size_t)n * sizeof *x);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = type == MF_TYPE_BF16 ? mf__f32_to_bf16(x[i]) : mf__f32_to_f16(x[i]);
        memcpy(out + 2 * i, &h, sizeof h);
    }
}

/* of: [n_cols / group] */
static mf__loss row_loss(const mf__encode *e, const mf__fit_loss *of, int64_t row) {
    mf__loss loss = {.expert = e->expert, .row = e->first_row + row};
    double worst = 0;
    for (int64_t col = 0; col < e->dst.n_cols; col += e->dst.group, of++) {
        loss.error += of->error;
        loss.total += of->total;
        double square = of->total > 0 ? (double)of->error / of->total : 0;
        if (square > worst) {
            worst = square;
            loss.col = col;
        }
    }
    loss.worst = sqrt(worst);
    return loss;
}

/* What became of x, to be decoded from its codes. y: room for as many, which is used for the losses too. */
static mf__loss decoded_loss(const mf__encode *e, const float *x, const mf__fit_out *out, float *y, int64_t row) {
    const mf__tensor *t = &e->dst;
    mf__fit_loss *of = (mf__fit_loss *)y; /* a group's values are gone when its loss is written */
    mf__affine_decode_row(out->codes, out->scales, out->biases, t->scale_type, t->n_cols, t->bits, t->group, y);
    for (int64_t col = 0; col < t->n_cols; col += t->group) {
        mf__fit_loss loss;
        mf__affine_error(x + col, y + col, t->group, &loss.error, &loss.total);
        of[col / t->group] = loss;
    }
    return row_loss(e, of, row);
}

/* Rows of GGUF's blocks whose codes go over as they are. */
static bool may_repack(const mf__encode *e) {
    mf__type type = e->src->stored.type;
    if (e->src->block_of && e->src->block % 32) return false; /* blocks would be cut */
    if (type == MF_TYPE_MXFP4_BLOCK) return e->dst.type == MF_TYPE_MXFP4;
    return mf__gguf_straight_bits(type) && e->dst.type == MF_TYPE_AFFINE && e->dst.scale_type == MF_TYPE_F16 &&
           e->dst.group == 32;
}

/* y: room for a row. */
static bool repack_row(const mf__encode *e, int64_t row, void *y, const mf__fit_out *out) {
    mf__type type = e->src->stored.type;
    mf__source_row_copy(e->src, row, y, NULL, NULL);
    if (type != MF_TYPE_MXFP4_BLOCK)
        return mf__gguf_repack_affine(type, y, e->dst.n_cols, e->dst.bits, out->codes, out->scales, out->biases);
    mf__gguf_repack_mxfp4(y, e->dst.n_cols, out->codes, out->scales);
    return true;
}

static mf__fit_out place_of(const region *r, int64_t row) {
    const mf__encode *e = r->e;
    return (mf__fit_out){
        .codes = e->data + row * r->row, .scales = e->scales + row * r->scale, .biases = e->biases + row * r->bias};
}

/* n rows together. Where the sum of squares is finite, so are the values. */
static void fit_rows(region *r, int64_t first, int64_t n, const float *x, float *y) {
    const mf__encode *e = r->e;
    mf__tensor form = e->dst;
    mf__fit_out out = place_of(r, first);
    out.loss = (mf__fit_loss *)y;
    form.n_cols *= n;
    mf__affine_fit_weighted_row(x, e->weights, &form, mf__affine_fit_levels(), &out);
    for (int64_t i = 0; i < n; i++) {
        mf__loss loss = row_loss(e, out.loss + i * (e->dst.n_cols / e->dst.group), first + i);
        if (e->rows) e->rows[first + i] = loss;
        if (!e->allow_nonfinite && !isfinite(loss.total) && !all_finite(x + i * e->dst.n_cols, e->dst.n_cols))
            note_bad(r, first + i);
    }
}

static void encode_rows(region *r, int64_t first, int64_t n, float *x, float *y) {
    const mf__encode *e = r->e;
    bool affine = e->dst.type == MF_TYPE_AFFINE;
    int64_t cols = e->dst.n_cols;
    for (int64_t i = 0; i < n; i++) mf__source_row_f32(e->src, first + i, x + i * cols);
    for (int64_t i = 0; e->add_one && i < n * cols; i++) x[i] += 1.0f;
    if (affine && !r->repack) {
        fit_rows(r, first, n, x, y);
        return;
    }
    for (int64_t row = first; row < first + n; row++, x += cols) {
        mf__fit_out out = place_of(r, row);
        if (!e->allow_nonfinite && !all_finite(x, cols)) note_bad(r, row);
        bool done = r->repack && repack_row(e, row, y, &out);
        if (!done && affine)
            fit_rows(r, row, 1, x, y);
        else if (!done)
            store_floats(e->dst.type, x, cols, out.codes);
        else if (affine && e->rows)
            e->rows[row] = decoded_loss(e, x, &out, y, row);
    }
}

int64_t mf__encode_scratch(int64_t n_cols) {
    return 2 * (n_cols > FIT_VALUES ? n_cols : FIT_VALUES);
}

int64_t mf__encode_strip(int64_t n_cols) {
    return MF_FEEDBACK_ROWS * n_cols + mf__feedback_scratch(n_cols);
}

/* Up to MF_FEEDBACK_ROWS rows together. One with a NaN or an infinity, where that may pass, has no sums to be fed back:
 * another takes its place there, and which rows are beside it makes no difference to any. */
static void encode_strip(region *r, int64_t first, int n, float *strip, float *y) {
    const mf__encode *e = r->e;
    int64_t cols = e->dst.n_cols;
    const float *from[MF_FEEDBACK_ROWS];
    bool finite[MF_FEEDBACK_ROWS];
    int whole = -1;
    for (int i = 0; i < n; i++) {
        mf__source_row_f32(e->src, first + i, strip + i * cols);
        from[i] = e->targets ? e->targets + (first + i) * cols : strip + i * cols;
        bool ok = all_finite(strip + i * cols, cols);
        if (!ok && !e->allow_nonfinite) note_bad(r, first + i);
        finite[i] = ok && all_finite(from[i], cols);
        if (finite[i]) whole = i;
    }
    for (int i = 0; whole >= 0 && i < n; i++)
        if (!finite[i]) from[i] = from[whole];
    mf__feedback_out to = {.codes = e->data + first * r->row,
                           .scales = e->scales + first * r->scale,
                           .biases = e->biases + first * r->bias,
                           .codes_row = r->row,
                           .scales_row = r->scale};
    if (whole >= 0) mf__feedback_encode(e->feedback, &e->dst, from, n, &to, strip + MF_FEEDBACK_ROWS * cols);
    for (int i = 0; i < n; i++) {
        mf__fit_out out = place_of(r, first + i);
        const float *x = strip + i * cols;
        if (!finite[i]) mf__affine_fit_weighted_row(x, NULL, &e->dst, mf__affine_fit_levels(), &out);
        if (e->rows) e->rows[first + i] = decoded_loss(e, x, &out, y, first + i);
    }
}

/* What is copied is checked all the same: plain values, or the scales and biases. */
static void copy_row(region *r, int64_t row, float *x) {
    const mf__encode *e = r->e;
    const mf__tensor *t = &e->dst;
    bool block = t->type == MF_TYPE_F8_BLOCK, first = !block || row % t->block_rows == 0;
    uint8_t *data = e->data + row * r->row, *biases = e->biases + row * r->bias;
    uint8_t *scales = e->scales + mf__tensor_scale_row(t, row) * r->scale;
    mf__source_row_copy(e->src, row, data, first ? scales : NULL, biases); /* a block's scales are written once */
    if (e->allow_nonfinite) return;
    if (block) {
        mf__source_row_f32(e->src, row, x);
        if (!all_finite(x, t->n_cols)) note_bad(r, row);
        return;
    }
    if (t->type == MF_TYPE_MXFP4) { /* a scale of all ones is its only NaN */
        if (memchr(scales, 0xff, (size_t)r->scale)) note_bad(r, row);
        return;
    }
    bool affine = t->type == MF_TYPE_AFFINE;
    mf__tensor view = {.type = affine ? t->scale_type : t->type, .n_planes = 1, .n_rows = 1};
    view.n_cols = affine ? t->n_cols / t->group : t->n_cols;
    view.data = affine ? scales : data;
    mf__tensor_row_f32(&view, 0, x);
    bool ok = all_finite(x, view.n_cols);
    if (ok && affine) {
        view.data = biases;
        mf__tensor_row_f32(&view, 0, x);
        ok = all_finite(x, view.n_cols);
    }
    if (!ok) note_bad(r, row);
}

static void rows(region *r, int64_t begin, int64_t end, int thread) {
    const mf__encode *e = r->e;
    int64_t cols = e->dst.n_cols, n = e->weights ? 1 : FIT_VALUES / cols; /* weights are those of one row */
    float *x = e->scratch + thread * mf__encode_scratch(cols), *y = x + mf__encode_scratch(cols) / 2;
    if (!r->copy && e->feedback) n = MF_FEEDBACK_ROWS;
    if (r->copy || n < 1) n = 1;
    for (int64_t row = begin; row < end; row += n) {
        if (end - row < n) n = end - row;
        if (r->copy)
            copy_row(r, row, x);
        else if (e->feedback)
            encode_strip(r, row, (int)n, e->strips + thread * mf__encode_strip(cols), x);
        else
            encode_rows(r, row, n, x, y);
    }
}

/* Threads take rows as they come: one that is kept waiting, by a write for example, does not hold up the others. */
static void take_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    region *r = ctx;
    int64_t n = r->e->src->n_rows, row;
    (void)begin, (void)end;
    while ((row = atomic_fetch_add(&r->next, r->take)) < n) rows(r, row, row + r->take < n ? row + r->take : n, thread);
}

static mf_status nonfinite(const mf__encode *e, int64_t row, mf_error *err) {
    float *x = e->scratch;
    int64_t col = 0;
    mf__source_row_f32(e->src, row, x);
    while (col < e->dst.n_cols - 1 && isfinite(x[col])) col++;
    return mf__fail(
        err, MF_E_FORMAT,
        "%s has the value %g in row %lld, column %lld: the checkpoint is damaged, or its training failed. To "
        "convert it all the same, give --allow-nonfinite",
        e->name, (double)x[col], (long long)(e->first_row + row), (long long)col);
}

mf_status mf__encode_run(const mf__encode *e, mf__pool *pool, mf__loss *loss, mf_error *err) {
    region r = {.e = e,
                .copy = !e->add_one && mf__same_form(&e->src->stored, &e->dst),
                .repack = may_repack(e),
                .take = TAKE_VALUES / e->dst.n_cols / MF_FEEDBACK_ROWS * MF_FEEDBACK_ROWS + MF_FEEDBACK_ROWS,
                .row = mf__tensor_row_bytes(&e->dst),
                .scale = mf__tensor_scale_bytes(&e->dst),
                .bias = mf__tensor_bias_bytes(&e->dst)};
    atomic_init(&r.bad_row, NO_ROW);
    atomic_init(&r.next, 0);
    mf__pool_run(pool, take_rows, &r, mf__pool_threads(pool));
    int64_t bad = atomic_load(&r.bad_row);
    if (bad != NO_ROW) return nonfinite(e, bad, err);
    if (!loss) return MF_OK;
    *loss = (mf__loss){0};
    if (!r.copy && e->rows && e->dst.type == MF_TYPE_AFFINE)
        for (int64_t row = 0; row < e->src->n_rows; row++) mf__loss_add(loss, &e->rows[row]);
    return MF_OK;
}
