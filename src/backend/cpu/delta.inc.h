/* The delta rule. A template, part of rowwise.inc.h.
 *
 *   d = beta (v - decay S k);  o = decay S q + d (k . q);  S <- decay S + d k^T
 *
 * decay is a number, or a number for each column of S. Rows of S do not meet. Sums run along k in order, SUMS of them
 * that do not wait for one another, whatever the number of steps: a row's bits do not depend on how its sequence is
 * cut. */

#define MAX_K_DIM 256
#define SUMS 2   /* of each product S k and S q */
#define BLOCKS 2 /* of WIDTH rows that go through the steps together */

/* k . q of one step. */
INLINE float dot_of(const float *a, const float *b, int32_t n) {
    vf sum = {0};
    for (int32_t i = 0; i < n; i += WIDTH) sum = fma_of(load_f(a + i), load_f(b + i), sum);
    return sum_lanes(sum);
}

/* S k and S q of WIDTH rows, in lanes. */
typedef struct taken {
    vf seen[SUMS], read[SUMS];
} taken;

INLINE void take(taken *t, vf S, int32_t i, const float *k, const float *q) {
    t->seen[i % SUMS] = fma_of(S, splat(k[i]), t->seen[i % SUMS]);
    t->read[i % SUMS] = fma_of(S, splat(q[i]), t->read[i % SUMS]);
}

/* What is added along k, for WIDTH rows whose values are at v; their results go to o. */
INLINE vf step_of(const taken *t, const float *v, float decay, float beta, float kq, float *o) {
    vf seen = t->seen[0] + t->seen[1], read = t->read[0] + t->read[1];
    vf d = fma_of(splat(-decay), seen, load_f(v)) * beta;
    store_f(o, fma_of(d, splat(kq), read * decay));
    return d;
}

INLINE vf updated(vf S, vf d, vf k, vf decay) {
    return fma_of(d, k, S * decay);
}

/* With a decay for each channel, the sums take k and q times it, and there is none left for step_of. */
typedef struct faded {
    float k[MAX_K_DIM], q[MAX_K_DIM];
} faded;

INLINE void fade(const float *k, const float *q, const float *decay, int32_t n, faded *out) {
    for (int32_t i = 0; i < n; i += WIDTH) {
        vf g = load_f(decay + i);
        store_f(out->k + i, load_f(k + i) * g);
        store_f(out->q + i, load_f(q + i) * g);
    }
}

/* One step: S stays as it lies, and is turned to be summed up. The WIDTH rows that follow are prefetched meanwhile. */
INLINE void delta_once(const mf__cpu_delta *d, int32_t row, const float *k, const float *q, float kq, bool by_channel) {
    const float *S = d->S_in + (int64_t)row * d->k_dim;
    float *to = d->S_out + (int64_t)row * d->k_dim;
    const char *next = (const char *)(S + (int64_t)WIDTH * d->k_dim);
    bool past = d->past && (uintptr_t)d->S_out % sizeof(vf) == 0;
    const float all = *d->decay;
    taken t = {{{0}}, {{0}}};
    for (int32_t c = 0; c < d->k_dim; c += WIDTH) {
        vi square[WIDTH];
        for (int r = 0; r < WIDTH; r++) square[r] = (vi)load_f(S + (int64_t)r * d->k_dim + c);
        for (int i = 0; i < WIDTH * WIDTH * 4; i += MF_CPU_LINE, next += MF_CPU_LINE) __builtin_prefetch(next);
        transpose(square);
        for (int i = 0; i < WIDTH; i++) take(&t, (vf)square[i], i, k + c, q + c);
    }
    vf change = step_of(&t, d->v + row, by_channel ? 1 : all, *d->beta, kq, d->o + row);
    float changes[WIDTH];
    store_f(changes, change);
    for (int r = 0; r < WIDTH; r++)
        for (int32_t c = 0; c < d->k_dim; c += WIDTH) {
            int64_t at = (int64_t)r * d->k_dim + c;
            vf decay = by_channel ? load_f(d->decay + c) : splat(all);
            vf now = updated(load_f(S + at), splat(changes[r]), load_f(d->k + c), decay);
            if (past)
                stream_f(to + at, now);
            else
                store_f(to + at, now);
        }
}

static int32_t SET(delta_one)(const mf__cpu_delta *d) {
    int32_t row = 0;
    float kq = dot_of(d->k, d->q, d->k_dim);
    faded f;
    if (d->by_channel) fade(d->k, d->q, d->decay, d->k_dim, &f);
    for (; row + WIDTH <= d->n_rows; row += WIDTH)
        if (d->by_channel)
            delta_once(d, row, f.k, f.q, kq, true);
        else
            delta_once(d, row, d->k, d->q, kq, false);
    return row;
}

