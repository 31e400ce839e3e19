/* A model against its source: the same stream as a conversion, into a sink that compares checksums. Experts that were
 * made with a calibration have other bytes than without: of those it is asked whether they are like what the source
 * gives, which those of another expert or another model are not. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "convert/flow.h"
#include "convert/verify.h"
#include "quant/affine.h"
#include "weights/native_build.h"

/* Above this are two encodings of the same matrix, whatever the calibration; of two different matrices it is about 0.
 */
#define LEAST_COSINE 0.5

/* The experts, or their small copies. */
typedef struct expert_set {
    const char *dir, *text;         /* its folder, and what is said of it */
    const json_t *description;      /* in the manifest; NULL: the model has none */
    const mf__expert_layout *given; /* by the source */
    mf__expert_layout layout;       /* as stored: where its parts are as given, the stride may be another */
    const char *hashes;             /* of the layer at hand; NULL: none */
    char *path;                     /* its file, with a calibration ... */
    int fd;                         /* ... open; -1: nothing is compared */
} expert_set;

typedef struct check {
    const mf__native *native;
    const json_t *tensors;
    char name[256]; /* of the tensor at hand */
    uint64_t want;
    mf__hash hash;
    int layer, expert;
    expert_set sets[2];
    int n_sets;
    int64_t n_tensors;
    /* with a calibration */
    bool calibrated;
    uint8_t *stored; /* an expert of a file */
    float *rows[2];  /* as stored, and as the source gives it */
    double cosine;   /* the least so far */
} check;

static bool has_tensor(const void *ctx, const char *name) {
    (void)ctx, (void)name;
    return false;
}

static int experts_done(const void *ctx, int layer) {
    (void)ctx, (void)layer;
    return 0;
}

static mf_status tensor_begin(void *ctx, const mf__entry *entry, int bits, mf_error *err) {
    check *c = ctx;
    const json_t *have = json_object_get(c->tensors, entry->name);
    const char *text = json_string_value(json_object_get(have, "xxh64"));
    (void)bits;
    snprintf(c->name, sizeof c->name, "%s", entry->name);
    mf__hash_init(&c->hash, 0);
    c->n_tensors++;
    if (!have)
        return mf__fail(err, MF_E_MISMATCH, "%s has no tensor %s, which the source has", c->native->dir, entry->name);
    if (json_integer_value(json_object_get(have, "size")) != entry->size)
        return mf__fail(err, MF_E_MISMATCH, "tensor %s has %lld bytes in %s, from the source it would have %lld",
                        entry->name, (long long)json_integer_value(json_object_get(have, "size")), c->native->dir,
                        (long long)entry->size);
    if (!text || !mf__hash_parse(text, &c->want))
        return mf__fail(err, MF_E_UNSUPPORTED, "%s has no checksums: convert the model again", c->native->dir);
    return MF_OK;
}

static mf_status tensor_data(void *ctx, const void *data, int64_t size, mf_error *err) {
    check *c = ctx;
    (void)err;
    mf__hash_update(&c->hash, data, (size_t)size);
    return MF_OK;
}

static mf_status tensor_end(void *ctx, mf_error *err) {
    check *c = ctx;
    if (mf__hash_digest(&c->hash) == c->want) return MF_OK;
    return mf__fail(err, MF_E_MISMATCH, "tensor %s of %s is not what the source gives", c->name, c->native->dir);
}

/* Whether a manifest describes both alike, whatever lies between one expert and the next. */
static bool same_layout(const mf__expert_layout *a, const mf__expert_layout *b) {
    mf__expert_layout other = *b;
    other.stride = a->stride;
    json_t *one = mf__experts_to_json(a, 1), *two = mf__experts_to_json(&other, 1);
    bool same = one && two && json_equal(one, two);
    json_decref(one);
    json_decref(two);
    return same;
}

static mf_status check_set(const check *c, expert_set *set, mf_error *err) {
    int n = 0;
    if (!set->description)
        return mf__fail(err, MF_E_MISMATCH, "%s has no experts%s, which the source gives", c->native->dir, set->text);
    MF__TRY(mf__native_experts_parse(set->description, &set->layout, &n, err));
    if (n == c->native->n_experts && same_layout(set->given, &set->layout)) return MF_OK;
    return mf__fail(err, MF_E_MISMATCH, "the experts%s of %s are laid out unlike those that the source gives",
                    set->text, c->native->dir);
}

static void close_file(expert_set *set) {
    if (set->fd >= 0) close(set->fd);
    free(set->path);
    set->fd = -1;
    set->path = NULL;
}

