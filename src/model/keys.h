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

/* The same for layers of one kind, where rope_parameters has an object for each: of SLIDING layers into sliding and
 * sliding_rope, of the others as above. */
mf_status mf__keys_rope_of(const json_t *text, const char *where, mf__mixer mixer, double default_theta,
                           double default_partial, mf__config *c, mf_error *err);

/* num_experts, num_experts_per_tok, norm_topk_prob (default_renorm), routed_scaling_factor, n_group, topk_group,
 * n_shared_experts (of the experts' width, where the family has a plain shared expert), in any of their spellings;
 * width_key is the key of an expert's width. Numbers may be lists of one number per layer, all of them equal. */
mf_status mf__keys_moe(const json_t *text, const char *where, const char *width_key, bool default_renorm, mf__config *c,
                       mf_error *err);

/* A key that may be absent but, if there, must have this value. */
mf_status mf__keys_want(const json_t *text, const char *where, const char *key, const char *value, mf_error *err);
mf_status mf__keys_want_bool(const json_t *text, const char *where, const char *key, bool value, mf_error *err);

/* linear_num_key_heads and the other keys of Gated DeltaNet. */
mf_status mf__keys_delta(const json_t *text, const char *where, mf__config *c, mf_error *err);

/* layer_types, where there is one, in place of what config->mixer has; what the family does not have is refused. */
mf_status mf__keys_layer_types(const json_t *text, const char *where, mf__config *c, mf_error *err);
/* sliding_window, which must be there if a layer is SLIDING by now. */
mf_status mf__keys_window(const json_t *text, const char *where, mf__config *c, mf_error *err);

/* Layers without experts, and their width: mlp_only_layers with decoder_sparse_step; or mlp_layer_types, a list of
 * "dense" and "sparse", or moe_layer_freq, a list of 0 and 1, or where both are absent first_k_dense_replace. */
mf_status mf__keys_sparse_step(const json_t *text, const char *where, mf__config *c, mf_error *err);
mf_status mf__keys_first_dense(const json_t *text, const char *where, mf__config *c, mf_error *err);

/* Multi-head latent attention in every layer: num_attention_heads, q_lora_rank, kv_lora_rank, qk_nope_head_dim and the
 * others, rope (default_theta). What else DeepSeek-V3 may say of its experts is checked. */
mf_status mf__keys_latent(const json_t *text, const char *where, double default_theta, mf__config *c, mf_error *err);

/* index_n_heads, index_head_dim and index_topk: the index of DeepSeek's sparse attention. Every layer becomes INDEXED.
 */
mf_status mf__keys_index(const json_t *text, const char *where, bool interleaved, mf__config *c, mf_error *err);

#endif
