/* The same model stored in different ways must be the same model, bit for bit. Each test is one way to get it wrong. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "maker.h"
#include "unit/base/scratch.h"
#include "weights/native.h"

static void same(const char *a, const char *b, int32_t n_vocab) {
    float *x = checkpoint_logits(a, NULL), *y = checkpoint_logits(b, NULL);
    assert_same_logits(x, y, n_vocab);
    free(x);
    free(y);
}

/* ---- norms stored as w - 1 -------------------------------------------------------------------------------------- */

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcmp(text + n - k, end);
}

/* As the raw checkpoint has it: 1 less in the norms that are zero-centred, and only in those; the convolution
 * [channels][1][kernel]. Which of the two it is can only be told by that shape. */
static void make_raw(maker *m) {
    static const char *const shifted[] = {"input_layernorm.weight", "post_attention_layernorm.weight",
                                          "self_attn.q_norm.weight", "self_attn.k_norm.weight", "model.norm.weight"};
    for (int i = 0; i < m->n; i++) {
        maker_tensor *t = &m->tensors[i];
        for (size_t k = 0; k < MF__COUNT(shifted); k++)
            for (int64_t v = 0; ends_with(t->name, shifted[k]) && v < maker_count(t); v++) t->values[v] -= 1;
        if (!strstr(t->name, "conv1d")) continue;
        t->dims[2] = t->dims[1];
        t->dims[1] = 1;
    }
}

static void raw_and_converted_norms(void **state) {
    static const char *const configs[] = {CONFIG_QWEN3_5(""), CONFIG_NEXT("")};
    for (size_t i = 0; i < MF__COUNT(configs); i++) {
        maker m;
        char a[32], b[32];
        snprintf(a, sizeof a, "converted%zu", i);
        snprintf(b, sizeof b, "raw%zu", i);
        maker_init(&m, configs[i]);
        const char *converted = maker_write(&m, *state, a);
        make_raw(&m);
        same(converted, maker_write(&m, *state, b), m.bp.config.n_vocab);
        maker_free(&m);
    }
}

/* ---- names ------------------------------------------------------------------------------------------------------ */

static void three_prefixes(void **state) {
    maker m;
    maker_init(&m, CONFIG_QWEN3_5(""));
    const char *plain = maker_write(&m, *state, "plain");
    maker_rename(&m, "model.", "model.language_model.");
    const char *vision = maker_write(&m, *state, "vision");
    maker_rename(&m, "model.language_model.", "language_model.model.");
    maker_rename(&m, "lm_head.", "language_model.lm_head.");
    const char *mlx = maker_write(&m, *state, "mlx");
    float *x = checkpoint_logits(plain, NULL), *y = checkpoint_logits(vision, NULL), *z = checkpoint_logits(mlx, NULL);
    assert_same_logits(x, y, m.bp.config.n_vocab);
    assert_same_logits(x, z, m.bp.config.n_vocab);
    free(x);
    free(y);
    free(z);
    maker_free(&m);
}

static void published_names(void **state) {
    maker m;
    maker_init(&m, CONFIG_GLM(""));
    const char *ours = maker_write(&m, *state, "glm");
    maker_rename(&m, "mlp.shared_expert.", "mlp.shared_experts.");
    same(ours, maker_write(&m, *state, "glm_published"), m.bp.config.n_vocab);
    maker_free(&m);

    maker_init(&m, CONFIG_MINIMAX(""));
    ours = maker_write(&m, *state, "minimax");
    maker_rename(&m, "mlp.gate.e_score", "block_sparse_moe.e_score");
    maker_rename(&m, "mlp.gate.", "block_sparse_moe.gate.");
    same(ours, maker_write(&m, *state, "minimax_published"), m.bp.config.n_vocab);
    maker_free(&m);

    maker_init(&m, CONFIG_OSS(""));
    ours = maker_write(&m, *state, "oss");
    maker_rename(&m, "mlp.gate.", "mlp.router.");
    same(ours, maker_write(&m, *state, "oss_published"), m.bp.config.n_vocab);
    maker_free(&m);
}

