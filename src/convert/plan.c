/* The blueprint says what is needed, the import finds it, the policy here decides its form. */
#include "convert/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/direct.h"
#include "base/file.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "convert/encode.h"
#include "convert/stage.h"
#include "quant/affine.h"
#include "weights/safetensors.h"

#define MAX_CONFIG_BYTES (64 << 20)
#define CHUNK_BYTES ((int64_t)32 << 20) /* of source handled at once */
#define CHUNK_ROWS 256                  /* chunks begin at multiples of it: a block of FP8 has at most so many rows */
#define EXPERTS_AT_ONCE 64

/* ---- options ---- */

/* key, option */
#define WIDTHS(X)                                                                                                      \
    X("experts", expert_bits)                                                                                          \
    X("trunk", trunk_bits) X("embed", embed_bits) X("head", head_bits) X("router", router_bits)

void mf__convert_options_init(mf__convert_options *opt) {
    memset(opt, 0, sizeof *opt); /* MF_BITS_KEEP everywhere */
    opt->group = 64;
}

bool mf__convert_preset(mf__convert_options *opt, const char *name) {
    static const struct {
        const char *name;
        int experts, others;
    } presets[] = {{"small", 4, 4}, {"balanced", 4, 8}, {"exact", MF_BITS_KEEP, MF_BITS_KEEP}};
    for (size_t i = 0; i < MF__COUNT(presets); i++) {
        if (strcmp(name, presets[i].name)) continue;
        opt->expert_bits = presets[i].experts;
        opt->trunk_bits = opt->embed_bits = opt->head_bits = presets[i].others;
        opt->router_bits = MF_BITS_KEEP;
        return true;
    }
    return false;
}

static mf_status check_options(const mf__convert_options *opt, mf_error *err) {
#define CHECK(key, field)                                                                                              \
    if (opt->field != MF_BITS_KEEP && !mf__affine_bits_ok(opt->field))                                                 \
        return mf__fail(err, MF_E_INVALID, "%s: %d bits are not possible; possible are keep, 2, 3, 4, 5, 6 and 8",     \
                        key, opt->field);
    WIDTHS(CHECK)
#undef CHECK
    if (opt->also_bits && opt->also_bits != 2 && opt->also_bits != 3)
        return mf__fail(err, MF_E_INVALID, "small copies of %d bits are not possible; possible are 2 and 3",
                        opt->also_bits);
    for (int i = 0; i < MF_PART_COUNT; i++)
        if (opt->also_part_bits[i] && (!opt->also_bits || !mf__affine_bits_ok(opt->also_part_bits[i])))
            return mf__fail(err, MF_E_INVALID,
                            "small copies' %s: %d bits are not possible; possible are 2, 3, 4, 5, 6 and 8",
                            mf__expert_part_name((mf__expert_part)i), opt->also_part_bits[i]);
    if (!mf__affine_group_ok(opt->group))
        return mf__fail(err, MF_E_INVALID, "groups of %d are not possible; possible are 32, 64 and 128", opt->group);
    for (int i = 0; i < MF_PART_COUNT; i++) {
        if (opt->part_bits[i] && !mf__affine_bits_ok(opt->part_bits[i]))
            return mf__fail(err, MF_E_INVALID, "%s: %d bits are not possible; possible are 2, 3, 4, 5, 6 and 8",
                            mf__expert_part_name((mf__expert_part)i), opt->part_bits[i]);
        if (opt->part_group[i] && !mf__affine_group_ok(opt->part_group[i]))
            return mf__fail(err, MF_E_INVALID, "%s: groups of %d are not possible; possible are 32, 64 and 128",
                            mf__expert_part_name((mf__expert_part)i), opt->part_group[i]);
    }
    return MF_OK;
}

static int part_bits(const mf__convert_options *opt, int part) {
    return opt->part_bits[part] ? opt->part_bits[part] : opt->expert_bits;
}

static int part_group(const mf__convert_options *opt, int part) {
    return opt->part_group[part] ? opt->part_group[part] : opt->group;
}

static int also_part_bits(const mf__convert_options *opt, int part) {
    return opt->also_part_bits[part] ? opt->also_part_bits[part] : opt->also_bits;
}

static bool parts_differ(const mf__convert_options *opt) {
    for (int i = 0; i < MF_PART_COUNT; i++)
        if (opt->part_bits[i] || opt->part_group[i]) return true;
    return false;
}

