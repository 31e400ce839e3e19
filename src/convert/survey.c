#include "convert/survey.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "convert/plan.h"
#include "model/import.h"
#include "model/native_config.h"
#include "weights/safetensors.h"

#define MAX_CONFIG_BYTES (64 << 20)
#define EXPERT_ALIGN 4096

/* What the survey works on while it is made. */
typedef struct walk {
    mf__survey *s;
    const mf__catalog *cat;
    mf__import im;
    int64_t unlisted_experts; /* bytes of experts as stored, which trunk and unused must not count */
} walk;

static void note(mf__survey *s, const mf_error *problem) {
    if (s->n_problems < MF_SURVEY_PROBLEMS) s->problems[s->n_problems] = *problem;
    s->n_problems++;
}

const char *mf__survey_part_name(mf__survey_part part) {
    static const char *const names[MF_SURVEY_PARTS] = {
        "embedding",      "head",         "attention", "linear attention",
        "shared experts", "dense layers", "routers",   "norms and the rest"};
    return (unsigned)part < MF_SURVEY_PARTS ? names[part] : "?";
}

static mf__survey_part part_of(const char *name) {
    static const struct {
        const char *mark;
        mf__survey_part part;
    } marks[] = {{"embed_tokens.", MF_SURVEY_EMBED},
                 {"lm_head.", MF_SURVEY_HEAD},
                 {".self_attn.", MF_SURVEY_ATTENTION},
                 {".linear_attn.", MF_SURVEY_LINEAR},
                 {".mlp.shared_expert", MF_SURVEY_SHARED},
                 {".mlp.gate.", MF_SURVEY_ROUTER},
                 {".mlp.", MF_SURVEY_DENSE}};
    for (size_t i = 0; i < MF__COUNT(marks); i++)
        if (strstr(name, marks[i].mark)) return marks[i].part;
    return MF_SURVEY_REST;
}

/* ---- tensors ---------------------------------------------------------------------------------------------------- */

static mf_status add_weight(void *ctx, const char *name, const mf__weight_info *w, mf_error *err) {
    walk *k = ctx;
    mf__source src;
    bool add_one;
    mf_error problem;
    (void)err;
    if (mf__import_trunk(&k->im, w, name, &src, &add_one, &problem)) {
        note(k->s, &problem);
        return MF_OK;
    }
    k->s->part_bytes[part_of(name)] += mf__source_bytes(&src);
    k->s->trunk_bytes += mf__source_bytes(&src);
    return MF_OK;
}

static bool has_experts(const mf__survey *s, int layer) {
    return s->bp.kinds[s->bp.kind_of[layer]].experts != NULL;
}

/* The layout convert would give the experts if it keeps them, from the first of a layer. */
static mf_status kept_layout(walk *k, int layer, mf_error *err) {
    mf__expert_layout *l = &k->s->layout;
    for (int p = 0; p < MF_PART_COUNT; p++) {
        mf__source src;
        MF__TRY(mf__import_expert(&k->im, layer, 0, (mf__expert_part)p, &src, err));
        l->part[p].type = src.stored.type;
        l->part[p].n_rows = src.n_rows;
        l->part[p].n_cols = src.n_cols;
        l->part[p].bits = src.stored.bits;
        l->part[p].group = src.stored.group;
        l->part[p].block_rows = src.stored.block_rows;
        l->part[p].scale_type = mf__source_scale_type(&src.stored);
        l->part[p].has_bias = k->s->bp.config.has.expert_bias;
    }
    return mf__expert_layout_pack(l, EXPERT_ALIGN, err);
}

/* Every expert of a layer, as stored; the first problem of the layer is enough. */
static mf_status add_layer(walk *k, int layer, mf_error *err) {
    if (!k->s->has_layout) {
        MF__TRY(kept_layout(k, layer, err));
        k->s->has_layout = true;
    }
    for (int e = 0; e < k->s->bp.config.moe.n_experts; e++)
        for (int p = 0; p < MF_PART_COUNT; p++) {
            mf__source src;
            MF__TRY(mf__import_expert(&k->im, layer, e, (mf__expert_part)p, &src, err));
            k->unlisted_experts += mf__source_bytes(&src);
            if (!k->s->bp.config.has.expert_bias) continue;
            MF__TRY(mf__import_expert_bias(&k->im, layer, e, (mf__expert_part)p, &src, err));
            k->unlisted_experts += mf__source_bytes(&src);
        }
    return MF_OK;
}

static void add_experts(walk *k) {
    mf_error problem;
    for (int32_t l = 0; l < k->s->bp.config.n_layers; l++)
        if (has_experts(k->s, l) && add_layer(k, l, &problem)) note(k->s, &problem);
}

/* ---- numbers ---------------------------------------------------------------------------------------------------- */

static void count(mf__survey *s) {
    const mf__config *c = &s->bp.config;
    for (int32_t l = 0; l < c->n_layers; l++) {
        const mf__layer_kind *kind = &s->bp.kinds[s->bp.kind_of[l]];
        s->n_moe_layers += kind->experts != NULL;
        s->state_bytes += (kind->conv_floats + kind->delta_floats) * (int64_t)sizeof(float);
    }
    if (s->has_layout) {
        s->cold_bytes = (int64_t)s->n_moe_layers * c->moe.top_k * s->layout.bytes;
        s->expert_bytes = (int64_t)s->n_moe_layers * c->moe.n_experts * s->layout.bytes;
    }
    /* of the embedding a token needs one row; a tied head reads all of it */
    s->resident_bytes = s->trunk_bytes - (c->tied_head ? 0 : s->part_bytes[MF_SURVEY_EMBED]) + s->cold_bytes;
}

