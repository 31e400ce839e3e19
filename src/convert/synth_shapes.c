/* The shapes: configs as the published models have them, reduced to what decides shapes and arithmetic. */
#include <stdio.h>
#include <string.h>

#include "convert/synth.h"
#include "model/config.h"

typedef struct shape {
    const char *name;
    int n_layers, min_layers;
    const char *config; /* without num_hidden_layers */
} shape;

#define QWEN                                                                                                           \
    "\"architectures\": [\"Qwen3_5MoeForCausalLM\"], \"model_type\": \"qwen3_5_moe_text\", \"rms_norm_eps\": 1e-06, "  \
    "\"partial_rotary_factor\": 0.25, \"rope_theta\": 10000000.0, \"full_attention_interval\": 4, "                    \
    "\"linear_conv_kernel_dim\": 4, \"tie_word_embeddings\": false, \"eos_token_id\": 256, "

static const shape SHAPES[] = {
    {"a3b", 40, 1,
     "{" QWEN "\"hidden_size\": 2048, \"vocab_size\": 248320, \"max_position_embeddings\": 262144, "
     "\"num_attention_heads\": 16, \"num_key_value_heads\": 2, \"head_dim\": 256, \"linear_num_key_heads\": 16, "
     "\"linear_num_value_heads\": 32, \"linear_key_head_dim\": 128, \"linear_value_head_dim\": 128, "
     "\"num_experts\": 256, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 512, "
     "\"shared_expert_intermediate_size\": 512}"},
    {"a17b", 60, 1,
     "{" QWEN "\"hidden_size\": 4096, \"vocab_size\": 248320, \"max_position_embeddings\": 262144, "
     "\"num_attention_heads\": 32, \"num_key_value_heads\": 2, \"head_dim\": 256, \"linear_num_key_heads\": 16, "
     "\"linear_num_value_heads\": 64, \"linear_key_head_dim\": 128, \"linear_value_head_dim\": 128, "
     "\"num_experts\": 512, \"num_experts_per_tok\": 10, \"moe_intermediate_size\": 1024, "
     "\"shared_expert_intermediate_size\": 1024}"},
    {"deepseek", 61, 4,
     "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"model_type\": \"deepseek_v3\", \"rms_norm_eps\": 1e-06, "
     "\"hidden_size\": 7168, \"vocab_size\": 129280, \"max_position_embeddings\": 163840, \"intermediate_size\": "
     "18432, "
     "\"num_attention_heads\": 128, \"num_key_value_heads\": 128, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, "
     "\"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"first_k_dense_replace\": 3, "
     "\"n_routed_experts\": 256, \"n_shared_experts\": 1, \"num_experts_per_tok\": 8, \"n_group\": 8, "
     "\"topk_group\": 4, \"moe_intermediate_size\": 2048, \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5, "
     "\"scoring_func\": \"sigmoid\", \"topk_method\": \"noaux_tc\", \"rope_theta\": 10000, "
     "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, "
     "\"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096}, \"tie_word_embeddings\": false, "
     "\"eos_token_id\": 256}"},
    {"glm-flash", 47, 2,
     "{\"model_type\": \"glm4_moe_lite\", \"rms_norm_eps\": 1e-05, \"hidden_size\": 2048, \"vocab_size\": 154880, "
     "\"max_position_embeddings\": 202752, \"intermediate_size\": 10240, \"num_attention_heads\": 20, "
     "\"q_lora_rank\": 768, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 192, \"qk_rope_head_dim\": 64, "
     "\"v_head_dim\": 256, \"first_k_dense_replace\": 1, \"n_routed_experts\": 64, \"n_shared_experts\": 1, "
     "\"num_experts_per_tok\": 4, \"moe_intermediate_size\": 1536, \"routed_scaling_factor\": 1.8, "
     "\"rope_theta\": 1000000.0, \"eos_token_id\": 256}"},
    {"glm5", 78, 4,
     "{\"model_type\": \"glm_moe_dsa\", \"rms_norm_eps\": 1e-05, \"hidden_size\": 6144, \"vocab_size\": 154880, "
     "\"max_position_embeddings\": 202752, \"intermediate_size\": 12288, \"num_attention_heads\": 64, "
     "\"q_lora_rank\": 2048, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 192, \"qk_rope_head_dim\": 64, "
     "\"v_head_dim\": 256, \"first_k_dense_replace\": 3, \"n_routed_experts\": 256, \"n_shared_experts\": 1, "
     "\"num_experts_per_tok\": 8, \"moe_intermediate_size\": 2048, \"routed_scaling_factor\": 2.5, "
     "\"rope_theta\": 1000000.0, \"index_n_heads\": 32, \"index_head_dim\": 128, \"index_topk\": 2048, "
     "\"eos_token_id\": 256}"},
    {"deepseek32", 61, 4,
     "{\"model_type\": \"deepseek_v32\", \"rms_norm_eps\": 1e-06, \"hidden_size\": 7168, \"vocab_size\": 129280, "
     "\"max_position_embeddings\": 163840, \"intermediate_size\": 18432, \"num_attention_heads\": 128, "
     "\"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, "
     "\"v_head_dim\": 128, \"first_k_dense_replace\": 3, \"n_routed_experts\": 256, \"n_shared_experts\": 1, "
     "\"num_experts_per_tok\": 8, \"n_group\": 8, \"topk_group\": 4, \"moe_intermediate_size\": 2048, "
     "\"routed_scaling_factor\": 2.5, \"rope_theta\": 10000, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, "
     "\"mscale\": 1.0, \"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 4096}, "
     "\"index_n_heads\": 64, \"index_head_dim\": 128, \"index_topk\": 2048, \"eos_token_id\": 256}"},
    {"mistral4", 36, 1,
     "{\"model_type\": \"mistral4\", \"rms_norm_eps\": 1e-06, \"hidden_size\": 4096, \"vocab_size\": 131072, "
     "\"max_position_embeddings\": 1048576, \"num_attention_heads\": 32, \"q_lora_rank\": 1024, "
     "\"kv_lora_rank\": 256, \"qk_nope_head_dim\": 64, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, "
     "\"n_routed_experts\": 128, \"n_shared_experts\": 1, \"num_experts_per_tok\": 4, "
     "\"moe_intermediate_size\": 2048, \"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 10000.0, "
     "\"factor\": 128.0, \"original_max_position_embeddings\": 8192, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, "
     "\"llama_4_scaling_beta\": 0.1}, \"eos_token_id\": 256}"},
    {"mimo", 48, 2,
     "{\"model_type\": \"mimo_v2_flash\", \"rms_norm_eps\": 1e-05, \"hidden_size\": 4096, \"vocab_size\": 152576, "
     "\"max_position_embeddings\": 262144, \"num_attention_heads\": 64, \"num_key_value_heads\": 4, "
     "\"head_dim\": 192, \"v_head_dim\": 128, \"swa_num_key_value_heads\": 8, \"sliding_window\": 128, "
     "\"partial_rotary_factor\": 0.334, \"rope_theta\": 5000000.0, \"swa_rope_theta\": 10000.0, "
     "\"attention_value_scale\": 0.707, \"first_k_dense_replace\": 1, \"intermediate_size\": 16384, "
     "\"n_routed_experts\": 256, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 2048, "
     "\"eos_token_id\": 256}"},
    {"gemma4", 30, 1,
     "{\"model_type\": \"gemma4_text\", \"rms_norm_eps\": 1e-06, \"hidden_size\": 2816, \"vocab_size\": 262144, "
     "\"max_position_embeddings\": 262144, \"num_attention_heads\": 16, \"num_key_value_heads\": 8, "
     "\"head_dim\": 256, \"global_head_dim\": 512, \"num_global_key_value_heads\": 2, \"attention_k_eq_v\": true, "
     "\"sliding_window\": 1024, \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\", "
     "\"rope_theta\": 1000000.0, \"partial_rotary_factor\": 0.25}, \"sliding_attention\": {\"rope_type\": "
     "\"default\", \"rope_theta\": 10000.0}}, \"enable_moe_block\": true, \"final_logit_softcapping\": 30.0, "
     "\"tie_word_embeddings\": true, \"intermediate_size\": 2112, \"num_experts\": 128, \"top_k_experts\": 8, "
     "\"moe_intermediate_size\": 704, \"eos_token_id\": 256}"},
    {"hy3", 80, 2,
     "{\"model_type\": \"hy_v3\", \"rms_norm_eps\": 1e-05, \"hidden_size\": 4096, \"vocab_size\": 120832, "
     "\"max_position_embeddings\": 262144, \"num_attention_heads\": 64, \"num_key_value_heads\": 8, "
     "\"head_dim\": 128, \"rope_theta\": 11158840.0, \"first_k_dense_replace\": 1, \"intermediate_size\": 13312, "
     "\"num_experts\": 192, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 1536, "
     "\"num_shared_experts\": 1, \"router_scaling_factor\": 2.826, \"eos_token_id\": 256}"},
    {"ernie", 28, 2,
     "{\"model_type\": \"ernie4_5_moe\", \"rms_norm_eps\": 1e-05, \"hidden_size\": 2560, \"vocab_size\": 103424, "
     "\"max_position_embeddings\": 131072, \"num_attention_heads\": 20, \"num_key_value_heads\": 4, "
     "\"head_dim\": 128, \"rope_theta\": 500000.0, \"intermediate_size\": 12288, \"moe_num_experts\": 64, "
     "\"moe_k\": 6, \"moe_intermediate_size\": 1536, \"moe_num_shared_experts\": 2, "
     "\"tie_word_embeddings\": true, \"eos_token_id\": 256}"},
    {"olmoe", 16, 1,
     "{\"model_type\": \"olmoe\", \"rms_norm_eps\": 1e-05, \"hidden_size\": 2048, \"vocab_size\": 50304, "
     "\"max_position_embeddings\": 4096, \"num_attention_heads\": 16, \"num_experts\": 64, "
     "\"num_experts_per_tok\": 8, \"intermediate_size\": 1024, \"rope_theta\": 10000.0, \"eos_token_id\": 256}"},
    {"mixtral", 32, 1,
     "{\"model_type\": \"mixtral\", \"rms_norm_eps\": 1e-05, \"hidden_size\": 4096, \"vocab_size\": 32000, "
     "\"max_position_embeddings\": 32768, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, "
     "\"num_local_experts\": 8, \"num_experts_per_tok\": 2, \"intermediate_size\": 14336, "
     "\"rope_theta\": 1000000.0, \"eos_token_id\": 256}"},
    {"qwen2", 28, 1,
     "{\"model_type\": \"qwen2_moe\", \"rms_norm_eps\": 1e-06, \"hidden_size\": 3584, \"vocab_size\": 151936, "
     "\"max_position_embeddings\": 32768, \"num_attention_heads\": 28, \"num_key_value_heads\": 4, "
     "\"num_experts\": 64, \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 2560, "
     "\"shared_expert_intermediate_size\": 20480, \"rope_theta\": 1000000.0, \"eos_token_id\": 256}"},
    {"dots1", 62, 2,
     "{\"model_type\": \"dots1\", \"rms_norm_eps\": 1e-05, \"hidden_size\": 4096, \"vocab_size\": 152064, "
     "\"max_position_embeddings\": 32768, \"num_attention_heads\": 32, \"num_key_value_heads\": 32, "
     "\"head_dim\": 128, \"rope_theta\": 10000000.0, \"first_k_dense_replace\": 1, \"intermediate_size\": 10944, "
     "\"n_routed_experts\": 128, \"n_shared_experts\": 2, \"num_experts_per_tok\": 6, "
     "\"moe_intermediate_size\": 1408, \"routed_scaling_factor\": 2.5, \"eos_token_id\": 256}"},
    {"hunyuan", 32, 1,
     "{\"model_type\": \"hunyuan_v1_moe\", \"rms_norm_eps\": 1e-05, \"hidden_size\": 4096, \"vocab_size\": 128167, "
     "\"max_position_embeddings\": 32768, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, "
     "\"head_dim\": 128, \"num_experts\": 64, \"moe_topk\": 8, \"intermediate_size\": 3072, "
     "\"moe_intermediate_size\": 3072, \"num_shared_expert\": 1, \"tie_word_embeddings\": true, "
     "\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": 1000.0, \"factor\": 1.0}, \"eos_token_id\": 256}"},
    {"minimax3", 60, 4,
     "{\"model_type\": \"minimax_m3_vl_text\", \"rms_norm_eps\": 1e-06, \"hidden_size\": 6144, "
     "\"vocab_size\": 200064, \"max_position_embeddings\": 196608, \"num_attention_heads\": 64, "
     "\"num_key_value_heads\": 4, \"head_dim\": 128, \"rotary_dim\": 64, \"rope_theta\": 5000000.0, "
     "\"first_k_dense_replace\": 3, \"dense_intermediate_size\": 12288, \"num_local_experts\": 128, "
     "\"num_experts_per_tok\": 4, \"intermediate_size\": 3072, \"shared_intermediate_size\": 3072, "
     "\"routed_scaling_factor\": 2.0, \"sparse_attention_config\": {\"first_full_layers\": 3, "
     "\"sparse_num_index_heads\": 4, \"sparse_index_dim\": 128, \"sparse_block_size\": 128, "
     "\"sparse_topk_blocks\": 16, \"sparse_local_block\": 1}, \"eos_token_id\": 256}"},
    {"deepseek4", 43, 4,
     "{\"model_type\": \"deepseek_v4\", \"rms_norm_eps\": 1e-06, \"hidden_size\": 4096, \"vocab_size\": 129280, "
     "\"max_position_embeddings\": 1048576, \"num_attention_heads\": 64, \"num_key_value_heads\": 1, "
     "\"head_dim\": 512, \"qk_rope_head_dim\": 64, \"q_lora_rank\": 1024, \"o_groups\": 8, \"o_lora_rank\": 1024, "
     "\"n_routed_experts\": 256, \"n_shared_experts\": 1, \"num_experts_per_tok\": 6, "
     "\"moe_intermediate_size\": 2048, \"routed_scaling_factor\": 1.5, \"swiglu_limit\": 10.0, "
     "\"sliding_window\": 128, \"hc_mult\": 4, \"hc_sinkhorn_iters\": 20, \"index_n_heads\": 64, "
     "\"index_head_dim\": 128, \"index_topk\": 512, \"num_hash_layers\": 3, \"rope_theta\": 10000.0, "
     "\"compress_rope_theta\": 160000.0, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16, "
     "\"original_max_position_embeddings\": 65536}, \"eos_token_id\": 256}"},
    {"lfm2", 24, 3,
     "{\"model_type\": \"lfm2_moe\", \"norm_eps\": 1e-05, \"hidden_size\": 2048, \"vocab_size\": 65536, "
     "\"max_position_embeddings\": 128000, \"num_attention_heads\": 32, \"num_key_value_heads\": 8, "
     "\"conv_L_cache\": 3, \"conv_bias\": false, \"num_dense_layers\": 2, \"intermediate_size\": 7168, "
     "\"num_experts\": 32, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 1792, "
     "\"rope_theta\": 1000000.0, \"layer_types\": [\"conv\", \"conv\", \"full_attention\", \"conv\", \"conv\", "
     "\"conv\", \"full_attention\", \"conv\", \"conv\", \"conv\", \"full_attention\", \"conv\", \"conv\", \"conv\", "
     "\"full_attention\", \"conv\", \"conv\", \"conv\", \"full_attention\", \"conv\", \"conv\", \"full_attention\", "
     "\"conv\", \"conv\"], \"tie_word_embeddings\": true, \"eos_token_id\": 256}"},
    {"llama4", 48, 4,
     "{\"model_type\": \"llama4_text\", \"rms_norm_eps\": 1e-05, \"hidden_size\": 5120, \"vocab_size\": 202048, "
     "\"max_position_embeddings\": 1048576, \"num_attention_heads\": 40, \"num_key_value_heads\": 8, "
     "\"head_dim\": 128, \"rope_theta\": 500000.0, \"attention_chunk_size\": 8192, \"no_rope_layers\": [], "
     "\"attn_temperature_tuning\": true, \"floor_scale\": 8192, \"attn_scale\": 0.1, \"use_qk_norm\": false, "
     "\"interleave_moe_layer_step\": 2, \"intermediate_size\": 8192, \"intermediate_size_mlp\": 16384, "
     "\"num_local_experts\": 128, \"num_experts_per_tok\": 1, \"eos_token_id\": 256}"},
    {"longcat", 56, 2,
     "{\"model_type\": \"longcat_flash\", \"rms_norm_eps\": 1e-05, \"hidden_size\": 6144, \"vocab_size\": 131072, "
     "\"max_position_embeddings\": 131072, \"num_attention_heads\": 64, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, "
     "\"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"ffn_hidden_size\": 12288, "
     "\"expert_ffn_hidden_size\": 2048, \"n_routed_experts\": 512, \"zero_expert_num\": 256, \"moe_topk\": 12, "
     "\"routed_scaling_factor\": 6.0, \"rope_theta\": 10000000.0, \"eos_token_id\": 256}"},
    {"step35", 45, 4,
     "{\"model_type\": \"step3p5\", \"rms_norm_eps\": 1e-05, \"hidden_size\": 4096, \"vocab_size\": 128896, "
     "\"max_position_embeddings\": 262144, \"num_attention_heads\": 64, \"num_attention_groups\": 8, "
     "\"head_dim\": 128, \"attention_other_setting\": {\"num_attention_heads\": 96, \"num_attention_groups\": 8, "
     "\"head_dim\": 128}, \"sliding_window\": 512, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 2.0, "
     "\"low_freq_factor\": 1.0, \"high_freq_factor\": 32.0, \"original_max_position_embeddings\": 131072}, "
     "\"yarn_only_types\": [\"full_attention\"], \"first_k_dense_replace\": 3, \"intermediate_size\": 11264, "
     "\"moe_num_experts\": 288, \"moe_top_k\": 8, \"moe_intermediate_size\": 1280, \"share_expert_dim\": 1280, "
     "\"moe_router_scaling_factor\": 3.0, "
     "\"swiglu_limits\": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "
     "0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7], "
     "\"swiglu_limits_shared\": [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "
     "0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16], "
     "\"eos_token_id\": 256}"},
    {"kimi-linear", 27, 4,
     "{\"model_type\": \"kimi_linear\", \"rms_norm_eps\": 1e-05, \"hidden_size\": 2304, \"vocab_size\": 163840, "
     "\"model_max_length\": 1048576, \"intermediate_size\": 9216, \"num_attention_heads\": 32, "
     "\"num_key_value_heads\": 32, \"q_lora_rank\": null, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, "
     "\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"mla_use_nope\": true, \"first_k_dense_replace\": 1, "
     "\"num_experts\": 256, \"num_experts_per_token\": 8, \"moe_intermediate_size\": 1024, "
     "\"num_shared_experts\": 1, \"num_expert_group\": 1, \"topk_group\": 1, \"moe_renormalize\": true, "
     "\"routed_scaling_factor\": 2.446, \"linear_attn_config\": {\"num_heads\": 32, \"head_dim\": 128, "
     "\"short_conv_kernel_size\": 4, \"full_attn_layers\": [4, 8, 12, 16, 20, 24, 27], \"kda_layers\": [1, 2, 3, 5, "
     "6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26]}, \"eos_token_id\": 256}"},
    {"nemotron3", 52, 6,
     "{\"model_type\": \"nemotron_h\", \"layer_norm_epsilon\": 1e-05, \"hidden_size\": 2688, \"vocab_size\": 131072, "
     "\"max_position_embeddings\": 262144, \"num_attention_heads\": 32, \"num_key_value_heads\": 2, "
     "\"head_dim\": 128, \"mamba_num_heads\": 64, \"mamba_head_dim\": 64, \"n_groups\": 8, \"ssm_state_size\": 128, "
     "\"conv_kernel\": 4, \"use_conv_bias\": true, \"n_routed_experts\": 128, \"num_experts_per_tok\": 6, "
     "\"moe_intermediate_size\": 1856, \"n_shared_experts\": 1, \"moe_shared_expert_intermediate_size\": 3712, "
     "\"intermediate_size\": 1856, \"routed_scaling_factor\": 2.5, \"hybrid_override_pattern\": "
     "\"MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME\", \"eos_token_id\": 256}"},
    {"tiny", 4, 1,
     "{" QWEN "\"hidden_size\": 256, \"vocab_size\": 512, \"max_position_embeddings\": 4096, "
     "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \"linear_num_key_heads\": 2, "
     "\"linear_num_value_heads\": 4, \"linear_key_head_dim\": 64, \"linear_value_head_dim\": 64, "
     "\"num_experts\": 64, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 128, "
     "\"shared_expert_intermediate_size\": 128}"},
};

