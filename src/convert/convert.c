/* Conversion: every trunk tensor and every expert of a checkpoint, kept or quantized, into a native directory.
 *
 * The blueprint says what is needed, the import finds it, the policy below decides its precision, the writer puts it
 * down. Nothing is held but one tensor (or one expert) at a time; what the model does not use is left behind. */
#include "convert/convert.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "model/import.h"
#include "quant/affine.h"
#include "weights/native.h"
#include "weights/safetensors.h"

#define MAX_CONFIG_BYTES (64 << 20)
#define EXPERT_ALIGN 4096

/* Files that travel with the weights when the checkpoint has them. */
static const char *const COMPANIONS[] = {
    "config.json",         "generation_config.json",  "tokenizer.json", "tokenizer_config.json",
    "chat_template.jinja", "special_tokens_map.json", "LICENSE"};

typedef struct job {
    const mf__convert_options *opt;
    const char *src;
    json_t *config_json;
    mf__blueprint bp;
    mf__catalog *cat;
    mf__import im;
    mf__native_writer *writer;
    int64_t done, total; /* bytes of source consumed */
    float *row;          /* one decoded row */
    int64_t row_floats;
    uint8_t *out; /* encoded bytes of one tensor or expert */
    int64_t out_bytes;
} job;

void mf__convert_options_init(mf__convert_options *opt) {
    memset(opt, 0, sizeof *opt);
    opt->expert_bits = opt->trunk_bits = MF_BITS_KEEP;
    opt->group = 64;
}

static mf_status check_options(const mf__convert_options *opt, mf_error *err) {
    int bits[2] = {opt->expert_bits, opt->trunk_bits};
    for (int i = 0; i < 2; i++)
        if (bits[i] != MF_BITS_KEEP && !mf__affine_bits_ok(bits[i]))
            return mf__fail(err, MF_E_INVALID, "%d bits is not possible; possible are keep, 2, 3, 4, 5, 6 and 8",
                            bits[i]);
    if (!mf__affine_group_ok(opt->group))
        return mf__fail(err, MF_E_INVALID, "groups of %d are not possible; possible are 32, 64 and 128", opt->group);
    return MF_OK;
}

static mf_status advance(job *j, int64_t bytes, mf_error *err) {
    j->done += bytes;
    if (j->opt->progress && j->opt->progress(j->opt->progress_user, j->done, j->total))
        return mf__fail(err, MF_E_CANCELLED, "stopped by the caller");
    return MF_OK;
}

static mf_status reserve(job *j, int64_t row_floats, int64_t out_bytes, mf_error *err) {
    if (row_floats > j->row_floats) {
        float *row = realloc(j->row, (size_t)row_floats * sizeof *row);
        if (!row) return mf__fail(err, MF_E_NOMEM, "no memory for a row of %lld values", (long long)row_floats);
        j->row = row;
        j->row_floats = row_floats;
    }
    if (out_bytes > j->out_bytes) {
        uint8_t *out = realloc(j->out, (size_t)out_bytes);
        if (!out) return mf__fail(err, MF_E_NOMEM, "no memory for %lld bytes of a tensor", (long long)out_bytes);
        j->out = out;
        j->out_bytes = out_bytes;
    }
    return MF_OK;
}

/* ---- precision ----------------------------------------------------------------------------------------------------
 */

/* What a matrix becomes: the same if bits is "keep", if it has that form already, or if its rows do not split into
 * groups; else affine with BF16 scales. */
static mf__tensor target(const mf__source *src, int bits, int group) {
    mf__tensor t = src->stored;
    bool same = t.type == MF_TYPE_AFFINE && t.bits == bits && t.group == group;
    t.n_planes = 1;
    t.n_rows = src->n_rows;
    t.n_cols = src->n_cols;
    if (bits == MF_BITS_KEEP || same || t.n_cols % group) return t;
    t.type = MF_TYPE_AFFINE;
    t.bits = bits;
    t.group = group;
    t.scale_type = MF_TYPE_BF16;
    return t;
}

static bool same_form(const mf__tensor *a, const mf__tensor *b) {
    return a->type == b->type && (!mf__type_has_scales(a->type) ||
                                  (a->bits == b->bits && a->group == b->group && a->scale_type == b->scale_type));
}

