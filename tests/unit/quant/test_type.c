/* The type table, sizes and views of tensors, and the value of every plain type. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "quant/affine.h"
#include "quant/half.h"

static void names(void **state) {
    (void)state;
    static const struct {
        const char *name;
        mf__type type;
        int bits;
    } known[] = {{"F32", MF_TYPE_F32, 32}, {"F16", MF_TYPE_F16, 16},        {"BF16", MF_TYPE_BF16, 16},
                 {"F64", MF_TYPE_F64, 64}, {"F8_E4M3", MF_TYPE_F8_E4M3, 8}, {"F8_E5M2", MF_TYPE_F8_E5M2, 8},
                 {"I64", MF_TYPE_I64, 64}, {"I32", MF_TYPE_I32, 32},        {"I16", MF_TYPE_I16, 16},
                 {"I8", MF_TYPE_I8, 8},    {"U64", MF_TYPE_U64, 64},        {"U32", MF_TYPE_U32, 32},
                 {"U16", MF_TYPE_U16, 16}, {"U8", MF_TYPE_U8, 8},           {"BOOL", MF_TYPE_BOOL, 8}};
    assert_int_equal(MF__COUNT(known), MF_TYPE_COUNT - 3 - 13); /* all but those with scales and the blocks of GGUF */
    for (size_t i = 0; i < MF__COUNT(known); i++) {
        mf__type type;
        assert_true(mf__type_parse(known[i].name, &type));
        assert_int_equal(type, known[i].type);
        assert_int_equal(mf__type_bits(type), known[i].bits);
        assert_string_equal(mf__type_name(type), known[i].name);
        assert_int_equal(mf__type_is_float(type), type == MF_TYPE_F32 || type == MF_TYPE_F16 || type == MF_TYPE_BF16);
    }
    mf__type untouched = MF_TYPE_I8;
    static const char *const unknown[] = {"", "AFFINE", "MXFP4", "F8_BLOCK", "f32", "F32 ", "COUNT"};
    for (size_t i = 0; i < MF__COUNT(unknown); i++) assert_false(mf__type_parse(unknown[i], &untouched));
    assert_int_equal(untouched, MF_TYPE_I8);
    assert_string_equal(mf__type_name((mf__type)1000), "?");
}

/* Stores values as `type` at an odd address in two rows and reads the second back. */
static void check_row(mf__type type, const void *stored, size_t element, const float *want, int64_t n) {
    uint8_t bytes[1 + 2 * 8 * 8];
    memset(bytes, 0xee, sizeof bytes);
    memcpy(bytes + 1 + (size_t)n * element, stored, (size_t)n * element);
    mf__tensor t = {.type = type, .n_planes = 1, .n_rows = 2, .n_cols = n, .data = bytes + 1};
    float out[8];
    assert_int_equal(mf__tensor_row_bytes(&t), (int64_t)element * n);
    assert_int_equal(mf__tensor_bytes(&t), 2 * (int64_t)element * n);
    mf__tensor_row_f32(&t, 1, out);
    for (int64_t i = 0; i < n; i++)
        if (out[i] != want[i]) fail_msg("%s[%d]: %g, expected %g", mf__type_name(type), (int)i, out[i], want[i]);
}

static void plain_rows(void **state) {
    (void)state;
#define CHECK(type, ctype, ...)                                                                                        \
    check_row(type, (const ctype[]){__VA_ARGS__}, sizeof(ctype), want, (int64_t)(sizeof want / sizeof *want))
    {
        const float want[] = {1.5f, -2, 0, 448};
        CHECK(MF_TYPE_F32, float, 1.5f, -2, 0, 448);
        CHECK(MF_TYPE_F64, double, 1.5, -2, 0, 448);
        CHECK(MF_TYPE_F16, uint16_t, 0x3e00, 0xc000, 0, 0x5f00);
        CHECK(MF_TYPE_BF16, uint16_t, 0x3fc0, 0xc000, 0, 0x43e0);
        CHECK(MF_TYPE_F8_E4M3, uint8_t, 0x3c, 0xc0, 0, 0x7e);
        CHECK(MF_TYPE_F8_E5M2, uint8_t, 0x3e, 0xc0, 0, 0x5f);
    }
    {
        const float want[] = {1, -2, 0, 127};
        CHECK(MF_TYPE_I8, int8_t, 1, -2, 0, 127);
        CHECK(MF_TYPE_I16, int16_t, 1, -2, 0, 127);
        CHECK(MF_TYPE_I32, int32_t, 1, -2, 0, 127);
        CHECK(MF_TYPE_I64, int64_t, 1, -2, 0, 127);
    }
    {
        const float want[] = {1, 0, 200};
        CHECK(MF_TYPE_U8, uint8_t, 1, 0, 200);
        CHECK(MF_TYPE_U16, uint16_t, 1, 0, 200);
        CHECK(MF_TYPE_U32, uint32_t, 1, 0, 200);
        CHECK(MF_TYPE_U64, uint64_t, 1, 0, 200);
    }
    {
        const float want[] = {1, 0, 1};
        CHECK(MF_TYPE_BOOL, uint8_t, 1, 0, 7);
    }
    {
        const float want[] = {1024, 0x1p63f};
        CHECK(MF_TYPE_I64, int64_t, 1024, INT64_MAX);
        CHECK(MF_TYPE_U64, uint64_t, 1024, (uint64_t)1 << 63);
    }
#undef CHECK
}