/* At most 60 + 20 + 20 + 3 * 10 + 3 * 30 characters before the calibration's. */
void mf__plan_options_text(const mf__convert_options *opt, char text[MF_OPTIONS_TEXT]) {
    size_t n = 0, size = MF_OPTIONS_TEXT;
#define TEXT(key, field)                                                                                               \
    n += (size_t)(opt->field ? snprintf(text + n, size - n, "%s %d, ", key, opt->field)                                \
                             : snprintf(text + n, size - n, "%s keep, ", key));
    WIDTHS(TEXT)
#undef TEXT
    n += (size_t)snprintf(text + n, size - n, "groups of %d", opt->group);
    if (opt->also_bits) n += (size_t)snprintf(text + n, size - n, ", also %d bits", opt->also_bits);
    for (int i = 0; opt->also_bits && i < MF_PART_COUNT; i++)
        if (opt->also_part_bits[i])
            n += (size_t)snprintf(text + n, size - n, ", %s %d", mf__expert_part_name((mf__expert_part)i),
                                  opt->also_part_bits[i]);
    for (int i = 0; parts_differ(opt) && i < MF_PART_COUNT; i++)
        n += (size_t)snprintf(text + n, size - n, ", %s %d in groups of %d", mf__expert_part_name((mf__expert_part)i),
                              part_bits(opt, i), part_group(opt, i));
    if (opt->calibration)
        snprintf(text + n, size - n, ", calibrated%s by %.60s", opt->scales_only ? " scales" : "", opt->calibration);
}

static void put_also(json_t *obj, const mf__convert_options *opt) {
    json_t *parts = json_object();
    json_object_set_new(obj, "also_bits", json_integer(opt->also_bits));
    for (int i = 0; i < MF_PART_COUNT; i++)
        if (opt->also_part_bits[i])
            json_object_set_new(parts, mf__expert_part_name((mf__expert_part)i), json_integer(opt->also_part_bits[i]));
    if (json_object_size(parts)) json_object_set(obj, "also_bits_for", parts);
    json_decref(parts);
}

json_t *mf__plan_options_json(const mf__convert_options *opt) {
    json_t *obj = json_pack("{s:i, s:b, s:i}", "group", opt->group, "also_2bit", opt->also_bits == 2, "encoder",
                            MF__ENCODER_VERSION);
    if (obj && opt->also_bits) put_also(obj, opt);
    if (obj && opt->calibration) json_object_set_new(obj, "calibration", json_string(opt->calibration));
    if (obj && opt->calibration) json_object_set_new(obj, "calibrated_scales_only", json_boolean(opt->scales_only));
    for (int i = 0; obj && parts_differ(opt) && i < MF_PART_COUNT; i++)
        json_object_set_new(obj, mf__expert_part_name((mf__expert_part)i),
                            json_pack("{s:i, s:i}", "bits", part_bits(opt, i), "group", part_group(opt, i)));
#define PUT(key, field)                                                                                                \
    if (obj) json_object_set_new(obj, key, opt->field ? json_integer(opt->field) : json_string("keep"));
    WIDTHS(PUT)
#undef PUT
    return obj;
}

mf_status mf__plan_options_parse(const json_t *obj, const char *where, mf__convert_options *opt, mf_error *err) {
    int64_t value;
    MF__TRY(mf__json_get_int(obj, where, "group", 32, 128, &value, err));
    opt->group = (int)value;
    bool two = false;
    MF__TRY(mf__json_opt_bool(obj, where, "also_2bit", false, &two, err));
    opt->also_bits = two ? 2 : 0;
    if (json_object_get(obj, "also_bits")) {
        MF__TRY(mf__json_get_int(obj, where, "also_bits", 2, 3, &value, err));
        opt->also_bits = (int)value;
    }
    const json_t *also_parts = json_object_get(obj, "also_bits_for");
    for (int i = 0; i < MF_PART_COUNT; i++) {
        const char *name = mf__expert_part_name((mf__expert_part)i);
        opt->also_part_bits[i] = 0;
        if (!json_object_get(also_parts, name)) continue;
        MF__TRY(mf__json_get_int(also_parts, where, name, 2, 8, &value, err));
        opt->also_part_bits[i] = (int)value;
    }
    for (int i = 0; i < MF_PART_COUNT; i++) {
        const json_t *part = json_object_get(obj, mf__expert_part_name((mf__expert_part)i));
        opt->part_bits[i] = opt->part_group[i] = 0;
        if (!part) continue;
        MF__TRY(mf__json_get_int(part, where, "bits", 0, 8, &value, err)); /* 0: kept, as all that are not named */
        opt->part_bits[i] = (int)value;
        MF__TRY(mf__json_get_int(part, where, "group", 32, 128, &value, err));
        opt->part_group[i] = (int)value;
    }
#define GET(key, field)                                                                                                \
    opt->field = MF_BITS_KEEP;                                                                                         \
    if (!json_is_string(json_object_get(obj, key))) {                                                                  \
        MF__TRY(mf__json_get_int(obj, where, key, 2, 8, &value, err));                                                 \
        opt->field = (int)value;                                                                                       \
    }
    WIDTHS(GET)
#undef GET
    return check_options(opt, err);
}

