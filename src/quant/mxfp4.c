/* MXFP4: decode of one row. */
#include "quant/mxfp4.h"

#include <math.h>

#include "quant/type.h"

static const float VALUES[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

void mf__mxfp4_decode_row(const void *codes, const void *scales, int64_t n_cols, float *out) {
    const uint8_t *p = codes, *s = scales;
    for (int64_t g = 0; g < n_cols / MF_MXFP4_GROUP; g++, out += MF_MXFP4_GROUP, p += MF_MXFP4_GROUP / 2) {
        float scale = s[g] == 255 ? NAN : ldexpf(1.0f, s[g] - 127);
        for (int i = 0; i < MF_MXFP4_GROUP / 2; i++) {
            out[2 * i] = VALUES[p[i] & 15] * scale;
            out[2 * i + 1] = VALUES[p[i] >> 4] * scale;
        }
    }
}
