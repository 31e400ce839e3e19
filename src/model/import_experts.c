/* The experts of a checkpoint, in any of the spellings and layouts of the family. */
#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"
#include "model/import.h"
#include "model/names.h"

static const char *const PART_NAMES[MF_PART_COUNT] = {"gate", "up", "down"};

/* "model.layers.N." and the pattern, with the expert's number for #. False when it does not fit. */
static bool expert_name(const char *pattern, int layer, int expert, char name[MF_MAX_NAME]) {
    const char *mark = strchr(pattern, '#');
    int len = mark ? snprintf(name, MF_MAX_NAME, "model.layers.%d.%.*s%d%s", layer, (int)(mark - pattern), pattern,
                              expert, mark + 1)
                   : snprintf(name, MF_MAX_NAME, "model.layers.%d.%s", layer, pattern);
    return len > 0 && len < MF_MAX_NAME;
}

/* The spelling this checkpoint uses for a part, and the name the part has there. */
static const mf__expert_spelling *spelling_of(const mf__import *im, int layer, int expert, mf__expert_part part,
                                              char spelt[MF_MAX_NAME]) {
    const mf__family *family = im->bp->config.family;
    const mf__expert_spelling *const *all = family->experts ? family->experts : mf__expert_spellings;
    if (family->paired) layer /= 2;
    for (int i = 0; all[i]; i++) {
        char name[MF_MAX_NAME];
        if (expert_name(all[i]->weight[part], layer, expert, name) && mf__names_find(im->cat, family, name, spelt))
            return all[i];
    }
    return NULL;
}

static mf_status missing(const mf__import *im, int layer, int expert, mf__expert_part part, mf_error *err) {
    const mf__family *family = im->bp->config.family;
    const mf__expert_spelling *const *all = family->experts ? family->experts : mf__expert_spellings;
    char list[256] = "";
    for (int i = 0; all[i]; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", all[i]->weight[part]);
    }
    return mf__fail(err, MF_E_NOT_FOUND,
                    "the %s matrix of expert %d of layer %d is missing: the checkpoint has none of %s",
                    PART_NAMES[part], expert, layer, list);
}

/* X_blocks U8 [experts][rows][groups][16] with X_scales U8 [experts][rows][groups] */
static mf_status mxfp4_blocks(const mf__import *im, const char *spelt, mf__tensor *out, mf_error *err) {
    char name[MF_MAX_NAME];
    snprintf(name, sizeof name, "%.*s_scales", (int)(strlen(spelt) - strlen("_blocks")), spelt);
    const mf__entry *b = mf__catalog_find(im->cat, spelt), *s = mf__catalog_find(im->cat, name);
    bool ok = s && b->type == MF_TYPE_U8 && s->type == MF_TYPE_U8 && b->n_dims == 4 && s->n_dims == 3 &&
              b->dims[3] == MF_MXFP4_GROUP / 2;
    for (int i = 0; ok && i < 3; i++) ok = b->dims[i] == s->dims[i];
    if (!ok)
        return mf__fail(err, s ? MF_E_MISMATCH : MF_E_NOT_FOUND,
                        "tensor %s with %s is not MXFP4: U8 [experts][rows][groups][16] and U8 "
                        "[experts][rows][groups] are expected",
                        spelt, s ? name : "no _scales beside it");
    *out = (mf__tensor){.type = MF_TYPE_MXFP4,
                        .n_planes = b->dims[0],
                        .n_rows = b->dims[1],
                        .n_cols = b->dims[2] * MF_MXFP4_GROUP,
                        .data = b->data,
                        .bits = 4,
                        .group = MF_MXFP4_GROUP,
                        .scale_type = MF_TYPE_U8,
                        .scales = s->data};
    return MF_OK;
}

/* Where in a stored matrix the rows (transposed: columns) of a part begin, and how far apart they are. */
static void choose_rows(const mf__expert_spelling *sp, mf__expert_part part, mf__source *s) {
    s->transposed = sp->transposed;
    s->first = 0, s->step = 1;
    if (part == MF_PART_DOWN || sp->fuse == MF_FUSE_NONE) return;
    if (sp->fuse == MF_FUSE_HALVES)
        s->first = part == MF_PART_UP ? s->n_rows : 0;
    else
        s->first = part == MF_PART_UP, s->step = 2;
}

/* The stored matrix of the expert must have exactly the rows that its parts take. */
static bool shape_fits(const mf__expert_spelling *sp, mf__expert_part part, const mf__source *s) {
    int64_t rows = s->n_rows * (part != MF_PART_DOWN && sp->fuse != MF_FUSE_NONE ? 2 : 1);
    const mf__tensor *t = &s->stored;
    return t->n_planes == 1 &&
           (sp->transposed ? t->n_rows == s->n_cols && t->n_cols == rows : t->n_rows == rows && t->n_cols == s->n_cols);
}