/* ---- forms ---- */

/* Routers decide which experts run: a small error there changes everything, and they cost next to nothing. */
bool mf__plan_is_router(const char *name) {
    return mf__text_ends_with(name, ".mlp.gate.weight") || mf__text_ends_with(name, ".shared_expert_gate.weight") ||
           mf__text_ends_with(name, ".router.weight") || mf__text_ends_with(name, ".block_sparse_moe.gate.weight");
}

static int bits_of(const mf__convert_options *opt, const char *name) {
    if (mf__plan_is_router(name)) return opt->router_bits;
    if (!strcmp(name, "model.embed_tokens.weight")) return opt->embed_bits;
    if (!strcmp(name, "lm_head.weight")) return opt->head_bits;
    return opt->trunk_bits;
}

/* GGUF's blocks have no place in our files. What is kept of them: MXFP4; the others as affine groups of 32 with as many
 * bits as their codes have (one more where the codes are no straight line). Which of them are exact: encode.c. */
static void keep_block(mf__tensor *t) {
    static const struct {
        mf__type type;
        int bits;
    } widths[] = {{MF_TYPE_Q4_0, 4}, {MF_TYPE_Q4_1, 4}, {MF_TYPE_Q5_0, 5},   {MF_TYPE_Q5_1, 5},
                  {MF_TYPE_Q8_0, 8}, {MF_TYPE_Q2_K, 2}, {MF_TYPE_Q3_K, 3},   {MF_TYPE_Q4_K, 4},
                  {MF_TYPE_Q5_K, 5}, {MF_TYPE_Q6_K, 6}, {MF_TYPE_IQ4_NL, 5}, {MF_TYPE_IQ4_XS, 5}};
    mf__type type = t->type;
    t->group = MF_MXFP4_GROUP;
    if (type == MF_TYPE_MXFP4_BLOCK) {
        t->type = MF_TYPE_MXFP4;
        t->bits = 4;
        t->scale_type = MF_TYPE_U8;
        return;
    }
    t->type = MF_TYPE_AFFINE;
    t->scale_type = MF_TYPE_F16;
    for (size_t i = 0; i < MF__COUNT(widths); i++)
        if (widths[i].type == type) t->bits = widths[i].bits;
}

/* What a matrix becomes: the same if bits is "keep", if it has that form already, or if its rows do not split into
 * groups; else affine with BF16 scales. */
static mf__tensor target(const mf__source *src, int bits, int group) {
    mf__tensor t = src->stored;
    bool same = t.type == MF_TYPE_AFFINE && t.bits == bits && t.group == group;
    t.n_planes = 1;
    t.n_rows = src->n_rows;
    t.n_cols = src->n_cols;
    t.data = t.scales = t.biases = NULL;
    t.scale_type = mf__source_scale_type(&src->stored);
    if (t.type == MF_TYPE_F8_BLOCK && !mf__source_is_plain(src)) t.block_rows = 1; /* rows may leave their block */
    if (mf__type_is_block(t.type) && (bits == MF_BITS_KEEP || t.n_cols % group)) keep_block(&t);
    if (bits == MF_BITS_KEEP || same || t.n_cols % group) return t;
    t.type = MF_TYPE_AFFINE;
    t.block_rows = 0;
    t.bits = bits;
    t.group = group;
    t.scale_type = MF_TYPE_BF16;
    return t;
}

/* ---- the trunk ---- */