/* Between S [WIDTH rows][k_dim] and T [k_dim]; on the way back the last step is done. */
INLINE void turn_in(const float *S, int32_t k_dim, vf *T, int stride) {
    for (int32_t c = 0; c < k_dim; c += WIDTH) {
        vi square[WIDTH];
        for (int r = 0; r < WIDTH; r++) square[r] = (vi)load_f(S + (int64_t)r * k_dim + c);
        transpose(square);
        for (int r = 0; r < WIDTH; r++) T[(c + r) * stride] = (vf)square[r];
    }
}
INLINE void turn_back(const vf *T, int stride, int32_t k_dim, vf d, const float *k, const float *decay, bool by_channel,
                      float *S) {
    for (int32_t c = 0; c < k_dim; c += WIDTH) {
        vi square[WIDTH];
        for (int r = 0; r < WIDTH; r++)
            square[r] = (vi)updated(T[(c + r) * stride], d, splat(k[c + r]), splat(decay[by_channel ? c + r : 0]));
        transpose(square);
        for (int r = 0; r < WIDTH; r++) store_f(S + (int64_t)r * k_dim + c, (vf)square[r]);
    }
}

/* Several steps of n blocks of WIDTH rows, which lie in the lanes meanwhile. Each pass over T does what the step before
 * left to be done, and takes the sums of the next. */
INLINE void delta_steps(const mf__cpu_delta *d, int32_t row, int n, bool by_channel) {
    vf T[MAX_K_DIM][BLOCKS], change[BLOCKS];
    int32_t dim = d->k_dim;
    faded f;
    for (int b = 0; b < n; b++) {
        turn_in(d->S_in + (int64_t)(row + b * WIDTH) * dim, dim, &T[0][b], BLOCKS);
        change[b] = (vf){0};
    }
    const float *k = d->k, *before = d->k, *decay = d->decay;
    for (int32_t t = 0; t < d->n_steps; t++) {
        taken sums[BLOCKS];
        const float *q = d->q + t * d->qkv_stride, *now = d->decay + t * d->decay_stride;
        for (int b = 0; b < n; b++) sums[b] = (taken){{{0}}, {{0}}};
        k = d->k + t * d->qkv_stride;
        if (by_channel) fade(k, q, now, dim, &f);
        const float *k_sum = by_channel ? f.k : k, *q_sum = by_channel ? f.q : q;
        for (int32_t i = 0; i < dim && t == 0; i += SUMS)
            for (int s = 0; s < SUMS; s++)
                for (int b = 0; b < n; b++) take(&sums[b], T[i + s][b], s, k_sum + i, q_sum + i);
        for (int32_t i = 0; i < dim && t > 0; i += SUMS)
            for (int s = 0; s < SUMS; s++)
                for (int b = 0; b < n; b++) {
                    T[i + s][b] =
                        updated(T[i + s][b], change[b], splat(before[i + s]), splat(decay[by_channel ? i + s : 0]));
                    take(&sums[b], T[i + s][b], s, k_sum + i, q_sum + i);
                }
        decay = now;
        before = k;
        float beta = d->beta[t * d->gate_stride], kq = dot_of(k, q, dim), all = by_channel ? 1 : *decay;
        for (int b = 0; b < n; b++) {
            int32_t at = row + b * WIDTH;
            change[b] = step_of(&sums[b], d->v + t * d->qkv_stride + at, all, beta, kq, d->o + t * d->o_stride + at);
        }
    }
    for (int b = 0; b < n; b++)
        turn_back(&T[0][b], BLOCKS, dim, change[b], k, decay, by_channel, d->S_out + (int64_t)(row + b * WIDTH) * dim);
}

INLINE int32_t delta_many(const mf__cpu_delta *d, bool by_channel) {
    int32_t row = 0;
    for (; row + BLOCKS * WIDTH <= d->n_rows; row += BLOCKS * WIDTH) delta_steps(d, row, BLOCKS, by_channel);
    for (; row + WIDTH <= d->n_rows; row += WIDTH) delta_steps(d, row, 1, by_channel);
    return row;
}

/* Any k_dim, and rows that do not fill a vector. */
static void SET(delta_row_any)(const mf__cpu_delta *d, int32_t row) {
    float *S = d->S_out + (int64_t)row * d->k_dim;
    memmove(S, d->S_in + (int64_t)row * d->k_dim, (size_t)d->k_dim * sizeof *S);
    int step = d->by_channel;
    for (int32_t t = 0; t < d->n_steps; t++) {
        const float *k = d->k + t * d->qkv_stride, *q = d->q + t * d->qkv_stride, *v = d->v + t * d->qkv_stride;
        const float *decay = d->decay + t * d->decay_stride;
        float beta = d->beta[t * d->gate_stride], seen = 0, read = 0;
        for (int32_t j = 0; j < d->k_dim; j++) seen += S[j] * decay[j * step] * k[j];
        float change = beta * (v[row] - seen);
        for (int32_t j = 0; j < d->k_dim; j++) {
            S[j] = S[j] * decay[j * step] + k[j] * change;
            read += S[j] * q[j];
        }
        d->o[t * d->o_stride + row] = read;
    }
}

static void SET(delta)(const mf__cpu_delta *d) {
    int32_t row = 0;
    if (d->k_dim % WIDTH == 0 && d->k_dim <= MAX_K_DIM)
        row = d->n_steps == 1 ? SET(delta_one)(d) : d->by_channel ? delta_many(d, true) : delta_many(d, false);
    for (; row < d->n_rows; row++) SET(delta_row_any)(d, row);
    if (d->past) stream_end();
}
