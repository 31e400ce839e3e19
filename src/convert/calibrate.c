#include "convert/calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/ref/ref.h"
#include "quant/dense.h"
#include "quant/half.h"

#define MAX_ROWS 4096                  /* inputs that one expert is judged by */
#define MAX_VALUES ((int64_t)16 << 20) /* ... and values in them */
#define LAYER_ROWS 128                 /* ... and how many of them may be the layer's */
#define LAYER_WEIGHT 32.0              /* as many inputs as those count for together */
#define DAMPING 0.01                   /* of the mean square, added to every square */

struct mf__calibrator {
    const mf__plan *plan;
    const mf__sample *sample;
    mf__pool *pool;
    mf__glu glu;
    int n_experts, top_k;
    int64_t n_tokens, hidden, inner, max_rows;
    int layer; /* that is loaded; -1: none */
    uint16_t *x;
    int32_t *ids;
    float *shares;
    int64_t *starts; /* [n_experts + 1] in pairs */
    int64_t *pairs;  /* [n_tokens * top_k] token * top_k + place, by expert */
    /* the expert at hand */
    int64_t seen, n_rows;
    float *rows, *scaled;            /* [n_rows][hidden]; scaled: by weight */
    float *weights;                  /* [n_rows], their sum is 1 */
    float *w[MF_PART_COUNT];         /* its matrices */
    float *bias[MF_PART_COUNT];      /* NULL: none */
    float *act, *other, *up;         /* [n_rows][inner] */
    float *turned;                   /* [hidden][inner] a matrix transposed, or weights as they were stored */
    float *in, *mid, *cross, *panel; /* [hidden][hidden], [inner][inner] twice, room for a factorisation */
    float *target;                   /* [hidden][inner] what down is rounded from */
    float *in_weights, *mid_weights; /* mean squares */
    bool in_ok, mid_ok;              /* the matrices have a factor */
    mf__feedback in_feedback, mid_feedback;
};

/* ---- memory ---- */

static bool reserve(mf__calibrator *c) {
    size_t n = (size_t)c->max_rows, hidden = (size_t)c->hidden, inner = (size_t)c->inner, t = (size_t)c->n_tokens;
    size_t wide = hidden > inner ? hidden : inner, f = sizeof(float);
    bool feedback = !c->plan->opt->scales_only, ok = true;
    c->x = malloc(t * hidden * 2);
    c->ids = malloc(t * (size_t)c->top_k * sizeof *c->ids);
    c->shares = malloc(t * (size_t)c->top_k * f);
    c->starts = malloc(((size_t)c->n_experts + 2) * sizeof *c->starts);
    c->pairs = malloc(t * (size_t)c->top_k * sizeof *c->pairs);
    c->rows = malloc(n * hidden * f);
    c->scaled = malloc((n > inner ? n : inner) * wide * f);
    c->weights = malloc(n * f);
    for (int p = 0; p < MF_PART_COUNT; p++) {
        c->w[p] = malloc(hidden * inner * f);
        ok = ok && c->w[p];
        if (c->plan->bp.config.has.expert_bias) ok = (c->bias[p] = malloc(wide * f)) && ok;
    }
    c->act = malloc(n * inner * f);
    c->other = malloc(n * inner * f);
    c->up = malloc(n * inner * f);
    c->turned = malloc(hidden * inner * f);
    c->target = malloc(hidden * inner * f);
    c->in_weights = malloc(hidden * f);
    c->mid_weights = malloc(inner * f);
    ok = ok && c->x && c->ids && c->shares && c->starts && c->pairs && c->rows && c->scaled && c->weights && c->act &&
         c->other && c->up && c->turned && c->target && c->in_weights && c->mid_weights;
    if (!feedback) return ok;
    c->in = malloc(hidden * hidden * f);
    c->mid = malloc(inner * inner * f);
    c->cross = malloc(inner * inner * f);
    c->panel = malloc(64 * wide * f);
    return ok && c->in && c->mid && c->cross && c->panel;
}

