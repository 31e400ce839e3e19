#include "model/native_config.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"

#define MAX_CONFIG_BYTES (16 << 20)
#define FOREIGN_GROUP 64

/* ---- config ----------------------------------------------------------------------------------------------------- */

/* End tokens that generation_config.json, if there is one, adds. */
static mf_status add_generation(const char *dir, mf__config *config, mf_error *err) {
    char *path = mf__path_join(dir, "generation_config.json");
    if (!path) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
    json_t *root = NULL;
    mf_status st = MF_OK;
    if (mf__path_exists(path)) {
        st = mf__json_read(path, MAX_CONFIG_BYTES, &root, err);
        if (st == MF_OK) st = mf__config_add_eos(config, root, path, err);
    }
    json_decref(root);
    free(path);
    return st;
}

/* A directory without config.json: the manifest has the numbers, the tensors' names tell the family. */
static mf_status parse_manifest(const mf__native *n, const char *where, mf__config *out, mf_error *err) {
    const json_t *config = json_object_get(n->manifest, "config");
    const mf__family *family = mf__family_guess(n->catalog);
    if (!json_is_object(config))
        return mf__fail(err, MF_E_NOT_FOUND,
                        "%s: there is no config.json, and model_weights.json has no \"config\" object: nothing says "
                        "which model this is. Copy config.json from the checkpoint into it",
                        n->dir);
    if (json_object_get(config, "model_type")) return mf__config_parse(config, where, out, err);
    if (!family)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s: there is no config.json, and the tensors of model_weights.json are those of no family "
                        "that is supported. Copy config.json from the checkpoint into it, to be told more",
                        n->dir);
    return mf__config_parse_as(family, config, where, out, err);
}

mf_status mf__native_config(const mf__native *n, mf__config *out, mf_error *err) {
    char *path = mf__path_join(n->dir, n->config ? "config.json" : "model_weights.json: config");
    if (!path) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
    mf_status st = n->config ? mf__config_parse(n->config, path, out, err) : parse_manifest(n, path, out, err);
    if (st == MF_OK) st = add_generation(n->dir, out, err);
    if (st == MF_OK && n->n_layers != out->n_layers)
        st = mf__fail(err, MF_E_MISMATCH, "%s says %d layers, model_weights.json has tensors of %d", path,
                      out->n_layers, n->n_layers);
    if (st == MF_OK) mf__config_look(out, n->catalog);
    free(path);
    return st;
}

/* ---- experts ---------------------------------------------------------------------------------------------------- */

static bool wants_experts(const mf__blueprint *bp, int layer) {
    return bp->kinds[bp->kind_of[layer]].experts != NULL;
}

static const char *folder(const mf__native *n) {
    return n->only_2bit ? "packed_experts_2bit" : "packed_experts";
}

static mf_status check_files(const mf__native *n, const mf__blueprint *bp, mf_error *err) {
    int missing = 0, wanted = 0, first = 0;
    for (int32_t l = bp->config.n_layers - 1; l >= 0; l--) {
        if (!wants_experts(bp, l)) continue;
        wanted++;
        if (n->expert_files[l]) continue;
        missing++;
        first = l;
    }
    if (!wanted)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: all %d layers are dense; a model without experts is not supported",
                        n->dir, bp->config.n_layers);
    if (!missing) return MF_OK;
    if (missing == wanted)
        return mf__fail(err, MF_E_NOT_FOUND,
                        "%s has no experts: there is no file layer_NN.bin in %s/ (nor in root/%s/) for any of the %d "
                        "layers that need one",
                        n->dir, folder(n), folder(n), wanted);
    return mf__fail(err, MF_E_NOT_FOUND,
                    "%s/%s/layer_%02d.bin is missing%s: %d of the %d layers with experts have no file; copy them, or "
                    "convert the model again",
                    n->dir, folder(n), first, missing > 1 ? " (and more)" : "", missing, wanted);
}

