/* Small checkpoints with random weights, made from a config, changed by the tests, and compared by their logits.
 *
 * Weights are multiples of 1/64 (norms: 1 + n/8), so they are exact in bf16 and stay so when 1 is added or taken away:
 * two ways of storing the same model must give the same bits. */
#ifndef TESTS_MODEL_MAKER_H
#define TESTS_MODEL_MAKER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "convert/convert.h"
#include "model/import.h"
#include "moeflux.h"

typedef struct maker_tensor {
    char name[160]; /* empty: removed */
    mf__type type;  /* as written; values are converted from f32 when it is a float type, else bytes are written */
    int n_dims;
    int64_t dims[4];
    float *values;
    uint8_t *bytes;
} maker_tensor;

typedef struct maker {
    mf__arena arena;
    char *config; /* JSON text */
    mf__blueprint bp;
    int n, room;
    maker_tensor *tensors;
    uint32_t random;
} maker;

/* All tensors of the model under the names the graphs use, as BF16; experts in the first plain spelling of the family.
 */
void maker_init(maker *m, const char *config);
void maker_free(maker *m);

maker_tensor *maker_find(maker *m, const char *name); /* fails the test when absent */
maker_tensor *maker_add(maker *m, const char *name, int n_dims, const int64_t *dims);
void maker_remove(maker *m, const char *name);
/* In every name that holds `from`, the first one becomes `to`. */
void maker_rename(maker *m, const char *from, const char *to);
int64_t maker_count(const maker_tensor *t); /* of its values */
uint32_t maker_random(maker *m);

/* Writes ROOT/NAME (config.json, model.safetensors); returns its path, which lives as long as m. */
const char *maker_write(maker *m, const char *root, const char *name);

#define MAKER_TOKENS 21

/* Logits of the last token of a fixed sequence, [n_vocab]; malloc'd. Fails the test with the error's text. */
float *model_logits(const char *dir, int experts_per_token);
/* The same for a checkpoint, converted to DIR.native with opt (NULL: kept as it is). */
float *checkpoint_logits(const char *dir, const mf__convert_options *opt);
void assert_same_logits(const float *a, const float *b, int32_t n_vocab);

/* Fails unless converting (or opening) fails with that status and a text that holds `part`. */
void assert_convert_fails(const char *dir, mf_status want, const char *part);
void assert_open_fails(const char *dir, mf_status want, const char *part);

char *path_in(const char *dir, const char *name); /* malloc'd */

/* Configs of small models; extra goes before the closing brace: ", \"key\": 1". */
#define CONFIG_COMMON                                                                                                  \
    "\"num_hidden_layers\": 4, \"hidden_size\": 64, \"vocab_size\": 96, \"max_position_embeddings\": 64, "             \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, \"num_experts_per_tok\": 3, "           \
    "\"eos_token_id\": 1"
#define CONFIG_HYBRID                                                                                                  \
    CONFIG_COMMON                                                                                                      \
    ", \"num_experts\": 6, \"moe_intermediate_size\": 64, \"shared_expert_intermediate_size\": 64, "                   \
    "\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4, \"linear_key_head_dim\": 16, "                        \
    "\"linear_value_head_dim\": 16, \"rope_theta\": 10000.0"
#define CONFIG_QWEN3_5(extra) "{\"model_type\": \"qwen3_5_moe\", " CONFIG_HYBRID extra "}"
#define CONFIG_NEXT(extra) "{\"model_type\": \"qwen3_next\", " CONFIG_HYBRID extra "}"
#define CONFIG_QWEN3(extra)                                                                                            \
    "{\"model_type\": \"qwen3_moe\", " CONFIG_COMMON                                                                   \
    ", \"num_experts\": 6, \"moe_intermediate_size\": 64, \"norm_topk_prob\": true" extra "}"
#define CONFIG_GLM(extra)                                                                                              \
    "{\"model_type\": \"glm4_moe\", " CONFIG_COMMON                                                                    \
    ", \"n_routed_experts\": 6, \"moe_intermediate_size\": 64, \"n_shared_experts\": 1, "                              \
    "\"first_k_dense_replace\": 1, \"intermediate_size\": 128, \"attention_bias\": true, \"use_qk_norm\": true, "      \
    "\"routed_scaling_factor\": 1.5" extra "}"
#define CONFIG_OSS(extra)                                                                                              \
    "{\"model_type\": \"gpt_oss\", " CONFIG_COMMON                                                                     \
    ", \"num_local_experts\": 6, \"intermediate_size\": 64, \"sliding_window\": 5, \"rope_scaling\": "                 \
    "{\"rope_type\": \"yarn\", \"factor\": 32.0, \"original_max_position_embeddings\": 16, \"truncate\": false}" extra \
    "}"
#define CONFIG_MINIMAX(extra)                                                                                          \
    "{\"model_type\": \"minimax_m2\", " CONFIG_COMMON ", \"num_local_experts\": 6, \"intermediate_size\": 64" extra "}"
#define CONFIG_DEEPSEEK(extra)                                                                                         \
    "{\"model_type\": \"deepseek_v3\", " CONFIG_COMMON                                                                 \
    ", \"q_lora_rank\": 64, \"kv_lora_rank\": 64, \"qk_nope_head_dim\": 32, \"qk_rope_head_dim\": 16, "                \
    "\"v_head_dim\": 32, \"first_k_dense_replace\": 1, \"intermediate_size\": 128, \"n_routed_experts\": 8, "          \
    "\"moe_intermediate_size\": 64, \"n_shared_experts\": 1, \"n_group\": 2, \"topk_group\": 1" extra "}"

#endif