static mf_status open_file(const check *c, expert_set *set, mf_error *err) {
    char name[80];
    int64_t size;
    snprintf(name, sizeof name, "%s/" MF__EXPERT_FILE, set->dir, c->layer);
    set->path = mf__path_join(c->native->dir, name);
    if (!set->path) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
    return mf__file_open(set->path, &set->fd, &size, err);
}

static mf_status experts_begin(void *ctx, int layer, const mf__expert_layout *layout, int n, mf_error *err) {
    check *c = ctx;
    char key[16];
    (void)layout; /* of the plan, as sets[0].given */
    snprintf(key, sizeof key, "%d", layer);
    c->layer = layer;
    c->expert = 0;
    if (!c->native->has_layout || n != c->native->n_experts)
        return mf__fail(err, MF_E_MISMATCH, "%s has %d experts in a layer, the source gives %d", c->native->dir,
                        c->native->n_experts, n);
    for (int s = 0; s < c->n_sets; s++) {
        expert_set *set = &c->sets[s];
        const json_t *text = json_object_get(json_object_get(set->description, "xxh64"), key);
        set->hashes = json_string_length(text) == (size_t)n * 16 ? json_string_value(text) : NULL;
        close_file(set);
        MF__TRY(check_set(c, set, err));
        if (c->calibrated && !(s && c->native->shard))
            MF__TRY(open_file(c, set, err)); /* shards have no small copies */
    }
    return MF_OK;
}

static mf_status check_expert(const check *c, const expert_set *set, uint64_t hash, mf_error *err) {
    uint64_t want;
    if (!set->hashes || !mf__hash_parse(set->hashes + 16 * c->expert, &want))
        return mf__fail(err, MF_E_UNSUPPORTED, "%s has no checksums of layer %d: convert the model again",
                        c->native->dir, c->layer);
    if (hash == want) return MF_OK;
    return mf__fail(err, MF_E_MISMATCH, "layer %d, expert %d%s of %s is not what the source gives", c->layer, c->expert,
                    set->text, c->native->dir);
}

/* The cosine of the angle between a part as stored and as the source gives it; 1 where both are 0. */
static double part_cosine(const check *c, const expert_set *set, int part, const uint8_t *blob) {
    mf__tensor a = mf__expert_view(&set->layout, (mf__expert_part)part, c->stored);
    mf__tensor b = mf__expert_view(set->given, (mf__expert_part)part, blob);
    double aa = 0, bb = 0, ab = 0;
    for (int64_t row = 0; row < a.n_rows; row++) {
        mf__tensor_row_f32(&a, row, c->rows[0]);
        mf__tensor_row_f32(&b, row, c->rows[1]);
        for (int64_t i = 0; i < a.n_cols; i++) {
            double x = c->rows[0][i], y = c->rows[1][i];
            if (!isfinite(x) && !isfinite(y)) continue; /* --allow-nonfinite */
            aa += x * x;
            bb += y * y;
            ab += x * y;
        }
    }
    return aa == 0 && bb == 0 ? 1 : ab / sqrt(aa * bb);
}

static mf_status check_cosine(check *c, const expert_set *set, const uint8_t *blob, mf_error *err) {
    const mf__expert_layout *l = &set->layout;
    if (set->fd < 0 || (c->native->shard && !mf__shard_has(c->native->shard, c->layer, c->expert))) return MF_OK;
    MF__TRY(mf__pread_all(set->fd, c->stored, (size_t)l->bytes, c->expert * l->stride, set->path, err));
    for (int p = 0; p < MF_PART_COUNT; p++) {
        double cosine = part_cosine(c, set, p, blob);
        if (!(cosine >= LEAST_COSINE))
            return mf__fail(err, MF_E_MISMATCH,
                            "layer %d, expert %d%s of %s is unlike what the source gives (%s, cosine %.2f): it was "
                            "made of something else",
                            c->layer, c->expert, set->text, c->native->dir, mf__expert_part_name((mf__expert_part)p),
                            cosine);
        if (cosine < c->cosine && set == &c->sets[0]) c->cosine = cosine;
    }
    return MF_OK;
}

static mf_status experts(void *ctx, const mf__expert_run *run, mf_error *err) {
    check *c = ctx;
    const uint8_t *blobs[2] = {run->blobs, run->seconds};
    const uint64_t *hashes[2] = {run->hashes, run->second_hashes};
    for (int i = 0; i < run->n; i++, c->expert++)
        for (int s = 0; s < c->n_sets; s++) {
            const expert_set *set = &c->sets[s];
            MF__TRY(c->calibrated ? check_cosine(c, set, blobs[s] + i * set->given->stride, err)
                                  : check_expert(c, set, hashes[s][i], err));
        }
    return MF_OK;
}