static mf_status take_expert(const mf__import *im, const mf__expert_spelling *sp, mf__expert_part part,
                             const char *spelt, int expert, mf__source *out, mf_error *err) {
    int n_experts = im->bp->config.moe.n_experts;
    mf__tensor *t = &out->stored;
    bool stacked = !strchr(sp->weight[part], '#');
    if (mf__text_ends_with(spelt, "_blocks"))
        MF__TRY(mxfp4_blocks(im, spelt, t, err));
    else
        MF__TRY(mf__catalog_tensor(im->cat, spelt, sp->transposed ? 0 : out->n_cols, t, err));
    if (stacked && t->n_planes != n_experts)
        return mf__fail(err, MF_E_MISMATCH, "tensor %s holds %lld experts, config.json says %d", spelt,
                        (long long)t->n_planes, n_experts);
    if (stacked) *t = mf__tensor_plane(t, expert);
    if (!mf__type_is_matrix(t->type) || (sp->transposed && !mf__type_is_float(t->type)))
        return mf__fail(err, MF_E_UNSUPPORTED, "tensor %s is of type %s, which experts cannot have%s", spelt,
                        mf__type_name(t->type), sp->transposed ? " in this layout" : "");
    if (!shape_fits(sp, part, out))
        return mf__fail(err, MF_E_MISMATCH,
                        "expert %d of tensor %s is %lld x %lld, which does not hold the %lld x %lld of config.json%s",
                        expert, spelt, (long long)t->n_rows, (long long)t->n_cols, (long long)out->n_rows,
                        (long long)out->n_cols, sp->transposed ? " (stored transposed)" : "");
    choose_rows(sp, part, out);
    return MF_OK;
}

mf_status mf__import_expert(const mf__import *im, int layer, int expert, mf__expert_part part, mf__source *out,
                            mf_error *err) {
    const mf__config *c = &im->bp->config;
    char spelt[MF_MAX_NAME];
    *out = (mf__source){.n_rows = part == MF_PART_DOWN ? c->n_hidden : c->moe.n_inner,
                        .n_cols = part == MF_PART_DOWN ? mf__config_expert_wide(c) : c->n_hidden};
    const mf__expert_spelling *sp = spelling_of(im, layer, expert, part, spelt);
    if (!sp) return missing(im, layer, expert, part, err);
    return take_expert(im, sp, part, spelt, expert, out, err);
}

/* The vector [rows] (or [experts][rows]) seen as [rows][1], so that the rule for rows of a matrix holds for it. */
mf_status mf__import_expert_bias(const mf__import *im, int layer, int expert, mf__expert_part part, mf__source *out,
                                 mf_error *err) {
    const mf__config *c = &im->bp->config;
    char name[MF_MAX_NAME], spelt[MF_MAX_NAME];
    const mf__expert_spelling *sp = spelling_of(im, layer, expert, part, spelt);
    if (!sp) return missing(im, layer, expert, part, err);
    if (!sp->bias[part]) return mf__fail(err, MF_E_INVALID, "experts of the family %s have no bias", c->family->name);
    if (!expert_name(sp->bias[part], layer, expert, name) || !mf__names_find(im->cat, c->family, name, spelt))
        return mf__fail(err, MF_E_NOT_FOUND, "tensor %s is missing from the checkpoint", name);
    mf__tensor t;
    MF__TRY(mf__catalog_tensor(im->cat, spelt, 0, &t, err));
    bool stacked = !strchr(sp->bias[part], '#'), fused = part != MF_PART_DOWN && sp->fuse != MF_FUSE_NONE;
    int64_t n_rows = part == MF_PART_DOWN ? c->n_hidden : c->moe.n_inner, stored = fused ? 2 * n_rows : n_rows;
    if (!mf__type_is_float(t.type) || t.n_planes != 1 || t.n_cols != stored ||
        t.n_rows != (stacked ? c->moe.n_experts : 1))
        return mf__fail(err, MF_E_MISMATCH, "tensor %s is %s %lld x %lld, expected %d x %lld plain values", spelt,
                        mf__type_name(t.type), (long long)t.n_rows, (long long)t.n_cols, stacked ? c->moe.n_experts : 1,
                        (long long)stored);
    t.data = (const uint8_t *)t.data + (stacked ? expert : 0) * mf__tensor_row_bytes(&t);
    t.n_rows = stored, t.n_cols = 1;
    *out = (mf__source){.stored = t, .n_rows = n_rows, .n_cols = 1};
    choose_rows(sp, part, out);
    out->transposed = false;
    return MF_OK;
}
