/* Reading safetensors: one file, or the shards of an index.
 *
 *   0        u64 N, little-endian
 *   8        N bytes of JSON: NAME -> {"dtype", "shape", "data_offsets": [begin, end]}, and "__metadata__"
 *   8 + N    the data; offsets count from here
 *
 * The file is not trusted. What holds for every entry that reaches the catalogue: its bytes lie inside the file, their
 * number is what dtype and shape say, no two entries share a byte, and the data has no holes. Bytes behind the last
 * tensor are tolerated.
 *
 * With an index, the index is the table of contents: a tensor it does not list is ignored (its place in the file is
 * checked all the same), and one that lies in another shard than the index says is an error. */
#include "weights/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "weights/catalog_build.h"

#define PREFIX 8
#define HEADER_MAX ((uint64_t)100 * 1000 * 1000)
#define INDEX_MAX ((size_t)256 * 1024 * 1024)
#define SINGLE_NAME "model.safetensors"
#define INDEX_NAME "model.safetensors.index.json"

/* ---- one file ---- */

static mf_status read_header(const char *path, const mf__map *map, json_t **header, int64_t *data_at, mf_error *err) {
    uint64_t length;
    if (map->size < PREFIX)
        return mf__fail(err, MF_E_FORMAT, "%s has %zu bytes: not a safetensors file, which begins with a length of %d",
                        path, map->size, PREFIX);
    memcpy(&length, map->data, PREFIX);
    if (length > HEADER_MAX)
        return mf__fail(err, MF_E_FORMAT,
                        "%s claims a header of %" PRIu64 " bytes, more than the %" PRIu64
                        " allowed: not a safetensors file",
                        path, length, HEADER_MAX);
    if (length > map->size - PREFIX)
        return mf__fail(err, MF_E_FORMAT,
                        "%s is %" PRIu64 " bytes short: it claims a header of %" PRIu64 " and has %zu", path,
                        length - (map->size - PREFIX), length, map->size);
    const char *json = (const char *)map->data + PREFIX;
    if (length < 2 || json[0] != '{')
        return mf__fail(err, MF_E_FORMAT, "%s: the header does not begin with {: not a safetensors file", path);
    mf_status status = mf__json_parse(path, json, (size_t)length, header, err);
    if (status != MF_OK) return mf__fail_prefix(err, status, "safetensors header");
    *data_at = (int64_t)(PREFIX + length);
    return MF_OK;
}

static mf_status check_metadata(const char *path, const json_t *metadata, mf_error *err) {
    if (!json_is_object(metadata))
        return mf__fail(err, MF_E_FORMAT, "%s: __metadata__ is %s, expected an object", path,
                        mf__json_type_name(metadata));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metadata, key, value) {
        if (!json_is_string(value))
            return mf__fail(err, MF_E_FORMAT, "%s: __metadata__: %.80s is %s, expected a string", path, key,
                            mf__json_type_name(value));
    }
    return MF_OK;
}

/* Name, type, shape and place of one tensor; offset counts from the data area here. */
static mf_status read_entry(const char *path, const char *name, const json_t *obj, mf__entry *out, mf_error *err) {
    MF__TRY(mf__entry_parse(path, name, obj, out, err));
    const json_t *offsets = json_object_get(obj, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return mf__fail(err, MF_E_FORMAT, "%s: tensor %s: data_offsets is %s, expected an array of two integers", path,
                        name, json_is_array(offsets) ? "another array" : mf__json_type_name(offsets));
    int64_t begin = json_integer_value(first), end = json_integer_value(second);
    if (begin < 0 || end < begin)
        return mf__fail(err, MF_E_FORMAT, "%s: tensor %s: data_offsets [%" PRId64 ", %" PRId64 "] are out of order",
                        path, name, begin, end);
    if (end - begin != out->size) {
        char shape[MF__SHAPE_TEXT];
        return mf__fail(err, MF_E_FORMAT, "%s: tensor %s: %" PRId64 " bytes are stored, but %s %s needs %" PRId64, path,
                        name, end - begin, mf__type_name(out->type), mf__entry_shape(out, shape), out->size);
    }
    out->offset = begin;
    return MF_OK;
}

static int compare_places(const void *a, const void *b) {
    const mf__entry *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->size > y->size) - (x->size < y->size); /* an empty tensor before the one that begins where it lies */
}

