/* config.json: finding the family and the keys that all families share. */
#include "model/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "model/family.h"
#include "model/keys.h"

static mf_status add_eos(mf__config *config, const json_t *value, const char *where, mf_error *err) {
    if (!value || json_is_null(value)) return MF_OK;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= config->n_vocab)
            return mf__fail(err, MF_E_FORMAT, "%s: eos_token_id is not a token id below %d", where, config->n_vocab);
        int32_t token = (int32_t)json_integer_value(id);
        bool known = false;
        for (int32_t k = 0; k < config->n_eos; k++) known = known || config->eos[k] == token;
        if (known) continue;
        if (config->n_eos == MF_MAX_EOS)
            return mf__fail(err, MF_E_LIMIT, "%s: more than %d end tokens", where, MF_MAX_EOS);
        config->eos[config->n_eos++] = token;
    }
    return MF_OK;
}

mf_status mf__config_add_eos(mf__config *config, const json_t *generation, const char *where, mf_error *err) {
    if (!json_is_object(generation))
        return mf__fail(err, MF_E_FORMAT, "%s: expected an object, found %s", where, mf__json_type_name(generation));
    return add_eos(config, json_object_get(generation, "eos_token_id"), where, err);
}

static mf_status want_act(const json_t *text, const char *where, const mf__config *c, mf_error *err) {
    const char *act = json_string_value(json_object_get(text, "hidden_act"));
    if (act && c->family->other_act && !strcmp(act, c->family->other_act)) return MF_OK;
    return mf__keys_want(text, where, "hidden_act", c->family->act ? c->family->act : "silu", err);
}

/* Keys every family has. */
static mf_status common(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t layers, hidden, vocab, ctx;
    double eps;
    bool zero_centred;
    size_t listed =
        json_array_size(json_object_get(text, "layers_block_type")); /* all transformers writes of nemotron_h */
    if (c->family->paired && json_object_get(text, "num_layers")) {
        MF__TRY(mf__json_get_int(text, where, "num_layers", 1, MF_MAX_LAYERS / 2, &layers, err));
        layers *= 2;
    } else if (listed && listed <= MF_MAX_LAYERS) {
        MF__TRY(mf__json_opt_int(text, where, "num_hidden_layers", 1, MF_MAX_LAYERS, (int64_t)listed, &layers, err));
    } else {
        MF__TRY(mf__json_get_int(text, where, "num_hidden_layers", 1, MF_MAX_LAYERS, &layers, err));
    }
    MF__TRY(mf__json_get_int(text, where, "hidden_size", 1, 1 << 20, &hidden, err));
    MF__TRY(mf__json_get_int(text, where, "vocab_size", 1, 1 << 24, &vocab, err));
    MF__TRY(mf__json_opt_int(text, where, "max_position_embeddings", 1, 1 << 30, 4096, &ctx, err));
    MF__TRY(mf__json_opt_double(text, where, "layernorm_epsilon", 0, 1, 1e-6, &eps, err)); /* MiMo's own files */
    MF__TRY(mf__json_opt_double(text, where, "rms_norm_eps", 0, 1, eps, &eps, err));
    MF__TRY(mf__keys_want_bool(text, where, "mlp_bias", false, err));
    MF__TRY(mf__json_opt_bool(text, where, "zero_centred_norms", true, &zero_centred, err));
    c->plain_norms = !zero_centred;
    MF__TRY(mf__json_opt_bool(text, where, "tie_word_embeddings", false, &c->tied_head, err));
    MF__TRY(want_act(text, where, c, err));
    c->n_layers = (int32_t)layers;
    c->n_hidden = (int32_t)hidden;
    c->n_vocab = (int32_t)vocab;
    c->n_ctx = (int32_t)ctx;
    c->eps = (float)eps;
    return MF_OK;
}

static mf_status unknown_type(const char *where, const char *type, mf_error *err) {
    char known[512] = "";
    for (int i = 0; mf__families[i]; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", mf__families[i]->name);
    }
    return mf__fail(err, MF_E_UNSUPPORTED, "%s: model_type \"%s\" is not supported (supported: %s)", where, type,
                    known);
}

