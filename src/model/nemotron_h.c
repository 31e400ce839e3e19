/* nemotron_h: Nemotron-3-Nano-30B-A3B.
 *
 * A layer is one thing: Mamba-2, attention without rope, experts, or a dense feed-forward; both of the latter have no
 * gate, and square what is positive. */
#include <string.h>

#include "model/keys.h"
#include "model/parts.h"

/* What a layer is, by its letter in the published pattern or by transformers' word. */
static char letter_of(const char *word) {
    static const struct {
        const char *word;
        char letter;
    } WORDS[] = {{"linear_attention", 'M'}, {"mamba", 'M'}, {"full_attention", '*'},
                 {"attention", '*'},        {"moe", 'E'},   {"mlp", '-'}};
    for (size_t i = 0; word && i < MF__COUNT(WORDS); i++)
        if (!strcmp(word, WORDS[i].word)) return WORDS[i].letter;
    return 0;
}

static mf_status layers(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    const char *pattern = json_string_value(json_object_get(text, "hybrid_override_pattern"));
    const json_t *types = json_object_get(text, "layers_block_type");
    size_t n = json_is_array(types) ? json_array_size(types) : pattern ? strlen(pattern) : 0;
    if (n != (size_t)c->n_layers)
        return mf__fail(err, MF_E_FORMAT,
                        "%s: layers_block_type or hybrid_override_pattern says what %zu layers are, num_hidden_layers "
                        "is %d",
                        where, n, c->n_layers);
    for (size_t l = 0; l < n; l++) {
        const char *word = json_string_value(json_array_get(types, l));
        char letter = json_is_array(types) ? letter_of(word) : pattern[l];
        if (!letter || !strchr("M*E-", letter))
            return mf__fail(err, MF_E_UNSUPPORTED, "%s: layer %zu is \"%.40s\"; known are M, *, E and -", where, l,
                            word     ? word
                            : letter ? (const char[]){letter, 0}
                                     : "(not a string)");
        c->mixer[l] = letter == 'M' ? MF_MIX_SSM : letter == '*' ? MF_MIX_FULL : MF_MIX_NONE;
        c->alone[l] = letter == 'M' || letter == '*';
        c->dense[l] = letter != 'E';
    }
    return MF_OK;
}

static mf_status mamba(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t heads, dim, groups, state, kernel;
    MF__TRY(mf__json_get_int(text, where, "mamba_num_heads", 1, 4096, &heads, err));
    MF__TRY(mf__json_get_int(text, where, "mamba_head_dim", 1, 4096, &dim, err));
    MF__TRY(mf__json_opt_int(text, where, "n_groups", 1, 4096, 8, &groups, err));
    MF__TRY(mf__json_opt_int(text, where, "ssm_state_size", 1, 4096, 128, &state, err));
    MF__TRY(mf__json_opt_int(text, where, "conv_kernel", 2, 8, 4, &kernel, err));
    MF__TRY(mf__json_opt_bool(text, where, "use_conv_bias", true, &c->ssm.conv_bias, err));
    MF__TRY(mf__keys_want_bool(text, where, "mamba_proj_bias", false, err));
    MF__TRY(mf__keys_want(text, where, "mamba_hidden_act", "silu", err));
    if (heads % groups || heads * dim > 1 << 20)
        return mf__fail(err, MF_E_FORMAT, "%s: %lld mamba heads of %lld channels cannot share %lld groups (n_groups)",
                        where, (long long)heads, (long long)dim, (long long)groups);
    c->ssm.n_heads = (int32_t)heads, c->ssm.dim = (int32_t)dim;
    c->ssm.n_groups = (int32_t)groups, c->ssm.n_state = (int32_t)state, c->ssm.n_kernel = (int32_t)kernel;
    return MF_OK;
}

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t inner, shared, latent;
    double eps;
    MF__TRY(mf__keys_want(text, where, "mlp_hidden_act", "relu2", err));
    MF__TRY(mf__keys_want_bool(text, where, "use_bias", false, err));
    MF__TRY(mf__json_opt_int(text, where, "moe_latent_size", 0, 1 << 20, 0, &latent, err));
    MF__TRY(mf__json_opt_double(text, where, "layer_norm_epsilon", 0, 1, 1e-5, &eps, err));
    MF__TRY(mf__json_opt_int(text, where, "intermediate_size", 1, 1 << 20, 1, &inner, err));
    MF__TRY(mf__keys_attention(text, where, 128, c, err));
    MF__TRY(mamba(text, where, c, err));
    MF__TRY(mf__keys_moe(text, where, "moe_intermediate_size", true, c, err));
    MF__TRY(mf__json_opt_int(text, where, "moe_shared_expert_intermediate_size", 0, 1 << 20, c->moe.n_shared_inner,
                             &shared, err));
    MF__TRY(layers(text, where, c, err));
    if (latent)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: moe_latent_size %lld: experts behind a projection are not known",
                        where, (long long)latent);
    if (c->moe.n_inner % 2)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: moe_intermediate_size %d: an even number is needed", where,
                        c->moe.n_inner);
    if (c->moe.n_shared_inner) c->moe.n_shared_inner = (int32_t)shared;
    c->moe.n_inner /= 2; /* experts lie as two halves */
    c->n_dense_inner = (int32_t)inner;
    c->eps = (float)eps;
    return MF_OK;
}

static const char *const TYPES[] = {"nemotron_h", NULL};
static const mf__alias ALIASES[] = {{"model.embed_tokens.", "model.embeddings."},
                                    {"model.norm.", "model.norm_f."},
                                    {"input_layernorm.", "norm."},
                                    {"post_attention_layernorm.", "norm."},
                                    {"self_attn.", "mixer."},
                                    {"mlp.shared_expert.", "mixer.shared_experts."},
                                    {"mlp.", "mixer."},
                                    {NULL, NULL}};
#define ONE(up, down)                                                                                                  \
    { .weight = {up, up, down}, .fuse = MF_FUSE_HALVES }
static const mf__expert_spelling EACH = ONE("mixer.experts.#.up_proj.weight", "mixer.experts.#.down_proj.weight");
static const mf__expert_spelling SWITCH = ONE("mixer.switch_mlp.fc1.weight", "mixer.switch_mlp.fc2.weight");
static const mf__expert_spelling STACKED = ONE("mixer.experts.up_proj", "mixer.experts.down_proj");
static const mf__expert_spelling *const EXPERTS[] = {&EACH, &SWITCH, &STACKED, NULL};

const mf__family mf__nemotron_h = {.name = "nemotron_h",
                                   .models = "Nemotron-3-Nano-30B-A3B",
                                   .model_types = TYPES,
                                   .has = {.mixers = 1u << MF_MIX_SSM | 1u << MF_MIX_FULL | 1u << MF_MIX_NONE,
                                           .nope = true,
                                           .route = MF_ROUTE_SIGMOID,
                                           .choice_bias = true,
                                           .groups = true,
                                           .shared = MF_SHARED_PLAIN,
                                           .glu = MF_GLU_RELU2,
                                           .dense = true},
                                   .configure = configure,
                                   .aliases = ALIASES,
                                   .experts = EXPERTS};