static mf_status experts_end(void *ctx, mf_error *err) {
    (void)ctx, (void)err;
    return MF_OK;
}

static mf_status part(void *ctx, json_t *note, mf_error *err) {
    (void)ctx, (void)err;
    json_decref(note);
    return MF_OK;
}

static mf_status reserve(check *c, mf_error *err) {
    int64_t cols = 1, bytes = 1;
    if (!c->calibrated) return MF_OK;
    for (int s = 0; s < c->n_sets; s++) {
        const mf__expert_layout *l = c->sets[s].given;
        bytes = l->bytes > bytes ? l->bytes : bytes;
        for (int p = 0; p < MF_PART_COUNT; p++) cols = l->part[p].n_cols > cols ? l->part[p].n_cols : cols;
    }
    c->stored = malloc((size_t)bytes);
    for (int i = 0; i < 2; i++) c->rows[i] = malloc((size_t)cols * sizeof *c->rows[i]);
    return c->stored && c->rows[0] && c->rows[1] ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory to compare experts");
}

static void release(check *c) {
    for (int s = 0; s < 2; s++) close_file(&c->sets[s]);
    free(c->stored);
    free(c->rows[0]);
    free(c->rows[1]);
}

static mf_status compare(const mf__native *native, const mf__plan *plan, double *cosine, mf_error *err) {
    const json_t *own = json_object_get(native->manifest, "moeflux");
    check c = {.native = native,
               .calibrated = json_object_get(json_object_get(own, "conversion"), "calibration") != NULL,
               .cosine = 1,
               .tensors = json_object_get(native->manifest, "tensors"),
               .sets = {{.dir = MF__EXPERTS_DIR,
                         .text = "",
                         .description = json_object_get(own, "experts"),
                         .given = &plan->layout,
                         .fd = -1},
                        {.dir = MF__SECOND_DIR,
                         .text = " (small copy)",
                         .description = json_object_get(own, "experts_2bit"),
                         .given = &plan->second,
                         .fd = -1}},
               .n_sets = plan->opt->also_bits ? 2 : 1};
    mf__sink sink = {&c,      has_tensor,  experts_done, tensor_begin, tensor_data, tensor_end, experts_begin,
                     experts, experts_end, part,         NULL};
    mf__stage *stage;
    MF__TRY(mf__stage_open(plan->cat, NULL, &stage, err));
    mf_status st = reserve(&c, err);
    if (st == MF_OK) st = mf__flow_run(plan, stage, &sink, err);
    mf__stage_close(stage);
    release(&c);
    if (cosine) *cosine = c.cosine;
    if (st == MF_OK && c.n_tensors != (int64_t)json_object_size(c.tensors))
        st = mf__fail(err, MF_E_MISMATCH, "%s has %zu tensors, the source gives %lld", native->dir,
                      json_object_size(c.tensors), (long long)c.n_tensors);
    return st;
}

/* Models that do not say were made by the first encoder. */
static mf_status same_encoder(const char *dir, const json_t *about, mf_error *err) {
    const json_t *version = json_object_get(about, "encoder");
    long long made_by = version ? json_integer_value(version) : 1;
    if (made_by == MF__ENCODER_VERSION) return MF_OK;
    return mf__fail(err, MF_E_UNSUPPORTED,
                    "%s was converted by another version of moeflux (encoder %lld, this one is %d): what the source "
                    "gives today has other bytes, so they cannot be compared",
                    dir, made_by, MF__ENCODER_VERSION);
}

mf_status mf__verify_against(const char *dir, const char *src, const mf__verify_options *opt, double *cosine,
                             mf_error *err) {
    mf__native native;
    mf__plan plan = {0};
    mf__convert_options how;
    mf__convert_options_init(&how);
    how.allow_nonfinite = true;
    how.n_threads = opt->n_threads;
    how.progress = opt->progress;
    how.progress_user = opt->progress_user;
    MF__TRY(mf__native_open(dir, &native, err));
    const json_t *about = json_object_get(json_object_get(native.manifest, "moeflux"), "conversion");
    mf_status st = about
                       ? mf__plan_options_parse(about, "moeflux: conversion", &how, err)
                       : mf__fail(err, MF_E_UNSUPPORTED,
                                  "%s does not say how it was converted, so it cannot be compared with a source", dir);
    if (st == MF_OK) st = same_encoder(dir, about, err);
    if (st == MF_OK) st = mf__plan_make(src, &how, &plan, err);
    if (st == MF_OK) st = compare(&native, &plan, cosine, err);
    mf__plan_close(&plan);
    mf__native_close(&native);
    return st;
}
