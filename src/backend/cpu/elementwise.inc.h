/* Results to their places, norms and activations: kernels that treat every value, or every row, alike. A template, part
 * of rowwise.inc.h. */
/* The next values of a row of which n are left; zeros behind its end. */
INLINE vf load_some(const float *p, int64_t n) {
    if (n >= WIDTH) return load_f(p);
    vf v = {0};
    for (int64_t i = 0; i < n; i++) v[i] = p[i];
    return v;
}
INLINE void store_some(float *p, int64_t n, vf v) {
    if (n >= WIDTH)
        store_f(p, v);
    else
        for (int64_t i = 0; i < n; i++) p[i] = v[i];
}

/* ---- results to their places ------------------------------------------------------------------------------------- */

static void SET(put)(const mf__cpu_put *p) {
    const float *from = p->from;
    for (int j = 0; j < p->n; j++, from += p->ld) {
        float *to = p->to + (p->rows ? p->rows[j] : j) * p->stride;
        if (!p->past || p->n_cols % WIDTH || (uintptr_t)to % sizeof(vf))
            memcpy(to, from, (size_t)p->n_cols * sizeof *to);
        else
            for (int i = 0; i < p->n_cols; i += WIDTH) stream_f(to + i, load_f(from + i));
    }
    if (p->past) stream_end();
}

/* ---- norms and activations --------------------------------------------------------------------------------------- */

INLINE float sum_of_squares(const float *x, int64_t n) {
    vf sum = {0};
    for (int64_t i = 0; i < n; i += WIDTH) {
        vf v = load_some(x + i, n - i);
        sum = fma_of(v, v, sum);
    }
    return sum_lanes(sum);
}

static void SET(rms_norm)(const float *x, const float *w, float eps, int64_t n, float *y) {
    float scale = 1.0f / sqrtf(sum_of_squares(x, n) / (float)n + eps);
    for (int64_t i = 0; i < n; i += WIDTH)
        store_some(y + i, n - i, load_some(x + i, n - i) * scale * load_some(w + i, n - i));
}

static void SET(scale_to_unit)(float *x, int64_t n, float scale) {
    scale /= sqrtf(sum_of_squares(x, n) + 1e-6f);
    for (int64_t i = 0; i < n; i += WIDTH) store_some(x + i, n - i, load_some(x + i, n - i) * scale);
}

static void SET(add)(const float *a, const float *b, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i += WIDTH) store_some(y + i, n - i, load_some(a + i, n - i) + load_some(b + i, n - i));
}

static void SET(glu)(const mf__glu *glu, const float *gate, const float *up, int64_t n, float *y) {
    vf limit = splat(glu->limit);
    for (int64_t i = 0; i < n; i += WIDTH) {
        vf g = load_some(gate + i, n - i), u = load_some(up + i, n - i);
        if (glu->kind == MF_GLU_CLAMPED) {
            g = -max_of(-g, -limit);
            u = max_of(-max_of(-u, -limit), -limit) + 1.0f;
            store_some(y + i, n - i, g * sigmoid_of(g * glu->alpha) * u);
        } else if (glu->kind == MF_GLU_LIMITED) {
            g = -max_of(-g, -limit);
            store_some(y + i, n - i, g * sigmoid_of(g) * max_of(-max_of(-u, -limit), -limit));
        } else if (glu->kind == MF_GLU_CUT) {
            g = -max_of(-(g * sigmoid_of(g)), -limit);
            store_some(y + i, n - i, g * max_of(-max_of(-u, -limit), -limit));
        } else if (glu->kind == MF_GLU_GELU) { /* 1 + tanh(z) = 2 sigmoid(2 z) */
            vf z = 1.5957691f * (g + 0.044715f * g * g * g);
            store_some(y + i, n - i, g * sigmoid_of(z) * u);
        } else if (glu->kind == MF_GLU_PRODUCT) {
            store_some(y + i, n - i, g * u);
        } else {
            store_some(y + i, n - i, g * sigmoid_of(g) * u);
        }
    }
}

/* All but POSITION; w: the weight, or 1. */
static void SET(map)(const mf__op_params *p, float w, int64_t n, float *x) {
    const float a = p->map.a;
    for (int64_t i = 0; i < n; i += WIDTH) {
        vf v = load_some(x + i, n - i);
        if (p->map.kind == MF_MAP_CAP) {
            v = a * tanh_of(v / a);
        } else if (p->map.kind == MF_MAP_RELU2) {
            v = max_of(v, splat(0));
            v = v * v;
        } else if (p->map.kind == MF_MAP_CLAMP) {
            v = choose((vi)(v > -a), v, splat(-a));
            v = choose((vi)(v < a), v, splat(a));
        } else {
            v = a * (v * w);
        }
        store_some(x + i, n - i, v);
    }
}

static void SET(mul_sigmoid)(float *x, const float *gate, int64_t n) {
    for (int64_t i = 0; i < n; i += WIDTH)
        store_some(x + i, n - i, load_some(x + i, n - i) * sigmoid_of(load_some(gate + i, n - i)));
}

static void SET(mul_silu)(float *x, const float *z, int64_t n) {
    for (int64_t i = 0; i < n; i += WIDTH) {
        vf g = load_some(z + i, n - i);
        store_some(x + i, n - i, load_some(x + i, n - i) * g * sigmoid_of(g));
    }
}

/* y = exp(-rate ln(1 + e^x)), x = a + bias. ln(1 + e) = 2 artanh(e / (2 + e)) by its series, e at most 1. */
static void SET(decay)(float rate, const float *a, const float *bias, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i += WIDTH) {
        vf x = load_some(a + i, n - i) + load_some(bias + i, n - i), size = max_of(x, -x);
        vf e = exp_of(-size), s = e / (2.0f + e), square = s * s, sum = splat(1.0f / 17);
        for (int k = 15; k > 0; k -= 2) sum = fma_of(sum, square, splat(1.0f / (float)k));
        store_some(y + i, n - i, exp_of(-rate * (max_of(x, splat(0)) + 2.0f * s * sum)));
    }
}

static void SET(axpy)(float a, const float *x, int64_t n, float *y) {
    for (int64_t i = 0; i < n; i += WIDTH)
        store_some(y + i, n - i, fma_of(splat(a), load_some(x + i, n - i), load_some(y + i, n - i)));
}