/* Sorts by place; then each must begin where the one before it ended. */
static mf_status check_places(const char *path, mf__entry *entries, int64_t n, mf_error *err) {
    if (n > 0) qsort(entries, (size_t)n, sizeof *entries, compare_places);
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        const mf__entry *e = &entries[i];
        if (e->offset < at)
            return mf__fail(err, MF_E_FORMAT,
                            "%s: tensors %s and %s overlap: one ends at %" PRId64 ", the other begins at %" PRId64,
                            path, entries[i - 1].name, e->name, at, e->offset);
        if (e->offset > at)
            return mf__fail(err, MF_E_FORMAT,
                            "%s: tensor %s begins at %" PRId64 ", but the bytes from %" PRId64
                            " on belong to no tensor",
                            path, e->name, e->offset, at);
        at = e->offset + e->size;
    }
    return MF_OK;
}

/* All tensors of a header into a malloc'd array, sorted by place and checked; names are borrowed from the header. */
static mf_status read_entries(const char *path, const json_t *header, uint64_t area, mf__entry **out, int64_t *out_n,
                              mf_error *err) {
    mf__entry *entries = calloc(json_object_size(header) + 1, sizeof *entries);
    if (!entries) return mf__fail(err, MF_E_NOMEM, "no memory for the table of %s", path);
    mf_status status = MF_OK;
    int64_t n = 0, last = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)header, name, value) {
        if (strcmp(name, "__metadata__") == 0) {
            status = check_metadata(path, value, err);
        } else {
            status = read_entry(path, name, value, &entries[n], err);
            if (entries[n].offset + entries[n].size > entries[last].offset + entries[last].size) last = n;
            n++;
        }
        if (status != MF_OK) break;
    }
    if (status == MF_OK && n > 0) {
        uint64_t end = (uint64_t)(entries[last].offset + entries[last].size);
        if (end > area)
            status = mf__fail(err, MF_E_FORMAT,
                              "%s is %" PRIu64 " bytes short: tensor %s ends at byte %" PRIu64
                              " of the data, the file has %" PRIu64 "; it was cut off or not fully downloaded",
                              path, end - area, entries[last].name, end, area);
    }
    if (status == MF_OK) status = check_places(path, entries, n, err);
    if (status != MF_OK) {
        free(entries);
        return status;
    }
    *out = entries;
    *out_n = n;
    return MF_OK;
}

/* Adds the tensors of one mapped file; with a weight_map only those it lists, and they must be listed for `shard`. */
static mf_status add_tensors(mf__catalog *cat, int file, const json_t *weight_map, const char *shard, mf_error *err) {
    const char *path = mf__catalog_file(cat, file);
    const mf__map *map = mf__catalog_map(cat, file);
    json_t *header;
    int64_t data_at = 0, n = 0;
    MF__TRY(read_header(path, map, &header, &data_at, err));
    mf__entry *entries = NULL;
    mf_status status = read_entries(path, header, map->size - (uint64_t)data_at, &entries, &n, err);
    for (int64_t i = 0; i < n && status == MF_OK; i++) {
        mf__entry e = entries[i];
        const char *listed = weight_map ? json_string_value(json_object_get(weight_map, e.name)) : NULL;
        if (weight_map && !listed) continue;
        if (weight_map && strcmp(listed, shard) != 0) {
            status = mf__fail(err, MF_E_FORMAT, "%s: tensor %s is in this file, but the index places it in %s", path,
                              e.name, listed);
            break;
        }
        e.file = file;
        e.offset += data_at;
        status = mf__catalog_add(cat, &e, err);
    }
    free(entries);
    json_decref(header);
    return status;
}

/* ---- an index of shards ---- */

static bool plain_file_name(const char *name) {
    return *name && !strchr(name, '/') && !strchr(name, '\\') && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static mf_status add_shard(mf__catalog *cat, const char *dir, const char *index, const json_t *weight_map,
                           const char *shard, mf_error *err) {
    char *path = mf__path_join(dir, shard);
    if (!path) return mf__fail(err, MF_E_NOMEM, "no memory to open %s", shard);
    mf_status status;
    int file;
    if (!mf__path_exists(path)) {
        status = mf__fail(err, MF_E_NOT_FOUND, "%s is missing: %s lists it. Download the rest of the checkpoint", path,
                          index);
    } else {
        status = mf__catalog_add_file(cat, path, &file, err);
        if (status == MF_OK) status = add_tensors(cat, file, weight_map, shard, err);
    }
    free(path);
    return status;
}

/* Opens every shard of the map once, in the order the map first names them; seen is a set of the names done. */
static mf_status add_shards(mf__catalog *cat, const char *dir, const char *index, const json_t *weight_map,
                            json_t *seen, mf_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)weight_map, name, value) {
        const char *shard = json_string_value(value);
        MF__TRY(mf__entry_check_name(index, name, err));
        if (!shard)
            return mf__fail(err, MF_E_FORMAT, "%s: weight_map: %s is %s, expected a file name", index, name,
                            mf__json_type_name(value));
        if (!plain_file_name(shard))
            return mf__fail(err, MF_E_FORMAT,
                            "%s: weight_map: %s is in \"%.100s\", expected the name of a file beside the index", index,
                            name, shard);
        if (json_object_get(seen, shard)) continue;
        if (json_object_set_new(seen, shard, json_true()) != 0)
            return mf__fail(err, MF_E_NOMEM, "no memory to read %s", index);
        MF__TRY(add_shard(cat, dir, index, weight_map, shard, err));
    }
    return MF_OK;
}

