/* The expert layout in the manifest:
 *
 *   {"count": 256, "stride": 1769472, "bytes": 1769472, "parts": [
 *      {"name": "gate", "dtype": "AFFINE", "rows": 512, "cols": 2048, "bits": 4, "group": 64, "scale_dtype": "BF16",
 *       "data": 0, "scales": 524288, "biases": 557056}, ... "up" ... "down" ...]}
 *
 * data, scales and biases are offsets in the blob. Plain types have dtype, rows, cols and data only; MXFP4 has scales
 * (one byte for 32 values) as well, F8_BLOCK scales, scale_dtype and the size of a block, block_rows x group. "bias",
 * where a part has it, is the offset of a vector of rows F32 values that is added to the product. */
#include <stdio.h>
#include <string.h>

#include "weights/native_build.h"

/* Larger than any number in a layout can be; mf__expert_layout_check has the real limits. */
#define BIG ((int64_t)1 << 50)

static mf_status get_type(const char *where, const json_t *obj, const char *key, bool matrix, mf__type *out,
                          mf_error *err) {
    const char *text;
    MF__TRY(mf__json_get_string(obj, where, key, &text, err));
    if (matrix && strcmp(text, mf__type_name(MF_TYPE_AFFINE)) == 0)
        *out = MF_TYPE_AFFINE;
    else if (matrix && strcmp(text, mf__type_name(MF_TYPE_MXFP4)) == 0)
        *out = MF_TYPE_MXFP4;
    else if (matrix && strcmp(text, mf__type_name(MF_TYPE_F8_BLOCK)) == 0)
        *out = MF_TYPE_F8_BLOCK;
    else if (!mf__type_parse(text, out))
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: %s \"%.40s\" is not known", where, key, text);
    return MF_OK;
}

static mf_status read_f8_block(const char *where, const json_t *obj, mf__expert_layout *layout, int i, mf_error *err) {
    int64_t group, rows;
    MF__TRY(mf__json_get_int(obj, where, "group", 1, INT32_MAX, &group, err));
    MF__TRY(mf__json_get_int(obj, where, "block_rows", 1, INT32_MAX, &rows, err));
    layout->part[i].bits = 8;
    layout->part[i].group = (int)group;
    layout->part[i].block_rows = (int)rows;
    MF__TRY(get_type(where, obj, "scale_dtype", false, &layout->part[i].scale_type, err));
    return mf__json_get_int(obj, where, "scales", 0, BIG, &layout->part[i].scales_off, err);
}

static mf_status read_part(const char *where, const json_t *obj, mf__expert_layout *layout, int i, mf_error *err) {
    int64_t bits, group;
    MF__TRY(get_type(where, obj, "dtype", true, &layout->part[i].type, err));
    MF__TRY(mf__json_get_int(obj, where, "rows", 1, BIG, &layout->part[i].n_rows, err));
    MF__TRY(mf__json_get_int(obj, where, "cols", 1, BIG, &layout->part[i].n_cols, err));
    MF__TRY(mf__json_get_int(obj, where, "data", 0, BIG, &layout->part[i].data_off, err));
    layout->part[i].has_bias = json_object_get(obj, "bias") != NULL;
    if (layout->part[i].has_bias) MF__TRY(mf__json_get_int(obj, where, "bias", 0, BIG, &layout->part[i].bias_off, err));
    if (layout->part[i].type == MF_TYPE_MXFP4) {
        layout->part[i].bits = 4;
        layout->part[i].group = MF_MXFP4_GROUP;
        layout->part[i].scale_type = MF_TYPE_U8;
        return mf__json_get_int(obj, where, "scales", 0, BIG, &layout->part[i].scales_off, err);
    }
    if (layout->part[i].type == MF_TYPE_F8_BLOCK) return read_f8_block(where, obj, layout, i, err);
    if (layout->part[i].type != MF_TYPE_AFFINE) return MF_OK;
    MF__TRY(mf__json_get_int(obj, where, "bits", 2, 8, &bits, err));
    MF__TRY(mf__json_get_int(obj, where, "group", 32, 128, &group, err));
    layout->part[i].bits = (int)bits;
    layout->part[i].group = (int)group;
    MF__TRY(get_type(where, obj, "scale_dtype", false, &layout->part[i].scale_type, err));
    MF__TRY(mf__json_get_int(obj, where, "scales", 0, BIG, &layout->part[i].scales_off, err));
    return mf__json_get_int(obj, where, "biases", 0, BIG, &layout->part[i].biases_off, err);
}

