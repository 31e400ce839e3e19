/* Writing safetensors: the tensors in the order given, the header padded with spaces so that the data begins at a
 * multiple of 64 bytes. For tests and tools: the file is put together in memory. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "weights/catalog_build.h"
#include "weights/safetensors.h"

#define PREFIX 8
#define DATA_ALIGN 64

static mf_status describe(const char *path, const mf__entry *entry, int64_t at, json_t *header, mf_error *err) {
    mf__entry e = *entry;
    MF__TRY(mf__entry_check_name(path, e.name, err));
    if (e.type >= MF_TYPE_AFFINE || e.n_dims < 0 || e.n_dims > MF_MAX_DIMS)
        return mf__fail(err, MF_E_INVALID, "%s: tensor %s: type %s with %d dimensions cannot be stored", path, e.name,
                        mf__type_name(e.type), e.n_dims);
    MF__TRY(mf__entry_size(path, &e, err));
    if (e.size != entry->size)
        return mf__fail(err, MF_E_INVALID, "%s: tensor %s: %" PRId64 " bytes given, its shape needs %" PRId64, path,
                        e.name, entry->size, e.size);
    if (json_object_get(header, e.name) || strcmp(e.name, "__metadata__") == 0)
        return mf__fail(err, MF_E_INVALID, "%s: tensor %s is given twice or has a reserved name", path, e.name);
    json_t *shape = json_array();
    for (int i = 0; i < e.n_dims; i++) json_array_append_new(shape, json_integer(e.dims[i]));
    json_t *obj = json_pack("{s:s, s:o, s:[I, I]}", "dtype", mf__type_name(e.type), "shape", shape, "data_offsets",
                            (json_int_t)at, (json_int_t)(at + e.size));
    if (!obj || json_object_set_new(header, e.name, obj) != 0)
        return mf__fail(err, MF_E_INVALID, "%s: tensor %s cannot be described: no memory, or a name that is not UTF-8",
                        path, e.name);
    return MF_OK;
}

static mf_status put_header(mf__strbuf *out, const char *path, const json_t *header, mf_error *err) {
    char *json = json_dumps(header, JSON_COMPACT);
    if (!json) return mf__fail(err, MF_E_NOMEM, "no memory to write %s", path);
    size_t length = strlen(json);
    size_t padded = (PREFIX + length + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN - PREFIX;
    uint64_t prefix = padded;
    char spaces[DATA_ALIGN];
    memset(spaces, ' ', sizeof spaces);
    mf_status status = mf__strbuf_append(out, &prefix, sizeof prefix, err);
    if (status == MF_OK) status = mf__strbuf_append(out, json, length, err);
    if (status == MF_OK) status = mf__strbuf_append(out, spaces, padded - length, err);
    free(json);
    return status;
}

mf_status mf__safetensors_write(const char *path, const mf__entry *entries, int64_t n, mf_error *err) {
    json_t *header = json_object();
    mf_status status = header ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory to write %s", path);
    int64_t at = 0;
    for (int64_t i = 0; i < n && status == MF_OK; i++) {
        status = describe(path, &entries[i], at, header, err);
        at += entries[i].size;
    }
    mf__strbuf file = {0};
    if (status == MF_OK) status = put_header(&file, path, header, err);
    for (int64_t i = 0; i < n && status == MF_OK; i++)
        if (entries[i].size > 0) status = mf__strbuf_append(&file, entries[i].data, (size_t)entries[i].size, err);
    if (status == MF_OK) status = mf__file_replace(path, file.data, file.size, err);
    mf__strbuf_free(&file);
    json_decref(header);
    return status;
}
