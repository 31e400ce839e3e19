/* Every block type of GGUF against vectors that ggml encoded and decoded: 8 rows of 512 values, bit for bit or one unit
 * in the last place. The vectors are in tests/data/gguf (made with llama.cpp b21e4de745). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "quant/affine.h"
#include "quant/gguf_types.h"
#include "quant/mxfp4.h"

enum { ROWS = 8, COLS = 512 };

static const char *vectors;

static char *load(const char *name, const char *ending, size_t *size) {
    char path[512], *bytes;
    mf_error err;
    snprintf(path, sizeof path, "%s/%s.%s", vectors, name, ending);
    if (mf__file_read(path, 1 << 20, &bytes, size, &err)) fail_msg("%s", err.text);
    return bytes;
}

static int64_t ulps(float a, float b) {
    int32_t x, y;
    memcpy(&x, &a, 4);
    memcpy(&y, &b, 4);
    if (x < 0) x = INT32_MIN - x;
    if (y < 0) y = INT32_MIN - y;
    return llabs((long long)x - y);
}

static void all_types(void **state) {
    static const struct {
        const char *name;
        uint32_t number;
    } rows[] = {{"f16", 1},   {"bf16", 30}, {"q4_0", 2},    {"q4_1", 3},    {"q5_0", 6},
                {"q5_1", 7},  {"q8_0", 8},  {"q2_K", 10},   {"q3_K", 11},   {"q4_K", 12},
                {"q5_K", 13}, {"q6_K", 14}, {"iq4_nl", 20}, {"iq4_xs", 23}, {"mxfp4", 39}};
    (void)state;
    for (size_t i = 0; i < MF__COUNT(rows); i++) {
        size_t n_blocks, n_want;
        char *blocks = load(rows[i].name, "blocks", &n_blocks), *want = load(rows[i].name, "f32", &n_want);
        mf__tensor t = {.n_planes = 1, .n_rows = ROWS, .n_cols = COLS, .data = blocks};
        float got[COLS], expected[COLS];
        assert_true(mf__gguf_type(rows[i].number, &t.type, NULL));
        assert_int_equal(n_want, ROWS * COLS * sizeof(float));
        assert_int_equal(mf__tensor_bytes(&t), n_blocks);
        for (int r = 0; r < ROWS; r++) {
            mf__tensor_row_f32(&t, r, got);
            memcpy(expected, want + r * (int)sizeof expected, sizeof expected);
            for (int c = 0; c < COLS; c++)
                if (ulps(got[c], expected[c]) > 1)
                    fail_msg("%s, row %d, value %d: %.9g, expected %.9g", rows[i].name, r, c, (double)got[c],
                             (double)expected[c]);
        }
        free(blocks);
        free(want);
    }
}

static void repacked(void **state) {
    size_t size;
    char *blocks = load("mxfp4", "blocks", &size);
    uint8_t codes[COLS / 2], scales[COLS / 32];
    float a[COLS], b[COLS];
    (void)state;
    for (int r = 0; r < ROWS; r++) {
        const char *row = blocks + r * (COLS / 32 * 17);
        mf__gguf_decode_row(MF_TYPE_MXFP4_BLOCK, row, COLS, a);
        mf__gguf_repack_mxfp4(row, COLS, codes, scales);
        mf__mxfp4_decode_row(codes, scales, COLS, b);
        assert_memory_equal(a, b, sizeof a);
    }
    free(blocks);
}

/* Codes on a straight line go over to affine groups as they are, also where there is room for more bits. */
static void repacked_affine(void **state) {
    static const struct {
        const char *name;
        mf__type type;
        int bits;
    } rows[] = {{"q4_0", MF_TYPE_Q4_0, 4}, {"q4_1", MF_TYPE_Q4_1, 4}, {"q5_0", MF_TYPE_Q5_0, 5},
                {"q5_1", MF_TYPE_Q5_1, 5}, {"q8_0", MF_TYPE_Q8_0, 8}, {"q4_K", MF_TYPE_Q4_K, 0}};
    (void)state;
    for (size_t i = 0; i < MF__COUNT(rows); i++) {
        size_t size;
        char *blocks = load(rows[i].name, "blocks", &size);
        mf__tensor t = {.type = rows[i].type, .n_planes = 1, .n_rows = ROWS, .n_cols = COLS, .data = blocks};
        uint8_t codes[COLS], scales[COLS / 16], biases[COLS / 16];
        assert_int_equal(mf__gguf_straight_bits(t.type), rows[i].bits);
        for (int bits = 2; bits <= 8; bits++) {
            bool fits = rows[i].bits && bits >= rows[i].bits;
            for (int r = 0; mf__affine_bits_ok(bits) && r < ROWS; r++) {
                float got[COLS], want[COLS];
                const char *row = blocks + r * mf__tensor_row_bytes(&t);
                assert_int_equal(mf__gguf_repack_affine(t.type, row, COLS, bits, codes, scales, biases), fits);
                if (!fits) continue;
                mf__tensor_row_f32(&t, r, want);
                mf__affine_decode_row(codes, scales, biases, MF_TYPE_F16, COLS, bits, 32, got);
                for (int c = 0; c < COLS; c++) assert_true(got[c] == want[c]);
            }
        }
        free(blocks);
    }
    /* 128 * 600 is beyond F16 */
    uint8_t block[34] = {0xb0, 0x60, 1, 2, 3}, codes[32], scale[2], bias[2];
    assert_false(mf__gguf_repack_affine(MF_TYPE_Q8_0, block, 32, 8, codes, scale, bias));
}

static void names(void **state) {
    mf__type type;
    const char *name;
    (void)state;
    assert_false(mf__gguf_type(16, &type, &name));
    assert_string_equal(name, "IQ2_XXS");
    assert_false(mf__gguf_type(999, &type, &name));
    assert_string_equal(name, "?");
    assert_false(mf__type_parse("Q4_K", &type)); /* not in our own files */
    assert_true(mf__type_is_block(MF_TYPE_Q4_K) && !mf__type_is_block(MF_TYPE_F16));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_types), cmocka_unit_test(repacked),
                                       cmocka_unit_test(repacked_affine), cmocka_unit_test(names)};
    if (argc != 2) return 2;
    vectors = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
