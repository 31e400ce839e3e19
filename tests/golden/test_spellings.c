/* Two spellings of the same weights give the same bits: a checkpoint is rewritten in another spelling, and both are
 * converted and evaluated.
 *
 *   kv_b_proj            against  embed_q (the key half transposed) and unembed_out
 *   experts as F32       against  the same values as 4-bit integers packed in I32, with a scale for each 32 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/file.h"
#include "convert/convert.h"
#include "moeflux.h"
#include "quant/half.h"
#include "weights/safetensors.h"

#define MAX_ENTRIES 1024
#define N_TOKENS 40
#define GROUP 32

static const char *checkpoint; /* mla/deepseek_v3: 4 heads of 32 + 32 and 32 over a latent of 64, bf16 */
#define HEADS 4
#define NOPE 32
#define V_DIM 32
#define LATENT 64

/* A checkpoint being put together. Names and data live in the arena or in the source. */
typedef struct draft {
    mf__entry entries[MAX_ENTRIES];
    int64_t n;
    mf__arena arena;
} draft;

static void *take(draft *d, int64_t bytes) {
    void *mem = mf__arena_alloc(&d->arena, (size_t)bytes);
    assert_non_null(mem);
    return mem;
}

static void add(draft *d, const char *stem, const char *ending, mf__type type, int n_dims, const int64_t *dims,
                const void *data) {
    char name[256];
    assert_true(d->n < MAX_ENTRIES);
    snprintf(name, sizeof name, "%s%s", stem, ending);
    mf__entry *e = &d->entries[d->n++];
    *e = (mf__entry){.name = mf__arena_strdup(&d->arena, name), .type = type, .n_dims = n_dims, .data = data};
    e->size = mf__type_bits(type) / 8;
    for (int i = 0; i < n_dims; i++) e->size *= e->dims[i] = dims[i];
}

/* The name without its ending, or NULL when it ends otherwise. */
static const char *stem_of(draft *d, const char *name, const char *ending) {
    size_t n = strlen(name), k = strlen(ending);
    if (n < k || strcmp(name + n - k, ending)) return NULL;
    char *stem = mf__arena_strdup(&d->arena, name);
    assert_non_null(stem);
    stem[n - k] = 0;
    return stem;
}

/* Offers every tensor of the checkpoint to `rewrite`, which returns false for those that stay as they are. */
typedef bool rewrite_fn(draft *d, const mf__entry *e);

static void write_checkpoint(const char *dir, rewrite_fn *rewrite) {
    draft *d = calloc(1, sizeof *d);
    mf__catalog *cat;
    mf_error err = {0};
    char from[512], to[512];
    assert_non_null(d);
    if (mf__safetensors_open(checkpoint, &cat, &err) != MF_OK) fail_msg("%s", err.text);
    for (int64_t i = 0; i < mf__catalog_count(cat); i++) {
        const mf__entry *e = mf__catalog_at(cat, i);
        if (!rewrite(d, e)) add(d, e->name, "", e->type, e->n_dims, e->dims, e->data);
    }
    mf__dir_remove(dir, NULL);
    if (mf__dir_make(dir, &err) != MF_OK) fail_msg("%s", err.text);
    snprintf(from, sizeof from, "%s/config.json", checkpoint);
    snprintf(to, sizeof to, "%s/config.json", dir);
    assert_int_equal(mf__file_copy(from, to, &err), MF_OK);
    snprintf(to, sizeof to, "%s/model.safetensors", dir);
    if (mf__safetensors_write(to, d->entries, d->n, &err) != MF_OK) fail_msg("%s", err.text);
    mf__catalog_close(cat);
    mf__arena_free(&d->arena);
    free(d);
}

/* Converts dir as it is and returns the logits of the last token; removes what it made. */
static float *logits_of(const char *dir, int32_t *n_vocab) {
    mf__convert_options opt;
    mf_model_options open;
    mf_model *m;
    mf_session *s;
    mf_error err = {0};
    char native[64];
    int32_t tokens[N_TOKENS];
    snprintf(native, sizeof native, "spelling_native_%ld", (long)getpid());
    mf__convert_options_init(&opt);
    mf_model_options_init(&open);
    open.backend = "ref";
    mf__dir_remove(native, NULL);
    if (mf__convert(dir, native, &opt, &err) != MF_OK) fail_msg("%s", err.text);
    if (mf_model_open(native, &open, &m, &err) != MF_OK) fail_msg("%s", err.text);
    if (mf_session_create(m, NULL, &s, &err) != MF_OK) fail_msg("%s", err.text);
    *n_vocab = mf_model_info_get(m)->n_vocab;
    float *logits = malloc((size_t)*n_vocab * sizeof *logits);
    assert_non_null(logits);
    for (int i = 0; i < N_TOKENS; i++) tokens[i] = (i * 37 + 5) % *n_vocab;
    if (mf_eval_prompt(s, tokens, N_TOKENS, 0, logits, (size_t)*n_vocab, &err) != MF_OK) fail_msg("%s", err.text);
    mf_session_free(s);
    mf_model_close(m);
    assert_int_equal(mf__dir_remove(native, &err), MF_OK);
    return logits;
}

static void assert_same_logits(rewrite_fn *first, rewrite_fn *second) {
    char dir[64];
    int32_t n_vocab;
    float *logits[2];
    rewrite_fn *rewrites[2] = {first, second};
    snprintf(dir, sizeof dir, "spelling_%ld", (long)getpid());
    for (int i = 0; i < 2; i++) {
        write_checkpoint(dir, rewrites[i]);
        logits[i] = logits_of(dir, &n_vocab);
    }
    assert_memory_equal(logits[0], logits[1], (size_t)n_vocab * sizeof(float));
    free(logits[0]);
    free(logits[1]);
    assert_int_equal(mf__dir_remove(dir, NULL), MF_OK);
}

