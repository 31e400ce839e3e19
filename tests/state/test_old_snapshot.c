/* Snapshots of the older moeflux, made here byte by byte from the description of its format and not by our writer:
 *
 *   u32 words   magic, version 1 or 2, layers, full-attention interval, KV heads, head size, bytes of a convolution
 *               history, bytes of a recurrence; in version 2 also latent rank and rope size (0, 0 without latents)
 *   layers      a full-attention layer: i32 length, length rows of K [heads][size] f32, then the rows of V
 *               a linear layer: history [3][channels] f32, oldest first; recurrence [heads][value][key] f32
 *               a latent layer: i32 length, length rows of latents, then length rows of rope keys
 *
 * argv: the tiny qwen3_5_moe, and a model with latent attention. */
#include <stdio.h>

#include "any.h"

enum { LAYERS = 8, INTERVAL = 4, HEADS = 2, SIZE = 64, CONV = 3 * 256, DELTA = 4 * 32 * 32, N = 5, WORDS = 10 };

static const char *latent_model;

/* A value for every place: which layer, K V history or recurrence, which number. */
static float value(int layer, int what, int i) {
    return (float)(layer + 1) * 0.01f + (float)what * 0.1f + (float)(i % 97) * 0.0001f + (float)(i / 97) * 0.000001f;
}

typedef struct bytes {
    uint8_t data[1 << 20];
    size_t n;
} bytes;

static void put(bytes *b, const void *from, size_t n) {
    assert_true(b->n + n <= sizeof b->data);
    memcpy(b->data + b->n, from, n);
    b->n += n;
}

static void put_values(bytes *b, int layer, int what, int n) {
    for (int i = 0; i < n; i++) put(b, &(float){value(layer, what, i)}, 4);
}

static void put_snapshot(bytes *b, uint32_t version) {
    const uint32_t words[WORDS] = {0x4D464C58, version, LAYERS, INTERVAL, HEADS, SIZE, CONV * 4, DELTA * 4, 0, 0};
    b->n = 0;
    put(b, words, version == 1 ? 32 : 40);
    for (int l = 0; l < LAYERS; l++) {
        if ((l + 1) % INTERVAL == 0) {
            put(b, &(int32_t){N}, 4);
            put_values(b, l, 0, N * HEADS * SIZE);
            put_values(b, l, 1, N * HEADS * SIZE);
        } else {
            put_values(b, l, 2, CONV);
            put_values(b, l, 3, DELTA);
        }
    }
}

static void expect_values(const uint8_t *at, int layer, int what, int n) {
    for (int i = 0; i < n; i++) {
        float found;
        memcpy(&found, at + 4 * i, 4);
        if (found != value(layer, what, i)) fail_msg("layer %d, part %d, number %d is %g", layer, what, i, found);
    }
}

/* What the session holds now, by its own snapshot: header 56, tokens padded to 8, K and V per layer, then history and
 * recurrence per layer. */
static void expect_state(mf_session *s) {
    size_t size, at = 56 + (N * 4 + 7) / 8 * 8;
    assert_int_equal(mf_memory_length(s), N);
    assert_int_equal(mf_memory_tokens(s)[N - 1], -1);
    assert_int_equal(mf_state_size(s, &size, NULL), MF_OK);
    uint8_t *ours = malloc(size);
    assert_int_equal(mf_state_save(s, ours, size, NULL, NULL), MF_OK);
    for (int l = INTERVAL - 1; l < LAYERS; l += INTERVAL)
        for (int what = 0; what < 2; what++, at += N * HEADS * SIZE * 4)
            expect_values(ours + at, l, what, N * HEADS * SIZE);
    for (int l = 0; l < LAYERS; l++) {
        if ((l + 1) % INTERVAL == 0) continue;
        expect_values(ours + at, l, 2, CONV);
        expect_values(ours + at + CONV * 4, l, 3, DELTA);
        at += (CONV + DELTA) * 4;
    }
    free(ours);
}