/* A stack of two affine matrices of three rows: every row of every plane through the view. */
static void affine_planes(void **state) {
    (void)state;
    enum { PLANES = 2, ROWS = 3, COLS = 64, BITS = 5, GROUP = 32 };
    uint8_t codes[PLANES * ROWS * COLS * BITS / 8];
    uint16_t scales[PLANES * ROWS * COLS / GROUP], biases[PLANES * ROWS * COLS / GROUP];
    for (int r = 0; r < PLANES * ROWS; r++) {
        float x[COLS];
        for (int i = 0; i < COLS; i++) x[i] = (float)(r + 1) * (float)(i % 32) / 31.0f;
        mf__affine_encode_row(x, COLS, BITS, GROUP, MF_TYPE_F16, codes + r * COLS * BITS / 8, scales + r * COLS / GROUP,
                              biases + r * COLS / GROUP);
    }
    mf__tensor t = {.type = MF_TYPE_AFFINE,
                    .n_planes = PLANES,
                    .n_rows = ROWS,
                    .n_cols = COLS,
                    .data = codes,
                    .bits = BITS,
                    .group = GROUP,
                    .scale_type = MF_TYPE_F16,
                    .scales = scales,
                    .biases = biases};
    assert_int_equal(mf__tensor_row_bytes(&t), 40);
    assert_int_equal(mf__tensor_bytes(&t), PLANES * ROWS * (40 + 2 * 2 * 2));
    for (int p = 0; p < PLANES; p++) {
        mf__tensor plane = mf__tensor_plane(&t, p);
        assert_int_equal(plane.n_planes, 1);
        assert_int_equal(mf__tensor_bytes(&plane), ROWS * 48);
        for (int r = 0; r < ROWS; r++) {
            float out[COLS];
            mf__tensor_row_f32(&plane, r, out);
            for (int i = 0; i < COLS; i++) {
                float want = (float)(p * ROWS + r + 1) * (float)(i % 32) / 31.0f;
                assert_true(fabsf(out[i] - want) < 0.01f);
            }
        }
    }
}

/* Every code at several scales against its definition, low half of a byte first; and the sizes of the pieces. */
static void mxfp4(void **state) {
    (void)state;
    static const double magnitudes[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    uint8_t codes[2][32], scales[2][2] = {{127, 120}, {0, 254}};
    float out[64];
    for (int i = 0; i < 64; i++) codes[i / 32][i % 32] = 0;
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < 64; i++) codes[r][i / 2] |= (uint8_t)((i + r) % 16 << (i % 2 ? 4 : 0));
    mf__tensor t = {.type = MF_TYPE_MXFP4,
                    .n_planes = 1,
                    .n_rows = 2,
                    .n_cols = 64,
                    .data = codes,
                    .bits = 4,
                    .group = MF_MXFP4_GROUP,
                    .scale_type = MF_TYPE_U8,
                    .scales = scales};
    for (int r = 0; r < 2; r++) {
        mf__tensor_row_f32(&t, r, out);
        for (int i = 0; i < 64; i++) {
            int code = (i + r) % 16;
            double value = ldexp(magnitudes[code % 8], scales[r][i / 32] - 127) * (code < 8 ? 1 : -1);
            assert_true(out[i] == (float)value);
            assert_int_equal(!!signbit(out[i]), code >= 8);
        }
    }
    assert_int_equal(mf__tensor_row_bytes(&t), 32);
    assert_int_equal(mf__tensor_scale_bytes(&t), 2);
    assert_int_equal(mf__tensor_bias_bytes(&t), 0);
    assert_int_equal(mf__tensor_bytes(&t), 2 * 34);
    scales[0][0] = 255;
    mf__tensor_row_f32(&t, 0, out);
    assert_true(isnan(out[1]));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mxfp4),
        cmocka_unit_test(names),
        cmocka_unit_test(plain_rows),
        cmocka_unit_test(affine_planes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
