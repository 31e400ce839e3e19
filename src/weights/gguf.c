/* Reading GGUF.
 *
 *   "GGUF", u32 version, u64 tensors, u64 keys
 *   keys: string name, u32 type, value          strings: u64 length, bytes; arrays: u32 type, u64 count, values
 *   tensors: string name, u32 n_dims, u64 dims (contiguous first), u32 type, u64 offset
 *   data, at the next multiple of general.alignment
 *
 * Every length is checked against what is left of the file before it is used. */
#include "weights/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "quant/gguf_types.h"
#include "weights/catalog_build.h"

#define MAX_SPLITS 1000
#define DEFAULT_ALIGNMENT 32
#define MAX_DEPTH 1 /* arrays of arrays are not in use */

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, N_KINDS };
static const int KIND_BYTES[N_KINDS] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8}; /* at least, for the last kinds */

typedef struct cursor {
    const char *name;
    const uint8_t *data;
    size_t at, size;
} cursor;

static mf_status short_file(const cursor *c, const char *what, mf_error *err) {
    return mf__fail(err, MF_E_FORMAT, "%s ends inside %s, at byte %zu of %zu: it was cut off", c->name, what, c->at,
                    c->size);
}

static mf_status take(cursor *c, void *out, size_t n, const char *what, mf_error *err) {
    if (n > c->size - c->at) return short_file(c, what, err);
    memcpy(out, c->data + c->at, n);
    c->at += n;
    return MF_OK;
}

/* A borrowed string, not terminated. */
static mf_status take_string(cursor *c, const char **text, size_t *length, const char *what, mf_error *err) {
    uint64_t n = 0;
    MF__TRY(take(c, &n, sizeof n, what, err));
    if (n > c->size - c->at) return short_file(c, what, err);
    *text = (const char *)c->data + c->at;
    *length = (size_t)n;
    c->at += (size_t)n;
    return MF_OK;
}

/* ---- metadata ---- */

static json_t *number(const uint8_t *p, uint32_t kind) {
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
        float f32;
        double f64;
    } v = {0};
    memcpy(&v, p, (size_t)KIND_BYTES[kind]);
    switch (kind) {
    case U8: return json_integer(v.u8);
    case I8: return json_integer(v.i8);
    case U16: return json_integer(v.u16);
    case I16: return json_integer(v.i16);
    case U32: return json_integer(v.u32);
    case I32: return json_integer(v.i32);
    case U64: return json_integer((json_int_t)v.u64);
    case I64: return json_integer(v.i64);
    case BOOL: return json_boolean(v.u8);
    case F32: return isfinite(v.f32) ? json_real((double)v.f32) : json_null();
    case F64: return isfinite(v.f64) ? json_real(v.f64) : json_null();
    default: return NULL;
    }
}

static mf_status take_value(cursor *c, uint32_t kind, int depth, json_t **out, mf_error *err) {
    const char *text = NULL;
    size_t length = 0;
    *out = NULL;
    if (kind >= N_KINDS || (kind == ARRAY && depth >= MAX_DEPTH))
        return mf__fail(err, MF_E_FORMAT, "%s: a value at byte %zu has the type %u, which is not possible there",
                        c->name, c->at, kind);
    if (kind == STRING) {
        MF__TRY(take_string(c, &text, &length, "a string", err));
        *out = json_stringn(text, length);
        if (!*out) *out = json_null(); /* not UTF-8 */
        return MF_OK;
    }
    if (kind != ARRAY) {
        if ((size_t)KIND_BYTES[kind] > c->size - c->at) return short_file(c, "a value", err);
        *out = number(c->data + c->at, kind);
        c->at += (size_t)KIND_BYTES[kind];
        return *out ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for the metadata of %s", c->name);
    }
    uint32_t element = 0;
    uint64_t count = 0;
    MF__TRY(take(c, &element, sizeof element, "an array", err));
    MF__TRY(take(c, &count, sizeof count, "an array", err));
    if (element >= N_KINDS || count > (c->size - c->at) / (size_t)KIND_BYTES[element])
        return mf__fail(err, MF_E_FORMAT, "%s: an array of %" PRIu64 " values of type %u at byte %zu is not possible",
                        c->name, count, element, c->at);
    json_t *array = json_array();
    mf_status status = array ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for the metadata of %s", c->name);
    for (uint64_t i = 0; i < count && status == MF_OK; i++) {
        json_t *value;
        status = take_value(c, element, depth + 1, &value, err);
        if (status == MF_OK && json_array_append_new(array, value) != 0)
            status = mf__fail(err, MF_E_NOMEM, "no memory for the metadata of %s", c->name);
    }
    if (status != MF_OK)
        json_decref(array);
    else
        *out = array;
    return status;
}

