#include "model/rope.h"

#include <math.h>
#include <string.h>

#include "base/json.h"

#define PI 3.14159265358979323846
#define MAX_CTX 1e12

/* rope_parameters is the newer spelling, rope_scaling the older; a config may have one as null. */
static const json_t *scaling_of(const json_t *text) {
    const json_t *rp = json_object_get(text, "rope_parameters");
    return json_is_object(rp) ? rp : json_object_get(text, "rope_scaling");
}

static mf_status parse_type(const json_t *rp, const char *where, mf__rope *r, mf_error *err) {
    const json_t *type = json_object_get(rp, "rope_type");
    if (!type) type = json_object_get(rp, "type");
    if (!type || json_is_null(type)) return MF_OK;
    const char *name = json_is_string(type) ? json_string_value(type) : "(not a string)";
    r->yarn = !strcmp(name, "yarn");
    r->linear = !strcmp(name, "linear");
    r->llama3 = !strcmp(name, "llama3");
    if (!strcmp(name, "dynamic")) MF__TRY(mf__json_opt_double(rp, where, "alpha", 1, 1e12, 0, &r->alpha, err));
    if (!strcmp(name, "proportional"))
        MF__TRY(mf__json_opt_double(rp, where, "partial_rotary_factor", 1e-3, 1, 1, &r->part, err));
    if (r->linear || r->llama3 || r->part > 0)
        MF__TRY(mf__json_opt_double(rp, where, "factor", 1e-6, 1e6, 1, &r->factor, err));
    if (r->yarn || r->linear || r->llama3 || r->alpha > 0 || r->part > 0 || !strcmp(name, "default")) return MF_OK;
    return mf__fail(err, MF_E_UNSUPPORTED,
                    "%s: rope type \"%s\" is not supported (supported: default, linear, llama3, yarn, proportional, "
                    "dynamic with an alpha)",
                    where, name);
}

static mf_status parse_llama3(const json_t *rp, const char *where, mf__rope *r, mf_error *err) {
    MF__TRY(mf__json_opt_double(rp, where, "low_freq_factor", 1e-6, 1e6, 1, &r->low_freq, err));
    MF__TRY(mf__json_opt_double(rp, where, "high_freq_factor", 1e-6, 1e6, 4, &r->high_freq, err));
    MF__TRY(
        mf__json_opt_double(rp, where, "original_max_position_embeddings", 1, MAX_CTX, 8192, &r->original_ctx, err));
    if (r->high_freq >= r->low_freq) return MF_OK; /* equal: there is no ramp */
    return mf__fail(err, MF_E_FORMAT, "%s: high_freq_factor %g must not be below low_freq_factor %g", where,
                    r->high_freq, r->low_freq);
}

static mf_status parse_yarn(const json_t *text, const json_t *rp, const char *where, mf__rope *r, mf_error *err) {
    static const char original[] = "original_max_position_embeddings";
    double ctx;
    MF__TRY(mf__json_opt_double(text, where, "max_position_embeddings", 1, MAX_CTX, 4096, &ctx, err));
    MF__TRY(mf__json_opt_double(text, where, original, 1, MAX_CTX, ctx, &r->original_ctx, err));
    MF__TRY(mf__json_opt_double(rp, where, original, 1, MAX_CTX, r->original_ctx, &r->original_ctx, err));
    MF__TRY(mf__json_opt_double(rp, where, "factor", 1, 1e6, ctx / r->original_ctx, &r->factor, err));
    MF__TRY(mf__json_opt_double(rp, where, "beta_fast", 0, 1e6, 32, &r->beta_fast, err));
    MF__TRY(mf__json_opt_double(rp, where, "beta_slow", 0, 1e6, 1, &r->beta_slow, err));
    MF__TRY(mf__json_opt_double(rp, where, "mscale", 0, 1e6, 0, &r->mscale, err));
    MF__TRY(mf__json_opt_double(rp, where, "mscale_all_dim", 0, 1e6, 0, &r->mscale_all_dim, err));
    MF__TRY(mf__json_opt_double(rp, where, "attention_factor", 0, 1e6, 0, &r->attention_factor, err));
    MF__TRY(mf__json_opt_bool(rp, where, "truncate", true, &r->truncate, err));
    if (r->beta_fast == 0) r->beta_fast = 32;
    if (r->beta_slow == 0) r->beta_slow = 1;
    if (r->factor < 1 || r->theta <= 1)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: yarn with factor %g and theta %g; both must be above 1", where,
                        r->factor, r->theta);
    return MF_OK;
}

