/* A model against its source: the same stream as a conversion, into a sink that compares checksums. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "convert/flow.h"
#include "convert/verify.h"
#include "quant/affine.h"

typedef struct check {
    const mf__native *native;
    const json_t *tensors, *sets[2]; /* sets: layer -> checksums */
    char name[256];                  /* of the tensor at hand */
    uint64_t want;
    mf__hash hash;
    int layer, expert;
    const char *layer_hashes[2];
    int64_t n_tensors;
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

static mf_status experts(void *ctx, const mf__expert_run *run, mf_error *err) {
    check *c = ctx;
    for (int i = 0; i < run->n; i++, c->expert++) {
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

static mf_status compare(const mf__native *native, const mf__plan *plan, mf_error *err) {
    const json_t *own = json_object_get(native->manifest, "moeflux");
    check c = {.native = native,
               .tensors = json_object_get(native->manifest, "tensors"),
               .sets = {json_object_get(json_object_get(own, "experts"), "xxh64"),
                        json_object_get(json_object_get(own, "experts_2bit"), "xxh64")}};
    mf__sink sink = {&c,      has_tensor,  experts_done, tensor_begin, tensor_data, tensor_end, experts_begin,
                     experts, experts_end, part,         NULL};
    mf__stage *stage;
    MF__TRY(mf__stage_open(plan->cat, NULL, &stage, err));
    mf_status st = mf__flow_run(plan, stage, &sink, err);
    mf__stage_close(stage);
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

mf_status mf__verify_against(const char *dir, const char *src, const mf__verify_options *opt, mf_error *err) {
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
    if (st == MF_OK && json_object_get(about, "calibration"))
        st = mf__fail(err, MF_E_UNSUPPORTED,
                      "%s was converted with a calibration, whose text had a part in its bytes: they cannot be made of "
                      "the source alone and compared. Without --against its checksums are verified",
                      dir);
    if (st == MF_OK) st = mf__plan_make(src, &how, &plan, err);
    if (st == MF_OK) st = compare(&native, &plan, err);
    mf__plan_close(&plan);
    mf__native_close(&native);
    return st;
}
