/* minimax_m2: MiniMax-M2 and its successors of the same shape. */
#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t rotary, shared;
    MF__TRY(mf__keys_attention(text, where, 0, c, err));
    MF__TRY(mf__json_opt_int(text, where, "rotary_dim", 1, c->attn.head_dim, c->attn.head_dim / 2, &rotary, err));
    MF__TRY(mf__keys_rope(text, where, 5e6, (double)rotary / c->attn.head_dim, c, err));
    MF__TRY(mf__json_opt_int(text, where, "shared_intermediate_size", 0, 1 << 20, 0, &shared, err));
    if (shared)
        return mf__fail(err, MF_E_UNSUPPORTED, "%s: shared_intermediate_size %lld: the family %s has no shared expert",
                        where, (long long)shared, c->family->name);
    return mf__keys_moe(text, where, "intermediate_size", true, c, err);
}

static const char *const TYPES[] = {"minimax_m2", NULL};
static const mf__alias ALIASES[] = {{"mlp.gate.e_score_correction_bias", "block_sparse_moe.e_score_correction_bias"},
                                    {"mlp.gate.", "block_sparse_moe.gate."},
                                    {NULL, NULL}};

const mf__family mf__minimax_m2 = {
    .name = "minimax_m2",
    .models = "MiniMax-M2, MiniMax-M2.1",
    .model_types = TYPES,
    .witness = "block_sparse_moe.gate.weight",
    .usual_ctx = 196608,
    .n_usual_eos = 1,
    .usual_eos = {200020},
    .has = {.mixers = 1u << MF_MIX_FULL, .qk_norm = MF_QK_NORM_JOINT, .route = MF_ROUTE_SIGMOID, .choice_bias = true},
    .configure = configure,
    .aliases = ALIASES,
    .experts = mf__expert_spellings_w123};
