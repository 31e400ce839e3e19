/* Logical tensors out of stored ones: ranks, the three parts of an affine matrix, and shapes that do not agree. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/affine.h"
#include "util.h"

static const uint8_t zeros[1 << 16];

/* Entries written to a file and read back. */
static mf__catalog *catalog_of(const mf__entry *entries, int n) {
    char *dir = scratch_make(), *path = join(dir, "model.safetensors");
    mf_error err = {0};
    if (mf__safetensors_write(path, entries, n, &err) != MF_OK) fail_msg("%s", err.text);
    mf__catalog *cat;
    assert_int_equal(mf__safetensors_open(path, &cat, NULL), MF_OK);
    free(path);
    scratch_free(dir); /* the mapping stays */
    return cat;
}

static void ranks(void **state) {
    (void)state;
    mf__entry entries[] = {
        {.name = "0", .type = MF_TYPE_F32, .data = zeros, .size = 4},
        {.name = "1", .type = MF_TYPE_F32, .n_dims = 1, .dims = {5}, .data = zeros, .size = 20},
        {.name = "2", .type = MF_TYPE_F32, .n_dims = 2, .dims = {2, 5}, .data = zeros, .size = 40},
        {.name = "3", .type = MF_TYPE_F32, .n_dims = 3, .dims = {3, 2, 5}, .data = zeros, .size = 120},
        {.name = "5", .type = MF_TYPE_U8, .n_dims = 5, .dims = {2, 3, 2, 2, 5}, .data = zeros, .size = 120},
    };
    static const int64_t want[][3] = {{1, 1, 1}, {1, 1, 5}, {1, 2, 5}, {3, 2, 5}, {12, 2, 5}};
    mf__catalog *cat = catalog_of(entries, MF__COUNT(entries));
    for (size_t i = 0; i < MF__COUNT(entries); i++) {
        mf__tensor t;
        mf_error err;
        assert_int_equal(mf__catalog_tensor(cat, entries[i].name, 0, &t, &err), MF_OK);
        assert_int_equal(t.type, entries[i].type);
        assert_int_equal(t.n_planes, want[i][0]);
        assert_int_equal(t.n_rows, want[i][1]);
        assert_int_equal(t.n_cols, want[i][2]);
        assert_int_equal(mf__tensor_bytes(&t), entries[i].size);
        assert_int_equal(mf__catalog_tensor(cat, entries[i].name, want[i][2], &t, &err), MF_OK);
        assert_error(mf__catalog_tensor(cat, entries[i].name, 7, &t, &err), &err, MF_E_MISMATCH, entries[i].name,
                     "expected rows of 7", NULL);
    }
    mf__tensor t;
    mf_error err;
    assert_error(mf__catalog_tensor(cat, "model.norm.weight", 0, &t, &err), &err, MF_E_NOT_FOUND,
                 "tensor model.norm.weight is missing", "model.safetensors", NULL);
    mf__catalog_close(cat);
}

static void affine_entries(mf__entry e[3], int64_t rows, int64_t words, int64_t groups, mf__type scale) {
    e[0] = make_entry("m.q.weight", MF_TYPE_U32, rows, words, zeros);
    e[1] = make_entry("m.q.scales", scale, rows, groups, zeros);
    e[2] = make_entry("m.q.biases", scale, rows, groups, zeros);
}