mf_status mf__calibrator_open(const mf__plan *plan, mf__pool *pool, int64_t max_rows, mf__calibrator **out,
                              mf_error *err) {
    const mf__config *config = &plan->bp.config;
    mf__calibrator *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c) return mf__fail(err, MF_E_NOMEM, "no memory for a calibration");
    const mf__sample_shape *shape = mf__sample_shape_of(plan->opt->sample);
    c->plan = plan;
    c->sample = plan->opt->sample;
    c->pool = pool;
    c->n_experts = config->moe.n_experts;
    c->top_k = shape->top_k;
    c->hidden = config->n_hidden;
    c->inner = config->moe.n_inner;
    c->n_tokens = mf__sample_tokens(c->sample);
    c->layer = -1;
    c->max_rows = max_rows ? max_rows : MAX_ROWS;
    if (c->max_rows > MAX_VALUES / c->hidden) c->max_rows = MAX_VALUES / c->hidden;
    if (c->max_rows > c->n_tokens + LAYER_ROWS) c->max_rows = c->n_tokens + LAYER_ROWS;
    if (c->max_rows < 2 * LAYER_ROWS) c->max_rows = 2 * LAYER_ROWS;
    mf_status st = MF_OK;
    if (config->moe.glu.kind == MF_GLU_RELU2)
        st = mf__fail(err, MF_E_UNSUPPORTED, "experts without a gate, as those of the family %s, cannot be calibrated",
                      config->family->name);
    else if (shape->n_layers != config->n_layers || shape->n_experts != c->n_experts || shape->n_hidden != c->hidden)
        st = mf__fail(err, MF_E_MISMATCH,
                      "the calibration is of a model with %d layers, %d experts and rows of %lld; this one has %d, %d "
                      "and %lld",
                      shape->n_layers, shape->n_experts, (long long)shape->n_hidden, config->n_layers, c->n_experts,
                      (long long)c->hidden);
    else if (!reserve(c))
        st = mf__fail(err, MF_E_NOMEM, "no memory for a calibration of %lld tokens with rows of %lld",
                      (long long)c->n_tokens, (long long)c->hidden);
    if (st == MF_OK)
        *out = c;
    else
        mf__calibrator_close(c);
    return st;
}

void mf__calibrator_close(mf__calibrator *c) {
    if (!c) return;
    for (int p = 0; p < MF_PART_COUNT; p++) {
        free(c->w[p]);
        free(c->bias[p]);
    }
    void *all[] = {c->x,       c->ids,   c->shares, c->starts,     c->pairs,      c->rows, c->scaled,
                   c->weights, c->act,   c->other,  c->up,         c->turned,     c->in,   c->mid,
                   c->cross,   c->panel, c->target, c->in_weights, c->mid_weights};
    for (size_t i = 0; i < MF__COUNT(all); i++) free(all[i]);
    free(c);
}

int64_t mf__calibrator_seen(const mf__calibrator *c) {
    return c->seen;
}

int64_t mf__calibrator_rows(const mf__calibrator *c) {
    return c->n_rows;
}

/* ---- inputs ---- */

/* A layer's pairs of token and expert, by expert. */
static mf_status load_layer(mf__calibrator *c, int layer, mf_error *err) {
    int64_t n = c->n_tokens * c->top_k;
    if (c->layer == layer) return MF_OK;
    c->layer = -1;
    MF__TRY(mf__sample_layer(c->sample, layer, c->x, c->ids, c->shares, err));
    memset(c->starts, 0, ((size_t)c->n_experts + 2) * sizeof *c->starts);
    for (int64_t i = 0; i < n; i++) c->starts[c->ids[i] + 2]++;
    for (int e = 0; e < c->n_experts; e++) c->starts[e + 2] += c->starts[e + 1];
    for (int64_t i = 0; i < n; i++) c->pairs[c->starts[c->ids[i] + 1]++] = i;
    c->glu = mf__config_glu(&c->plan->bp.config, layer);
    c->layer = layer;
    return MF_OK;
}

