/* longcat_flash: LongCat-Flash-Chat, LongCat-Flash-Thinking.
 *
 * A layer of the checkpoint has two halves, each with latent attention and a dense feed-forward, and experts beside the
 * second half, which read what the first half's feed-forward reads. Here they are two layers:
 *
 *   h -> norm -> attention 0 -> + -> norm -> x -> feed-forward 0 -> +       x stays in H_POST
 *   h -> norm -> attention 1 -> + -> norm -> feed-forward 1 -> +,  and + experts of x
 *
 * So the experts are known before the second attention. The router also has choices that give x itself. */
#include <math.h>

#include "model/keys.h"
#include "model/parts.h"

static mf_status configure(const json_t *text, const char *where, mf__config *c, mf_error *err) {
    int64_t inner, identity;
    bool scale_q, scale_kv;
    MF__TRY(mf__keys_want(text, where, "zero_expert_type", "identity", err));
    MF__TRY(mf__keys_want_bool(text, where, "router_bias", false, err));
    MF__TRY(mf__json_get_int(text, where, "ffn_hidden_size", 1, 1 << 20, &inner, err));
    MF__TRY(mf__json_opt_int(text, where, "zero_expert_num", 0, 65536, 0, &identity, err));
    MF__TRY(mf__json_opt_bool(text, where, "mla_scale_q_lora", true, &scale_q, err));
    MF__TRY(mf__json_opt_bool(text, where, "mla_scale_kv_lora", true, &scale_kv, err));
    MF__TRY(mf__keys_latent(text, where, 1e7, c, err));
    MF__TRY(mf__keys_moe(text, where, "expert_ffn_hidden_size", false, c, err));
    if (c->n_layers % 2)
        return mf__fail(err, MF_E_FORMAT, "%s: num_hidden_layers is %d, expected twice num_layers", where, c->n_layers);
    if (scale_q && c->mla.n_q_rank) c->mla.q_scale = (float)sqrt((double)c->n_hidden / c->mla.n_q_rank);
    if (scale_kv) c->mla.kv_scale = (float)sqrt((double)c->n_hidden / c->mla.n_latent);
    for (int32_t l = 0; l < c->n_layers; l++) c->dense[l] = l % 2 == 0;
    c->n_dense_inner = c->moe.n_shared_inner = (int32_t)inner;
    c->moe.n_identity = (int32_t)identity;
    return MF_OK;
}

static const char *const TYPES[] = {"longcat_flash", NULL};
static const mf__alias ALIASES[] = {{"self_attn.", "self_attn.@."},
                                    {"input_layernorm.", "input_layernorm.@."},
                                    {"post_attention_layernorm.", "post_attention_layernorm.@."},
                                    {"mlp.gate.e_score_correction_bias", "mlp.router.e_score_correction_bias"},
                                    {"mlp.gate.", "mlp.router.classifier."},
                                    {"mlp.", "mlps.@."},
                                    {NULL, NULL}};

const mf__family mf__longcat_flash = {.name = "longcat_flash",
                                      .models = "LongCat-Flash-Chat, LongCat-Flash-Thinking",
                                      .model_types = TYPES,
                                      .usual_ctx = 131072,
                                      .has = {.mixers = 1u << MF_MIX_LATENT,
                                              .bias_qkv = true,
                                              .bias_o = true,
                                              .interleaved = true,
                                              .route = MF_ROUTE_SOFTMAX,
                                              .choice_bias = true,
                                              .shortcut = true,
                                              .shared = MF_SHARED_PLAIN,
                                              .dense = true},
                                      .configure = configure,
                                      .aliases = ALIASES,
                                      .paired = true,
                                      .look = mf__look_latent};