/* Layers that predict further tokens come behind the last one, vision beside them: left out, whatever they hold. */
static void other_tensors_are_left_out(void **state) {
    static const char *const more[] = {"model.layers.4.self_attn.q_a_proj.weight", "model.layers.4.eh_proj.weight",
                                       "model.layers.4.mlp.experts.0.gate_proj.weight", "mtp.fc.weight",
                                       "model.visual.patch_embed.weight"};
    maker m;
    maker_init(&m, CONFIG_DEEPSEEK(""));
    const char *bare = maker_write(&m, *state, "bare");
    for (size_t i = 0; i < MF__COUNT(more); i++) maker_add(&m, more[i], 2, (int64_t[]){3, 5})->values[0] = INFINITY;
    const char *full = maker_write(&m, *state, "full");
    same(bare, full, m.bp.config.n_vocab);
    char *native = path_in(*state, "full.native");
    mf__native n;
    assert_int_equal(mf__native_open(native, &n, NULL), MF_OK);
    for (size_t i = 0; i < MF__COUNT(more); i++) assert_null(mf__catalog_find(n.catalog, more[i]));
    mf__native_close(&n);
    free(native);
    maker_free(&m);
}

/* ---- rows in another order -------------------------------------------------------------------------------------- */

/* in_proj_qkvz: per key head q | k | v of its value heads | z of them; in_proj_ba: per key head b | a. Written here
 * head by head, the other way round from how the import reads it. */
static void fuse_delta(maker *m, int layer) {
    const mf__config *c = &m->bp.config;
    int64_t hidden = c->n_hidden, nk = c->delta.n_k_heads, kd = c->delta.k_dim, vd = c->delta.v_dim;
    int64_t r = c->delta.n_v_heads / nk, n = 0;
    const char *parts[] = {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"};
    float *src[4];
    char name[160];
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "model.layers.%d.linear_attn.%s.weight", layer, parts[i]);
        src[i] = maker_find(m, name)->values;
        maker_remove(m, name);
    }
    snprintf(name, sizeof name, "model.layers.%d.linear_attn.in_proj_qkvz.weight", layer);
    float *out = maker_add(m, name, 2, (int64_t[]){nk * (2 * kd + 2 * r * vd), hidden})->values;
    for (int64_t head = 0; head < nk; head++) {
        const float *runs[] = {src[0] + head * kd * hidden, src[0] + (nk + head) * kd * hidden,
                               src[0] + (2 * nk * kd + head * r * vd) * hidden, src[1] + head * r * vd * hidden};
        int64_t rows[] = {kd, kd, r * vd, r * vd};
        for (int i = 0; i < 4; n += rows[i++]) memcpy(out + n * hidden, runs[i], (size_t)(rows[i] * hidden) * 4);
    }
    snprintf(name, sizeof name, "model.layers.%d.linear_attn.in_proj_ba.weight", layer);
    out = maker_add(m, name, 2, (int64_t[]){2 * nk * r, hidden})->values;
    for (int64_t head = 0; head < nk; head++)
        for (int i = 0; i < 2; i++)
            memcpy(out + (head * 2 + i) * r * hidden, src[2 + i] + head * r * hidden, (size_t)(r * hidden) * 4);
}

static void fused_delta_inputs(void **state) {
    maker m;
    maker_init(&m, CONFIG_NEXT(""));
    const char *apart = maker_write(&m, *state, "apart");
    for (int l = 0; l < 4; l++)
        if (m.bp.config.mixer[l] == MF_MIX_LINEAR) fuse_delta(&m, l);
    const char *fused = maker_write(&m, *state, "fused");
    same(apart, fused, m.bp.config.n_vocab);
    maker_find(&m, "model.layers.0.linear_attn.in_proj_qkvz.weight")->dims[0] -= 16;
    assert_convert_fails(maker_write(&m, *state, "short"), MF_E_MISMATCH, "in_proj_qkvz");
    maker_free(&m);
}