static mf_status read_parts(const char *where, const json_t *parts, mf__expert_layout *layout, mf_error *err) {
    if (!json_is_array(parts) || json_array_size(parts) != MF_PART_COUNT)
        return mf__fail(err, MF_E_FORMAT, "%s: parts is %s of %zu, expected an array of %d", where,
                        mf__json_type_name(parts), json_array_size(parts), MF_PART_COUNT);
    bool seen[MF_PART_COUNT] = {false};
    for (size_t k = 0; k < MF_PART_COUNT; k++) {
        const json_t *obj = json_array_get(parts, k);
        const char *name;
        char place[512];
        snprintf(place, sizeof place, "%s: part %zu", where, k);
        MF__TRY(mf__json_get_string(obj, place, "name", &name, err));
        int i = 0;
        while (i < MF_PART_COUNT && strcmp(name, mf__expert_part_name((mf__expert_part)i)) != 0) i++;
        if (i == MF_PART_COUNT || seen[i])
            return mf__fail(err, MF_E_FORMAT, "%s: the name \"%.40s\" is %s, expected each of gate, up and down once",
                            place, name, i == MF_PART_COUNT ? "not known" : "there twice");
        seen[i] = true;
        MF__TRY(read_part(place, obj, layout, i, err));
    }
    return MF_OK;
}

mf_status mf__experts_from_json(const char *where, const json_t *obj, mf__expert_layout *layout, int *n_experts,
                                mf_error *err) {
    int64_t count;
    *layout = (mf__expert_layout){0};
    MF__TRY(mf__json_get_int(obj, where, "count", 1, MF__EXPERTS_MAX, &count, err));
    MF__TRY(mf__json_get_int(obj, where, "stride", 1, BIG, &layout->stride, err));
    MF__TRY(mf__json_get_int(obj, where, "bytes", 1, BIG, &layout->bytes, err));
    MF__TRY(read_parts(where, json_object_get(obj, "parts"), layout, err));
    mf_status status = mf__expert_layout_check(layout, err);
    if (status != MF_OK) return mf__fail_prefix(err, status, "%s", where);
    *n_experts = (int)count;
    return MF_OK;
}

/* What a part has besides name, type and shape; NULL when out of memory. */
static json_t *part_offsets(const mf__expert_layout *layout, int i) {
    json_int_t data = layout->part[i].data_off, scales = layout->part[i].scales_off;
    json_t *rest = NULL;
    if (layout->part[i].type == MF_TYPE_AFFINE)
        rest = json_pack("{s:i, s:i, s:s, s:I, s:I, s:I}", "bits", layout->part[i].bits, "group", layout->part[i].group,
                         "scale_dtype", mf__type_name(layout->part[i].scale_type), "data", data, "scales", scales,
                         "biases", (json_int_t)layout->part[i].biases_off);
    else if (layout->part[i].type == MF_TYPE_MXFP4)
        rest = json_pack("{s:I, s:I}", "data", data, "scales", scales);
    else if (layout->part[i].type == MF_TYPE_F8_BLOCK)
        rest = json_pack("{s:i, s:i, s:s, s:I, s:I}", "block_rows", layout->part[i].block_rows, "group",
                         layout->part[i].group, "scale_dtype", mf__type_name(layout->part[i].scale_type), "data", data,
                         "scales", scales);
    else
        rest = json_pack("{s:I}", "data", data);
    if (rest && layout->part[i].has_bias &&
        json_object_set_new(rest, "bias", json_integer((json_int_t)layout->part[i].bias_off))) {
        json_decref(rest);
        return NULL;
    }
    return rest;
}

mf_status mf__native_experts_parse(const json_t *set, mf__expert_layout *layout, int *n_experts, mf_error *err) {
    return mf__experts_from_json("moeflux: experts", set, layout, n_experts, err);
}

json_t *mf__experts_to_json(const mf__expert_layout *layout, int n_experts) {
    json_t *parts = json_array();
    for (int i = 0; i < MF_PART_COUNT; i++) {
        json_t *part = json_pack("{s:s, s:s, s:I, s:I}", "name", mf__expert_part_name((mf__expert_part)i), "dtype",
                                 mf__type_name(layout->part[i].type), "rows", (json_int_t)layout->part[i].n_rows,
                                 "cols", (json_int_t)layout->part[i].n_cols);
        json_t *rest = part_offsets(layout, i);
        bool ok = part && rest && json_object_update(part, rest) == 0;
        json_decref(rest);
        if (!ok || json_array_append(parts, part) != 0) {
            json_decref(part);
            json_decref(parts);
            return NULL;
        }
        json_decref(part);
    }
    return json_pack("{s:i, s:I, s:I, s:o}", "count", n_experts, "stride", (json_int_t)layout->stride, "bytes",
                     (json_int_t)layout->bytes, "parts", parts);
}
