/* The trunk of a checkpoint: finding every tensor the graphs want. Experts are in import_experts.c. */
#include "model/import.h"

#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"
#include "model/names.h"

mf_status mf__import_open(const mf__catalog *cat, const mf__blueprint *bp, mf__import *out, mf_error *err) {
    const mf__config *c = &bp->config;
    *out = (mf__import){.cat = cat, .bp = bp, .raw_norms = c->family->zero_centred_norms && !c->plain_norms};
    if (!c->family->raw_witness) return MF_OK;
    for (int32_t l = 0; l < c->n_layers; l++) {
        char name[MF_MAX_NAME], spelt[MF_MAX_NAME];
        if (c->mixer[l] != c->family->raw_mixer) continue;
        snprintf(name, sizeof name, "model.layers.%d.%s", l, c->family->raw_witness);
        const mf__entry *e = mf__names_find(cat, c->family, name, spelt);
        if (!e) return mf__fail(err, MF_E_NOT_FOUND, "tensor %s is missing from the checkpoint", name);
        out->raw_norms = e->n_dims > 0 && e->dims[e->n_dims - 1] != 1;
        return MF_OK;
    }
    return mf__fail(err, MF_E_UNSUPPORTED, "no layer tells whether the norms of this checkpoint are zero-centred");
}

static bool is_zero_centred(const mf__import *im, const char *name) {
    const char *const *ends = im->bp->config.family->zero_centred_norms;
    for (int i = 0; im->raw_norms && ends && ends[i]; i++)
        if (mf__text_ends_with(name, ends[i])) return true;
    return false;
}

/* A matrix whose rows lie among others in a larger one. *found says whether the checkpoint has that. */
static mf_status regrouped(const mf__import *im, const mf__weight_info *w, const char *name, mf__source *out,
                           bool *found, mf_error *err) {
    const mf__config *c = &im->bp->config;
    *found = false;
    for (const mf__regroup *r = c->family->regroups; r && r->ours; r++) {
        char theirs[MF_MAX_NAME], spelt[MF_MAX_NAME];
        if (!mf__text_ends_with(name, r->ours)) continue;
        snprintf(theirs, sizeof theirs, "%.*s%s", (int)(strlen(name) - strlen(r->ours)), name, r->theirs);
        if (!mf__names_find(im->cat, c->family, theirs, spelt)) return MF_OK;
        MF__TRY(mf__catalog_tensor(im->cat, spelt, w->n_cols, &out->stored, err));
        if (r->block_of && (out->stored.n_rows != w->n_rows || w->n_cols > MF_SOURCE_COLS ||
                            w->n_cols % c->delta.v_dim || mf__type_has_scales(out->stored.type) ||
                            (out->stored.type == MF_TYPE_MXFP4_BLOCK && c->delta.v_dim % MF_MXFP4_GROUP)))
            return mf__fail(err, MF_E_MISMATCH, "tensor %s is %lld x %lld of type %s, which cannot be put in order",
                            spelt, (long long)out->stored.n_rows, (long long)w->n_cols,
                            mf__type_name(out->stored.type));
        for (int64_t row = 0; r->row_of && row < w->n_rows; row++)
            if (r->row_of(c, row) >= out->stored.n_rows || out->stored.n_planes != 1)
                return mf__fail(err, MF_E_MISMATCH,
                                "tensor %s has %lld rows, but row %lld of %s would be row %lld of it; config.json and "
                                "the tensor do not agree on the heads",
                                spelt, (long long)out->stored.n_rows, (long long)row, r->ours,
                                (long long)r->row_of(c, row));
        *out = (mf__source){.stored = out->stored,
                            .n_rows = w->n_rows,
                            .n_cols = w->n_cols,
                            .step = 1,
                            .row_of = r->row_of,
                            .block_of = r->block_of,
                            .block = c->delta.v_dim,
                            .config = c};
        *found = true;
    }
    return MF_OK;
}

/* A bias beside a matrix, of which the graphs know nothing: leaving it out would give another model. Routers' apart,
 * which may be the one that only chooses. */
static bool has_other_bias(const mf__import *im, const char *name, const char *spelt, char bias[MF_MAX_NAME]) {
    size_t n = strlen(spelt), end = strlen(".weight");
    if (!mf__text_ends_with(spelt, ".weight") || mf__text_ends_with(spelt, "gate.weight")) return false;
    snprintf(bias, MF_MAX_NAME, "%.*s.bias", (int)(n - end), spelt);
    if (!mf__catalog_find(im->cat, bias)) return false;
    for (int k = 0; k < im->bp->n_kinds; k++) {
        const mf__graph *graphs[MF_LAYER_GRAPHS];
        mf__layer_graphs(&im->bp->kinds[k], graphs);
        for (int i = 0; i < MF_LAYER_GRAPHS; i++)
            for (int w = 0; graphs[i] && w < graphs[i]->n_weights; w++) {
                const char *known = graphs[i]->weights[w].name;
                size_t stem = strlen(known) > 5 ? strlen(known) - 5 : 0;
                if (mf__text_ends_with(known, ".bias") && strlen(name) > stem + 7 &&
                    !strncmp(name + strlen(name) - stem - 7, known, stem))
                    return false;
            }
    }
    return true;
}

