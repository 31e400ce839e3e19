#include "maker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "quant/half.h"
#include "weights/safetensors.h"

static void *take(maker *m, int64_t n, size_t size) {
    void *mem = mf__arena_array(&m->arena, (size_t)n + 1, size);
    assert_non_null(mem);
    return mem;
}

uint32_t maker_random(maker *m) {
    m->random = m->random * 1664525u + 1013904223u;
    return m->random >> 8;
}

int64_t maker_count(const maker_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) n *= t->dims[i];
    return n;
}

maker_tensor *maker_add(maker *m, const char *name, int n_dims, const int64_t *dims) {
    assert_true(m->n < m->room);
    maker_tensor *t = &m->tensors[m->n++];
    *t = (maker_tensor){.type = MF_TYPE_BF16, .n_dims = n_dims};
    snprintf(t->name, sizeof t->name, "%s", name);
    memcpy(t->dims, dims, (size_t)n_dims * sizeof *dims);
    t->values = take(m, maker_count(t), sizeof(float));
    return t;
}

static maker_tensor *find(maker *m, const char *name) {
    for (int i = 0; i < m->n; i++)
        if (!strcmp(m->tensors[i].name, name)) return &m->tensors[i];
    return NULL;
}

maker_tensor *maker_find(maker *m, const char *name) {
    maker_tensor *t = find(m, name);
    if (!t) fail_msg("the checkpoint has no tensor %s", name);
    return t;
}

void maker_remove(maker *m, const char *name) {
    maker_find(m, name)->name[0] = 0;
}

void maker_rename(maker *m, const char *from, const char *to) {
    for (int i = 0; i < m->n; i++) {
        char *at = strstr(m->tensors[i].name, from), rest[160];
        if (!at) continue;
        snprintf(rest, sizeof rest, "%s%s", to, at + strlen(from));
        snprintf(at, sizeof m->tensors[i].name - (size_t)(at - m->tensors[i].name), "%s", rest);
    }
}

/* ---- making ----------------------------------------------------------------------------------------------------- */

static void fill(maker *m, maker_tensor *t, const char *name) {
    bool norm = strstr(name, "norm") != NULL;
    for (int64_t i = 0; i < maker_count(t); i++)
        t->values[i] =
            norm ? 1 + (float)((int)(maker_random(m) % 9) - 4) / 8 : (float)((int)(maker_random(m) % 33) - 16) / 64;
}

static mf_status add_trunk(void *ctx, const char *name, const mf__weight_info *w, mf_error *err) {
    maker *m = ctx;
    (void)err;
    int64_t flat[1] = {w->n_rows * w->n_cols}, matrix[3] = {w->n_rows, w->n_cols, 1};
    bool conv = strstr(name, "conv1d") != NULL;
    if (w->kind == MF_WEIGHT_VECTOR && !conv)
        fill(m, maker_add(m, name, 1, flat), name);
    else
        fill(m, maker_add(m, name, conv ? 3 : 2, matrix), name);
    return MF_OK;
}

static void add_part(maker *m, const mf__expert_spelling *sp, int layer, int expert, int part) {
    const mf__config *c = &m->bp.config;
    bool halves = c->moe.glu.kind == MF_GLU_RELU2; /* of the matrix that is called up */
    int64_t rows = part == MF_PART_DOWN ? c->n_hidden : halves ? 2 * c->moe.n_inner : c->moe.n_inner;
    int64_t cols = part == MF_PART_DOWN ? mf__config_expert_wide(c) : c->n_hidden, n = c->moe.n_experts;
    if (halves && part == MF_PART_GATE) return;
    const char *mark = strchr(sp->weight[part], '#');
    char name[200];
    if (mark) {
        snprintf(name, sizeof name, "model.layers.%d.%.*s%d%s", layer, (int)(mark - sp->weight[part]), sp->weight[part],
                 expert, mark + 1);
        fill(m, maker_add(m, name, 2, (int64_t[]){rows, cols}), name);
    } else if (expert == 0) {
        snprintf(name, sizeof name, "model.layers.%d.%s", layer, sp->weight[part]);
        fill(m, maker_add(m, name, 3, (int64_t[]){n, rows, cols}), name);
    }
    if (sp->bias[part] && expert == 0) {
        snprintf(name, sizeof name, "model.layers.%d.%s", layer, sp->bias[part]);
        fill(m, maker_add(m, name, 2, (int64_t[]){n, rows}), name);
    }
}

void maker_init(maker *m, const char *config) {
    mf_error err = {0};
    mf__config parsed;
    *m = (maker){.room = 1024, .random = 7};
    m->tensors = take(m, m->room, sizeof *m->tensors);
    m->config = mf__arena_strdup(&m->arena, config);
    assert_non_null(m->config);
    if (mf__config_parse_text("config", config, strlen(config), &parsed, &err)) fail_msg("%s", err.text);
    if (mf__blueprint_build(&parsed, &m->bp, &err)) fail_msg("%s", err.text);
    assert_int_equal(mf__blueprint_each_weight(&m->bp, add_trunk, m, NULL), MF_OK);
    const mf__expert_spelling *const *sp = parsed.family->experts ? parsed.family->experts : mf__expert_spellings;
    bool halves = parsed.moe.glu.kind == MF_GLU_RELU2;
    while (*sp && (((*sp)->fuse != MF_FUSE_NONE && !halves) || (*sp)->transposed)) sp++;
    assert_non_null(*sp);
    for (int l = 0; l < parsed.n_layers; l++)
        for (int e = 0; m->bp.kinds[m->bp.kind_of[l]].experts && e < parsed.moe.n_experts; e++)
            for (int p = 0; p < MF_PART_COUNT; p++) add_part(m, *sp, l, e, p);
}

