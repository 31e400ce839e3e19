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

/* Above this are two encodings of the same matrix, whatever the calibration; of two different matrices it is about 0.
 */
#define LEAST_COSINE 0.5

typedef struct check {
    const mf__native *native;
    const json_t *tensors, *sets[2]; /* sets: layer -> checksums */
    char name[256];                  /* of the tensor at hand */
    uint64_t want;
    mf__hash hash;
    int layer, expert;
    const char *layer_hashes[2];
    int64_t n_tensors;
    /* with a calibration */
    bool calibrated;
    int fd;          /* the layer's file */
    uint8_t *stored; /* an expert of it */
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

static mf_status experts_begin(void *ctx, int layer, const mf__expert_layout *layout, int n, mf_error *err) {
    check *c = ctx;
    char key[16];
    snprintf(key, sizeof key, "%d", layer);
    c->layer = layer;
    c->expert = 0;
    if (!c->native->has_layout || layout->bytes != c->native->layout.bytes || n != c->native->n_experts)
        return mf__fail(err, MF_E_MISMATCH, "the experts of %s are laid out unlike those that the source gives",
                        c->native->dir);
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    int64_t size;
    if (c->calibrated) MF__TRY(mf__file_open(c->native->expert_files[layer], &c->fd, &size, err));
    for (int s = 0; s < 2; s++) {
        const json_t *text = json_object_get(c->sets[s], key);
        c->layer_hashes[s] = json_string_length(text) == (size_t)n * 16 ? json_string_value(text) : NULL;
    }
    return MF_OK;
}

static mf_status check_expert(const check *c, int set, uint64_t hash, mf_error *err) {
    uint64_t want;
    if (!c->layer_hashes[set] || !mf__hash_parse(c->layer_hashes[set] + 16 * c->expert, &want))
        return mf__fail(err, MF_E_UNSUPPORTED, "%s has no checksums of layer %d: convert the model again",
                        c->native->dir, c->layer);
    if (hash == want) return MF_OK;
    return mf__fail(err, MF_E_MISMATCH, "layer %d, expert %d%s of %s is not what the source gives", c->layer, c->expert,
                    set ? " (2 bits)" : "", c->native->dir);
}

/* The cosine of the angle between a part as stored and as the source gives it; 1 where both are 0. */
static double part_cosine(const check *c, int part, const uint8_t *blob) {
    mf__tensor a = mf__expert_view(&c->native->layout, (mf__expert_part)part, c->stored);
    mf__tensor b = mf__expert_view(&c->native->layout, (mf__expert_part)part, blob);
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

static mf_status check_cosine(check *c, const uint8_t *blob, mf_error *err) {
    const mf__expert_layout *l = &c->native->layout;
    const char *path = c->native->expert_files[c->layer];
    if (c->native->shard && !mf__shard_has(c->native->shard, c->layer, c->expert)) return MF_OK;
    MF__TRY(mf__pread_all(c->fd, c->stored, (size_t)l->bytes, c->expert * l->stride, path, err));
    for (int p = 0; p < MF_PART_COUNT; p++) {
        double cosine = part_cosine(c, p, blob);
        if (!(cosine >= LEAST_COSINE))
            return mf__fail(err, MF_E_MISMATCH,
                            "layer %d, expert %d of %s is unlike what the source gives (%s, cosine %.2f): it was "
                            "made of something else",
                            c->layer, c->expert, c->native->dir, mf__expert_part_name((mf__expert_part)p), cosine);
        if (cosine < c->cosine) c->cosine = cosine;
    }
    return MF_OK;
}

static mf_status experts(void *ctx, const mf__expert_run *run, mf_error *err) {
    check *c = ctx;
    for (int i = 0; i < run->n; i++, c->expert++) {
        if (c->calibrated) {
            MF__TRY(check_cosine(c, run->blobs + i * c->native->layout.stride, err));
            continue;
        }
        MF__TRY(check_expert(c, 0, run->hashes[i], err));
        if (run->seconds) MF__TRY(check_expert(c, 1, run->second_hashes[i], err));
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
    const mf__expert_layout *l = &c->native->layout;
    int64_t cols = 0;
    if (!c->calibrated || !c->native->has_layout) return MF_OK;
    for (int p = 0; p < MF_PART_COUNT; p++) cols = l->part[p].n_cols > cols ? l->part[p].n_cols : cols;
    c->stored = malloc((size_t)l->bytes);
    for (int i = 0; i < 2; i++) c->rows[i] = malloc((size_t)cols * sizeof *c->rows[i]);
    return c->stored && c->rows[0] && c->rows[1] ? MF_OK : mf__fail(err, MF_E_NOMEM, "no memory to compare experts");
}

static mf_status compare(const mf__native *native, const mf__plan *plan, double *cosine, mf_error *err) {
    const json_t *own = json_object_get(native->manifest, "moeflux");
    check c = {.native = native,
               .calibrated = json_object_get(json_object_get(own, "conversion"), "calibration") != NULL,
               .fd = -1,
               .cosine = 1,
               .tensors = json_object_get(native->manifest, "tensors"),
               .sets = {json_object_get(json_object_get(own, "experts"), "xxh64"),
                        json_object_get(json_object_get(own, "experts_2bit"), "xxh64")}};
    mf__sink sink = {&c,      has_tensor,  experts_done, tensor_begin, tensor_data, tensor_end, experts_begin,
                     experts, experts_end, part,         NULL};
    mf__stage *stage;
    MF__TRY(mf__stage_open(plan->cat, NULL, &stage, err));
    mf_status st = reserve(&c, err);
    if (st == MF_OK) st = mf__flow_run(plan, stage, &sink, err);
    mf__stage_close(stage);
    if (c.fd >= 0) close(c.fd);
    free(c.stored);
    free(c.rows[0]);
    free(c.rows[1]);
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