/* The shapes must be the config's. */
static mf_status check_layout(const mf__native *n, const mf__config *c, mf_error *err) {
    const mf__expert_layout *l = &n->layout;
    if (n->n_experts != c->moe.n_experts)
        return mf__fail(err, MF_E_MISMATCH, "%s: the manifest has %d experts per layer, config.json %d", n->dir,
                        n->n_experts, c->moe.n_experts);
    for (int p = 0; p < MF_PART_COUNT; p++) {
        const char *name = mf__expert_part_name((mf__expert_part)p);
        int64_t rows = p == MF_PART_DOWN ? c->n_hidden : c->moe.n_inner;
        int64_t cols = p == MF_PART_DOWN ? mf__config_expert_wide(c) : c->n_hidden;
        if (l->part[p].n_rows != rows || l->part[p].n_cols != cols)
            return mf__fail(err, MF_E_MISMATCH,
                            "%s: the %s matrix of an expert is %lld x %lld in the manifest, config.json wants "
                            "%lld x %lld",
                            n->dir, name, (long long)l->part[p].n_rows, (long long)l->part[p].n_cols, (long long)rows,
                            (long long)cols);
        if (l->part[p].has_bias != c->has.expert_bias)
            return mf__fail(err, MF_E_MISMATCH,
                            "%s: the %s matrix of an expert has %s bias in the manifest, the family "
                            "%s wants %s",
                            n->dir, name, l->part[p].has_bias ? "a" : "no", c->family->name,
                            c->has.expert_bias ? "one" : "none");
    }
    return MF_OK;
}

static mf_status foreign_layout(const mf__config *c, int bits, mf__expert_layout *out, mf_error *err) {
    *out = (mf__expert_layout){0};
    for (int p = 0; p < MF_PART_COUNT; p++) {
        out->part[p].type = MF_TYPE_AFFINE;
        out->part[p].n_rows = p == MF_PART_DOWN ? c->n_hidden : c->moe.n_inner;
        out->part[p].n_cols = p == MF_PART_DOWN ? mf__config_expert_wide(c) : c->n_hidden;
        out->part[p].bits = bits;
        out->part[p].group = FOREIGN_GROUP;
        out->part[p].scale_type = MF_TYPE_BF16;
    }
    return mf__expert_layout_pack(out, 1, err);
}

/* The layout nobody wrote down: the usual one, unless the first file has the size of another width. */
static mf_status find_layout(const mf__native *n, const mf__blueprint *bp, mf__expert_layout *out, mf_error *err) {
    static const int widths[] = {4, 2, 8, 6, 5, 3};
    const mf__config *c = &bp->config;
    int32_t first = 0;
    int64_t size;
    if (c->has.expert_bias)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s/model_weights.json does not describe its experts (no \"moeflux\" object), and for the "
                        "family %s there is no usual layout: convert the model again",
                        n->dir, c->family->name);
    while (!wants_experts(bp, first)) first++;
    MF__TRY(mf__file_size(n->expert_files[first], &size, err));
    for (size_t i = n->only_2bit; i < (n->only_2bit ? 2 : MF__COUNT(widths)); i++) {
        MF__TRY(foreign_layout(c, widths[i], out, err));
        if (out->stride * c->moe.n_experts == size) return MF_OK;
    }
    int usual = n->only_2bit ? 2 : 4;
    MF__TRY(foreign_layout(c, usual, out, err));
    return mf__fail(err, MF_E_MISMATCH,
                    "%s has %lld bytes; %d experts of %d x %d with %d bits in groups of %d would be %lld (%lld each)",
                    n->expert_files[first], (long long)size, c->moe.n_experts, c->moe.n_inner, c->n_hidden, usual,
                    FOREIGN_GROUP, (long long)(out->stride * c->moe.n_experts), (long long)out->stride);
}

static mf_status check_sizes(const mf__native *n, const mf__blueprint *bp, const mf__expert_layout *layout,
                             mf_error *err) {
    int64_t need = layout->stride * bp->config.moe.n_experts, size;
    for (int32_t l = 0; l < bp->config.n_layers; l++) {
        if (!wants_experts(bp, l)) continue;
        MF__TRY(mf__file_size(n->expert_files[l], &size, err));
        if (size < need)
            return mf__fail(err, MF_E_FORMAT, "%s has %lld bytes, expected %lld (%d experts of %lld): it was cut off",
                            n->expert_files[l], (long long)size, (long long)need, bp->config.moe.n_experts,
                            (long long)layout->stride);
    }
    return MF_OK;
}

mf_status mf__native_layout(const mf__native *n, const mf__blueprint *bp, mf__expert_layout *out, mf_error *err) {
    MF__TRY(check_files(n, bp, err));
    if (n->has_layout) {
        MF__TRY(check_layout(n, &bp->config, err));
        *out = n->layout;
        return MF_OK; /* sizes were checked when the directory was opened */
    }
    MF__TRY(find_layout(n, bp, out, err));
    return check_sizes(n, bp, out, err);
}