static void take_row(mf__calibrator *c, int64_t token, double weight) {
    const uint16_t *from = c->x + token * c->hidden;
    float *to = c->rows + c->n_rows * c->hidden;
    for (int64_t i = 0; i < c->hidden; i++) to[i] = mf__bf16_to_f32(from[i]);
    c->weights[c->n_rows++] = (float)weight;
}

/* Evenly spaced ones, where there are more than can be used. */
static void take_rows(mf__calibrator *c, int expert) {
    int64_t first = c->starts[expert], n = c->starts[expert + 1] - first, most = c->max_rows - LAYER_ROWS;
    int64_t use = n < most ? n : most, others = c->n_tokens < LAYER_ROWS ? c->n_tokens : LAYER_ROWS;
    double total = 0;
    c->seen = n;
    c->n_rows = 0;
    for (int64_t i = 0; i < use; i++) {
        int64_t pair = c->pairs[first + i * n / use];
        double weight = (double)c->shares[pair] * c->shares[pair];
        take_row(c, pair / c->top_k, weight);
        total += weight;
    }
    double norm = total > 0 ? (double)use / total : 0; /* to a mean of 1 */
    for (int64_t i = 0; i < use; i++) c->weights[i] = (float)(c->weights[i] * norm);
    for (int64_t i = 0; i < others; i++) take_row(c, i * c->n_tokens / others, LAYER_WEIGHT / (double)others);
    total = 0;
    for (int64_t i = 0; i < c->n_rows; i++) total += c->weights[i];
    for (int64_t i = 0; i < c->n_rows && total > 0; i++) c->weights[i] = (float)(c->weights[i] / total);
}

/* ---- products ---- */

static void decode(const mf__source *src, float *out) {
    for (int64_t row = 0; row < src->n_rows; row++) mf__source_row_f32(src, row, out + row * src->n_cols);
}

typedef struct region {
    mf__calibrator *c;
    const float *from;
    float *to;
    const float *bias[2];
    int64_t cols;
} region;

static void scale_some(void *ctx, int64_t begin, int64_t end, int thread) {
    region *r = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        for (int64_t k = 0; k < r->cols; k++) r->to[i * r->cols + k] = r->from[i * r->cols + k] * r->c->weights[i];
}

/* c->scaled: rows by their weights. */
static void scale_rows(mf__calibrator *c, const float *from, int64_t cols) {
    region r = {.c = c, .from = from, .to = c->scaled, .cols = cols};
    mf__pool_run(c->pool, scale_some, &r, c->n_rows);
}

/* out [cols][cols] = the weighted mean of a^T b; a is in c->scaled. */
static void moments(mf__calibrator *c, const float *b, int64_t cols, bool upper, float *out) {
    memset(out, 0, (size_t)(cols * cols) * sizeof *out);
    mf__product p = {.m = cols,
                     .n = cols,
                     .k = c->n_rows,
                     .a = c->scaled,
                     .a_i = 1,
                     .a_k = cols,
                     .b = b,
                     .b_k = cols,
                     .c = out,
                     .c_i = cols,
                     .upper = upper};
    mf__product_run(&p, c->pool);
}

static void glu_some(void *ctx, int64_t begin, int64_t end, int thread) {
    region *r = ctx;
    (void)thread;
    for (int64_t i = begin; i < end; i++)
        for (int64_t k = 0; k < r->cols; k++) {
            float gate = r->to[i * r->cols + k], up = r->from[i * r->cols + k];
            if (r->bias[0]) gate += r->bias[0][k];
            if (r->bias[1]) up += r->bias[1][k];
            r->to[i * r->cols + k] = mf__ref_glu_one(&r->c->glu, gate, up);
        }
}

