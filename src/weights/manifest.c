/* model_weights.json: the table of the trunk's tensors, and our own block "moeflux".
 *
 * Manifests of the flash-moe tools have no such block; what it says (experts per layer, layout of an expert) then has
 * to come from the model's config. Unknown keys are ignored, so a manifest may say more than we read. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "weights/native_build.h"

/* {"offset", "size", "shape", "dtype"[, "bits"]}. bits repeats what the shapes of codes and scales say; they rule. */
static mf_status read_tensor(const char *name, const char *tensor, const json_t *obj, uint64_t trunk_size,
                             mf__entry *out, mf_error *err) {
    MF__TRY(mf__entry_parse(name, tensor, obj, out, err));
    int64_t size;
    mf_status status = mf__json_get_int(obj, tensor, "offset", 0, INT64_MAX, &out->offset, err);
    if (status == MF_OK) status = mf__json_get_int(obj, tensor, "size", 0, INT64_MAX, &size, err);
    if (status != MF_OK) return mf__fail_prefix(err, status, "%s: tensor", name);
    if (size != out->size) {
        char shape[MF__SHAPE_TEXT];
        return mf__fail(err, MF_E_FORMAT, "%s: tensor %s: size %" PRId64 ", but %s %s needs %" PRId64, name, tensor,
                        size, mf__type_name(out->type), mf__entry_shape(out, shape), out->size);
    }
    if ((uint64_t)out->offset > trunk_size || (uint64_t)size > trunk_size - (uint64_t)out->offset)
        return mf__fail(err, MF_E_FORMAT,
                        "%s: tensor %s: %" PRId64 " bytes at %" PRId64 " do not lie in " MF__TRUNK_NAME
                        ", which has %" PRIu64 " bytes: it was cut off, or belongs to another manifest",
                        name, tensor, size, out->offset, trunk_size);
    return MF_OK;
}

/* N of "model.layers.N.…", or -1. Numbers beyond the limit give the limit, which the caller refuses. */
static int layer_of(const char *tensor) {
    static const char prefix[] = "model.layers.";
    if (strncmp(tensor, prefix, sizeof prefix - 1) != 0) return -1;
    const char *p = tensor + sizeof prefix - 1;
    int n = 0;
    if (*p < '0' || *p > '9') return -1;
    for (; *p >= '0' && *p <= '9'; p++) n = n >= MF__LAYERS_MAX ? MF__LAYERS_MAX : n * 10 + (*p - '0');
    return *p == '.' ? n : -1;
}

static mf_status read_tensors(const char *name, const json_t *tensors, mf__native *out, mf_error *err) {
    if (!json_is_object(tensors))
        return mf__fail(err, MF_E_FORMAT, "%s: tensors is %s, expected an object: not a manifest of a model", name,
                        mf__json_type_name(tensors));
    const char *tensor;
    json_t *value;
    json_object_foreach((json_t *)tensors, tensor, value) {
        mf__entry e;
        MF__TRY(read_tensor(name, tensor, value, mf__catalog_map(out->catalog, 0)->size, &e, err));
        e.file = 0;
        MF__TRY(mf__catalog_add(out->catalog, &e, err));
        int layer = layer_of(tensor);
        if (layer >= MF__LAYERS_MAX)
            return mf__fail(err, MF_E_LIMIT, "%s: tensor %s: more than %d layers", name, tensor, MF__LAYERS_MAX);
        if (layer >= out->n_layers) out->n_layers = layer + 1;
    }
    return mf__catalog_seal(out->catalog, err);
}

static mf_status read_own_block(const char *name, const json_t *block, mf__native *out, mf_error *err) {
    if (!block) return MF_OK;
    int64_t version;
    mf_status status = mf__json_get_int(block, "moeflux", "version", 1, INT64_MAX, &version, err);
    if (status != MF_OK) return mf__fail_prefix(err, status, "%s", name);
    if (version > MF_MANIFEST_VERSION)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s: the model was written in version %" PRId64
                        " of the format, this build reads up to %d: update moeflux or convert the model again",
                        name, version, MF_MANIFEST_VERSION);
    const json_t *experts = json_object_get(block, "experts");
    if (!experts || json_is_null(experts)) return MF_OK; /* a dense model */
    status = mf__experts_from_json("moeflux: experts", experts, &out->layout, &out->n_experts, err);
    if (status != MF_OK) return mf__fail_prefix(err, status, "%s", name);
    out->has_layout = true;
    return MF_OK;
}

mf_status mf__manifest_load(const char *name, const char *json, size_t json_size, mf__native *out, mf_error *err) {
    MF__TRY(mf__json_parse(name, json, json_size, &out->manifest, err));
    if (!json_is_object(out->manifest))
        return mf__fail(err, MF_E_FORMAT, "%s: found %s, expected an object: not a manifest of a model", name,
                        mf__json_type_name(out->manifest));
    MF__TRY(read_own_block(name, json_object_get(out->manifest, "moeflux"), out, err));
    return read_tensors(name, json_object_get(out->manifest, "tensors"), out, err);
}

mf_status mf__manifest_parse(const char *name, const char *json, size_t json_size, const uint8_t *bin, size_t bin_size,
                             mf__native *out, mf_error *err) {
    *out = (mf__native){0};
    int file;
    mf_status status = mf__catalog_create(&out->catalog, err);
    if (status == MF_OK) status = mf__catalog_add_bytes(out->catalog, MF__TRUNK_NAME, bin, bin_size, &file, err);
    if (status == MF_OK) status = mf__manifest_load(name, json, json_size, out, err);
    if (status != MF_OK) mf__native_close(out);
    return status;
}
