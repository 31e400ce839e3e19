#include "model/import.h"

#include <stdio.h>
#include <string.h>

#define MAX_NAME 256

/* "model.X" is spelt model.X (text-only), model.language_model.X (published with vision) or language_model.model.X
 * (MLX); names outside "model." (the head) stay or get "language_model." in front. */
static int spell(const char *canonical, int spelling, char *out) {
    bool inner = !strncmp(canonical, "model.", 6);
    switch (spelling) {
    case 0: return snprintf(out, MAX_NAME, "%s", canonical);
    case 1: return inner ? snprintf(out, MAX_NAME, "model.language_model.%s", canonical + 6) : -1;
    case 2: return snprintf(out, MAX_NAME, "language_model.%s", canonical);
    default: return -1;
    }
}
#define N_SPELLINGS 3

static const mf__entry *find(const mf__catalog *cat, const char *canonical, char *spelt) {
    for (int s = 0; s < N_SPELLINGS; s++) {
        int len = spell(canonical, s, spelt);
        if (len <= 0 || len >= MAX_NAME) continue;
        const mf__entry *e = mf__catalog_find(cat, spelt);
        if (e) return e;
    }
    snprintf(spelt, MAX_NAME, "%s", canonical);
    return NULL;
}

bool mf__import_has(const mf__catalog *cat, const char *name) {
    char spelt[MAX_NAME];
    return find(cat, name, spelt) != NULL;
}

mf_status mf__import_open(const mf__catalog *cat, const mf__blueprint *bp, mf__import *out, mf_error *err) {
    const mf__config *c = &bp->config;
    *out = (mf__import){.cat = cat, .bp = bp};
    if (!c->family->raw_witness) return MF_OK;
    for (int32_t l = 0; l < c->n_layers; l++) {
        char name[MAX_NAME], spelt[MAX_NAME];
        if (c->mixer[l] != c->family->raw_mixer) continue;
        snprintf(name, sizeof name, "model.layers.%d.%s", l, c->family->raw_witness);
        const mf__entry *e = find(cat, name, spelt);
        if (!e) return mf__fail(err, MF_E_NOT_FOUND, "tensor %s is missing from the checkpoint", name);
        out->raw_norms = e->n_dims > 0 && e->dims[e->n_dims - 1] != 1;
        return MF_OK;
    }
    return mf__fail(err, MF_E_UNSUPPORTED, "no layer tells whether the norms of this checkpoint are zero-centred");
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcmp(text + n - k, end);
}

static bool is_zero_centred(const mf__import *im, const char *name) {
    const char *const *ends = im->bp->config.family->zero_centred_norms;
    for (int i = 0; im->raw_norms && ends && ends[i]; i++)
        if (ends_with(name, ends[i])) return true;
    return false;
}

mf_status mf__import_trunk(const mf__import *im, const mf__weight_info *w, const char *name, mf__tensor *out,
                           bool *add_one, mf_error *err) {
    char spelt[MAX_NAME];
    if (!find(im->cat, name, spelt))
        return mf__fail(err, MF_E_NOT_FOUND,
                        "tensor %s is missing from the checkpoint (also looked for under "
                        "model.language_model. and language_model.)",
                        name);
    *add_one = is_zero_centred(im, name);
    MF__TRY(mf__catalog_tensor(im->cat, spelt, w->kind == MF_WEIGHT_MATRIX ? w->n_cols : 0, out, err));
    bool fits = w->kind == MF_WEIGHT_MATRIX
                    ? out->n_planes * out->n_rows == w->n_rows && out->n_cols == w->n_cols
                    : out->n_planes * out->n_rows * out->n_cols == w->n_rows * w->n_cols && out->type != MF_TYPE_AFFINE;
    if (!fits)
        return mf__fail(err, MF_E_MISMATCH, "tensor %s has the shape %lld x %lld x %lld, config.json wants %lld x %lld",
                        spelt, (long long)out->n_planes, (long long)out->n_rows, (long long)out->n_cols,
                        (long long)w->n_rows, (long long)w->n_cols);
    out->n_rows *= out->n_planes;
    out->n_planes = 1;
    return MF_OK;
}