/* Vectors become F32, with 1 added where the checkpoint stores w - 1: exact, and they are small. */
static void plan_vector(const mf__weight_info *w, mf__plan_tensor *t) {
    int64_t n = w->n_rows * w->n_cols;
    if (mf__source_is_plain(&t->src)) { /* one row: shapes such as [channels][1][kernel] do not matter */
        t->src.stored.n_rows = t->src.n_rows = 1;
        t->src.stored.n_cols = t->src.n_cols = n;
    }
    t->dst = (mf__tensor){.type = MF_TYPE_F32, .n_planes = 1, .n_rows = t->src.n_rows, .n_cols = t->src.n_cols};
    t->n_dims = w->n_rows == 1 ? 1 : 3; /* a convolution is [channels][kernel][1] */
    t->dims[0] = w->n_rows == 1 ? n : w->n_rows;
    t->dims[1] = w->n_cols;
    t->dims[2] = 1;
}

static void plan_chunks(mf__plan *p, mf__plan_tensor *t) {
    int64_t row = mf__source_bytes(&t->src) / t->src.n_rows, rows = CHUNK_BYTES / (row > 0 ? row : 1);
    rows = rows / CHUNK_ROWS * CHUNK_ROWS;
    t->chunk_rows = rows > 0 ? rows : CHUNK_ROWS;
    if (t->chunk_rows > t->src.n_rows || !mf__stage_in_pieces(&t->src)) t->chunk_rows = t->src.n_rows;
    mf__tensor out = t->dst;
    out.n_rows = t->chunk_rows;
    int64_t in = (int64_t)mf__stage_room(&t->src, 0, t->chunk_rows), bytes = mf__tensor_bytes(&out);
    if (in > p->max_in) p->max_in = in;
    if (bytes > p->max_out) p->max_out = bytes;
    if (t->chunk_rows > p->max_rows) p->max_rows = t->chunk_rows;
    if (t->src.n_cols > p->max_cols) p->max_cols = t->src.n_cols;
    p->source_bytes += mf__source_bytes(&t->src);
    p->target_bytes += mf__tensor_bytes(&t->dst);
}

static mf_status add_tensor(void *ctx, const char *name, const mf__weight_info *w, mf_error *err) {
    mf__plan *p = ctx;
    mf__plan_tensor t = {.n_dims = 2};
    MF__TRY(mf__import_trunk(&p->im, w, name, &t.src, &t.add_one, err));
    if (w->kind == MF_WEIGHT_VECTOR)
        plan_vector(w, &t);
    else
        t.dst = target(&t.src, bits_of(p->opt, name), p->opt->group);
    plan_chunks(p, &t);
    t.name = strdup(name);
    mf__plan_tensor *grown = realloc(p->tensors, (size_t)(p->n_tensors + 1) * sizeof *grown);
    if (grown) p->tensors = grown;
    if (!grown || !t.name) {
        free(t.name);
        return mf__fail(err, MF_E_NOMEM, "no memory for the plan of a conversion");
    }
    p->tensors[p->n_tensors++] = t;
    return MF_OK;
}

/* ---- experts ---- */

bool mf__plan_layer_has_experts(const mf__plan *p, int layer) {
    return p->bp.kinds[p->bp.kind_of[layer]].experts != NULL;
}

typedef struct width {
    int bits, group;
    bool must; /* nothing else will do: not what the source has, where rows do not split into groups */
} width;

/* GGUF files give some layers more bits than others; where those are kept, all layers get what the widest has. */
static mf_status widen(const mf__plan *p, int first, const width of[MF_PART_COUNT], mf__expert_layout *layout,
                       mf_error *err) {
    for (int32_t l = first + 1; l < p->bp.config.n_layers; l++)
        for (int i = 0; mf__plan_layer_has_experts(p, l) && i < MF_PART_COUNT; i++) {
            mf__source src;
            if (of[i].bits != MF_BITS_KEEP) continue;
            MF__TRY(mf__import_expert(&p->im, l, 0, (mf__expert_part)i, &src, err));
            mf__tensor dst = target(&src, of[i].bits, of[i].group);
            if (mf__type_is_block(src.stored.type) && dst.type == MF_TYPE_AFFINE &&
                layout->part[i].type == MF_TYPE_AFFINE && dst.bits > layout->part[i].bits)
                layout->part[i].bits = dst.bits;
        }
    return MF_OK;
}