static bool keep(draft *d, const mf__entry *e) {
    (void)d, (void)e;
    return false;
}

/* kv_b [heads][nope | v][latent] -> embed_q [heads][latent][nope], unembed_out [heads][v][latent] */
static bool split_kv_b(draft *d, const mf__entry *e) {
    const char *stem = stem_of(d, e->name, "kv_b_proj.weight");
    if (!stem) return false;
    assert_int_equal(e->type, MF_TYPE_BF16);
    assert_int_equal(e->size, HEADS * (NOPE + V_DIM) * LATENT * 2);
    uint16_t *uk = take(d, HEADS * LATENT * NOPE * 2), *uv = take(d, HEADS * V_DIM * LATENT * 2);
    for (int h = 0; h < HEADS; h++)
        for (int r = 0; r < NOPE + V_DIM; r++)
            for (int c = 0; c < LATENT; c++) {
                uint16_t v;
                memcpy(&v, e->data + ((h * (NOPE + V_DIM) + r) * LATENT + c) * 2, sizeof v);
                if (r < NOPE)
                    uk[(h * LATENT + c) * NOPE + r] = v;
                else
                    uv[(h * V_DIM + r - NOPE) * LATENT + c] = v;
            }
    add(d, stem, "embed_q.weight", MF_TYPE_BF16, 3, (int64_t[]){HEADS, LATENT, NOPE}, uk);
    add(d, stem, "unembed_out.weight", MF_TYPE_BF16, 3, (int64_t[]){HEADS, V_DIM, LATENT}, uv);
    return true;
}

static void split_expansion(void **state) {
    (void)state;
    assert_same_logits(keep, split_kv_b);
}

/* The expert's values as codes around 8 and a scale for each group; as F32, what the codes are worth. */
static void quantize(const mf__entry *e, uint8_t *codes, uint16_t *scales, float *values) {
    for (int64_t g = 0; g < e->size / 2 / GROUP; g++) {
        float x[GROUP], most = 0;
        for (int i = 0; i < GROUP; i++) {
            uint16_t v;
            memcpy(&v, e->data + (g * GROUP + i) * 2, sizeof v);
            x[i] = mf__bf16_to_f32(v);
            if (x[i] * x[i] > most * most) most = x[i];
        }
        scales[g] = mf__f32_to_bf16(most / 7);
        float scale = mf__bf16_to_f32(scales[g]);
        for (int i = 0; i < GROUP; i++) {
            float q = scale != 0 ? x[i] / scale : 0;
            int code = (int)(q + 8.5f);
            code = code < 0 ? 0 : code > 15 ? 15 : code;
            codes[g * GROUP + i] = (uint8_t)code;
            values[g * GROUP + i] = (float)(code - 8) * scale;
        }
    }
}

static bool rewrite_expert(draft *d, const mf__entry *e, bool packed) {
    const char *stem = strstr(e->name, ".mlp.experts.") ? stem_of(d, e->name, "weight") : NULL;
    if (!stem) return false;
    assert_int_equal(e->type, MF_TYPE_BF16);
    int64_t n = e->size / 2, rows = e->dims[0], cols = e->dims[1];
    uint8_t *codes = take(d, n), *words = take(d, n / 2);
    uint16_t *scales = take(d, n / GROUP * 2);
    float *values = take(d, n * 4);
    int32_t *shape = take(d, 8);
    quantize(e, codes, scales, values);
    for (int64_t i = 0; i < n / 2; i++) words[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
    shape[0] = (int32_t)rows, shape[1] = (int32_t)cols;
    if (packed) {
        add(d, stem, "weight_packed", MF_TYPE_I32, 2, (int64_t[]){rows, cols / 8}, words);
        add(d, stem, "weight_scale", MF_TYPE_BF16, 2, (int64_t[]){rows, cols / GROUP}, scales);
        add(d, stem, "weight_shape", MF_TYPE_I32, 1, (int64_t[]){2}, shape);
    } else {
        add(d, stem, "weight", MF_TYPE_F32, 2, e->dims, values);
    }
    return true;
}

static bool experts_f32(draft *d, const mf__entry *e) {
    return rewrite_expert(d, e, false);
}

static bool experts_packed(draft *d, const mf__entry *e) {
    return rewrite_expert(d, e, true);
}

static void packed_experts(void **state) {
    (void)state;
    assert_same_logits(experts_f32, experts_packed);
}

/* The next-token layer that published checkpoints carry beside the model is left alone. */
static bool with_extra_layer(draft *d, const mf__entry *e) {
    const char *stem = stem_of(d, e->name, "layers.3.input_layernorm.weight");
    if (!stem) return false;
    add(d, e->name, "", e->type, e->n_dims, e->dims, e->data);
    add(d, stem, "layers.4.enorm.weight", e->type, e->n_dims, e->dims, e->data);
    add(d, stem, "layers.4.input_layernorm.weight", e->type, e->n_dims, e->dims, e->data);
    return true;
}

static void next_token_layer_is_ignored(void **state) {
    (void)state;
    assert_same_logits(keep, with_extra_layer);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(split_expansion), cmocka_unit_test(packed_experts),
                                       cmocka_unit_test(next_token_layer_is_ignored)};
    if (argc < 2) return 1;
    checkpoint = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