mf_status mf__import_trunk(const mf__import *im, const mf__weight_info *w, const char *name, mf__source *out,
                           bool *add_one, mf_error *err) {
    char spelt[MF_MAX_NAME], bias[MF_MAX_NAME];
    bool found;
    mf__tensor t;
    *add_one = is_zero_centred(im, name);
    if (!mf__names_find(im->cat, im->bp->config.family, name, spelt)) {
        MF__TRY(regrouped(im, w, name, out, &found, err));
        if (found) return MF_OK;
        return mf__fail(err, MF_E_NOT_FOUND,
                        "tensor %s is missing from the checkpoint (also looked for under "
                        "model.language_model. and language_model.)",
                        name);
    }
    MF__TRY(mf__catalog_tensor(im->cat, spelt, w->kind == MF_WEIGHT_MATRIX ? w->n_cols : 0, &t, err));
    bool fits = w->kind == MF_WEIGHT_MATRIX
                    ? t.n_planes * t.n_rows == w->n_rows && t.n_cols == w->n_cols
                    : t.n_planes * t.n_rows * t.n_cols == w->n_rows * w->n_cols &&
                          (mf__type_is_float(t.type) || t.type == MF_TYPE_I64 || t.type == MF_TYPE_I32);
    if (!fits)
        return mf__fail(err, MF_E_MISMATCH,
                        "tensor %s is %s with the shape %lld x %lld x %lld, config.json wants %lld x %lld", spelt,
                        mf__type_name(t.type), (long long)t.n_planes, (long long)t.n_rows, (long long)t.n_cols,
                        (long long)w->n_rows, (long long)w->n_cols);
    if (w->kind == MF_WEIGHT_MATRIX && !mf__type_is_matrix(t.type))
        return mf__fail(err, MF_E_UNSUPPORTED, "tensor %s is of type %s%s", spelt, mf__type_name(t.type),
                        t.type == MF_TYPE_F8_E4M3 ? " and has no scales beside it, which says what it is worth"
                                                  : ", which a matrix cannot have");
    if (w->kind == MF_WEIGHT_MATRIX && has_other_bias(im, name, spelt, bias))
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "tensor %s is in the checkpoint, but config.json does not say that there "
                        "is a bias, or the family %s has none there",
                        bias, im->bp->config.family->name);
    if (!mf__tensor_flatten(&t))
        return mf__fail(err, MF_E_UNSUPPORTED, "tensor %s is a stack of FP8 matrices with incomplete blocks", spelt);
    *out = mf__source_plain(&t);
    return MF_OK;
}

/* ---- all trunk weights ------------------------------------------------------------------------------------------ */

static mf_status each_of_graph(const mf__graph *g, const char *prefix, mf__weight_fn *fn, void *ctx, mf_error *err) {
    for (int i = 0; g && i < g->n_weights; i++) {
        char name[MF_MAX_NAME];
        if (g->weights[i].kind == MF_WEIGHT_CONST) continue;
        snprintf(name, sizeof name, "%s%s", prefix, g->weights[i].name);
        MF__TRY(fn(ctx, name, &g->weights[i], err));
    }
    return MF_OK;
}

mf_status mf__blueprint_each_weight(const mf__blueprint *bp, mf__weight_fn *fn, void *ctx, mf_error *err) {
    MF__TRY(each_of_graph(bp->embed, "", fn, ctx, err));
    for (int32_t l = 0; l < bp->config.n_layers; l++) {
        const mf__graph *graphs[MF_LAYER_GRAPHS];
        char prefix[48];
        mf__layer_graphs(&bp->kinds[bp->kind_of[l]], graphs);
        snprintf(prefix, sizeof prefix, "model.layers.%d.", l);
        for (int i = 0; i < MF_LAYER_GRAPHS; i++) MF__TRY(each_of_graph(graphs[i], prefix, fn, ctx, err));
    }
    for (int i = 0; i < bp->tail->n_weights; i++) { /* a tied head is the embedding again */
        const mf__weight_info *w = &bp->tail->weights[i];
        if (w->kind != MF_WEIGHT_CONST && strcmp(w->name, bp->embed->weights[0].name))
            MF__TRY(fn(ctx, w->name, w, err));
    }
    return MF_OK;
}