/* Every layer has the layout of the first one that has experts. */
static mf_status plan_layout(const mf__plan *p, int layer, const width of[MF_PART_COUNT], mf__expert_layout *layout,
                             mf_error *err) {
    memset(layout, 0, sizeof *layout);
    for (int i = 0; i < MF_PART_COUNT; i++) {
        mf__source src;
        MF__TRY(mf__import_expert(&p->im, layer, 0, (mf__expert_part)i, &src, err));
        mf__tensor dst = target(&src, of[i].bits, of[i].group);
        layout->part[i].type = dst.type;
        layout->part[i].n_rows = dst.n_rows;
        layout->part[i].n_cols = dst.n_cols;
        layout->part[i].bits = dst.bits;
        layout->part[i].group = dst.group;
        layout->part[i].block_rows = dst.block_rows;
        layout->part[i].scale_type = dst.scale_type;
        layout->part[i].has_bias = p->bp.config.has.expert_bias;
        if (of[i].must && (dst.type != MF_TYPE_AFFINE || dst.bits != of[i].bits))
            return mf__fail(err, MF_E_UNSUPPORTED,
                            "experts' %s with rows of %lld does not split into groups of %d for %d bits; smaller ones "
                            "(--group) may do",
                            mf__expert_part_name((mf__expert_part)i), (long long)dst.n_cols, of[i].group, of[i].bits);
    }
    MF__TRY(widen(p, layer, of, layout, err));
    return mf__expert_layout_pack(layout, MF_EXPERT_ALIGN, err);
}

/* Looks one expert up; adds its bytes. */
static mf_status survey_expert(mf__plan *p, int layer, int expert, int64_t *room, mf_error *err) {
    *room = 0;
    for (int i = 0; i < MF_PART_COUNT; i++) {
        mf__source src;
        MF__TRY(mf__import_expert(&p->im, layer, expert, (mf__expert_part)i, &src, err));
        if (p->layout.part[i].type != MF_TYPE_AFFINE &&
            target(&src, part_bits(p->opt, i), part_group(p->opt, i)).type != p->layout.part[i].type)
            return mf__fail(err, MF_E_MISMATCH, "layer %d, expert %d, %s is of type %s, the first expert of %s", layer,
                            expert, mf__expert_part_name((mf__expert_part)i), mf__type_name(src.stored.type),
                            mf__type_name(p->layout.part[i].type));
        p->source_bytes += mf__source_bytes(&src);
        *room += (int64_t)mf__stage_room(&src, 0, src.n_rows);
        if (src.n_rows > p->max_rows) p->max_rows = src.n_rows;
        if (src.n_cols > p->max_cols) p->max_cols = src.n_cols;
        if (!p->layout.part[i].has_bias) continue;
        MF__TRY(mf__import_expert_bias(&p->im, layer, expert, (mf__expert_part)i, &src, err));
        *room += (int64_t)mf__stage_room(&src, 0, src.n_rows);
    }
    return MF_OK;
}

/* A calibration that could weigh nothing is a mistake: of what has no groups, or where no part changes its form. */
static mf_status check_calibration(const mf__plan *p, int layer, mf_error *err) {
    int n_same = 0;
    for (int i = 0; p->opt->calibration && i < MF_PART_COUNT; i++) {
        mf__source src;
        MF__TRY(mf__import_expert(&p->im, layer, 0, (mf__expert_part)i, &src, err));
        mf__tensor dst = target(&src, part_bits(p->opt, i), part_group(p->opt, i));
        n_same += mf__same_form(&src.stored, &dst);
        if (dst.type != MF_TYPE_AFFINE || n_same == MF_PART_COUNT)
            return mf__fail(
                err, MF_E_INVALID,
                "a calibration is for experts that are quantized, and %s stays as it is (%s): give --experts "
                "a width, or no calibration",
                mf__expert_part_name((mf__expert_part)i), mf__type_name(src.stored.type));
    }
    return MF_OK;
}

static mf_status check_copies(const mf__plan *p, mf_error *err) {
    if (p->second.bytes < p->layout.bytes) return MF_OK;
    return mf__fail(
        err, MF_E_INVALID,
        "small copies of %lld bytes beside experts of %lld would be of no use: give them fewer bits (--also)",
        (long long)p->second.bytes, (long long)p->layout.bytes);
}