void maker_free(maker *m) {
    mf__blueprint_free(&m->bp);
    mf__arena_free(&m->arena);
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

char *path_in(const char *dir, const char *name) {
    char *path = mf__path_join(dir, name);
    assert_non_null(path);
    return path;
}

static mf__entry entry_of(maker *m, const maker_tensor *t) {
    mf__entry e = {.name = t->name, .type = t->type, .n_dims = t->n_dims};
    memcpy(e.dims, t->dims, sizeof t->dims);
    int64_t n = maker_count(t);
    e.size = n * mf__type_bits(t->type) / 8;
    if (t->type == MF_TYPE_F32) {
        e.data = (const uint8_t *)t->values;
    } else if (t->type == MF_TYPE_BF16) {
        uint16_t *halves = take(m, n, sizeof *halves);
        for (int64_t i = 0; i < n; i++) {
            halves[i] = mf__f32_to_bf16(t->values[i]);
            assert_true(mf__bf16_to_f32(halves[i]) == t->values[i]);
        }
        e.data = (const uint8_t *)halves;
    } else {
        e.data = t->bytes;
    }
    return e;
}

const char *maker_write(maker *m, const char *root, const char *name) {
    char *dir = mf__arena_printf(&m->arena, "%s/%s", root, name);
    mf__entry *entries = take(m, m->n, sizeof *entries);
    mf_error err = {0};
    int64_t n = 0;
    for (int i = 0; i < m->n; i++)
        if (m->tensors[i].name[0]) entries[n++] = entry_of(m, &m->tensors[i]);
    if (mf__dir_make(dir, &err)) fail_msg("%s", err.text);
    char *config = path_in(dir, "config.json"), *weights = path_in(dir, "model.safetensors");
    if (mf__file_replace(config, m->config, strlen(m->config), &err)) fail_msg("%s", err.text);
    if (mf__safetensors_write(weights, entries, n, &err)) fail_msg("%s", err.text);
    free(config);
    free(weights);
    return dir;
}

/* ---- evaluating ------------------------------------------------------------------------------------------------- */

float *model_logits(const char *dir, int experts_per_token) {
    mf_model_options opt;
    mf_model *m;
    mf_session *s;
    mf_error err = {0};
    int32_t tokens[MAKER_TOKENS];
    mf_model_options_init(&opt);
    opt.backend = "ref";
    opt.n_threads = 1;
    opt.experts_per_token = experts_per_token;
    if (mf_model_open(dir, &opt, &m, &err)) fail_msg("%s", err.text);
    int32_t n_vocab = mf_model_info_get(m)->n_vocab;
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    assert_non_null(logits);
    for (int i = 0; i < MAKER_TOKENS; i++) tokens[i] = (i * 37 + 11) % n_vocab;
    if (mf_session_create(m, NULL, &s, &err)) fail_msg("%s", err.text);
    if (mf_eval_prompt(s, tokens, MAKER_TOKENS, 0, logits, (size_t)n_vocab, &err)) fail_msg("%s", err.text);
    mf_session_free(s);
    mf_model_close(m);
    for (int32_t i = 0; i < n_vocab; i++) assert_true(logits[i] == logits[i]);
    return logits;
}

float *checkpoint_logits(const char *dir, const mf__convert_options *opt) {
    mf__convert_options keep;
    mf_error err = {0};
    char native[512];
    mf__convert_options_init(&keep);
    snprintf(native, sizeof native, "%s.native", dir);
    if (mf__convert(dir, native, opt ? opt : &keep, &err)) fail_msg("%s", err.text);
    return model_logits(native, 0);
}

void assert_same_logits(const float *a, const float *b, int32_t n_vocab) {
    for (int32_t i = 0; i < n_vocab; i++)
        if (a[i] != b[i]) fail_msg("logit %d: %.9g and %.9g", i, (double)a[i], (double)b[i]);
}

static void assert_error(mf_status got, const mf_error *err, mf_status want, const char *part) {
    if (got != want || !strstr(err->text, part))
        fail_msg("status %d (%s), expected %d with \"%s\"", got, err->text, want, part);
}

void assert_convert_fails(const char *dir, mf_status want, const char *part) {
    mf__convert_options keep;
    mf_error err = {0};
    char native[512];
    mf__convert_options_init(&keep);
    snprintf(native, sizeof native, "%s.native", dir);
    assert_error(mf__convert(dir, native, &keep, &err), &err, want, part);
    assert_false(mf__path_exists(native));
}

void assert_open_fails(const char *dir, mf_status want, const char *part) {
    mf_error err = {0};
    mf_model *m;
    assert_error(mf_model_open(dir, NULL, &m, &err), &err, want, part);
    assert_null(m);
}