static mf_status take_meta(cursor *c, uint64_t count, json_t *meta, mf_error *err) {
    for (uint64_t i = 0; i < count; i++) {
        const char *key = NULL;
        size_t length = 0;
        uint32_t kind = 0;
        json_t *value;
        MF__TRY(take_string(c, &key, &length, "a key", err));
        MF__TRY(take(c, &kind, sizeof kind, "a key's type", err));
        MF__TRY(take_value(c, kind, 0, &value, err));
        char name[MF__NAME_MAX + 1];
        if (length == 0 || length > MF__NAME_MAX || memchr(key, '\0', length)) {
            json_decref(value);
            return mf__fail(err, MF_E_FORMAT, "%s: a key of %zu bytes", c->name, length);
        }
        memcpy(name, key, length);
        name[length] = '\0';
        bool twice = json_object_get(meta, name) != NULL;
        if (twice) json_decref(value);
        if (twice || json_object_set_new(meta, name, value) != 0)
            return mf__fail(err, MF_E_FORMAT, "%s: the key %.60s is there twice, or is not UTF-8", c->name, name);
    }
    return MF_OK;
}

/* ---- tensors ---- */

typedef struct info {
    char name[MF__NAME_MAX + 1];
    mf__entry entry;
} info;

static mf_status take_dims(cursor *c, info *t, mf_error *err) {
    uint32_t n_dims = 0;
    uint64_t dims[4] = {1, 1, 1, 1};
    int64_t elements = 1;
    MF__TRY(take(c, &n_dims, sizeof n_dims, "a tensor's description", err));
    if (n_dims < 1 || n_dims > 4)
        return mf__fail(err, MF_E_FORMAT, "%s: tensor %s has %u dimensions, expected 1 to 4", c->name, t->name, n_dims);
    MF__TRY(take(c, dims, n_dims * sizeof *dims, "a tensor's description", err));
    t->entry.n_dims = (int)n_dims;
    for (uint32_t i = 0; i < n_dims; i++) {
        if (dims[i] < 1 || dims[i] > (uint64_t)(MF__ELEMENTS_MAX / elements))
            return mf__fail(err, MF_E_FORMAT, "%s: tensor %s: dimension %u is %" PRIu64, c->name, t->name, i, dims[i]);
        elements *= (int64_t)dims[i];
        t->entry.dims[n_dims - 1 - i] = (int64_t)dims[i];
    }
    return MF_OK;
}

static mf_status take_type(cursor *c, info *t, mf_error *err) {
    uint32_t type = 0;
    const char *type_name;
    int values = 1, bytes;
    mf__entry *e = &t->entry;
    MF__TRY(take(c, &type, sizeof type, "a tensor's description", err));
    if (!mf__gguf_type(type, &e->type, &type_name))
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s: tensor %s is of the type %s (%u), which is not read. Read are F32, F16, BF16, I32, Q8_0, "
                        "Q4_0, Q4_1, Q5_0, Q5_1, Q2_K to Q6_K, IQ4_NL, IQ4_XS and MXFP4",
                        c->name, t->name, type_name, type);
    int64_t elements = 1, cols = e->dims[e->n_dims - 1];
    for (int i = 0; i < e->n_dims; i++) elements *= e->dims[i];
    if (!mf__gguf_block(e->type, &values, &bytes)) bytes = mf__type_bits(e->type) / 8;
    if (cols % values)
        return mf__fail(err, MF_E_FORMAT, "%s: tensor %s: rows of %" PRId64 " values do not split into blocks of %d",
                        c->name, t->name, cols, values);
    e->size = elements / values * bytes;
    return MF_OK;
}

