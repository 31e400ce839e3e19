/* One tensor's description in JSON: {"dtype": "BF16", "shape": [rows, cols], ...}, checked. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "weights/catalog_build.h"

mf_status mf__entry_check_name(const char *where, const char *name, mf_error *err) {
    size_t length = strlen(name);
    if (length == 0) return mf__fail(err, MF_E_FORMAT, "%s: a tensor has an empty name", where);
    if (length > MF__NAME_MAX)
        return mf__fail(err, MF_E_LIMIT, "%s: a tensor name of %zu bytes (%.40s...), at most %d are accepted", where,
                        length, name, MF__NAME_MAX);
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return mf__fail(err, MF_E_FORMAT, "%s: a tensor name has the control character 0x%02x at byte %zu", where,
                            (unsigned char)name[i], i);
    return MF_OK;
}

mf_status mf__entry_size(const char *where, mf__entry *entry, mf_error *err) {
    /* Zeros are left out of the product that is checked: a shape such as [0, 2^60] is as unusable as [1, 2^60]. */
    int64_t elements = 1, checked = 1;
    for (int i = 0; i < entry->n_dims; i++) {
        int64_t dim = entry->dims[i];
        if (dim < 0)
            return mf__fail(err, MF_E_FORMAT, "%s: tensor %s: dimension %d is %" PRId64 ", expected 0 or more", where,
                            entry->name, i, dim);
        if (dim > 0 && checked > MF__ELEMENTS_MAX / dim)
            return mf__fail(err, MF_E_FORMAT, "%s: tensor %s: the shape has more than 2^50 elements", where,
                            entry->name);
        if (dim > 0) checked *= dim;
        elements *= dim;
    }
    entry->size = elements * mf__type_bits(entry->type) / 8;
    return MF_OK;
}

static mf_status parse_shape(const char *where, const json_t *shape, mf__entry *out, mf_error *err) {
    if (!json_is_array(shape))
        return mf__fail(err, MF_E_FORMAT, "%s: tensor %s: shape is %s, expected an array", where, out->name,
                        mf__json_type_name(shape));
    size_t n = json_array_size(shape);
    if (n > MF_MAX_DIMS)
        return mf__fail(err, MF_E_LIMIT, "%s: tensor %s: %zu dimensions, at most %d are accepted", where, out->name, n,
                        MF_MAX_DIMS);
    for (size_t i = 0; i < n; i++) {
        const json_t *dim = json_array_get(shape, i);
        if (!json_is_integer(dim))
            return mf__fail(err, MF_E_FORMAT, "%s: tensor %s: dimension %zu is %s, expected an integer", where,
                            out->name, i, mf__json_type_name(dim));
        out->dims[i] = json_integer_value(dim);
    }
    out->n_dims = (int)n;
    return MF_OK;
}

mf_status mf__entry_parse(const char *where, const char *name, const json_t *obj, mf__entry *out, mf_error *err) {
    *out = (mf__entry){.name = name};
    MF__TRY(mf__entry_check_name(where, name, err));
    if (!json_is_object(obj))
        return mf__fail(err, MF_E_FORMAT, "%s: tensor %s: found %s, expected an object", where, name,
                        mf__json_type_name(obj));
    const json_t *dtype = json_object_get(obj, "dtype");
    if (!json_is_string(dtype))
        return mf__fail(err, MF_E_FORMAT, "%s: tensor %s: dtype is %s, expected a string", where, name,
                        mf__json_type_name(dtype));
    if (!mf__type_parse(json_string_value(dtype), &out->type))
        return mf__fail(
            err, MF_E_UNSUPPORTED,
            "%s: tensor %s: dtype \"%.40s\" is not known (known are F32 F16 BF16 F64 F8_E4M3 F8_E5M2, I8 to "
            "I64, U8 to U64 and BOOL)",
            where, name, json_string_value(dtype));
    MF__TRY(parse_shape(where, json_object_get(obj, "shape"), out, err));
    return mf__entry_size(where, out, err);
}

const char *mf__entry_shape(const mf__entry *entry, char text[MF__SHAPE_TEXT]) {
    size_t at = (size_t)snprintf(text, MF__SHAPE_TEXT, "[");
    for (int i = 0; i < entry->n_dims; i++) /* six numbers of at most 20 digits fit */
        at += (size_t)snprintf(text + at, MF__SHAPE_TEXT - at, "%s%" PRId64, i ? ", " : "", entry->dims[i]);
    snprintf(text + at, MF__SHAPE_TEXT - at, "]");
    return text;
}