/* ---- experts: one tensor each, stacked per part (MLX), or stacked with gate and up in one -------------------------
 */

static const char *const PARTS[MF_PART_COUNT] = {"gate_proj", "up_proj", "down_proj"};

static mf_status stacked(const mf__import *im, const char *spelt, int expert, int64_t n_cols, mf__tensor *out,
                         mf_error *err) {
    MF__TRY(mf__catalog_tensor(im->cat, spelt, n_cols, out, err));
    if (out->n_planes != im->bp->config.moe.n_experts)
        return mf__fail(err, MF_E_MISMATCH, "tensor %s holds %lld experts, config.json says %d", spelt,
                        (long long)out->n_planes, im->bp->config.moe.n_experts);
    *out = mf__tensor_plane(out, expert);
    return MF_OK;
}

/* gate_up_proj: the first n_inner rows are the gate, the rest up. Always a plain float type. */
static mf_status fused(const mf__import *im, const char *spelt, int expert, mf__expert_part part, mf__tensor *out,
                       mf_error *err) {
    int64_t inner = im->bp->config.moe.n_inner;
    MF__TRY(stacked(im, spelt, expert, 0, out, err));
    if (part == MF_PART_DOWN) return MF_OK;
    if (out->n_rows != 2 * inner || out->type == MF_TYPE_AFFINE)
        return mf__fail(err, MF_E_MISMATCH,
                        "tensor %s has %lld rows of type %s, expected 2 * %lld rows of plain floats", spelt,
                        (long long)out->n_rows, mf__type_name(out->type), (long long)inner);
    out->n_rows = inner;
    if (part == MF_PART_UP) out->data = (const char *)out->data + inner * mf__tensor_row_bytes(out);
    return MF_OK;
}

mf_status mf__import_expert(const mf__import *im, int layer, int expert, mf__expert_part part, mf__tensor *out,
                            mf_error *err) {
    const mf__config *c = &im->bp->config;
    int64_t rows = part == MF_PART_DOWN ? c->n_hidden : c->moe.n_inner;
    int64_t cols = part == MF_PART_DOWN ? c->moe.n_inner : c->n_hidden;
    char name[MAX_NAME], spelt[MAX_NAME];
    snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%d.%s.weight", layer, expert, PARTS[part]);
    if (find(im->cat, name, spelt)) {
        MF__TRY(mf__catalog_tensor(im->cat, spelt, cols, out, err));
    } else {
        snprintf(name, sizeof name, "model.layers.%d.mlp.switch_mlp.%s.weight", layer, PARTS[part]);
        if (find(im->cat, name, spelt)) {
            MF__TRY(stacked(im, spelt, expert, cols, out, err));
        } else {
            snprintf(name, sizeof name, "model.layers.%d.mlp.experts.%s", layer,
                     part == MF_PART_DOWN ? "down_proj" : "gate_up_proj");
            if (!find(im->cat, name, spelt))
                return mf__fail(err, MF_E_NOT_FOUND,
                                "expert %d of layer %d is missing: none of mlp.experts.%d.%s.weight, "
                                "mlp.switch_mlp.%s.weight and mlp.experts.gate_up_proj is in the checkpoint",
                                expert, layer, expert, PARTS[part], PARTS[part]);
            MF__TRY(fused(im, spelt, expert, part, out, err));
        }
    }
    if (out->n_planes != 1 || out->n_rows != rows || out->n_cols != cols)
        return mf__fail(err, MF_E_MISMATCH, "expert %d of tensor %s is %lld x %lld, config.json wants %lld x %lld",
                        expert, spelt, (long long)out->n_rows, (long long)out->n_cols, (long long)rows,
                        (long long)cols);
    return MF_OK;
}

/* ---- all trunk weights --------------------------------------------------------------------------------------------
 */

static mf_status each_of_graph(const mf__graph *g, const char *prefix, mf__weight_fn *fn, void *ctx, mf_error *err) {
    for (int i = 0; g && i < g->n_weights; i++) {
        char name[MAX_NAME];
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
