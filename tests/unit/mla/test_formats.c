/* FP8 in blocks and packed 4-bit integers: every code, cut-off blocks, and what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "quant/affine.h"
#include "quant/expert.h"
#include "quant/half.h"
#include "weights/safetensors.h"

/* By the definition: sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinities; all ones is NaN. */
static double e4m3(int code) {
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double value = exponent ? ldexp(1 + mantissa / 8.0, exponent - 7) : ldexp(mantissa, -9);
    if ((code & 127) == 127) return NAN;
    return code & 128 ? -value : value;
}

/* All codes, in blocks of one row each with its own scale. */
static void every_code(void **state) {
    uint8_t codes[256];
    float scales[2] = {0.75f, -3.0f}, out[256];
    (void)state;
    for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
    mf__tensor t = {.type = MF_TYPE_F8_BLOCK,
                    .n_planes = 1,
                    .n_rows = 1,
                    .n_cols = 256,
                    .data = codes,
                    .bits = 8,
                    .group = 128,
                    .block_rows = 128,
                    .scale_type = MF_TYPE_F32,
                    .scales = scales};
    mf__tensor_row_f32(&t, 0, out);
    for (int i = 0; i < 256; i++) {
        if (isnan(e4m3(i)))
            assert_true(isnan(out[i]));
        else
            assert_true(out[i] == (float)(e4m3(i) * scales[i / 128]));
    }
    assert_true(e4m3(0x7e) == 448);
}

static mf__catalog *write_and_open(const char *path, const mf__entry *entries, int64_t n) {
    mf__catalog *cat;
    mf_error err = {0};
    if (mf__safetensors_write(path, entries, n, &err) != MF_OK) fail_msg("%s", err.text);
    if (mf__safetensors_open(path, &cat, &err) != MF_OK) fail_msg("%s", err.text);
    return cat;
}

static mf__entry entry(const char *name, mf__type type, int n_dims, int64_t a, int64_t b, int64_t c, const void *data) {
    mf__entry e = {.name = name, .type = type, .n_dims = n_dims, .dims = {a, b, c}, .data = data};
    e.size = mf__type_bits(type) / 8;
    for (int i = 0; i < n_dims; i++) e.size *= e.dims[i];
    return e;
}

static void path_of(char path[64]) {
    snprintf(path, 64, "formats_%ld.safetensors", (long)getpid());
}

/* Scales 1, 2, 3 ... so that each value tells its block. Rows and columns end inside a block. */
static void cut_off_blocks(void **state) {
    static const struct {
        int64_t planes, rows, cols;
        int block;
    } cases[] = {{1, 576, 130, 128}, {1, 96, 128, 128}, {1, 129, 1, 128}, {1, 70, 200, 64}, {3, 130, 129, 128}};
    char path[64];
    (void)state;
    path_of(path);
    for (size_t k = 0; k < MF__COUNT(cases); k++) {
        int64_t planes = cases[k].planes, rows = cases[k].rows, cols = cases[k].cols, b = cases[k].block;
        int64_t br = (rows + b - 1) / b, bc = (cols + b - 1) / b, n = planes * rows * cols;
        uint8_t *codes = malloc((size_t)n);
        float *scales = malloc((size_t)(planes * br * bc) * sizeof *scales), *row = malloc((size_t)cols * sizeof *row);
        assert_non_null(codes && scales && row ? codes : NULL);
        for (int64_t i = 0; i < n; i++) codes[i] = (uint8_t)(i * 7 % 126);
        for (int64_t i = 0; i < planes * br * bc; i++) scales[i] = (float)(i + 1);
        int d = planes > 1 ? 3 : 2;
        mf__entry e[2] = {
            entry("x.weight", MF_TYPE_F8_E4M3, d, d == 3 ? planes : rows, d == 3 ? rows : cols, cols, codes),
            entry("x.weight_scale_inv", MF_TYPE_F32, d, d == 3 ? planes : br, d == 3 ? br : bc, bc, scales)};
        mf__catalog *cat = write_and_open(path, e, 2);
        mf__tensor t;
        mf_error err = {0};
        if (mf__catalog_tensor(cat, "x.weight", cols, &t, &err) != MF_OK) fail_msg("%s", err.text);
        assert_int_equal(t.type, MF_TYPE_F8_BLOCK);
        assert_int_equal(t.block_rows, rows > b ? b : t.block_rows);
        assert_int_equal(mf__tensor_bytes(&t), n + planes * br * bc * 4);
        for (int64_t p = 0; p < planes; p++) {
            mf__tensor plane = mf__tensor_plane(&t, p);
            for (int64_t r = 0; r < rows; r++) {
                mf__tensor_row_f32(&plane, r, row);
                for (int64_t c = 0; c < cols; c++)
                    assert_true(row[c] == (float)(e4m3(codes[(p * rows + r) * cols + c]) *
                                                  scales[(p * br + r / b) * bc + c / b]));
            }
        }
        assert_int_equal(mf__tensor_flatten(&t), planes == 1);
        mf__catalog_close(cat);
        free(codes);
        free(scales);
        free(row);
    }
    unlink(path);
}

