/* The expert blob: offsets against the published sizes of real models, views, and layouts that must be refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "quant/expert.h"

static mf__expert_layout affine_layout(int64_t hidden, int64_t inner, int bits) {
    mf__expert_layout l = {0};
    for (int i = 0; i < MF_PART_COUNT; i++) {
        l.part[i].type = MF_TYPE_AFFINE;
        l.part[i].n_rows = i == MF_PART_DOWN ? hidden : inner;
        l.part[i].n_cols = i == MF_PART_DOWN ? inner : hidden;
        l.part[i].bits = bits;
        l.part[i].group = 64;
        l.part[i].scale_type = MF_TYPE_BF16;
    }
    return l;
}

static void published_offsets(void **state) {
    (void)state;
    static const struct {
        int64_t hidden, inner;
        int bits;
        int64_t off[9], bytes;
    } known[] = {
        {4096, 1024, 4, {0, 2097152, 2228224, 2359296, 4456448, 4587520, 4718592, 6815744, 6946816}, 7077888},
        {2048, 512, 4, {0, 524288, 557056, 589824, 1114112, 1146880, 1179648, 1703936, 1736704}, 1769472},
        {7168, 2048, 4, {0, 7340032, 7798784, 8257536, 15597568, 16056320, 16515072, 23855104, 24313856}, 24772608},
        {4096, 1024, 2, {0, 1048576, 1179648, 1310720, 2359296, 2490368, 2621440, 3670016, 3801088}, 3932160},
    };
    for (size_t k = 0; k < MF__COUNT(known); k++) {
        mf__expert_layout l = affine_layout(known[k].hidden, known[k].inner, known[k].bits);
        assert_int_equal(mf__expert_layout_pack(&l, 4096, NULL), MF_OK);
        assert_int_equal(l.bytes, known[k].bytes);
        assert_int_equal(l.stride, known[k].bytes);
        for (int i = 0; i < MF_PART_COUNT; i++) {
            assert_int_equal(l.part[i].data_off, known[k].off[3 * i]);
            assert_int_equal(l.part[i].scales_off, known[k].off[3 * i + 1]);
            assert_int_equal(l.part[i].biases_off, known[k].off[3 * i + 2]);
        }
        assert_int_equal(mf__expert_layout_check(&l, NULL), MF_OK);
    }
}

static void stride_and_views(void **state) {
    (void)state;
    mf__expert_layout l = affine_layout(64, 128, 3);
    l.part[MF_PART_UP].type = MF_TYPE_BF16;
    assert_int_equal(mf__expert_layout_pack(&l, 4096, NULL), MF_OK);
    int64_t gate = 128 * 24 + 2 * 128 * 2, up = 128 * 64 * 2, down = 64 * 48 + 2 * 64 * 2 * 2;
    assert_int_equal(l.bytes, gate + up + down);
    assert_int_equal(l.stride, (gate + up + down + 4095) / 4096 * 4096);
    static const uint8_t blob[1];
    mf__tensor view = mf__expert_view(&l, MF_PART_UP, blob);
    assert_int_equal(view.type, MF_TYPE_BF16);
    assert_int_equal((const uint8_t *)view.data - blob, gate);
    view = mf__expert_view(&l, MF_PART_DOWN, blob);
    assert_int_equal(view.n_rows, 64);
    assert_int_equal(view.n_cols, 128);
    assert_int_equal(view.bits, 3);
    assert_int_equal(view.group, 64);
    assert_int_equal((const uint8_t *)view.scales - blob, gate + up + 64 * 48);
    assert_int_equal((const uint8_t *)view.biases - blob, gate + up + 64 * 48 + 256);
    assert_int_equal(mf__tensor_bytes(&view), down);
}

static void refused(const char *what, mf__expert_layout l) {
    mf_error err = {0};
    mf_status status = mf__expert_layout_check(&l, &err);
    if (status != MF_E_FORMAT || !strstr(err.text, what)) fail_msg("%s: %d %s", what, status, err.text);
}

static void bad_layouts(void **state) {
    (void)state;
    mf__expert_layout good = affine_layout(64, 128, 4), l;
    assert_int_equal(mf__expert_layout_pack(&good, 64, NULL), MF_OK);
#define BAD(what, change)                                                                                              \
    do {                                                                                                               \
        l = good;                                                                                                      \
        change;                                                                                                        \
        refused(what, l);                                                                                              \
    } while (0)
    BAD("stride", l.stride = l.bytes - 1);
    BAD("stride", l.stride = INT64_MAX);
    BAD("stride", l.bytes = 0);
    BAD("do not fit", (l.bytes--, l.stride--));
    BAD("bits", l.part[0].bits = 7);
    BAD("bits", l.part[0].bits = 0);
    BAD("groups", l.part[1].group = 16);
    BAD("multiple", l.part[1].n_cols = 96);
    BAD("shape", l.part[2].n_rows = 0);
    BAD("shape", l.part[2].n_rows = INT64_MAX);
    BAD("shape", l.part[2].n_cols = -64);
    BAD("type", l.part[2].type = MF_TYPE_I8);
    BAD("scales", l.part[2].scale_type = MF_TYPE_U8);
    BAD("do not fit", l.part[0].data_off = -1);
    BAD("do not fit", l.part[0].data_off = INT64_MAX);
    BAD("do not fit", l.part[2].scales_off = l.bytes - 1);
    BAD("do not fit", l.part[2].biases_off++);
    BAD("do not fit", l.part[2].n_rows = 1 << 28);
#undef BAD
    mf__expert_layout odd = affine_layout(96, 128, 4);
    assert_int_equal(mf__expert_layout_pack(&odd, 64, NULL), MF_E_INVALID);
    assert_int_equal(mf__expert_layout_pack(&good, 0, NULL), MF_E_INVALID);
}

/* Bias vectors come after the matrices, at multiples of 64; MXFP4 parts have scales and no biases. */
static void biases_and_mxfp4(void **state) {
    (void)state;
    mf_error err;
    mf__expert_layout l = affine_layout(96, 32, 4);
    for (int i = 0; i < MF_PART_COUNT; i++) {
        l.part[i].type = MF_TYPE_MXFP4;
        l.part[i].group = MF_MXFP4_GROUP;
        l.part[i].scale_type = MF_TYPE_U8;
        l.part[i].has_bias = true;
    }
    assert_int_equal(mf__expert_layout_pack(&l, 4096, &err), MF_OK);
    int64_t matrix = 32 * 96 / 2 + 32 * 3;
    assert_int_equal(l.part[MF_PART_UP].data_off, matrix);
    assert_int_equal(l.part[MF_PART_DOWN].scales_off, 2 * matrix + 32 * 96 / 2);
    int64_t first = (3 * matrix + 63) / 64 * 64;
    assert_int_equal(l.part[MF_PART_GATE].bias_off, first);
    assert_int_equal(l.part[MF_PART_UP].bias_off, first + 128);
    assert_int_equal(l.part[MF_PART_DOWN].bias_off, first + 256);
    assert_int_equal(l.bytes, first + 256 + 96 * 4);
    assert_int_equal(mf__expert_layout_check(&l, &err), MF_OK);

    static _Alignas(64) uint8_t blob[8192];
    assert_ptr_equal(mf__expert_bias(&l, MF_PART_UP, blob), (const float *)(const void *)(blob + first + 128));
    mf__tensor view = mf__expert_view(&l, MF_PART_DOWN, blob);
    assert_ptr_equal(view.scales, blob + l.part[MF_PART_DOWN].scales_off);
    assert_null(view.biases);
    assert_int_equal(mf__tensor_bytes(&view), matrix);

    mf__expert_layout bad = l;
    bad.part[MF_PART_DOWN].bias_off = l.bytes - 96 * 4 + 4;
    assert_int_equal(mf__expert_layout_check(&bad, &err), MF_E_FORMAT);
    bad = l;
    bad.part[MF_PART_GATE].bias_off -= 2;
    assert_int_equal(mf__expert_layout_check(&bad, &err), MF_E_FORMAT);
    bad = l;
    bad.part[MF_PART_GATE].group = 64;
    assert_int_equal(mf__expert_layout_check(&bad, &err), MF_E_FORMAT);
    l.part[MF_PART_UP].has_bias = false;
    assert_null(mf__expert_bias(&l, MF_PART_UP, blob));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(biases_and_mxfp4),
        cmocka_unit_test(published_offsets),
        cmocka_unit_test(stride_and_views),
        cmocka_unit_test(bad_layouts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