static void test_made_by_hand(void **state) {
    mf_model *m = any_open(*state);
    bytes *b = malloc(sizeof *b);
    for (uint32_t version = 1; version <= 2; version++) {
        mf_session *s = any_session(m);
        mf_error err = {0};
        put_snapshot(b, version);
        if (mf_state_load(s, b->data, b->n, &err) != MF_OK) fail_msg("version %u: %s", version, err.text);
        expect_state(s);
        put(b, "more", 4); /* the older program took what came behind */
        assert_int_equal(mf_state_load(s, b->data, b->n, NULL), MF_OK);
        assert_int_equal(mf_state_load(s, b->data, b->n - 5, NULL), MF_E_FORMAT);
        mf_session_free(s);
    }
    free(b);
    mf_model_close(m);
}

static void test_every_word_of_the_header_counts(void **state) {
    mf_model *m = any_open(*state);
    mf_session *s = any_session(m);
    bytes *b = malloc(sizeof *b);
    for (int word = 2; word < WORDS; word++) {
        mf_error err = {0};
        uint32_t value_;
        put_snapshot(b, 2);
        memcpy(&value_, b->data + 4 * word, 4);
        value_++;
        memcpy(b->data + 4 * word, &value_, 4);
        if (mf_state_load(s, b->data, b->n, &err) == MF_OK) fail_msg("word %d is not compared", word);
        assert_int_equal(mf_memory_length(s), 0);
    }
    free(b);
    mf_session_free(s);
    mf_model_close(m);
}

/* The way out is said where it is one, and only there. */
static void test_other_kinds_of_kv(void **state) {
    mf_model_options opt;
    mf_model *m;
    bytes *b = malloc(sizeof *b);
    mf_error err = {0};
    any_model_options(&opt, 1);
    opt.kv = MF_KV_F16;
    assert_int_equal(mf_model_open(*state, &opt, &m, NULL), MF_OK);
    mf_session *s = any_session(m);
    put_snapshot(b, 2);
    assert_int_equal(mf_state_load(s, b->data, b->n, &err), MF_E_MISMATCH);
    assert_non_null(strstr(err.text, "--kv f32"));
    b->data[4 * 3]++; /* another interval: f32 rows would not help */
    assert_int_equal(mf_state_load(s, b->data, b->n, &err), MF_E_MISMATCH);
    assert_null(strstr(err.text, "--kv"));
    free(b);
    mf_session_free(s);
    mf_model_close(m);
}

/* The older program's rope keys of latent layers are wrong; attending to them would be too. */
static void test_latents_are_refused(void **state) {
    enum { RANK = 64, ROPE = 32, LATENT_LAYERS = 4 };
    mf_model *m = any_open(latent_model);
    mf_session *s = any_session(m);
    bytes *b = malloc(sizeof *b);
    (void)state;
    for (uint32_t version = 1; version <= 2; version++) {
        const uint32_t words[WORDS] = {0x4D464C58, version, LATENT_LAYERS, 1, 4, 64, 0, 0, RANK, ROPE};
        mf_error err = {0};
        b->n = 0;
        put(b, words, version == 1 ? 32 : 40);
        for (int l = 0; l < LATENT_LAYERS; l++) {
            put(b, &(int32_t){N}, 4);
            put_values(b, l, 0, N * RANK);
            put_values(b, l, 1, N * ROPE);
        }
        assert_int_equal(mf_state_load(s, b->data, b->n, &err), MF_E_UNSUPPORTED);
        assert_non_null(strstr(err.text, "rope keys"));
        assert_int_equal(mf_memory_length(s), 0);
    }
    free(b);
    mf_session_free(s);
    mf_model_close(m);
}

static int setup_latent(void **state) {
    static char dir[64];
    const char *first = tiny_checkpoint;
    void *made;
    if (tiny_setup(state)) return -1;
    snprintf(dir, sizeof dir, "%s_first", (char *)*state);
    if (rename(*state, dir)) return -1; /* both are named after this process */
    tiny_checkpoint = latent_model;
    if (tiny_setup(&made)) return -1;
    latent_model = made;
    tiny_checkpoint = first;
    *state = dir;
    return 0;
}

static int teardown_both(void **state) {
    void *made = (void *)latent_model;
    return tiny_teardown(&made) || tiny_teardown(state) ? -1 : 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made_by_hand),
        cmocka_unit_test(test_every_word_of_the_header_counts),
        cmocka_unit_test(test_other_kinds_of_kv),
        cmocka_unit_test(test_latents_are_refused),
    };
    if (argc < 3) return 2;
    tiny_checkpoint = argv[1];
    latent_model = argv[2];
    return cmocka_run_group_tests(tests, setup_latent, teardown_both);
}
