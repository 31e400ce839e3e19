/* Conversions of the small float formats: every code, against a formulation by powers of two in double, and every
 * rounding boundary. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "quant/half.h"

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* The value of a code of a format with e exponent and m mantissa bits, from the definition. finite_only: the "fn"
 * formats, where only the all-ones code is NaN. */
static double value_of(unsigned code, int e, int m, bool finite_only) {
    unsigned mantissa = code & ((1u << m) - 1), exponent = code >> m & ((1u << e) - 1);
    int bias = (1 << (e - 1)) - 1;
    double sign = code >> (e + m) & 1 ? -1.0 : 1.0;
    bool top = exponent == (1u << e) - 1;
    if (finite_only && top && mantissa == (1u << m) - 1) return NAN;
    if (!finite_only && top) return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp((double)mantissa, 1 - bias - m);
    return sign * ldexp(1.0 + ldexp((double)mantissa, -m), (int)exponent - bias);
}

static void assert_same(float got, double want, unsigned code) {
    if (isnan(want) ? isnan(got) : (got == want && !signbit(got) == !signbit(want))) return;
    fail_msg("code 0x%x: %a, expected %a", code, (double)got, want);
}

static void decode_all(void **state) {
    (void)state;
    for (unsigned c = 0; c < 65536; c++) {
        assert_same(mf__bf16_to_f32((uint16_t)c), value_of(c, 8, 7, false), c);
        assert_same(mf__f16_to_f32((uint16_t)c), value_of(c, 5, 10, false), c);
    }
    for (unsigned c = 0; c < 256; c++) assert_same(mf__f8_e4m3_to_f32((uint8_t)c), value_of(c, 4, 3, true), c);
    assert_true(mf__f8_e4m3_to_f32(0x7e) == 448.0f);
}

static void round_trip_all(void **state) {
    (void)state;
    for (unsigned c = 0; c < 65536; c++) {
        uint16_t b = mf__f32_to_bf16(mf__bf16_to_f32((uint16_t)c)), h = mf__f32_to_f16(mf__f16_to_f32((uint16_t)c));
        /* a NaN may become quiet, and keeps its sign */
        assert_int_equal(b, isnan(mf__bf16_to_f32((uint16_t)c)) ? (c | 0x40) : c);
        assert_int_equal(h, isnan(mf__f16_to_f32((uint16_t)c)) ? (c | 0x200) : c);
    }
}

/* Between every two neighbours of a format: just below the middle goes down, just above goes up, the middle goes to
 * the even code. `top` is the largest finite code, whose upper neighbour for rounding is `beyond`. */
static void check_boundaries(uint16_t (*encode)(float), int e, int m, unsigned top, double beyond) {
    for (unsigned c = 0; c <= top; c++) {
        double lo = value_of(c, e, m, false), hi = c == top ? beyond : value_of(c + 1, e, m, false);
        float mid = (float)((lo + hi) / 2);
        assert_true((double)mid == (lo + hi) / 2); /* the test's own arithmetic is exact */
        unsigned even = c & 1 ? c + 1 : c, sign = 1u << (e + m);
        assert_int_equal(encode(mid), even);
        assert_int_equal(encode(-mid), even | sign);
        assert_int_equal(encode(from_bits(bits_of(mid) - 1)), c);
        assert_int_equal(encode(from_bits(bits_of(mid) + 1)), c + 1);
        assert_int_equal(encode(-from_bits(bits_of(mid) + 1)), (c + 1) | sign);
    }
}

static void f16_boundaries(void **state) {
    (void)state;
    check_boundaries(mf__f32_to_f16, 5, 10, 0x7bff, 65536.0);
    assert_int_equal(mf__f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(mf__f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(mf__f32_to_f16(3e38f), 0x7c00);
    assert_int_equal(mf__f32_to_f16(-1e-30f), 0x8000);
}

static void bf16_boundaries(void **state) {
    (void)state;
    check_boundaries(mf__f32_to_bf16, 8, 7, 0x7f7e, value_of(0x7f7f, 8, 7, false));
    assert_int_equal(mf__f32_to_bf16(from_bits(0x7f7f7fffu)), 0x7f7f);
    assert_int_equal(mf__f32_to_bf16(from_bits(0x7f7f8000u)), 0x7f80); /* the middle beyond the largest: infinity */
    assert_int_equal(mf__f32_to_bf16(from_bits(0x7f7fffffu)), 0x7f80);
}

static void nan_stays_nan(void **state) {
    (void)state;
    /* payloads in the bits that are cut off must not turn a NaN into an infinity */
    static const uint32_t nans[] = {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffc00000u, 0x7f801fffu};
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        assert_true(isnan(mf__bf16_to_f32(mf__f32_to_bf16(from_bits(nans[i])))));
        assert_true(isnan(mf__f16_to_f32(mf__f32_to_f16(from_bits(nans[i])))));
        assert_int_equal(mf__f32_to_bf16(from_bits(nans[i])) >> 15, nans[i] >> 31);
        assert_int_equal(mf__f32_to_f16(from_bits(nans[i])) >> 15, nans[i] >> 31);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_all),      cmocka_unit_test(round_trip_all), cmocka_unit_test(f16_boundaries),
        cmocka_unit_test(bf16_boundaries), cmocka_unit_test(nan_stays_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