/* gate_up_proj: all rows of gate, then all of up. */
static void fused_experts(void **state) {
    maker m;
    maker_init(&m, CONFIG_QWEN3(""));
    const char *apart = maker_write(&m, *state, "each");
    int64_t n = m.bp.config.moe.n_experts, inner = m.bp.config.moe.n_inner, hidden = m.bp.config.n_hidden;
    for (int l = 0; l < 4; l++) {
        char name[160];
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", l);
        float *up = maker_add(&m, name, 3, (int64_t[]){n, 2 * inner, hidden})->values;
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", l);
        float *down = maker_add(&m, name, 3, (int64_t[]){n, hidden, inner})->values;
        for (int e = 0; e < n; e++) {
            static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
            for (int p = 0; p < 3; p++) {
                float *to = p < 2 ? up + (2 * e + p) * inner * hidden : down + e * inner * hidden;
                snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", l, e, parts[p]);
                memcpy(to, maker_find(&m, name)->values, (size_t)(inner * hidden) * sizeof(float));
                maker_remove(&m, name);
            }
        }
    }
    same(apart, maker_write(&m, *state, "stacked"), m.bp.config.n_vocab);
    maker_remove(&m, "model.layers.2.mlp.experts.gate_up_proj");
    assert_convert_fails(maker_write(&m, *state, "lacking"), MF_E_NOT_FOUND, "expert 0 of layer 2");
    maker_free(&m);
}

/* ---- gpt-oss: MXFP4, and bf16 turned around --------------------------------------------------------------------- */

static const float E2M1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

typedef enum oss_form { OSS_BLOCKS, OSS_BF16, OSS_MLX } oss_form;

/* One part of a layer as MXFP4 codes: values of `t` become what the codes say. Rows are [experts * rows]. */
static void draw_codes(maker *m, maker_tensor *t, uint8_t *codes, uint8_t *scales) {
    int64_t n = maker_count(t);
    for (int64_t i = 0; i < n / 2; i++) codes[i] = (uint8_t)maker_random(m);
    for (int64_t i = 0; i < n / 32; i++) scales[i] = (uint8_t)(120 + maker_random(m) % 4);
    for (int64_t i = 0; i < n; i++) {
        float scale = 1.0f / (float)(1 << (127 - scales[i / 32]));
        t->values[i] = E2M1[codes[i / 2] >> (i % 2 ? 4 : 0) & 15] * scale;
    }
}

/* Writes gate and up into one tensor, rows in turn; or down alone (up NULL). `row` values of `size` bytes per row. */
static void weave(uint8_t *out, const uint8_t *gate, const uint8_t *up, int64_t n_rows, int64_t row_bytes) {
    for (int64_t r = 0; r < n_rows; r++) {
        memcpy(out + (up ? 2 * r : r) * row_bytes, gate + r * row_bytes, (size_t)row_bytes);
        if (up) memcpy(out + (2 * r + 1) * row_bytes, up + r * row_bytes, (size_t)row_bytes);
    }
}

static maker_tensor *add_bytes(maker *m, mf__type type, int n_dims, const int64_t *dims, const char *fmt, ...) {
    char name[160];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    maker_tensor *t = maker_add(m, name, n_dims, dims);
    t->type = type;
    t->bytes = (uint8_t *)t->values; /* there is room for 4 bytes each */
    return t;
}

/* [experts][rows][cols] floats -> [experts][cols][rows], rows of gate and up in turn */
static void turn(float *out, const float *gate, const float *up, int64_t n, int64_t rows, int64_t cols) {
    int64_t wide = up ? 2 * rows : rows;
    for (int64_t e = 0; e < n; e++)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t c = 0; c < cols; c++) {
                float *at = out + (e * cols + c) * wide + (up ? 2 * r : r);
                at[0] = gate[(e * rows + r) * cols + c];
                if (up) at[1] = up[(e * rows + r) * cols + c];
            }
}

