/* Weights to graphs: every weight slot of every layer gets its tensor, or a sentence that says what is wrong with it.
 */
#include <stdio.h>
#include <string.h>

#include "engine/internal.h"
#include "model/names.h"

static mf_status shape_error(const mf__weight_info *w, const char *name, const mf__tensor *t, mf_error *err) {
    return mf__fail(
        err, MF_E_MISMATCH, "tensor %s has the shape %lld x %lld (%lld planes), the config wants %lld x %lld", name,
        (long long)t->n_rows, (long long)t->n_cols, (long long)t->n_planes, (long long)w->n_rows, (long long)w->n_cols);
}

/* Small tensors become F32 in our own memory, so that backends need one kind of vector. */
static mf_status bind_vector(mf_model *m, const mf__weight_info *w, const char *name, mf__tensor *t, mf_error *err) {
    int64_t n = w->n_rows * w->n_cols;
    if (!mf__type_is_float(t->type) || t->n_planes * t->n_rows * t->n_cols != n) return shape_error(w, name, t, err);
    float *values = mf__arena_array(&m->arena, (size_t)n, sizeof(float));
    if (!values) return mf__fail(err, MF_E_NOMEM, "no memory for tensor %s", name);
    mf__tensor flat = *t;
    flat.n_planes = flat.n_rows = 1;
    flat.n_cols = n;
    mf__tensor_row_f32(&flat, 0, values);
    *t = (mf__tensor){.type = MF_TYPE_F32, .n_planes = 1, .n_rows = w->n_rows, .n_cols = w->n_cols, .data = values};
    return MF_OK;
}

static mf_status bind_one(mf_model *m, const mf__weight_info *w, const char *prefix, mf__tensor *out, mf_error *err) {
    if (w->kind == MF_WEIGHT_CONST) {
        *out = (mf__tensor){.type = MF_TYPE_F32, .n_planes = 1, .n_rows = 1, .n_cols = w->n_cols, .data = w->data};
    } else {
        char canonical[MF_MAX_NAME], name[MF_MAX_NAME];
        snprintf(canonical, sizeof canonical, "%s%s", prefix, w->name);
        mf__names_find(m->native.catalog, m->bp.config.family, canonical, name);
        MF__TRY(mf__catalog_tensor(m->native.catalog, name, w->kind == MF_WEIGHT_MATRIX ? w->n_cols : 0, out, err));
        if (w->kind == MF_WEIGHT_VECTOR)
            MF__TRY(bind_vector(m, w, name, out, err));
        else if (out->n_planes * out->n_rows != w->n_rows || out->n_cols != w->n_cols)
            return shape_error(w, name, out, err);
        else if (!mf__type_is_matrix(out->type))
            return mf__fail(err, MF_E_UNSUPPORTED,
                            "tensor %s is of type %s; F32, F16, BF16, MXFP4, FP8 with scales or affine is needed", name,
                            mf__type_name(out->type));
        if (!mf__tensor_flatten(out)) return shape_error(w, name, out, err);
    }
    if (m->be->adopt) {
        mf__tensor host = *out;
        return m->be->adopt(m->be, &host, out, err);
    }
    return MF_OK;
}

static mf_status bind_graph(mf_model *m, const mf__graph *g, const char *prefix, mf__weight_set *out, mf_error *err) {
    *out = NULL;
    if (!g) return MF_OK;
    for (int i = 0; i < g->n_ops; i++)
        if (!m->be->supports(m->be, &g->ops[i]))
            return mf__fail(err, MF_E_UNSUPPORTED, "backend %s cannot do %s", m->be->name, mf__op_name(g->ops[i].kind));
    *out = mf__arena_array(&m->arena, (size_t)g->n_weights + 1, sizeof **out);
    if (!*out) return mf__fail(err, MF_E_NOMEM, "no memory for the weights of %s", g->name);
    for (int i = 0; i < g->n_weights; i++) MF__TRY(bind_one(m, &g->weights[i], prefix, &(*out)[i], err));
    return MF_OK;
}

/* The lookahead graphs use tensors of mix: the same names, the same memory. Both have them in the same order. */
static mf_status share_weights(mf_model *m, const mf__graph *mix, mf__weight_set of_mix, const mf__graph *g,
                               mf__weight_set *out, mf_error *err) {
    *out = NULL;
    if (!g) return MF_OK;
    *out = mf__arena_array(&m->arena, (size_t)g->n_weights + 1, sizeof **out);
    if (!*out) return mf__fail(err, MF_E_NOMEM, "no memory for the weights of %s", g->name);
    for (int i = 0; i < g->n_weights; i++) {
        int j = 0;
        while (j < mix->n_weights && strcmp(mix->weights[j].name, g->weights[i].name)) j++;
        if (j == mix->n_weights)
            return mf__fail(err, MF_E_INTERNAL, "graph %s has no weight %s", mix->name, g->weights[i].name);
        (*out)[i] = of_mix[j];
    }
    return MF_OK;
}

mf_status mf__model_bind(mf_model *m, mf_error *err) {
    const mf__config *c = &m->bp.config;
    MF__TRY(bind_graph(m, m->bp.embed, "", &m->embed, err));
    MF__TRY(bind_graph(m, m->bp.tail, "", &m->tail, err));
    m->layers = mf__arena_array(&m->arena, (size_t)c->n_layers, sizeof *m->layers);
    m->ahead = mf__arena_array(&m->arena, (size_t)c->n_layers, sizeof *m->ahead);
    if (!m->layers || !m->ahead) return mf__fail(err, MF_E_NOMEM, "no memory for %d layers", c->n_layers);
    for (int32_t l = 0; l < c->n_layers; l++) {
        const mf__graph *graphs[MF_LAYER_GRAPHS];
        char prefix[48];
        mf__layer_graphs(&m->bp.kinds[m->bp.kind_of[l]], graphs);
        snprintf(prefix, sizeof prefix, "model.layers.%d.", l);
        for (int i = 0; i < MF_LAYER_GRAPHS; i++) MF__TRY(bind_graph(m, graphs[i], prefix, &m->layers[l][i], err));
        MF__TRY(share_weights(m, graphs[0], m->layers[l][0], m->bp.kinds[m->bp.kind_of[l]].ahead, &m->ahead[l], err));
    }
    return MF_OK;
}