static void wrong_scales_are_refused(void **state) {
    uint8_t codes[64] = {0};
    float scales[4] = {1, 1, 1, 1};
    char path[64];
    mf__tensor t;
    mf_error err;
    (void)state;
    path_of(path);
    mf__entry e[2] = {entry("x.weight", MF_TYPE_F8_E4M3, 2, 8, 8, 0, codes),
                      entry("x.weight_scale_inv", MF_TYPE_F32, 2, 2, 2, 0, scales)};
    mf__catalog *cat = write_and_open(path, e, 2);
    assert_int_equal(mf__catalog_tensor(cat, "x.weight", 8, &t, &err), MF_E_MISMATCH);
    assert_non_null(strstr(err.text, "x.weight"));
    mf__catalog_close(cat);
    cat = write_and_open(path, e, 1); /* without scales it is what it is; models refuse it */
    assert_int_equal(mf__catalog_tensor(cat, "x.weight", 8, &t, &err), MF_OK);
    assert_int_equal(t.type, MF_TYPE_F8_E4M3);
    assert_false(mf__type_is_matrix(t.type));
    mf__catalog_close(cat);
    unlink(path);
}

/* value = (code - 8) * scale, exactly, for every code and many scales; with biases written out or left out. */
static void packed_integers(void **state) {
    enum { ROWS = 3, COLS = 64, GROUPS = 2 };
    uint32_t words[ROWS * COLS / 8];
    uint16_t scales[ROWS * GROUPS], biases[ROWS * GROUPS];
    int32_t shape[2] = {ROWS, COLS};
    float row[COLS], again[COLS];
    char path[64];
    mf_error err = {0};
    mf__tensor t;
    (void)state;
    path_of(path);
    for (int i = 0; i < ROWS * COLS / 8; i++) words[i] = 0x76543210u + 0x88888888u * (uint32_t)(i % 2);
    for (int i = 0; i < ROWS * GROUPS; i++) scales[i] = mf__f32_to_bf16(0.0123f * (float)(i + 1) * (i % 2 ? -1 : 1));
    mf__entry e[3] = {entry("x.weight_packed", MF_TYPE_I32, 2, ROWS, COLS / 8, 0, words),
                      entry("x.weight_scale", MF_TYPE_BF16, 2, ROWS, GROUPS, 0, scales),
                      entry("x.weight_shape", MF_TYPE_I32, 1, 2, 0, 0, shape)};
    mf__catalog *cat = write_and_open(path, e, 3);
    if (mf__catalog_tensor(cat, "x.weight_packed", COLS, &t, &err) != MF_OK) fail_msg("%s", err.text);
    assert_int_equal(t.group, 32);
    mf__affine_centre(scales, MF_TYPE_BF16, ROWS * GROUPS, 4, biases);
    mf__tensor with = t;
    with.biases = biases;
    for (int r = 0; r < ROWS; r++) {
        mf__tensor_row_f32(&t, r, row);
        mf__tensor_row_f32(&with, r, again);
        assert_memory_equal(row, again, sizeof row);
        for (int c = 0; c < COLS; c++) {
            int code = (int)(words[(r * COLS + c) / 8] >> (4 * (c % 8)) & 15);
            assert_true(row[c] == (float)(code - 8) * mf__bf16_to_f32(scales[r * GROUPS + c / 32]));
        }
    }
    assert_int_equal(mf__catalog_tensor(cat, "x.weight_packed", COLS + 8, &t, &err), MF_E_MISMATCH);
    mf__catalog_close(cat);
    cat = write_and_open(path, e, 1);
    assert_int_equal(mf__catalog_tensor(cat, "x.weight_packed", COLS, &t, &err), MF_E_MISMATCH);
    assert_non_null(strstr(err.text, "missing"));
    mf__catalog_close(cat);
    unlink(path);
}

/* An FP8 expert of DeepSeek-V3: the sizes of the specification; layouts that cannot be are refused. */
static void expert_layout(void **state) {
    mf__expert_layout l = {0};
    mf_error err;
    (void)state;
    for (int p = 0; p < MF_PART_COUNT; p++) {
        l.part[p].type = MF_TYPE_F8_BLOCK;
        l.part[p].n_rows = p == MF_PART_DOWN ? 7168 : 2048;
        l.part[p].n_cols = p == MF_PART_DOWN ? 2048 : 7168;
        l.part[p].bits = 8, l.part[p].group = l.part[p].block_rows = 128;
        l.part[p].scale_type = MF_TYPE_F32;
    }
    assert_int_equal(mf__expert_layout_pack(&l, 4096, &err), MF_OK);
    assert_int_equal(l.bytes, 44040192 + 10752);
    assert_int_equal(mf__expert_layout_check(&l, &err), MF_OK);
    assert_int_equal(mf__expert_view(&l, MF_PART_DOWN, NULL).block_rows, 128);
    mf__expert_layout bad = l;
    bad.part[1].block_rows = 0;
    assert_int_equal(mf__expert_layout_check(&bad, &err), MF_E_FORMAT);
    bad = l, bad.part[1].group = -1;
    assert_int_equal(mf__expert_layout_check(&bad, &err), MF_E_FORMAT);
    bad = l, bad.part[2].scales_off = l.bytes - 1;
    assert_int_equal(mf__expert_layout_check(&bad, &err), MF_E_FORMAT);
    bad = l, bad.part[0].scale_type = MF_TYPE_U8;
    assert_int_equal(mf__expert_layout_check(&bad, &err), MF_E_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code),      cmocka_unit_test(cut_off_blocks), cmocka_unit_test(wrong_scales_are_refused),
        cmocka_unit_test(packed_integers), cmocka_unit_test(expert_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
