/* The convolution before the delta rule: a channel in each lane. A template, part of rowwise.inc.h. */
#define MAX_KERNEL 8
#define CHANNELS 256 /* whose taps are at hand; rows are read in runs of them */

/* w [channels][kernel] -> out [kernel][CHANNELS] */
INLINE void taps_of(const float *w, int32_t kernel, int64_t channels, float *out) {
    for (int32_t k = 0; k < kernel; k++)
        for (int64_t c = 0; c < channels; c++) out[k * CHANNELS + c] = w[c * kernel + k];
}

/* y = silu(bias + sum of tap k * row k), the last row being x itself; plain: without silu. */
INLINE void conv_row(const float *const *rows, const float *taps, const float *bias, int32_t kernel, int64_t channels,
                     bool plain, float *y) {
    for (int64_t c = 0; c < channels; c += WIDTH) {
        vf sum = bias ? load_some(bias + c, channels - c) : (vf){0};
        for (int32_t k = 0; k < kernel; k++)
            sum = fma_of(load_f(taps + k * CHANNELS + c), load_some(rows[k] + c, channels - c), sum);
        store_some(y + c, channels - c, plain ? sum : sum * sigmoid_of(sum));
    }
}

INLINE void conv_channels(const mf__cpu_conv *v, int64_t first, int64_t channels, int32_t kernel) {
    float taps[MAX_KERNEL * CHANNELS];
    const float *rows[MAX_KERNEL];
    taps_of(v->w + first * kernel, kernel, channels, taps);
    for (int32_t t = 0; t < v->n_rows; t++) {
        for (int32_t k = 0, from = t + 1 - kernel; k < kernel; k++, from++)
            rows[k] = first + (from < 0 ? v->before + (kernel - 1 + from) * v->stride : v->x + from * v->stride);
        conv_row(rows, taps, v->bias ? v->bias + first : NULL, kernel, channels, v->plain,
                 v->y + t * v->stride + first);
    }
}

static void SET(conv)(const mf__cpu_conv *v) {
    for (int64_t c = 0; c < v->n_channels; c += CHANNELS) {
        int64_t channels = v->n_channels - c < CHANNELS ? v->n_channels - c : CHANNELS;
        if (v->kernel == 4 && channels == CHANNELS) /* constants inside */
            conv_channels(v, c, CHANNELS, 4);
        else
            conv_channels(v, c, channels, v->kernel);
    }
}