/* The bytes of src, row by row unless they lie in order already. */
static void copy_rows(const mf__source *src, const mf__tensor *dst, uint8_t *data, uint8_t *scales, uint8_t *biases) {
    int64_t row = mf__tensor_row_bytes(dst), scale = mf__tensor_scale_bytes(dst), bias = mf__tensor_bias_bytes(dst);
    if (!mf__source_is_plain(src)) {
        for (int64_t r = 0; r < dst->n_rows; r++)
            mf__source_row_copy(src, r, data + r * row, scales + r * scale, biases + r * bias);
        return;
    }
    memcpy(data, src->stored.data, (size_t)(row * dst->n_rows));
    if (scale) memcpy(scales, src->stored.scales, (size_t)(scale * dst->n_rows));
    if (bias) memcpy(biases, src->stored.biases, (size_t)(bias * dst->n_rows));
}

/* Writes src in the form of dst to data, scales, biases. */
static mf_status transform(job *j, const char *name, const mf__source *src, const mf__tensor *dst, uint8_t *data,
                           uint8_t *scales, uint8_t *biases, mf_error *err) {
    int64_t row = mf__tensor_row_bytes(dst), scale = mf__tensor_scale_bytes(dst), bias = mf__tensor_bias_bytes(dst);
    if (same_form(&src->stored, dst)) {
        copy_rows(src, dst, data, scales, biases);
        return MF_OK;
    }
    for (int64_t r = 0; r < src->n_rows; r++) {
        mf__source_row_f32(src, r, j->row);
        for (int64_t c = 0; c < src->n_cols; c++)
            if (!isfinite(j->row[c]))
                return mf__fail(err, MF_E_FORMAT,
                                "tensor %s has the value %g in row %lld, column %lld; it cannot be "
                                "quantized",
                                name, (double)j->row[c], (long long)r, (long long)c);
        mf__affine_encode_row(j->row, dst->n_cols, dst->bits, dst->group, dst->scale_type, data + r * row,
                              scales + r * scale, biases + r * bias);
    }
    return MF_OK;
}

/* ---- trunk --------------------------------------------------------------------------------------------------------
 */

static mf_status put(job *j, const char *name, const char *ending, mf__type type, int n_dims, const int64_t *dims,
                     const void *data, int64_t size, int bits, mf_error *err) {
    char full[300];
    snprintf(full, sizeof full, "%.*s%s", (int)(ending ? strlen(name) - strlen(".weight") : strlen(name)), name,
             ending ? ending : "");
    mf__entry e = {.name = full, .type = type, .n_dims = n_dims, .data = data, .size = size};
    memcpy(e.dims, dims, (size_t)n_dims * sizeof *dims);
    return mf__native_writer_tensor(j->writer, &e, bits, err);
}

/* Vectors become F32, with 1 added where the checkpoint stores w - 1: exact, and they are small. */
static mf_status put_vector(job *j, const char *name, const mf__weight_info *w, const mf__source *src, bool add_one,
                            mf_error *err) {
    int64_t n = w->n_rows * w->n_cols;
    int64_t dims[3] = {w->n_rows == 1 ? n : w->n_rows, w->n_cols, 1}; /* a convolution is [channels][kernel][1] */
    mf__tensor flat = src->stored;
    flat.n_rows = 1;
    flat.n_cols = n;
    MF__TRY(reserve(j, n, 0, err));
    mf__tensor_row_f32(&flat, 0, j->row);
    for (int64_t i = 0; add_one && i < n; i++) j->row[i] += 1.0f;
    return put(j, name, NULL, MF_TYPE_F32, w->n_rows == 1 ? 1 : 3, dims, j->row, n * (int64_t)sizeof(float), 0, err);
}

/* Routers decide which experts run: a small error there changes everything, and they cost next to nothing. */
static bool is_router(const char *name) {
    return strstr(name, ".mlp.gate.") || strstr(name, ".shared_expert_gate.");
}

static mf_status put_matrix(job *j, const char *name, const mf__source *src, mf_error *err) {
    mf__tensor dst = target(src, is_router(name) ? MF_BITS_KEEP : j->opt->trunk_bits, j->opt->group);
    int64_t data = dst.n_rows * mf__tensor_row_bytes(&dst), scales = dst.n_rows * mf__tensor_scale_bytes(&dst);
    int64_t dims[2] = {dst.n_rows, dst.n_cols};
    MF__TRY(reserve(j, src->n_cols, data + 2 * scales, err));
    uint8_t *s = j->out + data, *b = s + scales;
    MF__TRY(transform(j, name, src, &dst, j->out, s, b, err));
    if (!mf__type_has_scales(dst.type)) return put(j, name, NULL, dst.type, 2, dims, j->out, data, 0, err);
    dims[1] = dst.n_cols * dst.bits / 32;
    MF__TRY(put(j, name, NULL, MF_TYPE_U32, 2, dims, j->out, data, dst.bits, err));
    dims[1] = dst.n_cols / dst.group;
    MF__TRY(put(j, name, ".scales", dst.scale_type, 2, dims, s, scales, 0, err));
    if (dst.type == MF_TYPE_MXFP4) return MF_OK;
    return put(j, name, ".biases", dst.scale_type, 2, dims, b, scales, 0, err);
}