static mf_status plan_experts(mf__plan *p, mf_error *err) {
    const mf__config *c = &p->bp.config;
    int64_t largest = 0;
    for (int32_t l = 0; l < c->n_layers; l++) {
        if (!mf__plan_layer_has_experts(p, l)) continue;
        if (!p->has_experts) {
            width of[MF_PART_COUNT], also[MF_PART_COUNT];
            for (int i = 0; i < MF_PART_COUNT; i++) {
                int bits = part_bits(p->opt, i);
                of[i] = (width){bits, part_group(p->opt, i), .must = bits == 2 || p->opt->part_bits[i]};
                also[i] = (width){also_part_bits(p->opt, i), p->opt->group, .must = true};
            }
            MF__TRY(plan_layout(p, l, of, &p->layout, err));
            if (p->opt->also_bits) {
                MF__TRY(plan_layout(p, l, also, &p->second, err));
                MF__TRY(check_copies(p, err));
            }
            MF__TRY(check_calibration(p, l, err));
        }
        p->has_experts = true;
        for (int e = 0; e < c->moe.n_experts; e++) {
            int64_t room;
            MF__TRY(survey_expert(p, l, e, &room, err));
            if (room > largest) largest = room;
        }
        p->target_bytes += c->moe.n_experts * (p->layout.stride + p->second.stride);
    }
    if (!p->has_experts) return MF_OK;
    int64_t n = CHUNK_BYTES / largest;
    p->experts_at_once = n < 1 ? 1 : n > EXPERTS_AT_ONCE ? EXPERTS_AT_ONCE : (int)n;
    if (p->experts_at_once * largest > p->max_in) p->max_in = p->experts_at_once * largest;
    int64_t out = p->experts_at_once * (p->layout.stride + p->second.stride);
    if (out > p->max_out) p->max_out = out;
    return MF_OK;
}

/* ---- the whole ---- */

static mf_status read_config(mf__plan *p, mf__config *config, mf_error *err) {
    char *path = mf__path_join(p->src, "config.json");
    if (!path) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
    mf_status st = MF_OK;
    if (!mf__path_exists(path))
        st = mf__fail(err, MF_E_NOT_FOUND, "%s is missing: %s does not look like a model checkpoint", path, p->src);
    if (st == MF_OK) st = mf__json_read(path, MAX_CONFIG_BYTES, &p->config, err);
    if (st == MF_OK) st = mf__config_parse(p->config, path, config, err);
    free(path);
    return st;
}

/* A directory with config.json and safetensors, or a GGUF file. */
static mf_status open_source(mf__plan *plan, mf__config *config, mf_error *err) {
    if (!mf__path_exists(plan->src)) return mf__fail(err, MF_E_NOT_FOUND, "%s does not exist", plan->src);
    if (mf__path_is_dir(plan->src)) {
        MF__TRY(read_config(plan, config, err));
        return mf__safetensors_open(plan->src, &plan->cat, err);
    }
    if (!mf__gguf_is(plan->src))
        return mf__fail(err, MF_E_NOT_FOUND,
                        "%s is not a checkpoint: neither a directory with config.json and safetensors files nor a GGUF "
                        "file",
                        plan->src);
    MF__TRY(mf__gguf_model_open(plan->src, &plan->gguf, err));
    plan->cat = plan->gguf.catalog;
    plan->config = json_incref(plan->gguf.config);
    return mf__config_parse(plan->config, plan->src, config, err);
}

mf_status mf__plan_make(const char *src, const mf__convert_options *opt, mf__plan *plan, mf_error *err) {
    mf__config config;
    memset(plan, 0, sizeof *plan);
    plan->opt = opt;
    plan->src = src;
    MF__TRY(check_options(opt, err));
    MF__TRY(open_source(plan, &config, err));
    mf__config_look(&config, plan->cat);
    MF__TRY(mf__blueprint_build(&config, &plan->bp, err));
    MF__TRY(mf__import_open(plan->cat, &plan->bp, &plan->im, err));
    MF__TRY(mf__blueprint_each_weight(&plan->bp, add_tensor, plan, err));
    return plan_experts(plan, err);
}

void mf__plan_close(mf__plan *plan) {
    for (int64_t i = 0; i < plan->n_tensors; i++) free(plan->tensors[i].name);
    free(plan->tensors);
    if (plan->cat != plan->gguf.catalog) mf__catalog_close(plan->cat);
    mf__gguf_model_close(&plan->gguf);
    mf__blueprint_free(&plan->bp);
    json_decref(plan->config);
    memset(plan, 0, sizeof *plan);
}