/* out [n_rows][inner] = rows w^T, w [inner][hidden] */
static void project(mf__calibrator *c, const float *w, float *out) {
    for (int64_t i = 0; i < c->inner; i++)
        for (int64_t k = 0; k < c->hidden; k++) c->turned[k * c->inner + i] = w[i * c->hidden + k];
    memset(out, 0, (size_t)(c->n_rows * c->inner) * sizeof *out);
    mf__product p = {.m = c->n_rows,
                     .n = c->inner,
                     .k = c->hidden,
                     .a = c->rows,
                     .a_i = c->hidden,
                     .a_k = 1,
                     .b = c->turned,
                     .b_k = c->inner,
                     .c = out,
                     .c_i = c->inner};
    mf__product_run(&p, c->pool);
}

/* out [n_rows][inner]: what down reads. */
static void activate(mf__calibrator *c, const float *gate, const float *up, float *out) {
    project(c, gate, out);
    project(c, up, c->up);
    region r = {
        .c = c, .from = c->up, .to = out, .bias = {c->bias[MF_PART_GATE], c->bias[MF_PART_UP]}, .cols = c->inner};
    mf__pool_run(c->pool, glu_some, &r, c->n_rows);
}

static void mean_squares(const mf__calibrator *c, const float *rows, int64_t cols, float *out) {
    double total = 0;
    for (int64_t k = 0; k < cols; k++) out[k] = 0;
    for (int64_t i = 0; i < c->n_rows; i++)
        for (int64_t k = 0; k < cols; k++) out[k] += c->weights[i] * rows[i * cols + k] * rows[i * cols + k];
    for (int64_t k = 0; k < cols; k++) total += out[k];
    float damping = (float)(DAMPING * total / (double)cols);
    for (int64_t k = 0; k < cols; k++) out[k] += damping;
}

static float damp(float *h, int64_t n) {
    double total = 0;
    for (int64_t i = 0; i < n; i++) total += h[i * n + i];
    float damping = (float)(DAMPING * total / (double)n);
    for (int64_t i = 0; i < n; i++) h[i * n + i] += damping;
    return damping;
}

/* ---- an expert ---- */

mf_status mf__calibrator_expert(mf__calibrator *c, int layer, int expert, const mf__source *src,
                                const mf__source *biases, mf_error *err) {
    MF__TRY(load_layer(c, layer, err));
    take_rows(c, expert);
    for (int p = 0; p < MF_PART_COUNT; p++) {
        decode(&src[p], c->w[p]);
        if (biases && c->bias[p]) decode(&biases[p], c->bias[p]);
    }
    activate(c, c->w[MF_PART_GATE], c->w[MF_PART_UP], c->act);
    if (c->plan->opt->scales_only) {
        mean_squares(c, c->rows, c->hidden, c->in_weights);
        mean_squares(c, c->act, c->inner, c->mid_weights);
        return MF_OK;
    }
    scale_rows(c, c->rows, c->hidden);
    moments(c, c->rows, c->hidden, true, c->in);
    damp(c->in, c->hidden);
    c->in_ok = mf__factor_upper(c->in, c->hidden, c->panel, c->pool);
    c->in_feedback = (mf__feedback){.n_cols = c->hidden, .factor = c->in};
    return MF_OK;
}

/* down with the inputs that it will get from gate and up as they are stored: what these lose it makes good as far as it
 * can, by least squares, before it is rounded itself. */
