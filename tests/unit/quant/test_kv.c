/* Rows of the KV cache by hand: sizes, values, what is too large, too small or not a number. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "quant/kv.h"

static void test_sizes(void **state) {
    (void)state;
    assert_int_equal(mf__kv_row_bytes(MF_TYPE_F32, 70), 280);
    assert_int_equal(mf__kv_row_bytes(MF_TYPE_F16, 70), 140);
    assert_int_equal(mf__kv_row_bytes(MF_TYPE_I8, 70), 72 + 2 * 4);
    assert_int_equal(mf__kv_row_bytes(MF_TYPE_I8, 64), 64 + 4);
    assert_int_equal(mf__kv_row_bytes(MF_TYPE_I8, 0), 0);
}

static void round_trip(mf__type type, const float *x, int32_t n, float *y) {
    uint8_t row[512];
    memset(row, 0xa5, sizeof row);
    mf__kv_encode_row(type, x, n, row);
    assert_int_equal(row[mf__kv_row_bytes(type, n)], 0xa5); /* not a byte further */
    mf__kv_decode_row(type, row, n, 0, n, y);
    for (int32_t first = 0; first < n; first += 7) { /* any part of it gives the same */
        float part[512];
        int32_t m = n - first < 9 ? n - first : 9;
        mf__kv_decode_row(type, row, n, first, m, part);
        assert_memory_equal(part, y + first, (size_t)m * sizeof *part);
    }
}

static void test_f32_and_f16(void **state) {
    const float x[] = {0,     -0.0f,    1,        -2.5f,      65504, 65519, 65520,
                       -1e9f, INFINITY, 0x1p-24f, 0x1.8p-25f, 1e-9f, 2049,  NAN};
    const float want[] = {0, -0.0f, 1, -2.5f, 65504, 65504, 65504, -65504, 65504, 0x1p-24f, 0x1p-24f, 0, 2048, NAN};
    float y[14];
    (void)state;
    round_trip(MF_TYPE_F32, x, 14, y);
    assert_memory_equal(x, y, sizeof x);
    round_trip(MF_TYPE_F16, x, 14, y);
    for (int i = 0; i < 13; i++) assert_true(y[i] == want[i]);
    assert_true(isnan(y[13]));
}

static void test_int8(void **state) {
    float x[130] = {0}, y[130];
    (void)state;
    x[0] = 254, x[1] = -254, x[2] = 2, x[3] = 0.99f, x[4] = 1.01f, x[5] = -3; /* steps of 2; ties go to the even */
    x[64] = 1e-31f;                                                           /* next to nothing is nothing */
    x[128] = -0.127f, x[129] = 0.05f;
    round_trip(MF_TYPE_I8, x, 130, y);
    const float want[] = {254, -254, 2, 0, 2, -4};
    for (int i = 0; i < 6; i++) assert_true(y[i] == want[i]);
    for (int i = 6; i < 128; i++) assert_true(y[i] == 0);
    assert_true(fabsf(y[128] + 0.127f) < 1e-8f && fabsf(y[129] - 0.05f) < 1e-8f);
    x[70] = NAN; /* is not forgotten, and stays in its group */
    round_trip(MF_TYPE_I8, x, 130, y);
    assert_true(isnan(y[70]) && y[0] == 254 && fabsf(y[128] + 0.127f) < 1e-8f);
    x[70] = INFINITY;
    x[71] = NAN;
    round_trip(MF_TYPE_I8, x, 130, y);
    assert_true(isnan(y[70]) && isnan(y[71]) && y[0] == 254);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_f32_and_f16),
        cmocka_unit_test(test_int8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