/* What this model has of its family's parts, beyond what configure switched off already. */
static void narrow(mf__config *c) {
    bool dense = false;
    c->has.mixers = 0;
    for (int32_t l = 0; l < c->n_layers; l++) {
        c->has.mixers |= 1u << c->mixer[l];
        dense = dense || (c->dense[l] && !c->alone[l]);
    }
    c->has.dense = dense;
    c->has.yarn = c->rope.yarn || c->far.rope.yarn;
    c->has.hashed = false;
    for (int32_t l = 0; l < c->n_layers; l++) c->has.hashed = c->has.hashed || c->hashed[l];
    c->has.rope_alpha = c->rope.alpha > 0;
    c->has.rope_part = c->rope.part > 0;
    c->has.rope_slow = c->rope.linear || c->rope.llama3;
    c->has.clip = c->attn.clip > 0;
    c->has.value_scale = c->attn.v_scale > 0;
    c->has.key_is_value = c->attn.k_is_v;
    c->has.sinks &= c->has.mixers;
    c->has.grow = c->attn.grow > 0;
    c->has.nope_full = c->has.nope_full && c->has.mixers & 1u << MF_MIX_FULL;
    c->has.groups = c->moe.n_groups > 1;
    if (!c->moe.n_shared_inner) c->has.shared = MF_SHARED_NONE;
}

/* What layer_types calls the layer does not contradict what it became. */
static bool is_type_of(const char *type, mf__mixer mixer) {
    unsigned latent = 1u << MF_MIX_LATENT | 1u << MF_MIX_INDEXED | 1u << MF_MIX_REUSED, known = 1u << mixer;
    if (!strcmp(type, mf__mixer_key(mixer))) return true;
    if (!strcmp(type, mf__mixer_key(MF_MIX_FULL))) return known & latent;
    return !strcmp(type, mf__mixer_key(MF_MIX_INDEXED)) && mixer == MF_MIX_REUSED;
}

/* Lists that say something of every layer: what the family did not read must not be ignored. */
static mf_status check_layers(const json_t *text, const char *where, const mf__config *c, mf_error *err) {
    static const char *const keys[] = {"num_attention_heads", "num_key_value_heads", "head_dim"};
    const json_t *types = json_object_get(text, "layer_types"), *apart = json_object_get(text, "per_layer_config");
    for (int32_t l = 0; l < c->n_layers; l++) {
        const mf__attn *a = mf__config_attn(c, c->mixer[l]);
        const char *type = json_string_value(json_array_get(types, (size_t)l));
        int32_t have[] = {a->n_heads, a->n_kv_heads, a->head_dim};
        char name[16];
        snprintf(name, sizeof name, "%d", l);
        if (type && !is_type_of(type, c->mixer[l]))
            return mf__fail(err, MF_E_UNSUPPORTED,
                            "%s: layer_types[%d] is \"%.60s\", which the family %s does not have", where, l, type,
                            c->family->name);
        const json_t *own = json_object_get(apart, name);
        for (size_t i = 0; i < MF__COUNT(keys); i++) {
            const json_t *v = json_object_get(own, keys[i]);
            if (json_is_integer(v) && json_integer_value(v) != have[i])
                return mf__fail(err, MF_E_UNSUPPORTED,
                                "%s: per_layer_config gives layer %d a %s of %lld, where layers of its kind have %d",
                                where, l, keys[i], (long long)json_integer_value(v), have[i]);
        }
    }
    return MF_OK;
}

