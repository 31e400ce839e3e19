/* A model's own advice on sampling: generation_config.json. */
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"

static mf_status number_of(const json_t *root, const char *path, const char *key, double max, float *value,
                           mf_error *err) {
    double v;
    MF__TRY(mf__json_opt_double(root, path, key, 0, max, (double)*value, &v, err));
    *value = (float)v;
    return MF_OK;
}

static mf_status read_advice(mf_sampler_options *o, const json_t *root, const char *path, mf_error *err) {
    bool sample;
    int64_t top_k;
    MF__TRY(mf__json_opt_bool(root, path, "do_sample", true, &sample, err));
    MF__TRY(number_of(root, path, "temperature", 100, &o->temperature, err));
    if (!sample) o->temperature = 0;
    MF__TRY(number_of(root, path, "top_p", 1, &o->top_p, err));
    MF__TRY(number_of(root, path, "min_p", 1, &o->min_p, err));
    MF__TRY(number_of(root, path, "typical_p", 1, &o->typical_p, err));
    MF__TRY(number_of(root, path, "repetition_penalty", 100, &o->repetition_penalty, err));
    MF__TRY(mf__json_opt_int(root, path, "top_k", 0, 1 << 24, o->top_k, &top_k, err));
    o->top_k = (int)top_k;
    return MF_OK;
}

mf_status mf_sampler_options_load(mf_sampler_options *opt, const char *dir, mf_error *err) {
    if (!opt || !dir) return mf__fail(err, MF_E_INVALID, "mf_sampler_options_load: an argument is NULL");
    char *path = mf__path_join(dir, "generation_config.json");
    if (!path) return mf__fail(err, MF_E_NOMEM, "no memory for a path");
    mf_sampler_options all = *opt;
    json_t *root = NULL;
    mf_status st = mf__path_exists(path) ? mf__json_read(path, 1 << 20, &root, err) : MF_OK;
    if (root) st = read_advice(&all, root, path, err);
    if (st == MF_OK) *opt = all;
    json_decref(root);
    free(path);
    return st;
}