static void prepare_down(mf__calibrator *c, const mf__expert_layout *layout, const uint8_t *blob) {
    float *stored[2] = {c->scaled, c->target}; /* both free for the moment */
    int64_t inner = c->inner, hidden = c->hidden;
    for (int p = 0; p < 2; p++) {
        mf__tensor t = mf__expert_view(layout, (mf__expert_part)p, blob);
        for (int64_t row = 0; row < inner; row++) mf__tensor_row_f32(&t, row, stored[p] + row * hidden);
    }
    activate(c, stored[0], stored[1], c->other);
    scale_rows(c, c->act, inner);
    moments(c, c->other, inner, false, c->cross);
    scale_rows(c, c->other, inner);
    moments(c, c->other, inner, true, c->mid);
    float damping = damp(c->mid, inner);
    for (int64_t i = 0; i < inner; i++) c->cross[i * inner + i] += damping;
    c->mid_ok = mf__factor_upper(c->mid, inner, c->panel, c->pool);
    if (!c->mid_ok) return;
    memset(c->target, 0, (size_t)(hidden * inner) * sizeof *c->target);
    mf__product p = {.m = hidden,
                     .n = inner,
                     .k = inner,
                     .a = c->w[MF_PART_DOWN],
                     .a_i = inner,
                     .a_k = 1,
                     .b = c->cross,
                     .b_k = inner,
                     .c = c->target,
                     .c_i = inner};
    mf__product_run(&p, c->pool);
    mf__factor_solve(c->mid, inner, c->target, hidden, c->pool);
    c->mid_feedback = (mf__feedback){.n_cols = inner, .factor = c->mid};
}

void mf__calibrator_part(mf__calibrator *c, mf__expert_part part, const mf__expert_layout *layout, const uint8_t *blob,
                         mf__encode *e) {
    bool down = part == MF_PART_DOWN;
    if (c->plan->opt->scales_only) {
        e->weights = down ? c->mid_weights : c->in_weights;
        return;
    }
    if (down) prepare_down(c, layout, blob);
    if (down && c->mid_ok) {
        e->feedback = &c->mid_feedback;
        e->targets = c->target;
    }
    if (!down && c->in_ok) e->feedback = &c->in_feedback;
}

/* The weighted square of act down^T. */
static double output_square(mf__calibrator *c, const float *act, const float *down) {
    int64_t hidden = c->hidden, inner = c->inner;
    double sum = 0;
    for (int64_t i = 0; i < hidden; i++)
        for (int64_t k = 0; k < inner; k++) c->turned[k * hidden + i] = down[i * inner + k];
    memset(c->scaled, 0, (size_t)(c->n_rows * hidden) * sizeof *c->scaled);
    mf__product p = {.m = c->n_rows,
                     .n = hidden,
                     .k = inner,
                     .a = act,
                     .a_i = inner,
                     .a_k = 1,
                     .b = c->turned,
                     .b_k = hidden,
                     .c = c->scaled,
                     .c_i = hidden};
    mf__product_run(&p, c->pool);
    for (int64_t i = 0; i < c->n_rows; i++)
        for (int64_t k = 0; k < hidden; k++)
            sum += (double)c->weights[i] * c->scaled[i * hidden + k] * c->scaled[i * hidden + k];
    return sum;
}

double mf__calibrator_output_error(mf__calibrator *c, const mf__expert_layout *layout, const uint8_t *blob,
                                   mf__expert_part only) {
    mf__tensor t = mf__expert_view(layout, only, blob);
    float *stored = c->target;
    bool down = only == MF_PART_DOWN;
    for (int64_t row = 0; row < t.n_rows; row++) mf__tensor_row_f32(&t, row, stored + row * t.n_cols);
    if (down) {
        for (int64_t i = 0; i < c->hidden * c->inner; i++) stored[i] -= c->w[MF_PART_DOWN][i];
    } else {
        bool gate = only == MF_PART_GATE;
        activate(c, gate ? stored : c->w[MF_PART_GATE], gate ? c->w[MF_PART_UP] : stored, c->other);
        for (int64_t i = 0; i < c->n_rows * c->inner; i++) c->other[i] -= c->act[i];
    }
    double error = output_square(c, down ? c->act : c->other, down ? stored : c->w[MF_PART_DOWN]);
    double total = output_square(c, c->act, c->w[MF_PART_DOWN]);
    return total > 0 ? error / total : 0;
}
