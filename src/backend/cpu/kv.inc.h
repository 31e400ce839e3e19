/* Rows of the KV cache, with the bits of quant/kv.c; compiled once per instruction set, without fused multiply-adds. */
#include "backend/cpu/cpu.h"

static void SET(encode_f16)(const float *x, int32_t cols, uint8_t *row) {
    const vf most = splat(MF_KV_F16_MAX);
    int32_t c = 0;
    for (; c + WIDTH <= cols; c += WIDTH) {
        vf v = load_f(x + c);
        v = choose((vi)(v > most), most, v);
        store_f16(row + 2 * (int64_t)c, choose((vi)(v < -most), -most, v));
    }
    if (c < cols) mf__kv_encode_row(MF_TYPE_F16, x + c, cols - c, row + 2 * (int64_t)c);
}

/* Whole groups of values that are all finite and not all tiny; false: the definition has to do it. */
INLINE bool encode_group(const float *x, uint8_t *codes, float *scale) {
    const vf round = splat(0x1.8p23f);
    vf most = {0};
    vi strange = {0};
    for (int i = 0; i < MF_KV_GROUP; i += WIDTH) {
        vf v = load_f(x + i), size = (vf)((vi)v & 0x7fffffff);
        strange |= (vi)size >= 0x7f800000;
        most = max_of(size, most);
    }
    float top = 0;
    for (int j = 0; j < WIDTH; j++) {
        if (strange[j]) return false;
        top = most[j] > top ? most[j] : top;
    }
    if (!(top > MF_KV_I8_MIN)) return false;
    float inverse = 127 / top;
    *scale = top / 127;
    for (int i = 0; i < MF_KV_GROUP; i += WIDTH) {
        vi code = (vi)(load_f(x + i) * inverse + round) - (vi)round;
        vi8_narrow narrow = __builtin_convertvector(code, vi8_narrow);
        memcpy(codes + i, &narrow, sizeof narrow);
    }
    return true;
}

static void SET(encode_i8)(const float *x, int32_t cols, uint8_t *row) {
    int64_t scales = mf__kv_scales_at(cols);
    for (int32_t g = 0; g * MF_KV_GROUP < cols; g++) {
        float scale;
        if (g * MF_KV_GROUP + MF_KV_GROUP > cols || !encode_group(x + g * MF_KV_GROUP, row + g * MF_KV_GROUP, &scale)) {
            mf__kv_encode_row(MF_TYPE_I8, x, cols, row);
            return;
        }
        memcpy(row + scales + g * (int64_t)sizeof scale, &scale, sizeof scale);
    }
}

static void SET(kv_encode)(mf__type type, const float *x, int32_t cols, void *row) {
    if (type == MF_TYPE_F16)
        SET(encode_f16)(x, cols, row);
    else if (type == MF_TYPE_I8)
        SET(encode_i8)(x, cols, row);
    else
        mf__kv_encode_row(type, x, cols, row);
}

INLINE vf load_code(const uint8_t *p) {
    vi8_narrow codes;
    memcpy(&codes, p, sizeof codes);
    return __builtin_convertvector(codes, vf);
}

static void SET(kv_decode)(mf__type type, const void *row, int32_t cols, int32_t first, int32_t n, float *out) {
    const uint8_t *p = row;
    int32_t c = 0;
    if (type == MF_TYPE_F16) {
        for (; c + WIDTH <= n; c += WIDTH) store_f(out + c, load_f16(p + 2 * ((int64_t)first + c)));
    } else if (type == MF_TYPE_I8) {
        for (; c + WIDTH <= n && (first + c) % WIDTH == 0; c += WIDTH) { /* then a vector has one scale */
            float scale;
            memcpy(&scale, p + mf__kv_scales_at(cols) + (first + c) / MF_KV_GROUP * (int64_t)sizeof scale,
                   sizeof scale);
            store_f(out + c, load_code(p + first + c) * scale);
        }
    }
    if (c < n) mf__kv_decode_row(type, row, cols, first + c, n - c, out + c);
}

void SET(mf__cpu_kv)(mf__cpu_kernels *k) {
    k->kv_encode = SET(kv_encode);
    k->kv_decode = SET(kv_decode);
}