static mf_status parse(const mf__family *family, const json_t *root, const char *where, mf__config *out,
                       mf_error *err) {
    const json_t *text = json_object_get(root, "text_config");
    char place[512];
    out->family = family;
    out->has = family->has;
    snprintf(place, sizeof place, "%s%s", where, text ? ": text_config" : "");
    if (!text) text = root;
    if (!json_is_object(text))
        return mf__fail(err, MF_E_FORMAT, "%s: expected an object, found %s", place, mf__json_type_name(text));
    MF__TRY(common(text, place, out, err));
    MF__TRY(family->configure(text, place, out, err));
    if ((out->rope.alpha > 0 && !family->has.rope_alpha) || (out->rope.part > 0 && !family->has.rope_part))
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: rope of type \"%s\" is not supported by the family %s", place,
                        out->rope.alpha > 0 ? "dynamic" : "proportional", family->name);
    MF__TRY(check_layers(text, place, out, err));
    narrow(out);
    MF__TRY(add_eos(out, json_object_get(text, "eos_token_id"), place, err));
    return text == root ? MF_OK : add_eos(out, json_object_get(root, "eos_token_id"), where, err);
}

static mf_status want_object(const json_t *root, const char *where, mf_error *err) {
    if (json_is_object(root)) return MF_OK;
    return mf__fail(err, MF_E_FORMAT, "%s: expected an object, found %s", where, mf__json_type_name(root));
}

mf_status mf__config_parse(const json_t *root, const char *where, mf__config *out, mf_error *err) {
    memset(out, 0, sizeof *out);
    MF__TRY(want_object(root, where, err));
    const char *type;
    MF__TRY(mf__json_get_string(root, where, "model_type", &type, err));
    const mf__family *family = mf__family_find(type);
    if (!family) return unknown_type(where, type, err);
    snprintf(out->model_type, sizeof out->model_type, "%s", type);
    return parse(family, root, where, out, err);
}

mf_status mf__config_parse_as(const mf__family *family, const json_t *root, const char *where, mf__config *out,
                              mf_error *err) {
    memset(out, 0, sizeof *out);
    MF__TRY(want_object(root, where, err));
    snprintf(out->model_type, sizeof out->model_type, "%s", family->model_types[0]);
    MF__TRY(parse(family, root, where, out, err));
    if (!json_object_get(root, "max_position_embeddings")) out->n_ctx = family->usual_ctx;
    if (out->n_eos) return MF_OK;
    for (int32_t i = 0; i < family->n_usual_eos; i++)
        if (family->usual_eos[i] < out->n_vocab) out->eos[out->n_eos++] = family->usual_eos[i];
    return MF_OK;
}

mf_status mf__config_stretch(mf__config *c, double factor, mf_error *err) {
    double n_ctx = floor(c->n_ctx * factor);
    if (!(factor > 1 && factor <= MF_STRETCH_MAX) || n_ctx <= c->n_ctx || n_ctx > 1 << 30)
        return mf__fail(err, MF_E_INVALID,
                        "yarn is %g; expected a number above 1, at most %d, that makes a context of %d longer and at "
                        "most %d",
                        factor, MF_STRETCH_MAX, c->n_ctx, 1 << 30);
    mf__rope *rope = c->has.far ? &c->far.rope : &c->rope; /* those of windows alone stay: they are no longer */
    if (c->has.nope)
        return mf__fail(err, MF_E_UNSUPPORTED, "models of the family %s have no rope that YaRN could stretch",
                        c->family->name);
    if (rope->theta <= 1 || rope->alpha > 0 || rope->part > 0 || rope->linear || rope->llama3)
        return mf__fail(err, MF_E_UNSUPPORTED, "a context with a rope_theta of %g and %s cannot be stretched by YaRN",
                        rope->theta,
                        rope->theta <= 1 ? "nothing else" : "a rope that is scaled in another way already");
    mf__rope_stretch(rope, c->n_ctx, factor);
    c->has.yarn = true;
    c->n_ctx = (int32_t)n_ctx;
    return MF_OK;
}

mf_status mf__config_parse_text(const char *name, const char *json, size_t size, mf__config *out, mf_error *err) {
    json_t *root;
    MF__TRY(mf__json_parse(name, json, size, &root, err));
    mf_status st = mf__config_parse(root, name, out, err);
    json_decref(root);
    return st;
}