static void oss_layer(maker *m, int l, oss_form form) {
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    const mf__config *c = &m->bp.config;
    int64_t n = c->moe.n_experts, inner = c->moe.n_inner, hidden = c->n_hidden;
    maker_tensor *t[3];
    uint8_t *codes[3], *scales[3];
    char name[160];
    for (int p = 0; p < 3; p++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s.weight", l, parts[p]);
        t[p] = maker_find(m, name);
        codes[p] = mf__arena_alloc(&m->arena, (size_t)maker_count(t[p]) / 2);
        scales[p] = mf__arena_alloc(&m->arena, (size_t)maker_count(t[p]) / 32);
        assert_true(codes[p] && scales[p]);
        draw_codes(m, t[p], codes[p], scales[p]);
    }
    for (int p = 0; p < 3 && form == OSS_MLX; p++) {
        int64_t rows = p == 2 ? hidden : inner, cols = p == 2 ? inner : hidden;
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s", l, parts[p]);
        t[p]->name[0] = 0;
        memcpy(add_bytes(m, MF_TYPE_U32, 3, (int64_t[]){n, rows, cols / 8}, "%s.weight", name)->bytes, codes[p],
               (size_t)(n * rows * cols / 2));
        memcpy(add_bytes(m, MF_TYPE_U8, 3, (int64_t[]){n, rows, cols / 32}, "%s.scales", name)->bytes, scales[p],
               (size_t)(n * rows * cols / 32));
    }
    if (form == OSS_MLX) return;
    for (int down = 0; down < 2; down++) {
        int64_t rows = down ? hidden : 2 * inner, cols = down ? inner : hidden, one = down ? hidden : inner;
        int g = down ? 2 : 0;
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s", l, down ? "down_proj" : "gate_up_proj");
        if (form == OSS_BLOCKS) {
            weave(add_bytes(m, MF_TYPE_U8, 4, (int64_t[]){n, rows, cols / 32, 16}, "%s_blocks", name)->bytes, codes[g],
                  down ? NULL : codes[1], n * one, cols / 2);
            weave(add_bytes(m, MF_TYPE_U8, 3, (int64_t[]){n, rows, cols / 32}, "%s_scales", name)->bytes, scales[g],
                  down ? NULL : scales[1], n * one, cols / 32);
        } else {
            turn(maker_add(m, name, 3, (int64_t[]){n, cols, rows})->values, t[g]->values, down ? NULL : t[1]->values, n,
                 one, cols);
        }
    }
    for (int p = 0; p < 3; p++) t[p]->name[0] = 0;
    float *bias[3];
    for (int p = 0; p < 3; p++) {
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s.bias", l, parts[p]);
        bias[p] = maker_find(m, name)->values;
        maker_remove(m, name);
    }
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj_bias", l);
    weave((uint8_t *)maker_add(m, name, 2, (int64_t[]){n, 2 * inner})->values, (uint8_t *)bias[0], (uint8_t *)bias[1],
          n * inner, 4);
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj_bias", l);
    memcpy(maker_add(m, name, 2, (int64_t[]){n, hidden})->values, bias[2], (size_t)(n * hidden) * 4);
}

/* The published MXFP4, its values as bf16 turned around and interleaved, and MLX's spelling. The first and last stay
 * MXFP4 in the native directory. */
