/* The table of families. */
#include <stdio.h>
#include <string.h>

#include "model/names.h"

/* Those with a witness that others have too come after the others. */
const mf__family *const mf__families[] = {
    &mf__qwen3_5_moe,
    &mf__qwen3_next,
    &mf__deepseek_v3,
    &mf__glm4_moe,
    &mf__gpt_oss,
    &mf__minimax_m2,
    &mf__qwen3_moe,
    &mf__glm4_moe_lite,
    &mf__mixtral,
    &mf__olmoe,
    &mf__qwen2_moe,
    &mf__dots1,
    &mf__hy_v3,
    &mf__hunyuan_v1_moe,
    &mf__ernie4_5_moe,
    &mf__mistral4,
    &mf__mimo_v2_flash,
    &mf__gemma4,
    &mf__minimax_m3_vl,
    &mf__deepseek_v32,
    &mf__glm_moe_dsa,
    &mf__deepseek_v4,
    &mf__lfm2_moe,
    &mf__llama4_text,
    &mf__step3p7,
    &mf__longcat_flash,
    &mf__kimi_linear,
    &mf__nemotron_h,
    NULL,
};

const mf__family *mf__family_find(const char *model_type) {
    for (int i = 0; mf__families[i]; i++)
        for (int k = 0; mf__families[i]->model_types[k]; k++)
            if (!strcmp(mf__families[i]->model_types[k], model_type)) return mf__families[i];
    return NULL;
}

static bool has_witness(const mf__catalog *cat, const mf__family *family) {
    for (int l = 0; l < MF_MAX_LAYERS; l++) {
        char name[MF_MAX_NAME];
        snprintf(name, sizeof name, "model.layers.%d.%s", l, family->witness);
        if (mf__catalog_find(cat, name)) return true;
    }
    return false;
}

const mf__family *mf__family_guess(const mf__catalog *cat) {
    for (int i = 0; mf__families[i]; i++)
        if (mf__families[i]->witness && has_witness(cat, mf__families[i])) return mf__families[i];
    return NULL;
}

void mf__config_look(mf__config *config, const mf__catalog *cat) {
    if (config->family->look) config->family->look(config, cat);
}

/* Newer MLX conversions store kv_b_proj as two tensors, the key half transposed. */
void mf__look_latent(mf__config *c, const mf__catalog *cat) {
    char name[MF_MAX_NAME], spelt[MF_MAX_NAME];
    int32_t l = 0; /* the first layer that has latents */
    while (l < c->n_layers - 1 && c->mixer[l] == MF_MIX_LINEAR) l++;
    snprintf(name, sizeof name, "model.layers.%d.self_attn.embed_q.weight", l);
    c->mla.split_up = mf__names_find(cat, c->family, name, spelt) != NULL;
}

static const mf__expert_spelling EACH = {
    .weight = {"mlp.experts.#.gate_proj.weight", "mlp.experts.#.up_proj.weight", "mlp.experts.#.down_proj.weight"}};
static const mf__expert_spelling PACKED = {.weight = {"mlp.experts.#.gate_proj.weight_packed",
                                                      "mlp.experts.#.up_proj.weight_packed",
                                                      "mlp.experts.#.down_proj.weight_packed"}};
static const mf__expert_spelling SWITCH = {
    .weight = {"mlp.switch_mlp.gate_proj.weight", "mlp.switch_mlp.up_proj.weight", "mlp.switch_mlp.down_proj.weight"}};
static const mf__expert_spelling FUSED = {
    .weight = {"mlp.experts.gate_up_proj", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"},
    .fuse = MF_FUSE_HALVES};

const mf__expert_spelling *const mf__expert_spellings[] = {&EACH, &SWITCH, &FUSED, &PACKED, NULL};

const mf__alias mf__aliases_of_deepseek[] = {{"mlp.shared_expert.", "mlp.shared_experts."}, {NULL, NULL}};

static const mf__expert_spelling W123 = {.weight = {"block_sparse_moe.experts.#.w1.weight",
                                                    "block_sparse_moe.experts.#.w3.weight",
                                                    "block_sparse_moe.experts.#.w2.weight"}};
static const mf__expert_spelling W123_SWITCH = {.weight = {"block_sparse_moe.switch_mlp.gate_proj.weight",
                                                           "block_sparse_moe.switch_mlp.up_proj.weight",
                                                           "block_sparse_moe.switch_mlp.down_proj.weight"}};
const mf__expert_spelling *const mf__expert_spellings_w123[] = {&W123, &W123_SWITCH, &FUSED, NULL};

const char *const mf__zero_centred_norms[] = {".input_layernorm.weight",  ".post_attention_layernorm.weight",
                                              ".self_attn.q_norm.weight", ".self_attn.k_norm.weight",
                                              "model.norm.weight",        NULL};