static mf_status put_trunk(void *ctx, const char *name, const mf__weight_info *w, mf_error *err) {
    job *j = ctx;
    mf__source src;
    bool add_one;
    MF__TRY(mf__import_trunk(&j->im, w, name, &src, &add_one, err));
    if (w->kind == MF_WEIGHT_VECTOR)
        MF__TRY(put_vector(j, name, w, &src, add_one, err));
    else
        MF__TRY(put_matrix(j, name, &src, err));
    return advance(j, mf__source_bytes(&src), err);
}

/* ---- experts ------------------------------------------------------------------------------------------------------
 */

/* Every layer has the layout of the first one that has experts. */
static mf_status plan_layout(job *j, int layer, mf__expert_layout *layout, mf_error *err) {
    memset(layout, 0, sizeof *layout);
    for (int p = 0; p < MF_PART_COUNT; p++) {
        mf__source src;
        MF__TRY(mf__import_expert(&j->im, layer, 0, (mf__expert_part)p, &src, err));
        mf__tensor dst = target(&src, j->opt->expert_bits, j->opt->group);
        layout->part[p].type = dst.type;
        layout->part[p].n_rows = dst.n_rows;
        layout->part[p].n_cols = dst.n_cols;
        layout->part[p].bits = dst.bits;
        layout->part[p].group = dst.group;
        layout->part[p].scale_type = dst.scale_type;
        layout->part[p].has_bias = j->bp.config.has.expert_bias;
    }
    return mf__expert_layout_pack(layout, EXPERT_ALIGN, err);
}

/* A part's bias vector, as F32, into the blob. */
static mf_status put_bias(job *j, int layer, int expert, const mf__expert_layout *layout, mf__expert_part part,
                          mf_error *err) {
    mf__source src;
    MF__TRY(mf__import_expert_bias(&j->im, layer, expert, part, &src, err));
    for (int64_t r = 0; r < src.n_rows; r++) {
        float value;
        mf__source_row_f32(&src, r, &value);
        memcpy(j->out + layout->part[part].bias_off + r * (int64_t)sizeof value, &value, sizeof value);
    }
    return MF_OK;
}

static mf_status put_expert(job *j, int layer, int expert, const mf__expert_layout *layout, mf_error *err) {
    int64_t consumed = 0;
    MF__TRY(reserve(j, 0, layout->bytes, err));
    if (layout->part[0].has_bias) memset(j->out, 0, (size_t)layout->bytes); /* there are gaps before the biases */
    for (int p = 0; p < MF_PART_COUNT; p++) {
        mf__source src;
        mf__tensor dst = mf__expert_view(layout, (mf__expert_part)p, j->out);
        char name[96];
        snprintf(name, sizeof name, "layer %d, expert %d, %s", layer, expert,
                 p == MF_PART_GATE ? "gate_proj"
                 : p == MF_PART_UP ? "up_proj"
                                   : "down_proj");
        MF__TRY(mf__import_expert(&j->im, layer, expert, (mf__expert_part)p, &src, err));
        if (dst.type != MF_TYPE_AFFINE && !same_form(&src.stored, &dst))
            return mf__fail(err, MF_E_MISMATCH, "%s is of type %s, the first expert of %s", name,
                            mf__type_name(src.stored.type), mf__type_name(dst.type));
        MF__TRY(reserve(j, src.n_cols, 0, err));
        MF__TRY(transform(j, name, &src, &dst, j->out + layout->part[p].data_off, j->out + layout->part[p].scales_off,
                          j->out + layout->part[p].biases_off, err));
        if (layout->part[p].has_bias) MF__TRY(put_bias(j, layer, expert, layout, (mf__expert_part)p, err));
        consumed += mf__source_bytes(&src);
    }
    MF__TRY(mf__native_writer_expert(j->writer, j->out, err));
    return advance(j, consumed, err);
}