/* Every width and group, with the number of columns known and not. */
static void inference(void **state) {
    (void)state;
    static const int bits[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    static const mf__type scales[] = {MF_TYPE_BF16, MF_TYPE_F16, MF_TYPE_F32};
    for (size_t b = 0; b < MF__COUNT(bits); b++)
        for (size_t g = 0; g < MF__COUNT(groups); g++) {
            int64_t cols = 256;
            mf__entry e[3];
            affine_entries(e, 3, cols * bits[b] / 32, cols / groups[g], scales[g]);
            mf__catalog *cat = catalog_of(e, 3);
            mf__tensor t;
            mf_error err = {0};
            if (mf__catalog_tensor(cat, "m.q.weight", cols, &t, &err) != MF_OK) fail_msg("%s", err.text);
            assert_int_equal(t.type, MF_TYPE_AFFINE);
            assert_int_equal(t.bits, bits[b]);
            assert_int_equal(t.group, groups[g]);
            assert_int_equal(t.scale_type, scales[g]);
            assert_int_equal(t.n_rows, 3);
            assert_int_equal(t.n_cols, cols);
            assert_ptr_equal(t.data, mf__catalog_find(cat, "m.q.weight")->data);
            assert_ptr_equal(t.scales, mf__catalog_find(cat, "m.q.scales")->data);
            assert_ptr_equal(t.biases, mf__catalog_find(cat, "m.q.biases")->data);
            /* unknown columns: groups of 64 are taken where they fit */
            mf_status status = mf__catalog_tensor(cat, "m.q.weight", 0, &t, &err);
            assert_int_equal(status, MF_OK);
            assert_int_equal(t.bits * t.group, bits[b] * groups[g]);
            int with_64 = bits[b] * groups[g] / 64;
            if (bits[b] * groups[g] % 64 == 0 && mf__affine_bits_ok(with_64)) assert_int_equal(t.group, 64);
            assert_int_equal(mf__catalog_tensor(cat, "m.q.weight", 2 * cols * 3, &t, &err), MF_E_MISMATCH);
            mf__catalog_close(cat);
        }
}

static void values(void **state) {
    (void)state;
    enum { PLANES = 2, ROWS = 3, COLS = 128, BITS = 6, GROUP = 32 };
    static float x[PLANES * ROWS][COLS];
    static uint8_t codes[PLANES * ROWS][COLS * BITS / 8];
    static uint16_t scales[PLANES * ROWS][COLS / GROUP], biases[PLANES * ROWS][COLS / GROUP];
    for (int r = 0; r < PLANES * ROWS; r++) {
        for (int i = 0; i < COLS; i++) x[r][i] = sinf((float)(r * COLS + i));
        mf__affine_encode_row(x[r], COLS, BITS, GROUP, MF_TYPE_BF16, codes[r], scales[r], biases[r]);
    }
    mf__entry e[] = {
        {.name = "odd", .type = MF_TYPE_U8, .n_dims = 1, .dims = {1}, .data = zeros, .size = 1}, /* shifts the rest */
        {.name = "e.weight", .type = MF_TYPE_U32, .n_dims = 3, .dims = {PLANES, ROWS, COLS * BITS / 32}},
        {.name = "e.scales", .type = MF_TYPE_BF16, .n_dims = 3, .dims = {PLANES, ROWS, COLS / GROUP}},
        {.name = "e.biases", .type = MF_TYPE_BF16, .n_dims = 3, .dims = {PLANES, ROWS, COLS / GROUP}},
    };
    e[1].data = (const uint8_t *)codes, e[1].size = sizeof codes;
    e[2].data = (const uint8_t *)scales, e[2].size = sizeof scales;
    e[3].data = (const uint8_t *)biases, e[3].size = sizeof biases;
    mf__catalog *cat = catalog_of(e, 4);
    mf__tensor t;
    assert_int_equal(mf__catalog_tensor(cat, "e.weight", COLS, &t, NULL), MF_OK);
    assert_int_equal(t.n_planes, PLANES);
    for (int p = 0; p < PLANES; p++) {
        mf__tensor plane = mf__tensor_plane(&t, p);
        for (int r = 0; r < ROWS; r++) {
            float out[COLS];
            mf__tensor_row_f32(&plane, r, out);
            for (int i = 0; i < COLS; i++) assert_true(fabsf(out[i] - x[p * ROWS + r][i]) < 0.06f);
        }
    }
    mf__catalog_close(cat);
}

static void expect_mismatch(const mf__entry *e, int n, int64_t cols, mf_status status, const char *says) {
    mf__catalog *cat = catalog_of(e, n);
    mf__tensor t;
    mf_error err;
    assert_error(mf__catalog_tensor(cat, "m.q.weight", cols, &t, &err), &err, status, "m.q.weight", says, NULL);
    mf__catalog_close(cat);
}

static void parts_missing(void **state) {
    (void)state;
    mf__entry e[3];
    affine_entries(e, 4, 16, 2, MF_TYPE_BF16); /* 128 columns, 4 bits, groups of 64 */
    expect_mismatch(e, 1, 128, MF_E_NOT_FOUND, ".scales");
    expect_mismatch(e, 2, 128, MF_E_UNSUPPORTED, "no .biases");
}

static void shapes_disagree(void **state) {
    (void)state;
    mf__entry e[3];
#define CASE(change, cols, says)                                                                                       \
    do {                                                                                                               \
        affine_entries(e, 4, 16, 2, MF_TYPE_BF16);                                                                     \
        change;                                                                                                        \
        expect_mismatch(e, 3, cols, MF_E_MISMATCH, says);                                                              \
    } while (0)
    CASE((void)0, 512, "512 columns"); /* 1 bit */
    CASE((void)0, 32, "32 columns");   /* 16 bits */
    CASE((void)0, 96, "96 columns");
    CASE(e[1] = make_entry("m.q.scales", MF_TYPE_F16, 4, 2, zeros), 128, "F16");
    CASE((e[1].type = e[2].type = MF_TYPE_U16), 128, "U16");
    CASE(e[2] = make_entry("m.q.biases", MF_TYPE_BF16, 4, 4, zeros), 128, "[4, 4]");
    CASE((e[1] = make_entry("m.q.scales", MF_TYPE_BF16, 3, 2, zeros),
          e[2] = make_entry("m.q.biases", MF_TYPE_BF16, 3, 2, zeros)),
         128, "[3, 2]");
    CASE((e[1] = make_entry("m.q.scales", MF_TYPE_BF16, 4, 0, zeros),
          e[2] = make_entry("m.q.biases", MF_TYPE_BF16, 4, 0, zeros)),
         128, "[4, 0]");
    CASE((e[1] = make_entry("m.q.scales", MF_TYPE_BF16, 4, 3, zeros),
          e[2] = make_entry("m.q.biases", MF_TYPE_BF16, 4, 3, zeros)),
         0, "[4, 3]");
    CASE((void)0, -128, "-128");
    CASE((void)0, INT64_MAX, "columns");
#undef CASE
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks),         cmocka_unit_test(inference),       cmocka_unit_test(values),
        cmocka_unit_test(parts_missing), cmocka_unit_test(shapes_disagree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