static mf_status check_all_found(const mf__catalog *cat, const char *index, const json_t *weight_map, mf_error *err) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)weight_map, name, value) {
        if (!mf__catalog_find(cat, name))
            return mf__fail(err, MF_E_FORMAT, "%s: tensor %s is listed for %s, which does not have it", index, name,
                            json_string_value(value));
    }
    return MF_OK;
}

static mf_status open_index(mf__catalog *cat, const char *dir, const char *index, mf_error *err) {
    json_t *root;
    MF__TRY(mf__json_read(index, INDEX_MAX, &root, err));
    const json_t *weight_map = json_object_get(root, "weight_map");
    json_t *seen = json_object();
    mf_status status;
    if (!json_is_object(weight_map))
        status = mf__fail(err, MF_E_FORMAT, "%s: weight_map is %s, expected an object", index,
                          mf__json_type_name(weight_map));
    else
        status = add_shards(cat, dir, index, weight_map, seen, err);
    if (status == MF_OK) status = mf__catalog_seal(cat, err);
    if (status == MF_OK) status = check_all_found(cat, index, weight_map, err);
    json_decref(seen);
    json_decref(root);
    return status;
}

/* ---- entry points ---- */

static mf_status open_single(mf__catalog *cat, const char *path, mf_error *err) {
    int file;
    MF__TRY(mf__catalog_add_file(cat, path, &file, err));
    MF__TRY(add_tensors(cat, file, NULL, NULL, err));
    return mf__catalog_seal(cat, err);
}

/* Where both are present the single file is taken, as other loaders do. */
static mf_status open_dir(mf__catalog *cat, const char *dir, mf_error *err) {
    char *single = mf__path_join(dir, SINGLE_NAME), *index = mf__path_join(dir, INDEX_NAME);
    char *native = mf__path_join(dir, "model_weights.json");
    mf_status status;
    if (!single || !index || !native)
        status = mf__fail(err, MF_E_NOMEM, "no memory to open %s", dir);
    else if (mf__path_exists(single))
        status = open_single(cat, single, err);
    else if (mf__path_exists(index))
        status = open_index(cat, dir, index, err);
    else if (mf__path_exists(native))
        status = mf__fail(err, MF_E_NOT_FOUND,
                          "%s is a converted model (it has model_weights.json), not a safetensors checkpoint", dir);
    else
        status = mf__fail(err, MF_E_NOT_FOUND,
                          "%s is not a checkpoint: neither " SINGLE_NAME " nor " INDEX_NAME " is there", dir);
    free(single);
    free(index);
    free(native);
    return status;
}

mf_status mf__safetensors_open(const char *path, mf__catalog **out, mf_error *err) {
    *out = NULL;
    mf__catalog *cat;
    MF__TRY(mf__catalog_create(&cat, err));
    mf_status status = mf__path_is_dir(path) ? open_dir(cat, path, err) : open_single(cat, path, err);
    if (status != MF_OK)
        mf__catalog_close(cat);
    else
        *out = cat;
    return status;
}

mf_status mf__safetensors_parse(const char *name, const uint8_t *data, size_t size, mf__catalog **out, mf_error *err) {
    *out = NULL;
    mf__catalog *cat;
    MF__TRY(mf__catalog_create(&cat, err));
    int file;
    mf_status status = mf__catalog_add_bytes(cat, name, data, size, &file, err);
    if (status == MF_OK) status = add_tensors(cat, file, NULL, NULL, err);
    if (status == MF_OK) status = mf__catalog_seal(cat, err);
    if (status != MF_OK)
        mf__catalog_close(cat);
    else
        *out = cat;
    return status;
}
