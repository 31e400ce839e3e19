/* What a model is made of, for tools: tensors by their names, an embedding, the bytes of an expert. Everything comes
 * from the files as they are, so it is the same on every backend. */
#include <jansson.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/internal.h"
#include "model/names.h"

const char *mf_tensor_name(const mf_model *m, int64_t index) {
    if (!m || index < 0 || index >= mf__catalog_count(m->native.catalog)) return NULL;
    return mf__catalog_at(m->native.catalog, index)->name;
}

/* The logical tensor. How many columns words of codes stand for is in the manifest; one that does not say has groups of
 * 64, which is what the catalogue assumes. */
static mf_status find(const mf_model *m, const char *name, mf__tensor *out, mf_error *err) {
    const mf__entry *e = mf__catalog_find(m->native.catalog, name);
    const json_t *of_name = json_object_get(json_object_get(m->native.manifest, "tensors"), name);
    int64_t bits = json_integer_value(json_object_get(of_name, "bits")), n_cols = 0;
    if (e && bits > 0 && e->type == MF_TYPE_U32 && e->n_dims > 0) n_cols = e->dims[e->n_dims - 1] * 32 / bits;
    return mf__catalog_tensor(m->native.catalog, name, n_cols, out, err);
}

mf_status mf_tensor_describe(const mf_model *m, const char *name, mf_tensor_info *out, mf_error *err) {
    mf__tensor t;
    if (!m || !name || !out) return mf__fail(err, MF_E_INVALID, "mf_tensor_describe: an argument is NULL");
    MF__TRY(find(m, name, &t, err));
    bool scales = mf__type_has_scales(t.type);
    *out = (mf_tensor_info){.name = mf__catalog_find(m->native.catalog, name)->name,
                            .type = mf__type_name(t.type),
                            .bits = scales ? t.bits : 0,
                            .group = scales ? t.group : 0,
                            .n_rows = t.n_planes * t.n_rows,
                            .n_cols = t.n_cols,
                            .bytes = mf__tensor_bytes(&t)};
    return MF_OK;
}

static mf_status rows_of(const mf__tensor *t, const char *name, int64_t first, int64_t n, float *out, size_t out_len,
                         mf_error *err) {
    int64_t all = t->n_planes * t->n_rows;
    if (first < 0 || n < 0 || first > all || n > all - first)
        return mf__fail(err, MF_E_INVALID, "rows %lld to %lld of %s, which has %lld", (long long)first,
                        (long long)((uint64_t)first + (uint64_t)n), name, (long long)all);
    if (!mf__type_is_matrix(t->type) && !mf__type_is_float(t->type))
        return mf__fail(err, MF_E_UNSUPPORTED, "%s is of type %s, which holds no values by itself", name,
                        mf__type_name(t->type));
    if (out_len != (size_t)n * (size_t)t->n_cols || (n && !out))
        return mf__fail(err, MF_E_INVALID, "out has room for %zu values, %lld rows of %lld are needed", out_len,
                        (long long)n, (long long)t->n_cols);
    for (int64_t i = 0; i < n; i++) mf__tensor_row_f32(t, first + i, out + i * t->n_cols);
    return MF_OK;
}

mf_status mf_tensor_rows(const mf_model *m, const char *name, int64_t first, int64_t n, float *out, size_t out_len,
                         mf_error *err) {
    mf__tensor t;
    if (!m || !name) return mf__fail(err, MF_E_INVALID, "mf_tensor_rows: an argument is NULL");
    MF__TRY(find(m, name, &t, err));
    return rows_of(&t, name, first, n, out, out_len, err);
}

mf_status mf_embedding(const mf_model *m, int32_t token, float *out, size_t out_len, mf_error *err) {
    mf__tensor t;
    char name[MF_MAX_NAME];
    if (!m || !out) return mf__fail(err, MF_E_INVALID, "mf_embedding: an argument is NULL");
    if (token < 0 || token >= m->info.n_vocab)
        return mf__fail(err, MF_E_TOKEN, "the token is %d, the vocabulary has 0 to %d", token, m->info.n_vocab - 1);
    mf__names_find(m->native.catalog, m->bp.config.family, "model.embed_tokens.weight", name);
    MF__TRY(mf__catalog_tensor(m->native.catalog, name, m->info.n_hidden, &t, err));
    return rows_of(&t, name, token, 1, out, out_len, err);
}

int64_t mf_expert_bytes(const mf_model *m) {
    return m ? m->layout.bytes : 0;
}

mf_status mf_expert_read(const mf_model *m, int layer, int expert, void *out, size_t size, mf_error *err) {
    const char *path = NULL;
    int fd;
    int64_t unused;
    if (!m || !out) return mf__fail(err, MF_E_INVALID, "mf_expert_read: an argument is NULL");
    const mf__store_config *c = &m->store_config;
    if (layer < 0 || layer >= c->n_layers || expert < 0 || expert >= c->n_experts)
        return mf__fail(err, MF_E_INVALID, "expert %d of layer %d; this model has %d layers of %d", expert, layer,
                        c->n_layers, c->n_experts);
    if (size != (size_t)c->bytes)
        return mf__fail(err, MF_E_INVALID, "out has %zu bytes, an expert %lld", size, (long long)c->bytes);
    for (int d = 0; d < c->n_dirs && !path; d++) path = c->files[d * c->n_layers + layer];
    if (!path) return mf__fail(err, MF_E_NOT_FOUND, "layer %d has no routed experts", layer);
    MF__TRY(mf__file_open(path, &fd, &unused, err));
    mf_status st = mf__pread_all(fd, out, size, expert * c->stride, path, err);
    close(fd);
    return st;
}
