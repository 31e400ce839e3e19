/* Mamba-2, one head. A template, part of rowwise.inc.h.
 *
 *   S <- decay S + (step u) B^T;  y = S C + D u
 *
 * Rows of S do not meet; each goes through a step alone, its sum in lanes along the state. */
static void SET(ssm)(const mf__cpu_ssm *m) {
    int64_t n = m->n_state;
    const float *S = m->S_in;
    for (int32_t t = 0; t < m->n_steps; t++, S = m->S_out) {
        const float *u = m->u + t * m->stride, *B = m->B + t * m->stride, *C = B + m->to_C;
        float x = m->dt[t * m->dt_stride] + m->bias, step = x > 20.0f ? x : log1pf(expf(x));
        vf decay = splat(expf(-m->rate * step));
        for (int32_t i = 0; i < m->dim; i++) {
            const float *from = S + i * n;
            float *to = m->S_out + i * n;
            vf sum = {0}, in = splat(step * u[i]);
            for (int64_t j = 0; j < n; j += WIDTH) {
                vf now = fma_of(in, load_some(B + j, n - j), decay * load_some(from + j, n - j));
                store_some(to + j, n - j, now);
                sum = fma_of(now, load_some(C + j, n - j), sum);
            }
            m->y[t * m->y_stride + i] = sum_lanes(sum) + m->direct * u[i];
        }
    }
}