mf_status mf__rope_parse(const json_t *text, const char *where, double theta, mf__rope *out, mf_error *err) {
    const json_t *rp = scaling_of(text);
    *out = (mf__rope){.truncate = true};
    MF__TRY(mf__json_opt_double(text, where, "rope_theta", 1, 1e12, theta, &out->theta, err));
    if (!rp || json_is_null(rp)) return MF_OK;
    if (!json_is_object(rp))
        return mf__fail(err, MF_E_FORMAT, "%s: rope_scaling is %s, expected an object", where, mf__json_type_name(rp));
    MF__TRY(mf__json_opt_double(rp, where, "rope_theta", 1, 1e12, out->theta, &out->theta, err));
    if (json_is_object(json_object_get(rp, "full_attention")) || json_is_object(json_object_get(rp, "main")))
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "%s: rope_parameters differ between kinds of layers, which this family "
                        "does not have",
                        where);
    MF__TRY(parse_type(rp, where, out, err));
    if (out->llama3) return parse_llama3(rp, where, out, err);
    return out->yarn ? parse_yarn(text, rp, where, out, err) : MF_OK;
}

void mf__rope_stretch(mf__rope *r, double n_ctx, double factor) {
    if (r->yarn)
        r->factor *= factor;
    else
        *r = (mf__rope){.theta = r->theta,
                        .yarn = true,
                        .factor = factor,
                        .original_ctx = n_ctx,
                        .beta_fast = 32,
                        .beta_slow = 1,
                        .truncate = true};
}

/* The channel pair that turns r times within the original context. */
static double correction_dim(const mf__rope *rope, int32_t n_rot, double r) {
    return n_rot * log(rope->original_ctx / (r * 2 * PI)) / (2 * log(rope->theta));
}

/* llama3: by how often a channel turns within the original context. */
static double slowed(const mf__rope *r, double f) {
    double turns = r->original_ctx * f / (2 * PI), mix = turns >= r->high_freq;
    if (turns > r->low_freq && turns < r->high_freq) mix = (turns - r->low_freq) / (r->high_freq - r->low_freq);
    return (1 - mix) * f / r->factor + mix * f;
}

void mf__rope_frequencies(const mf__rope *rope, int32_t n_rot, float *inv_freq) {
    double low = 0, high = 0;
    if (rope->yarn) {
        low = correction_dim(rope, n_rot, rope->beta_fast);
        high = correction_dim(rope, n_rot, rope->beta_slow);
        if (rope->truncate) {
            low = floor(low);
            high = ceil(high);
        }
        if (low < 0) low = 0;
        if (high > n_rot - 1) high = n_rot - 1;
        if (low == high) high += 0.001; /* beta_fast == beta_slow on a whole channel: a step, not a division by 0 */
    }
    double base = rope->theta, factor = rope->factor > 0 ? rope->factor : 1;
    if (rope->alpha > 0 && n_rot > 2) base *= pow(rope->alpha, n_rot / (n_rot - 2.0));
    for (int32_t i = 0; i < n_rot / 2; i++) {
        double f = pow(base, -2.0 * i / n_rot);
        double ramp = rope->yarn ? fmin(fmax((i - low) / (high - low), 0), 1) : 0;
        if (rope->part > 0 && i >= (int32_t)(rope->part * n_rot / 2)) f = 0;
        if (rope->linear || rope->part > 0) f /= factor;
        if (rope->llama3) f = slowed(rope, f);
        inv_freq[i] = (float)(f * (1 - ramp) + (rope->yarn ? f / rope->factor : f) * ramp);
    }
}

mf__w mf__rope_table(mf__graph *g, const mf__rope *rope, int32_t n_rot) {
    float inv_freq[MF_ROPE_MAX / 2] = {0};
    int32_t half = n_rot >= 2 && n_rot <= MF_ROPE_MAX ? n_rot / 2 : 0; /* 0 makes the graph fail, not the memory */
    if (half) mf__rope_frequencies(rope, n_rot, inv_freq);
    return mf__g_const(g, "rope.inv_freq", inv_freq, half);
}

/* m(x) = 0.1 x ln(factor) + 1 */
static double mscale(const mf__rope *rope, double x) {
    return rope->factor <= 1 ? 1 : 0.1 * x * log(rope->factor) + 1;
}

double mf__rope_attention_factor(const mf__rope *rope) {
    if (!rope->yarn) return 1;
    if (rope->attention_factor > 0) return rope->attention_factor;
    if (rope->mscale > 0 && rope->mscale_all_dim > 0)
        return mscale(rope, rope->mscale) / mscale(rope, rope->mscale_all_dim);
    return mscale(rope, 1);
}

double mf__rope_softmax_factor(const mf__rope *rope) {
    if (!rope->yarn || !(rope->mscale_all_dim > 0)) return 1;
    double m = mscale(rope, rope->mscale_all_dim);
    return m * m;
}