const char *const mf__synth_shapes[] = {
    "a3b",  "a17b",   "deepseek", "glm-flash", "glm5",        "deepseek32", "mistral4", "mimo",     "gemma4",
    "hy3",  "ernie",  "olmoe",    "mixtral",   "qwen2",       "dots1",      "hunyuan",  "minimax3", "deepseek4",
    "lfm2", "llama4", "longcat",  "step35",    "kimi-linear", "nemotron3",  "tiny",     NULL};

/* Layers with a kind of their own each: the first ones. */
static void cut_layers(json_t *config, int n_layers) {
    json_t *types = json_object_get(config, "layer_types");
    for (size_t n = json_array_size(types); n > (size_t)n_layers; n--) json_array_remove(types, n - 1);
    const char *pattern = json_string_value(json_object_get(config, "hybrid_override_pattern"));
    if (pattern && strlen(pattern) > (size_t)n_layers)
        json_object_set_new(config, "hybrid_override_pattern", json_stringn(pattern, (size_t)n_layers));
}

json_t *mf__synth_config(const char *name, int n_layers, mf_error *err) {
    for (size_t i = 0; i < MF__COUNT(SHAPES); i++) {
        const shape *s = &SHAPES[i];
        if (strcmp(s->name, name)) continue;
        if (!n_layers) n_layers = s->n_layers;
        if (n_layers < s->min_layers || n_layers > MF_MAX_LAYERS) {
            mf__fail(err, MF_E_INVALID, "%d layers are not possible in the shape %s: %d to %d are", n_layers, name,
                     s->min_layers, MF_MAX_LAYERS);
            return NULL;
        }
        json_t *config = json_loads(s->config, JSON_REJECT_DUPLICATES, NULL);
        if (!config || json_object_set_new(config, "num_hidden_layers", json_integer(n_layers)) != 0) {
            json_decref(config);
            mf__fail(err, MF_E_NOMEM, "no memory for a config");
            return NULL;
        }
        cut_layers(config, n_layers);
        return config;
    }
    char known[256] = "";
    for (int i = 0; mf__synth_shapes[i]; i++) {
        size_t used = strlen(known);
        const char *sep = !i ? "" : mf__synth_shapes[i + 1] ? ", " : " and ";
        snprintf(known + used, sizeof known - used, "%s%s", sep, mf__synth_shapes[i]);
    }
    mf__fail(err, MF_E_INVALID, "the shape \"%s\" is not known; known are %s", name, known);
    return NULL;
}

/* How byte-level BPE spells a byte: printable ones as themselves, the others from U+0100 on. */
static void byte_text(int byte, char out[3]) {
    bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    int code = byte;
    if (!plain) code = 256 + (byte <= 32 ? byte : byte <= 160 ? byte - 127 + 33 : 67);
    if (code < 128) {
        out[0] = (char)code;
        out[1] = '\0';
    } else {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 63));
        out[2] = '\0';
    }
}

json_t *mf__synth_tokenizer(void) {
    json_t *vocab = json_object();
    for (int b = 0; b < 256; b++) {
        char text[3];
        byte_text(b, text);
        json_object_set_new(vocab, text, json_integer(b));
    }
    return json_pack("{s:s, s:[{s:i, s:s, s:b, s:b, s:b, s:b, s:b}], s:n, s:{s:s, s:b, s:b, s:b}, "
                     "s:{s:s, s:b, s:b, s:b}, s:{s:s, s:o, s:[]}}",
                     "version", "1.0", "added_tokens", "id", 256, "content", "<|endoftext|>", "single_word", 0,
                     "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1, "normalizer", "pre_tokenizer", "type",
                     "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0, "decoder", "type",
                     "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0, "model", "type", "BPE",
                     "vocab", vocab, "merges");
}