static mf_status take_info(cursor *c, info *t, mf_error *err) {
    const char *name = NULL;
    size_t length = 0;
    uint64_t offset = 0;
    *t = (info){0};
    MF__TRY(take_string(c, &name, &length, "a tensor's name", err));
    if (length > MF__NAME_MAX || memchr(name, '\0', length))
        return mf__fail(err, MF_E_FORMAT, "%s: a tensor's name of %zu bytes", c->name, length);
    memcpy(t->name, name, length);
    MF__TRY(mf__entry_check_name(c->name, t->name, err));
    MF__TRY(take_dims(c, t, err));
    MF__TRY(take_type(c, t, err));
    MF__TRY(take(c, &offset, sizeof offset, "a tensor's description", err));
    if (offset > INT64_MAX / 2)
        return mf__fail(err, MF_E_FORMAT, "%s: tensor %s: offset %" PRIu64, c->name, t->name, offset);
    t->entry.offset = (int64_t)offset;
    return MF_OK;
}

/* Puts the tensor where it is: behind the aligned start of the data. */
static mf_status place(const cursor *c, info *t, int64_t start, int file, mf__catalog *cat, mf_error *err) {
    mf__entry *e = &t->entry;
    int64_t room = (int64_t)c->size - start;
    if (e->offset > room || e->size > room - e->offset)
        return mf__fail(err, MF_E_FORMAT,
                        "%s: tensor %s: %" PRId64 " bytes at %" PRId64 " of the data, which has %" PRId64
                        " bytes: the file was cut off",
                        c->name, t->name, e->size, e->offset, room < 0 ? 0 : room);
    e->offset += start;
    e->file = file;
    e->name = t->name;
    return mf__catalog_add(cat, e, err);
}

static mf_status alignment_of(const cursor *c, const json_t *meta, int64_t *out, mf_error *err) {
    const json_t *value = json_object_get(meta, "general.alignment");
    *out = value ? json_integer_value(value) : DEFAULT_ALIGNMENT;
    if (*out >= 1 && *out <= 1 << 20 && (*out & (*out - 1)) == 0) return MF_OK;
    return mf__fail(err, MF_E_FORMAT, "%s: general.alignment is %" PRId64 ", expected a power of two", c->name, *out);
}

static mf_status take_tensors(cursor *c, uint64_t count, const json_t *meta, int file, mf__catalog *cat,
                              mf_error *err) {
    int64_t align;
    MF__TRY(alignment_of(c, meta, &align, err));
    if (count > (c->size - c->at) / 24) return short_file(c, "the table of tensors", err); /* none is shorter */
    info *infos = calloc((size_t)count + 1, sizeof *infos);
    if (!infos) return mf__fail(err, MF_E_NOMEM, "no memory for the table of %s", c->name);
    mf_status status = MF_OK;
    for (uint64_t i = 0; i < count && status == MF_OK; i++) status = take_info(c, &infos[i], err);
    int64_t start = ((int64_t)c->at + align - 1) / align * align;
    for (uint64_t i = 0; i < count && status == MF_OK; i++) status = place(c, &infos[i], start, file, cat, err);
    free(infos);
    return status;
}

/* ---- files ---- */

static mf_status read_file(cursor *c, int file, mf__catalog *cat, json_t *meta, mf_error *err) {
    char magic[4];
    uint32_t version = 0;
    uint64_t n_tensors = 0, n_keys = 0;
    MF__TRY(take(c, magic, sizeof magic, "the first bytes", err));
    if (memcmp(magic, "GGUF", 4)) return mf__fail(err, MF_E_FORMAT, "%s does not begin with GGUF", c->name);
    MF__TRY(take(c, &version, sizeof version, "the header", err));
    if (version != 2 && version != 3)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s is GGUF version %u; 2 and 3 are read", c->name, version);
    MF__TRY(take(c, &n_tensors, sizeof n_tensors, "the header", err));
    MF__TRY(take(c, &n_keys, sizeof n_keys, "the header", err));
    MF__TRY(take_meta(c, n_keys, meta, err));
    return take_tensors(c, n_tensors, meta, file, cat, err);
}