static void mxfp4_and_its_twin(void **state) {
    static const char *const names[] = {"blocks", "bf16", "mlx"};
    float *logits[3];
    int32_t n_vocab = 0;
    for (int form = OSS_BLOCKS; form <= OSS_MLX; form++) {
        maker m;
        maker_init(&m, CONFIG_OSS(""));
        for (int l = 0; l < 4; l++) oss_layer(&m, l, (oss_form)form);
        const char *dir = maker_write(&m, *state, names[form]);
        n_vocab = m.bp.config.n_vocab;
        logits[form] = checkpoint_logits(dir, NULL);
        mf__native native;
        char path[512];
        snprintf(path, sizeof path, "%s.native", dir);
        assert_int_equal(mf__native_open(path, &native, NULL), MF_OK);
        assert_int_equal(native.layout.part[MF_PART_UP].type, form == OSS_BF16 ? MF_TYPE_BF16 : MF_TYPE_MXFP4);
        assert_true(native.layout.part[MF_PART_DOWN].has_bias);
        mf__native_close(&native);
        if (form == OSS_BLOCKS) {
            uint8_t *scales = maker_find(&m, "model.layers.2.mlp.experts.down_proj_scales")->bytes, was = scales[7];
            scales[7] = 0xff; /* NaN */
            assert_convert_fails(maker_write(&m, *state, "nan_scale"), MF_E_FORMAT, "layer 2, expert 0, down_proj has");
            scales[7] = was;
            float *bias = maker_find(&m, "model.layers.3.mlp.experts.down_proj_bias")->values;
            bias[64 + 5] = INFINITY;
            assert_convert_fails(maker_write(&m, *state, "bias"), MF_E_FORMAT, "layer 3, expert 1, down_proj.bias has");
            bias[64 + 5] = 1;
            maker_find(&m, "model.layers.1.mlp.experts.down_proj_scales")->name[0] = 0;
            assert_convert_fails(maker_write(&m, *state, "no_scales"), MF_E_NOT_FOUND, "_scales");
        }
        maker_free(&m);
    }
    assert_same_logits(logits[OSS_BLOCKS], logits[OSS_BF16], n_vocab);
    assert_same_logits(logits[OSS_BLOCKS], logits[OSS_MLX], n_vocab);
    for (int i = 0; i < 3; i++) free(logits[i]);
}

/* ---- what matters at all: leaving a part out must show ---------------------------------------------------------- */

/* A weight of every optional part, changed: a graph that does not use it would give the same logits. */
static void every_part_is_used(void **state) {
    static const struct {
        const char *config, *tensor;
    } rows[] = {
        {CONFIG_GLM(""), "model.layers.1.self_attn.q_proj.bias"},
        {CONFIG_GLM(""), "model.layers.1.self_attn.k_norm.weight"},
        {CONFIG_GLM(""), "model.layers.2.mlp.gate.e_score_correction_bias"},
        {CONFIG_GLM(""), "model.layers.2.mlp.shared_expert.up_proj.weight"},
        {CONFIG_GLM(""), "model.layers.0.mlp.down_proj.weight"},
        {CONFIG_OSS(""), "model.layers.0.self_attn.sinks"},
        {CONFIG_OSS(""), "model.layers.1.self_attn.sinks"},
        {CONFIG_OSS(""), "model.layers.1.self_attn.o_proj.bias"},
        {CONFIG_OSS(""), "model.layers.2.mlp.gate.bias"},
        {CONFIG_OSS(""), "model.layers.2.mlp.experts.gate_proj.bias"},
        {CONFIG_OSS(""), "model.layers.3.mlp.experts.down_proj.bias"},
        {CONFIG_MINIMAX(""), "model.layers.0.self_attn.q_norm.weight"},
        {CONFIG_NEXT(""), "model.layers.1.mlp.shared_expert_gate.weight"},
    };
    for (size_t i = 0; i < MF__COUNT(rows); i++) {
        maker m;
        char a[32], b[32];
        snprintf(a, sizeof a, "with%zu", i);
        snprintf(b, sizeof b, "without%zu", i);
        maker_init(&m, rows[i].config);
        float *x = checkpoint_logits(maker_write(&m, *state, a), NULL);
        maker_tensor *t = maker_find(&m, rows[i].tensor);
        for (int64_t v = 0; v < maker_count(t); v++) t->values[v] = v % 3 ? t->values[v] : 2;
        float *y = checkpoint_logits(maker_write(&m, *state, b), NULL);
        if (!memcmp(x, y, (size_t)m.bp.config.n_vocab * sizeof *x)) fail_msg("%s is not used", rows[i].tensor);
        free(x);
        free(y);
        maker_free(&m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        SCRATCH_TEST(raw_and_converted_norms),    SCRATCH_TEST(three_prefixes),     SCRATCH_TEST(published_names),
        SCRATCH_TEST(other_tensors_are_left_out), SCRATCH_TEST(fused_delta_inputs), SCRATCH_TEST(fused_experts),
        SCRATCH_TEST(mxfp4_and_its_twin),         SCRATCH_TEST(every_part_is_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
