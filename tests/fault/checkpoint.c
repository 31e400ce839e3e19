#include "checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/direct.h"
#include "base/file.h"
#include "convert/synth.h"
#include "model/import.h"

#define BLOCK ((int64_t)1 << 20) /* values drawn at once */
#define MAX_TENSORS 4096

typedef struct tensor {
    char name[160];
    int n_dims;
    int64_t dims[3], bytes;
    float centre, spread;
    int shard;
} tensor;

typedef struct maker {
    mf__blueprint bp;
    tensor tensors[MAX_TENSORS];
    int n_tensors;
    uint64_t random;
    uint16_t *block;
} maker;

static uint64_t draw(maker *m) {
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    return m->random ^= m->random << 17;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcmp(text + n - k, end);
}

static tensor *add(maker *m, const char *name, int n_dims, int64_t a, int64_t b, int64_t c) {
    tensor *t = &m->tensors[m->n_tensors++];
    int layer = -1;
    *t = (tensor){.n_dims = n_dims, .dims = {a, b, c}, .bytes = 2 * a * (n_dims > 1 ? b : 1) * (n_dims > 2 ? c : 1)};
    snprintf(t->name, sizeof t->name, "%s", name);
    sscanf(name, "model.layers.%d.", &layer);
    t->shard = layer + 1;
    return t;
}

static mf_status add_weight(void *ctx, const char *name, const mf__weight_info *w, mf_error *err) {
    maker *m = ctx;
    if (m->n_tensors + 2 > MAX_TENSORS) return mf__fail(err, MF_E_LIMIT, "too many tensors");
    if (strstr(name, "conv1d")) { /* as raw checkpoints have it, so that norms are zero-centred */
        add(m, name, 3, w->n_rows, 1, w->n_cols)->spread = 0.5f;
        return MF_OK;
    }
    tensor *t = w->kind == MF_WEIGHT_VECTOR ? add(m, name, 1, w->n_rows * w->n_cols, 1, 1)
                                            : add(m, name, 2, w->n_rows, w->n_cols, 1);
    t->spread = w->kind == MF_WEIGHT_VECTOR ? 0.1f : 0.05f;
    if (ends_with(name, "linear_attn.norm.weight")) t->centre = 1; /* the one norm that is not zero-centred */
    return MF_OK;
}

static void add_experts(maker *m) {
    const mf__config *c = &m->bp.config;
    for (int l = 0; l < c->n_layers; l++) {
        char name[160];
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.gate_up_proj", l);
        add(m, name, 3, c->moe.n_experts, 2 * c->moe.n_inner, c->n_hidden)->spread = 0.05f;
        snprintf(name, sizeof name, "model.layers.%d.mlp.experts.down_proj", l);
        add(m, name, 3, c->moe.n_experts, c->n_hidden, c->moe.n_inner)->spread = 0.05f;
    }
}

static mf_status write_tensor(maker *m, mf__outfile *f, const tensor *t, mf_error *err) {
    for (int64_t left = t->bytes / 2; left > 0;) {
        int64_t n = left < BLOCK ? left : BLOCK;
        for (int64_t i = 0; i < n; i++) {
            float v = t->centre + t->spread * ((float)(draw(m) >> 40) * 0x1p-23f - 1.0f);
            uint32_t u;
            memcpy(&u, &v, sizeof u);
            m->block[i] = (uint16_t)(u >> 16);
        }
        MF__TRY(mf__outfile_append(f, m->block, 2 * n, err));
        left -= n;
    }
    return MF_OK;
}

static void shard_name(int shard, int n, char name[64]) {
    snprintf(name, 64, "model-%05d-of-%05d.safetensors", shard + 1, n);
}

static mf_status write_shard(maker *m, const char *dir, int shard, int n_shards, json_t *map, mf_error *err) {
    json_t *header = json_object();
    int64_t at = 0;
    char name[64];
    shard_name(shard, n_shards, name);
    for (int i = 0; i < m->n_tensors; i++) {
        const tensor *t = &m->tensors[i];
        if (t->shard != shard) continue;
        json_t *shape = json_array();
        for (int d = 0; d < t->n_dims; d++) json_array_append_new(shape, json_integer(t->dims[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", "BF16", "shape", shape, "data_offsets",
                                      (json_int_t)at, (json_int_t)(at + t->bytes)));
        json_object_set_new(map, t->name, json_string(name));
        at += t->bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT), *path = mf__path_join(dir, name);
    uint64_t size = text ? strlen(text) : 0;
    mf__outfile f;
    mf_status st = mf__outfile_open(path, 0, &f, err);
    if (st == MF_OK) st = mf__outfile_append(&f, &size, sizeof size, err);
    if (st == MF_OK) st = mf__outfile_append(&f, text, (int64_t)size, err);
    for (int i = 0; st == MF_OK && i < m->n_tensors; i++)
        if (m->tensors[i].shard == shard) st = write_tensor(m, &f, &m->tensors[i], err);
    if (st == MF_OK)
        st = mf__outfile_close(&f, err);
    else
        mf__outfile_drop(&f);
    free(text);
    free(path);
    json_decref(header);
    return st;
}

static mf_status write_json(const char *dir, const char *name, json_t *root, mf_error *err) {
    char *path = mf__path_join(dir, name), *text = json_dumps(root, JSON_INDENT(1));
    mf_status st = mf__file_replace(path, text, strlen(text), err);
    free(path);
    free(text);
    json_decref(root);
    return st;
}

static mf_status write_all(maker *m, const char *dir, mf_error *err) {
    int n = m->bp.config.n_layers + 1;
    json_t *map = json_object();
    mf_status st = MF_OK;
    for (int s = 0; s < n && st == MF_OK; s++) st = write_shard(m, dir, s, n, map, err);
    json_t *index = json_pack("{s:{}, s:o}", "metadata", "weight_map", map);
    mf_status written = write_json(dir, "model.safetensors.index.json", index, err);
    return st != MF_OK ? st : written;
}

mf_status checkpoint_make(const char *dir, const char *shape, int n_layers, uint64_t seed, mf_error *err) {
    maker *m = calloc(1, sizeof *m);
    json_t *config = mf__synth_config(shape, n_layers, err);
    mf__config c;
    mf_status st = m && config ? mf__config_parse(config, "config.json", &c, err) : MF_E_INVALID;
    if (m) m->random = seed * 2654435761u + 88172645463325252u;
    if (m) m->block = malloc((size_t)BLOCK * sizeof *m->block);
    if (st == MF_OK && mkdir(dir, 0777) != 0) st = mf__fail(err, MF_E_EXISTS, "cannot make %s", dir);
    if (st == MF_OK) st = mf__blueprint_build(&c, &m->bp, err);
    if (st == MF_OK) st = mf__blueprint_each_weight(&m->bp, add_weight, m, err);
    if (st == MF_OK) {
        add_experts(m);
        st = write_all(m, dir, err);
    }
    if (st == MF_OK) st = write_json(dir, "config.json", json_incref(config), err);
    if (st == MF_OK) st = write_json(dir, "tokenizer.json", mf__synth_tokenizer(), err);
    if (m) {
        mf__blueprint_free(&m->bp);
        free(m->block);
    }
    free(m);
    json_decref(config);
    return st;
}
