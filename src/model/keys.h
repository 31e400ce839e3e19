/* Groups of config keys that several families share. Each reads its keys from text into config and checks them.
 * `where` begins error texts. */
#ifndef MF_MODEL_KEYS_H
#define MF_MODEL_KEYS_H

#include "base/json.h"
#include "model/config.h"

/* num_attention_heads, num_key_value_heads, head_dim (default_dim; 0: hidden_size / heads), attention_bias (which
 * switches bias_qkv and bias_o off unless true, where the family has them). */
mf_status mf__keys_attention(const json_t *text, const char *where, int32_t default_dim, mf__config *c, mf_error *err);

/* What rope.h reads, and partial_rotary_factor, beside it or in rope_parameters. After mf__keys_attention. */
mf_status mf__keys_rope(const json_t *text, const char *where, double default_theta, double default_partial,
                        mf__config *c, mf_error *err);

/* num_experts (or num_local_experts, n_routed_experts), num_experts_per_tok, norm_topk_prob (default_renorm),
 * routed_scaling_factor, n_group, topk_group, n_shared_experts (of the experts' width, where the family has a plain
 * shared expert); width_key is the key of an expert's width. */
mf_status mf__keys_moe(const json_t *text, const char *where, const char *width_key, bool default_renorm, mf__config *c,
                       mf_error *err);

/* A key that may be absent but, if there, must have this value. */
mf_status mf__keys_want(const json_t *text, const char *where, const char *key, const char *value, mf_error *err);

/* linear_num_key_heads and the other keys of Gated DeltaNet. */
mf_status mf__keys_delta(const json_t *text, const char *where, mf__config *c, mf_error *err);

/* layer_types, where there is one, in place of what config->mixer has; what the family does not have is refused. */
mf_status mf__keys_layer_types(const json_t *text, const char *where, mf__config *c, mf_error *err);

/* Layers without experts, and their width: mlp_only_layers with decoder_sparse_step, or first_k_dense_replace. */
mf_status mf__keys_sparse_step(const json_t *text, const char *where, mf__config *c, mf_error *err);
mf_status mf__keys_first_dense(const json_t *text, const char *where, mf__config *c, mf_error *err);

#endif
