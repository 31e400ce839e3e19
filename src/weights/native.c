/* Opening a native model directory, and saying what a directory is that cannot be opened. */
#include "weights/native.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/strbuf.h"
#include "weights/gguf.h"
#include "weights/native_build.h"

#define MANIFEST_MAX ((size_t)256 * 1024 * 1024)
#define CONFIG_MAX ((size_t)16 * 1024 * 1024)

char *mf__path_trim(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    return strndup(path, n);
}

/* DIR/name if it is there, else DIR/sub/name if that is, else NULL. malloc'd. out_of_memory tells the NULLs apart. */
static char *locate(const char *dir, const char *sub, const char *name, bool *out_of_memory) {
    char *path = mf__path_join(dir, name);
    if (path && mf__path_exists(path)) return path;
    free(path);
    char *below = mf__path_join(dir, sub);
    path = below ? mf__path_join(below, name) : NULL;
    free(below);
    if (!path) *out_of_memory = true;
    if (path && mf__path_exists(path)) return path;
    free(path);
    return NULL;
}

static bool has(const char *dir, const char *name) {
    char *path = mf__path_join(dir, name);
    bool found = path && mf__path_exists(path);
    free(path);
    return found;
}

/* ---- what is it, if it is not a model ---- */

static mf_status explain_missing(const char *dir, mf_error *err) {
    char partial[4096];
    snprintf(partial, sizeof partial, "%s" MF__PARTIAL, dir);
    if (mf__path_is_dir(partial))
        return mf__fail(err, MF_E_NOT_FOUND,
                        "%s does not exist, but %s does: a conversion did not finish. Run moeflux convert again", dir,
                        partial);
    return mf__fail(err, MF_E_NOT_FOUND, "%s does not exist", dir);
}

static mf_status explain_no_manifest(const char *dir, mf_error *err) {
    if (has(dir, "model.safetensors") || has(dir, "model.safetensors.index.json"))
        return mf__fail(err, MF_E_NOT_FOUND,
                        "%s is a checkpoint, not a model directory (no " MF__MANIFEST_NAME
                        "). Convert it first: moeflux convert %s OUT",
                        dir, dir);
    if (has(dir, MF__TRUNK_NAME) || has(dir, MF__MARKER_NAME))
        return mf__fail(err, MF_E_NOT_FOUND,
                        "%s has no " MF__MANIFEST_NAME ": a conversion did not finish. Remove it and convert again",
                        dir);
    return mf__fail(err, MF_E_NOT_FOUND, "not a model directory: %s (no " MF__MANIFEST_NAME ")", dir);
}

/* ---- the parts ---- */

static mf_status open_trunk(const char *dir, const char *manifest, mf__native *out, mf_error *err) {
    bool no_memory = false;
    char *trunk = locate(dir, "artifacts", MF__TRUNK_NAME, &no_memory);
    char *json = NULL;
    size_t json_size;
    int file;
    mf_status status = mf__catalog_create(&out->catalog, err);
    if (status == MF_OK && !trunk)
        status = no_memory ? mf__fail(err, MF_E_NOMEM, "no memory to open %s", dir)
                           : mf__fail(err, MF_E_NOT_FOUND,
                                      "%s: " MF__TRUNK_NAME " is missing beside " MF__MANIFEST_NAME, dir);
    if (status == MF_OK) status = mf__catalog_add_file(out->catalog, trunk, &file, err);
    if (status == MF_OK) status = mf__file_read(manifest, MANIFEST_MAX, &json, &json_size, err);
    if (status == MF_OK) status = mf__manifest_load(manifest, json, json_size, out, err);
    free(json);
    free(trunk);
    return status;
}

static mf_status open_config(const char *dir, mf__native *out, mf_error *err) {
    bool no_memory = false;
    char *path = locate(dir, "mlx", MF__CONFIG_NAME, &no_memory);
    if (!path) return no_memory ? mf__fail(err, MF_E_NOMEM, "no memory to open %s", dir) : MF_OK;
    mf_status status = mf__json_read(path, CONFIG_MAX, &out->config, err);
    free(path);
    return status;
}