static int64_t stored_bytes(const mf__catalog *cat) {
    int64_t n = 0;
    for (int64_t i = 0; i < mf__catalog_count(cat); i++) n += mf__catalog_at(cat, i)->size;
    return n;
}

/* The blueprint of a config, and every trunk tensor it wants. False when nothing more can be said. */
static bool look_at(walk *k, const mf__config *config) {
    mf_error problem;
    if (mf__blueprint_build(config, &k->s->bp, &problem) || mf__import_open(k->cat, &k->s->bp, &k->im, &problem)) {
        note(k->s, &problem);
        return false;
    }
    k->s->known = true;
    mf__blueprint_each_weight(&k->s->bp, add_weight, k, NULL);
    return true;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------ */

/* How the weights are quantized, if the config says so in a way no tensor of ours would. */
static void check_quantization(mf__survey *s, const json_t *root, const char *where) {
    static const char *const read[] = {"mxfp4", "fp8", "compressed-tensors"};
    const json_t *q = json_object_get(root, "quantization_config");
    const char *method = json_string_value(json_object_get(q, "quant_method"));
    mf_error problem;
    for (size_t i = 0; method && i < MF__COUNT(read); i++)
        if (!strcmp(method, read[i])) method = NULL;
    if (!method) return;
    mf__fail(&problem, MF_E_UNSUPPORTED,
             "%s: weights quantized by \"%s\" are not read; MLX affine, mxfp4, fp8 blocks and packed integers are",
             where, method);
    note(s, &problem);
}

/* What the config and the catalog of a checkpoint say, whatever kind of file they came from. */
static void add_checkpoint(mf__survey *s, const json_t *root, const char *where, const mf__catalog *cat) {
    walk k = {.s = s, .cat = cat};
    mf__config config;
    mf_error problem;
    if (mf__config_parse(root, where, &config, &problem)) {
        note(s, &problem);
        return;
    }
    mf__config_look(&config, cat);
    if (!look_at(&k, &config)) return;
    add_experts(&k);
    count(s);
    s->unused_bytes = stored_bytes(cat) - s->trunk_bytes - k.unlisted_experts;
}

static mf_status survey_checkpoint(const char *dir, mf__survey *s, mf_error *err) {
    char *path = mf__path_join(dir, "config.json");
    json_t *root = NULL;
    mf__catalog *cat = NULL;
    if (!path) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
    mf_status st = mf__json_read(path, MAX_CONFIG_BYTES, &root, err);
    if (st == MF_OK) st = mf__safetensors_open(dir, &cat, err);
    if (st == MF_OK) {
        check_quantization(s, root, path);
        add_checkpoint(s, root, path, cat);
    }
    mf__catalog_close(cat);
    json_decref(root);
    free(path);
    return st;
}

/* GGUF's blocks have no place in our files: the layout of experts is the one that a conversion would give them. */
static void gguf_layout(const char *path, mf__survey *s) {
    mf__convert_options keep;
    mf__plan plan;
    mf_error problem;
    mf__convert_options_init(&keep);
    if (mf__plan_make(path, &keep, &plan, &problem))
        note(s, &problem);
    else if (plan.has_experts)
        s->layout = plan.layout, s->has_layout = true;
    mf__plan_close(&plan);
}

static mf_status survey_gguf(const char *path, mf__survey *s, mf_error *err) {
    mf__gguf_model gguf;
    mf_status st = mf__gguf_model_open(path, &gguf, err);
    if (st == MF_OK) {
        gguf_layout(path, s);
        if (!s->n_problems) add_checkpoint(s, gguf.config, path, gguf.catalog);
    }
    mf__gguf_model_close(&gguf);
    return st;
}

/* ---- native directories ----------------------------------------------------------------------------------------- */

static mf_status survey_native(const char *dir, mf__survey *s, mf_error *err) {
    mf__native native;
    mf__config config;
    mf_error problem;
    MF__TRY(mf__native_open(dir, &native, err));
    walk k = {.s = s, .cat = native.catalog};
    s->is_native = true;
    if (mf__native_config(&native, &config, &problem)) {
        note(s, &problem);
    } else if (look_at(&k, &config)) {
        if (mf__native_layout(&native, &s->bp, &s->layout, &problem))
            note(s, &problem);
        else
            s->has_layout = true;
        count(s);
        s->unused_bytes = stored_bytes(native.catalog) - s->trunk_bytes;
    }
    mf__native_close(&native);
    return MF_OK;
}

static bool has(const char *dir, const char *name) {
    char *path = mf__path_join(dir, name);
    bool found = path && mf__path_exists(path);
    free(path);
    return found;
}

mf_status mf__survey_make(const char *dir, mf__survey *out, mf_error *err) {
    memset(out, 0, sizeof *out);
    bool weights = has(dir, "model.safetensors") || has(dir, "model.safetensors.index.json");
    bool checkpoint = weights && has(dir, "config.json") && !has(dir, "model_weights.json");
    mf_status st = checkpoint         ? survey_checkpoint(dir, out, err)
                   : mf__gguf_is(dir) ? survey_gguf(dir, out, err)
                                      : survey_native(dir, out, err);
    if (st != MF_OK) mf__survey_free(out);
    return st;
}

void mf__survey_free(mf__survey *s) {
    mf__blueprint_free(&s->bp);
    memset(s, 0, sizeof *s);
}
