/* The record of a shard. */
#include "weights/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "weights/native_build.h"

#define RECORD_MAX ((size_t)256 << 20)
#define RECORD_VERSION 1
#define EXPERTS_MOST (1 << 24) /* of all layers: hundreds of times what there is */

static int digits_of(int n_ranks) {
    return (n_ranks + 3) / 4;
}

static const char DIGITS[] = "0123456789abcdef";

/* The owners of a layer: hexadecimal digits, as many for each expert as the ranks have bits for. */
static mf_status parse_layer(const char *name, const json_t *text, int layer, mf__shard *s, mf_error *err) {
    int digits = digits_of(s->n_ranks);
    const char *from = json_string_value(text);
    if (!from || json_string_length(text) != (size_t)(digits * s->n_experts))
        return mf__fail(err, MF_E_FORMAT, "%s: the owners of layer %d are not %d hexadecimal digits", name, layer,
                        digits * s->n_experts);
    for (int e = 0; e < s->n_experts; e++) {
        uint64_t owners = 0;
        for (int i = 0; i < digits; i++, from++) {
            const char *at = *from ? strchr(DIGITS, *from) : NULL;
            if (!at) return mf__fail(err, MF_E_FORMAT, "%s: \"%c\" in the owners of layer %d", name, *from, layer);
            owners = owners << 4 | (uint64_t)(at - DIGITS);
        }
        if (s->n_ranks < 64 && owners >> s->n_ranks)
            return mf__fail(err, MF_E_FORMAT, "%s: expert %d of layer %d has an owner beyond rank %d", name, e, layer,
                            s->n_ranks - 1);
        s->owners[(int64_t)layer * s->n_experts + e] = owners;
    }
    return MF_OK;
}

static mf_status parse_record(const char *name, const json_t *root, mf__shard *s, mf_error *err) {
    int64_t version, n_ranks, rank, n_layers, n_experts;
    MF__TRY(mf__json_get_int(root, name, "moeflux_shard", 1, INT32_MAX, &version, err));
    if (version > RECORD_VERSION)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s has version %lld, this moeflux knows %d: use a newer one", name,
                        (long long)version, RECORD_VERSION);
    MF__TRY(mf__json_get_int(root, name, "ranks", 2, MF_SHARD_RANKS, &n_ranks, err));
    MF__TRY(mf__json_get_int(root, name, "rank", 0, n_ranks - 1, &rank, err));
    MF__TRY(mf__json_get_int(root, name, "layers", 1, MF__LAYERS_MAX, &n_layers, err));
    MF__TRY(mf__json_get_int(root, name, "experts", 1, MF__EXPERTS_MAX, &n_experts, err));
    MF__TRY(mf__json_opt_bool(root, name, "trunk", false, &s->trunk, err));
    s->n_ranks = (int)n_ranks;
    s->rank = (int)rank;
    s->n_layers = (int)n_layers;
    s->n_experts = (int)n_experts;
    const json_t *owners = json_object_get(root, "owners");
    if (json_array_size(owners) != (size_t)n_layers) /* before memory for them is taken */
        return mf__fail(err, MF_E_FORMAT, "%s: owners of %zu layers, expected %lld", name, json_array_size(owners),
                        (long long)n_layers);
    if (n_layers * n_experts > EXPERTS_MOST)
        return mf__fail(err, MF_E_LIMIT, "%s: %lld layers of %lld experts, at most %d are possible", name,
                        (long long)n_layers, (long long)n_experts, EXPERTS_MOST);
    s->owners = calloc((size_t)n_layers * (size_t)n_experts, sizeof *s->owners);
    if (!s->owners) return mf__fail(err, MF_E_NOMEM, "no memory for the owners of experts");
    for (int l = 0; l < s->n_layers; l++) {
        const json_t *text = json_array_get(owners, (size_t)l);
        if (!json_is_null(text)) MF__TRY(parse_layer(name, text, l, s, err));
    }
    return MF_OK;
}

mf_status mf__shard_parse(const char *name, const char *json, size_t size, mf__shard **out, mf_error *err) {
    json_t *root = NULL;
    *out = NULL;
    MF__TRY(mf__json_parse(name, json, size, &root, err));
    mf__shard *s = calloc(1, sizeof *s);
    mf_status st = s ? parse_record(name, root, s, err) : mf__fail(err, MF_E_NOMEM, "no memory to open %s", name);
    json_decref(root);
    if (st == MF_OK)
        *out = s;
    else
        mf__shard_free(s);
    return st;
}

mf_status mf__shard_read(const char *dir, mf__shard **out, mf_error *err) {
    char *path = mf__path_join(dir, MF_SHARD_NAME), *text = NULL;
    size_t size;
    *out = NULL;
    if (!path) return mf__fail(err, MF_E_NOMEM, "no memory to open %s", dir);
    mf_status st = MF_OK;
    if (mf__path_exists(path)) {
        st = mf__file_read(path, RECORD_MAX, &text, &size, err);
        if (st == MF_OK) st = mf__shard_parse(path, text, size, out, err);
    }
    free(text);
    free(path);
    return st;
}

static mf_status write_layer(const mf__shard *s, int layer, mf__strbuf *b) {
    const uint64_t *owners = s->owners + (int64_t)layer * s->n_experts;
    uint64_t any = 0;
    for (int e = 0; e < s->n_experts; e++) any |= owners[e];
    MF__TRY(mf__strbuf_printf(b, NULL, "%s\n  %s", layer ? "," : "", any ? "\"" : "null"));
    for (int e = 0; any && e < s->n_experts; e++)
        MF__TRY(mf__strbuf_printf(b, NULL, "%0*llx", digits_of(s->n_ranks), (unsigned long long)owners[e]));
    return any ? mf__strbuf_printf(b, NULL, "\"") : MF_OK;
}

char *mf__shard_text(const mf__shard *s) {
    mf__strbuf b = {0};
    mf_status st =
        mf__strbuf_printf(&b, NULL,
                          "{\"moeflux_shard\": %d, \"ranks\": %d, \"rank\": %d, \"trunk\": %s, \"layers\": %d, "
                          "\"experts\": %d,\n \"owners\": [",
                          RECORD_VERSION, s->n_ranks, s->rank, s->trunk ? "true" : "false", s->n_layers, s->n_experts);
    for (int l = 0; l < s->n_layers && st == MF_OK; l++) st = write_layer(s, l, &b);
    if (st == MF_OK) st = mf__strbuf_printf(&b, NULL, "]}\n");
    if (st == MF_OK) return b.data;
    free(b.data);
    return NULL;
}

void mf__shard_free(mf__shard *s) {
    if (!s) return;
    free(s->owners);
    free(s);
}

uint64_t mf__shard_placement(const mf__shard *s) {
    const int32_t shape[] = {s->n_ranks, s->n_layers, s->n_experts};
    mf__hash h;
    mf__hash_init(&h, RECORD_VERSION);
    mf__hash_update(&h, shape, sizeof shape);
    mf__hash_update(&h, s->owners, (size_t)s->n_layers * (size_t)s->n_experts * sizeof *s->owners);
    return mf__hash_digest(&h);
}