/* Takes the path of one layer's file over into out when the file is there. */
static mf_status open_expert_file(mf__native *out, int layer, char *path, mf_error *err) {
    if (!mf__path_exists(path)) {
        free(path);
        return MF_OK;
    }
    out->expert_files[layer] = path;
    if (!out->has_layout) return MF_OK;
    int64_t size, expected = out->layout.stride * out->n_experts;
    MF__TRY(mf__file_size(path, &size, err));
    if (size < expected)
        return mf__fail(err, MF_E_FORMAT,
                        "%s has %" PRId64 " bytes, expected %" PRId64 " (%d experts of %" PRId64 "): it is %" PRId64
                        " bytes short",
                        path, size, expected, out->n_experts, out->layout.stride, expected - size);
    return MF_OK;
}

static mf_status open_experts(const char *dir, mf__native *out, mf_error *err) {
    bool no_memory = false;
    char *experts = locate(dir, "root", MF__EXPERTS_DIR, &no_memory);
    if (!experts && !no_memory && !out->has_layout) {
        experts = locate(dir, "root", MF__SECOND_DIR, &no_memory);
        out->only_2bit = experts != NULL;
    }
    out->expert_files = calloc((size_t)out->n_layers + 1, sizeof *out->expert_files);
    mf_status status = MF_OK;
    if (no_memory || !out->expert_files) status = mf__fail(err, MF_E_NOMEM, "no memory to open %s", dir);
    for (int i = 0; i < out->n_layers && experts && status == MF_OK; i++) {
        char name[32];
        snprintf(name, sizeof name, MF__EXPERT_FILE, i);
        char *path = mf__path_join(experts, name);
        status = path ? open_expert_file(out, i, path, err) : mf__fail(err, MF_E_NOMEM, "no memory to open %s", dir);
    }
    free(experts);
    return status;
}

static mf_status open_shard(const char *dir, mf__native *out, mf_error *err) {
    MF__TRY(mf__shard_read(dir, &out->shard, err));
    const mf__shard *s = out->shard;
    if (!s || (s->n_layers == out->n_layers && s->n_experts == out->n_experts)) return MF_OK;
    return mf__fail(err, MF_E_FORMAT,
                    "%s/" MF_SHARD_NAME " is of a model with %d layers of %d experts, this has %d of %d", dir,
                    s->n_layers, s->n_experts, out->n_layers, out->n_experts);
}

/* ---- */

static mf_status open_dir(const char *dir, mf__native *out, mf_error *err) {
    if (mf__text_ends_with(dir, MF__PARTIAL))
        return mf__fail(err, MF_E_FORMAT, "%s is what an unfinished conversion left behind: convert the model again",
                        dir);
    if (!mf__path_exists(dir)) return explain_missing(dir, err);
    if (mf__gguf_is(dir))
        return mf__fail(err, MF_E_INVALID, "%s is a GGUF file. Convert it first: moeflux convert %s OUT", dir, dir);
    if (!mf__path_is_dir(dir))
        return mf__fail(err, MF_E_INVALID, "not a model directory: %s is a file, expected a directory", dir);
    bool no_memory = false;
    char *manifest = locate(dir, "artifacts", MF__MANIFEST_NAME, &no_memory);
    if (!manifest)
        return no_memory ? mf__fail(err, MF_E_NOMEM, "no memory to open %s", dir) : explain_no_manifest(dir, err);
    mf_status status = open_trunk(dir, manifest, out, err);
    free(manifest);
    if (status == MF_OK) status = open_config(dir, out, err);
    if (status == MF_OK) status = open_experts(dir, out, err);
    if (status == MF_OK) status = open_shard(dir, out, err);
    return status;
}

mf_status mf__native_open(const char *dir, mf__native *out, mf_error *err) {
    *out = (mf__native){.dir = mf__path_trim(dir)};
    mf_status status = out->dir ? open_dir(out->dir, out, err) : mf__fail(err, MF_E_NOMEM, "no memory to open %s", dir);
    if (status != MF_OK) mf__native_close(out);
    return status;
}

void mf__native_close(mf__native *native) {
    mf__catalog_close(native->catalog);
    json_decref(native->manifest);
    json_decref(native->config);
    if (native->expert_files)
        for (int i = 0; i < native->n_layers; i++) free(native->expert_files[i]);
    free(native->expert_files);
    mf__shard_free(native->shard);
    free(native->dir);
    *native = (mf__native){0};
}