static mf_status put_experts(job *j, mf_error *err) {
    const mf__config *c = &j->bp.config;
    mf__expert_layout layout;
    bool planned = false;
    for (int32_t l = 0; l < c->n_layers; l++) {
        if (!j->bp.kinds[j->bp.kind_of[l]].experts) continue;
        if (!planned) MF__TRY(plan_layout(j, l, &layout, err));
        planned = true;
        MF__TRY(mf__native_writer_experts_begin(j->writer, l, &layout, c->moe.n_experts, err));
        for (int e = 0; e < c->moe.n_experts; e++) MF__TRY(put_expert(j, l, e, &layout, err));
        MF__TRY(mf__native_writer_experts_end(j->writer, err));
    }
    return MF_OK;
}

/* ---- the whole ----------------------------------------------------------------------------------------------------
 */

static mf_status read_config(job *j, mf__config *config, mf_error *err) {
    char *path = mf__path_join(j->src, "config.json");
    if (!path) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
    mf_status st = MF_OK;
    if (!mf__path_exists(path))
        st = mf__fail(err, MF_E_NOT_FOUND, "%s is missing: %s does not look like a model checkpoint", path, j->src);
    if (st == MF_OK) st = mf__json_read(path, MAX_CONFIG_BYTES, &j->config_json, err);
    if (st == MF_OK) st = mf__config_parse(j->config_json, path, config, err);
    free(path);
    return st;
}

static mf_status count_bytes(void *ctx, const char *name, const mf__weight_info *w, mf_error *err) {
    job *j = ctx;
    mf__source src;
    bool add_one;
    MF__TRY(mf__import_trunk(&j->im, w, name, &src, &add_one, err));
    j->total += mf__source_bytes(&src);
    return MF_OK;
}

/* Looks every tensor up before anything is written, so that a bad checkpoint costs nothing. */
static mf_status survey(job *j, mf_error *err) {
    const mf__config *c = &j->bp.config;
    MF__TRY(mf__import_open(j->cat, &j->bp, &j->im, err));
    MF__TRY(mf__blueprint_each_weight(&j->bp, count_bytes, j, err));
    for (int32_t l = 0; l < c->n_layers; l++) {
        if (!j->bp.kinds[j->bp.kind_of[l]].experts) continue;
        for (int e = 0; e < c->moe.n_experts; e++)
            for (int p = 0; p < MF_PART_COUNT; p++) {
                mf__source src;
                MF__TRY(mf__import_expert(&j->im, l, e, (mf__expert_part)p, &src, err));
                j->total += mf__source_bytes(&src);
            }
    }
    return MF_OK;
}

static mf_status copy_companions(job *j, mf_error *err) {
    for (size_t i = 0; i < MF__COUNT(COMPANIONS); i++) {
        char *from = mf__path_join(j->src, COMPANIONS[i]), *to = mf__native_writer_path(j->writer, COMPANIONS[i]);
        mf_status st = from && to ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for a path");
        if (st == MF_OK && mf__path_exists(from)) st = mf__file_copy(from, to, err);
        free(from);
        free(to);
        MF__TRY(st);
    }
    return MF_OK;
}

static mf_status write_all(job *j, const char *dst, mf_error *err) {
    MF__TRY(mf__native_writer_begin(dst, &j->writer, err));
    MF__TRY(mf__blueprint_each_weight(&j->bp, put_trunk, j, err));
    MF__TRY(put_experts(j, err));
    MF__TRY(copy_companions(j, err));
    mf__native_writer *w = j->writer;
    j->writer = NULL; /* finish frees it, whatever happens */
    return mf__native_writer_finish(w, j->bp.config.family->name, j->config_json, err);
}

mf_status mf__convert(const char *src, const char *dst, const mf__convert_options *opt, mf_error *err) {
    job j = {.opt = opt, .src = src};
    MF__TRY(check_options(opt, err));
    if (!mf__path_is_dir(src))
        return mf__fail(err, MF_E_NOT_FOUND,
                        "%s is not a directory; a checkpoint is a directory with config.json and "
                        "safetensors files",
                        src);
    if (mf__path_exists(dst))
        return mf__fail(err, MF_E_EXISTS, "%s exists already; remove it or choose another name", dst);
    mf__config config;
    mf_status st = read_config(&j, &config, err);
    if (st == MF_OK) st = mf__safetensors_open(src, &j.cat, err);
    if (st == MF_OK) mf__config_look(&config, j.cat);
    if (st == MF_OK) st = mf__blueprint_build(&config, &j.bp, err);
    if (st == MF_OK) st = survey(&j, err);
    if (st == MF_OK) st = write_all(&j, dst, err);
    mf__native_writer_abort(j.writer);
    mf__catalog_close(j.cat);
    mf__blueprint_free(&j.bp);
    json_decref(j.config_json);
    free(j.row);
    free(j.out);
    return st;
}