mf_status mf__gguf_parse(const char *name, const uint8_t *data, size_t size, mf__gguf *out, mf_error *err) {
    cursor c = {name, data, 0, size};
    int file;
    *out = (mf__gguf){.meta = json_object()};
    mf_status status = out->meta ? mf__catalog_create(&out->catalog, err) : mf__fail(err, MF_E_NOMEM, "no memory");
    if (status == MF_OK) status = mf__catalog_add_bytes(out->catalog, name, data, size, &file, err);
    if (status == MF_OK) status = read_file(&c, file, out->catalog, out->meta, err);
    if (status == MF_OK) status = mf__catalog_seal(out->catalog, err);
    if (status != MF_OK) mf__gguf_close(out);
    return status;
}

static mf_status add_file(mf__gguf *g, const char *path, json_t *meta, mf_error *err) {
    int file;
    MF__TRY(mf__catalog_add_file(g->catalog, path, &file, err));
    const mf__map *map = mf__catalog_map(g->catalog, file);
    cursor c = {path, map->data, 0, map->size};
    return read_file(&c, file, g->catalog, meta, err);
}

/* The other files of a split model: the same name with another number. */
static mf_status add_splits(mf__gguf *g, const char *path, mf_error *err) {
    const json_t *value = json_object_get(g->meta, "split.count");
    int64_t count = value ? json_integer_value(value) : 1;
    size_t n = strlen(path), tail = strlen("-00001-of-00009.gguf");
    char ending[32];
    if (count <= 1) return MF_OK;
    if (count > MAX_SPLITS) return mf__fail(err, MF_E_FORMAT, "%s: split.count is %" PRId64, path, count);
    snprintf(ending, sizeof ending, "-00001-of-%05d.gguf", (int)count);
    if (n < tail || strcmp(path + n - tail, ending) || json_integer_value(json_object_get(g->meta, "split.no")) != 0)
        return mf__fail(err, MF_E_INVALID,
                        "%s is part %" PRId64 " of a model in %" PRId64 " files: give the first, whose name ends in %s",
                        path, (int64_t)json_integer_value(json_object_get(g->meta, "split.no")) + 1, count, ending);
    char *other = strdup(path);
    mf_status status = other ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory for a path");
    for (int i = 2; i <= count && status == MF_OK; i++) {
        json_t *meta = json_object();
        snprintf(other + n - tail, tail + 1, "-%05d-of-%05d.gguf", i, (int)count);
        status = add_file(g, other, meta, err);
        if (status == MF_OK && json_integer_value(json_object_get(meta, "split.no")) != i - 1)
            status = mf__fail(err, MF_E_MISMATCH, "%s is not part %d of the model: split.no is %" PRId64, other, i,
                              (int64_t)json_integer_value(json_object_get(meta, "split.no")));
        json_decref(meta);
    }
    free(other);
    return status;
}

static mf_status check_count(const mf__gguf *g, const char *path, mf_error *err) {
    const json_t *want = json_object_get(g->meta, "split.tensors.count");
    if (!want || json_integer_value(want) == mf__catalog_count(g->catalog)) return MF_OK;
    return mf__fail(err, MF_E_MISMATCH,
                    "%s and its other parts have %" PRId64 " tensors, split.tensors.count is %" PRId64, path,
                    mf__catalog_count(g->catalog), (int64_t)json_integer_value(want));
}

mf_status mf__gguf_open(const char *path, mf__gguf *out, mf_error *err) {
    *out = (mf__gguf){.meta = json_object()};
    mf_status status = out->meta ? mf__catalog_create(&out->catalog, err) : mf__fail(err, MF_E_NOMEM, "no memory");
    if (status == MF_OK) status = add_file(out, path, out->meta, err);
    if (status == MF_OK) status = add_splits(out, path, err);
    if (status == MF_OK) status = mf__catalog_seal(out->catalog, err);
    if (status == MF_OK) status = check_count(out, path, err);
    if (status != MF_OK) mf__gguf_close(out);
    return status;
}

void mf__gguf_close(mf__gguf *g) {
    mf__catalog_close(g->catalog);
    json_decref(g->meta);
    *g = (mf__gguf){0};
}

bool mf__gguf_is(const char *path) {
    int fd;
    char magic[4];
    if (mf__file_open(path, &fd, NULL, NULL) != MF_OK) return false;
    bool found = mf__pread_all(fd, magic, sizeof magic, 0, path, NULL) == MF_OK && !memcmp(magic, "GGUF", 4);
    close(fd);
    return found;
}
