/* GGUF's names, and what its writers did to the tensors, undone:
 *
 *   norms have 1 added already        a convolution of the shape [channels][kernel][1] says so to the import
 *   ssm_a = -exp(A_log)               computed back, in memory: a value per head
 *   value heads in another order      qwen35moe only: vectors and convolutions put in order in memory, matrices under
 *                                     names that the family takes apart row by row
 *   kv_b split in two, k transposed   the form that newer MLX conversions have, under their names */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert/gguf.h"

typedef struct spelling {
    const char *theirs, *ours;
} spelling;

static const spelling TOP[] = {{"token_embd.weight", "model.embed_tokens.weight"},
                               {"output_norm.weight", "model.norm.weight"},
                               {"output.weight", "lm_head.weight"},
                               {"output_hc_fn.weight", "model.hc_head_fn"},
                               {"output_hc_base.weight", "model.hc_head_base"},
                               {"output_hc_scale.weight", "model.hc_head_scale"}};

/* After "blk.N." and "model.layers.N.". */
static const spelling LAYER[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_sinks.weight", "self_attn.sinks"},
    {"attn_q_a.weight", "self_attn.q_a_proj.weight"},
    {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
    {"attn_q_b.weight", "self_attn.q_b_proj.weight"},
    {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
    {"attn_kv_b.weight", "self_attn.kv_b_proj.weight"},
    {"attn_k_b.weight", "self_attn.embed_q.weight"},
    {"attn_v_b.weight", "self_attn.unembed_out.weight"},
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight"},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight"},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight"},
    {"ssm_in.weight", "linear_attn.in_proj_qkvz.weight"},
    {"ssm_ba.weight", "linear_attn.in_proj_ba.weight"},
    {"ssm_norm.weight", "linear_attn.norm.weight"},
    {"ssm_out.weight", "linear_attn.out_proj.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"ffn_gate_inp.bias", "mlp.gate.bias"},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"exp_probs_b", "mlp.gate.e_score_correction_bias"},
    {"indexer.attn_q_b.weight", "self_attn.indexer.wq_b.weight"},
    {"indexer.attn_k.weight", "self_attn.indexer.wk.weight"},
    {"indexer.proj.weight", "self_attn.indexer.weights_proj.weight"},
    {"indexer.q_proj.weight", "self_attn.indexer.q_proj.weight"},
    {"indexer.k_proj.weight", "self_attn.indexer.k_proj.weight"},
    {"indexer.q_norm.weight", "self_attn.indexer.q_norm.weight"},
    {"indexer.k_norm.weight", "self_attn.indexer.k_norm.weight"},
    {"indexer.k_norm.bias", "self_attn.indexer.k_norm.bias"},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate_exps.weight", "mlp.switch_mlp.gate_proj.weight"},
    {"ffn_up_exps.weight", "mlp.switch_mlp.up_proj.weight"},
    {"ffn_down_exps.weight", "mlp.switch_mlp.down_proj.weight"},
    {"ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"},
};

/* Where the family has other names than the rest. Looked at first. */
static const spelling GPT_OSS[] = {
    {"ffn_gate_exps.weight", "mlp.experts.gate_proj.weight"}, {"ffn_up_exps.weight", "mlp.experts.up_proj.weight"},
    {"ffn_down_exps.weight", "mlp.experts.down_proj.weight"}, {"ffn_gate_exps.bias", "mlp.experts.gate_proj.bias"},
    {"ffn_up_exps.bias", "mlp.experts.up_proj.bias"},         {"ffn_down_exps.bias", "mlp.experts.down_proj.bias"},
};
static const spelling TILED[] = {
    {"attn_qkv.weight", "linear_attn.tiled_qkv.weight"}, {"attn_gate.weight", "linear_attn.tiled_z.weight"},
    {"ssm_alpha.weight", "linear_attn.tiled_a.weight"},  {"ssm_beta.weight", "linear_attn.tiled_b.weight"},
    {"ssm_out.weight", "linear_attn.tiled_out.weight"},
};
static const spelling W123[] = {
    {"ffn_gate_exps.weight", "block_sparse_moe.switch_mlp.gate_proj.weight"},
    {"ffn_up_exps.weight", "block_sparse_moe.switch_mlp.up_proj.weight"},
    {"ffn_down_exps.weight", "block_sparse_moe.switch_mlp.down_proj.weight"},
};
static const spelling GEMMA4[] = {
    {"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
    {"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"},
    {"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"},
    {"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"},
    {"layer_output_scale.weight", "layer_scalar"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"ffn_gate_up_exps.weight", "experts.gate_up_proj"},
    {"ffn_gate_exps.weight", "experts.switch_glu.gate_proj.weight"},
    {"ffn_up_exps.weight", "experts.switch_glu.up_proj.weight"},
    {"ffn_down_exps.weight", "experts.switch_glu.down_proj.weight"},
};
static const spelling DEEPSEEK4[] = {
    {"attn_norm.weight", "attn_norm.weight"},
    {"ffn_norm.weight", "ffn_norm.weight"},
    {"attn_sinks.weight", "attn.attn_sink"},
    {"attn_q_a.weight", "attn.wq_a.weight"},
    {"attn_q_a_norm.weight", "attn.q_norm.weight"},
    {"attn_q_b.weight", "attn.wq_b.weight"},
    {"attn_kv.weight", "attn.wkv.weight"},
    {"attn_kv_a_norm.weight", "attn.kv_norm.weight"},
    {"attn_output_a.weight", "attn.wo_a.weight"},
    {"attn_output_b.weight", "attn.wo_b.weight"},
    {"attn_compressor_kv.weight", "attn.compressor.wkv.weight"},
    {"attn_compressor_gate.weight", "attn.compressor.wgate.weight"},
    {"attn_compressor_ape.weight", "attn.compressor.ape"},
    {"attn_compressor_norm.weight", "attn.compressor.norm.weight"},
    {"indexer.attn_q_b.weight", "attn.indexer.wq_b.weight"},
    {"indexer.proj.weight", "attn.indexer.weights_proj.weight"},
    {"indexer_compressor_kv.weight", "attn.indexer.compressor.wkv.weight"},
    {"indexer_compressor_gate.weight", "attn.indexer.compressor.wgate.weight"},
    {"indexer_compressor_ape.weight", "attn.indexer.compressor.ape"},
    {"indexer_compressor_norm.weight", "attn.indexer.compressor.norm.weight"},
    {"hc_attn_fn.weight", "hc_attn_fn"},
    {"hc_attn_base.weight", "hc_attn_base"},
    {"hc_attn_scale.weight", "hc_attn_scale"},
    {"hc_ffn_fn.weight", "hc_ffn_fn"},
    {"hc_ffn_base.weight", "hc_ffn_base"},
    {"hc_ffn_scale.weight", "hc_ffn_scale"},
    {"ffn_gate_tid2eid.weight", "mlp.gate.tid2eid"},
    {"ffn_gate_exps.weight", "ffn.switch_mlp.gate_proj.weight"},
    {"ffn_up_exps.weight", "ffn.switch_mlp.up_proj.weight"},
    {"ffn_down_exps.weight", "ffn.switch_mlp.down_proj.weight"},
};

static const spelling KIMI_LINEAR[] = {
    {"ssm_conv1d_q.weight", "self_attn.q_conv1d.weight"},
    {"ssm_conv1d_k.weight", "self_attn.k_conv1d.weight"},
    {"ssm_conv1d_v.weight", "self_attn.v_conv1d.weight"},
    {"ssm_f_a.weight", "self_attn.f_a_proj.weight"},
    {"ssm_f_b.weight", "self_attn.f_b_proj.weight"},
    {"ssm_g_a.weight", "self_attn.g_a_proj.weight"},
    {"ssm_g_b.weight", "self_attn.g_b_proj.weight"},
    {"ssm_beta.weight", "self_attn.b_proj.weight"},
    {"ssm_dt.bias", "self_attn.dt_bias"},
    {"ssm_norm.weight", "self_attn.o_norm.weight"},
};

static const spelling NEMOTRON_H[] = {
    {"attn_norm.weight", "norm.weight"},
    {"ssm_in.weight", "mixer.in_proj.weight"},
    {"ssm_conv1d.weight", "mixer.conv1d.weight"},
    {"ssm_conv1d.bias", "mixer.conv1d.bias"},
    {"ssm_dt.bias", "mixer.dt_bias"},
    {"ssm_d", "mixer.D"},
    {"ssm_norm.weight", "mixer.norm.weight"},
    {"ssm_out.weight", "mixer.out_proj.weight"},
    {"ffn_up_exps.weight", "mixer.switch_mlp.fc1.weight"},
    {"ffn_down_exps.weight", "mixer.switch_mlp.fc2.weight"},
};

#define OWN(arch, table)                                                                                               \
    { arch, table, MF__COUNT(table) }
static const struct {
    const char *arch;
    const spelling *table;
    size_t n;
} OWNS[] = {OWN("qwen35moe", TILED),
            OWN("gpt-oss", GPT_OSS),
            OWN("llama", W123),
            OWN("minimax-m3", W123),
            OWN("gemma4", GEMMA4),
            OWN("deepseek4", DEEPSEEK4),
            OWN("kimi-linear", KIMI_LINEAR),
            OWN("nemotron_h_moe", NEMOTRON_H)};

/* With gate and up in one, down goes by the name it has beside them. */
static const spelling FUSED[] = {{"ffn_down_exps.weight", "mlp.experts.down_proj"}};
static const spelling GEMMA4_FUSED[] = {{"ffn_down_exps.weight", "experts.down_proj"}};

typedef struct naming {
    const mf__gguf *g;
    mf__catalog *out;
    int n_layers;
    const spelling *first; /* of the architecture; may be NULL */
    size_t n_first;
    bool tiled, fused;
    int64_t k_heads, v_heads, k_dim, v_dim, kernel;
} naming;

static const char *look_up(const spelling *table, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(table[i].theirs, name)) return table[i].ours;
    return NULL;
}

static const char *ours_of(const naming *n, const char *name) {
    const char *ours = n->fused && n->first == GEMMA4 ? look_up(GEMMA4_FUSED, MF__COUNT(GEMMA4_FUSED), name) : NULL;
    if (!ours && n->first) ours = look_up(n->first, n->n_first, name);
    if (!ours && n->fused) ours = look_up(FUSED, MF__COUNT(FUSED), name);
    return ours ? ours : look_up(LAYER, MF__COUNT(LAYER), name);
}

/* ---- tensors that are computed ---- */

/* The place, in GGUF's order, of value head h. */
static int64_t head_there(const naming *n, int64_t h) {
    int64_t per_key = n->v_heads / n->k_heads;
    return n->tiled ? h % per_key * n->k_heads + h / per_key : h;
}

/* n rows of `width` values as floats, malloc'd. */
static float *floats_of(const mf__entry *e, int64_t count, mf_error *err) {
    mf__tensor t = {.type = e->type, .n_planes = 1, .n_rows = 1, .n_cols = count, .data = e->data};
    int64_t have = 1;
    for (int i = 0; i < e->n_dims; i++) have *= e->dims[i];
    if (!mf__type_is_float(e->type) || have != count) {
        mf__fail(err, MF_E_MISMATCH, "tensor %s holds %lld values of type %s, expected %lld of a plain type", e->name,
                 (long long)have, mf__type_name(e->type), (long long)count);
        return NULL;
    }
    float *x = malloc((size_t)count * sizeof *x);
    if (x)
        mf__tensor_row_f32(&t, 0, x);
    else
        mf__fail(err, MF_E_NOMEM, "no memory for tensor %s", e->name);
    return x;
}

static mf_status put_floats(const naming *n, const char *name, int n_dims, const int64_t *dims, float *data,
                            mf_error *err) {
    mf__entry e = {.name = name, .type = MF_TYPE_F32, .n_dims = n_dims, .size = (int64_t)sizeof(float)};
    for (int i = 0; i < n_dims; i++) {
        e.dims[i] = dims[i];
        e.size *= dims[i];
    }
    return mf__catalog_put_bytes(n->out, &e, data, err);
}

/* A_log and dt_bias: a value per head. */
static mf_status put_heads(const naming *n, const mf__entry *e, const char *name, bool log_of, mf_error *err) {
    float *there = floats_of(e, n->v_heads, err);
    if (!there) return err ? err->status : MF_E_MISMATCH;
    float *here = malloc((size_t)n->v_heads * sizeof *here);
    for (int64_t h = 0; here && h < n->v_heads; h++) {
        float v = there[head_there(n, h)];
        here[h] = log_of ? (float)log(-(double)v) : v;
    }
    free(there);
    if (!here) return mf__fail(err, MF_E_NOMEM, "no memory for tensor %s", name);
    return put_floats(n, name, 1, &n->v_heads, here, err);
}

/* [channels][kernel]: those of q and k as they are, those of v head by head. */
static mf_status put_conv(const naming *n, const mf__entry *e, const char *name, mf_error *err) {
    int64_t keys = 2 * n->k_heads * n->k_dim, dims[3] = {keys + n->v_heads * n->v_dim, n->kernel, 1};
    float *there = floats_of(e, dims[0] * n->kernel, err);
    if (!there) return err ? err->status : MF_E_MISMATCH;
    size_t row = (size_t)n->kernel * sizeof(float), head = (size_t)n->v_dim * row;
    float *here = malloc((size_t)dims[0] * row);
    if (here) {
        memcpy(here, there, (size_t)keys * row);
        for (int64_t h = 0; h < n->v_heads; h++)
            memcpy((char *)(here + keys * n->kernel) + (size_t)h * head,
                   (char *)(there + keys * n->kernel) + (size_t)head_there(n, h) * head, head);
    }
    free(there);
    if (!here) return mf__fail(err, MF_E_NOMEM, "no memory for tensor %s", name);
    return put_floats(n, name, 3, dims, here, err);
}

/* ---- all ---- */

static mf_status put_layer(const naming *n, const mf__entry *e, int layer, const char *rest, mf_error *err) {
    char name[256];
    const char *ours = ours_of(n, rest);
    mf__entry renamed = *e;
    renamed.name = name;
    snprintf(name, sizeof name, "model.layers.%d.%s", layer, ours ? ours : "");
    if (ours) return mf__catalog_put(n->out, &renamed, err);
    if (!n->k_heads) return MF_OK;
    static const char *const computed[] = {"ssm_a", "ssm_dt.bias", "ssm_conv1d.weight"};
    static const char *const names[] = {"A_log", "dt_bias", "conv1d.weight"};
    for (size_t i = 0; i < MF__COUNT(computed); i++) {
        if (strcmp(rest, computed[i])) continue;
        const char *block = n->first == KIMI_LINEAR ? "self_attn" : n->first == NEMOTRON_H ? "mixer" : "linear_attn";
        snprintf(name, sizeof name, "model.layers.%d.%s.%s", layer, block, names[i]);
        return i == 2 ? put_conv(n, e, name, err) : put_heads(n, e, name, i == 0, err);
    }
    return MF_OK; /* not needed: what is missing will be missed */
}

static mf_status put_all(const naming *n, mf_error *err) {
    for (int64_t i = 0; i < mf__catalog_count(n->g->catalog); i++) {
        const mf__entry *e = mf__catalog_at(n->g->catalog, i);
        int layer, used = 0;
        if (sscanf(e->name, "blk.%d.%n", &layer, &used) == 1 && used > 0) {
            if (layer >= 0 && layer < n->n_layers) MF__TRY(put_layer(n, e, layer, e->name + used, err));
            continue;
        }
        mf__entry renamed = *e;
        renamed.name = look_up(TOP, MF__COUNT(TOP), e->name);
        if (renamed.name) MF__TRY(mf__catalog_put(n->out, &renamed, err));
    }
    return mf__catalog_seal(n->out, err);
}

static bool any_fused(const mf__catalog *cat) {
    for (int64_t i = 0; i < mf__catalog_count(cat); i++)
        if (strstr(mf__catalog_at(cat, i)->name, ".ffn_gate_up_exps.weight")) return true;
    return false;
}

static int64_t number(const json_t *config, const char *key) {
    return json_integer_value(json_object_get(config, key));
}

mf_status mf__gguf_names(const mf__gguf *g, const json_t *config, mf__catalog **out, mf_error *err) {
    const char *arch = json_string_value(json_object_get(g->meta, "general.architecture"));
    naming n = {.g = g,
                .n_layers = (int)number(config, "num_hidden_layers"),
                .tiled = !strcmp(arch, "qwen35moe"),
                .fused = any_fused(g->catalog),
                .k_heads = number(config, "linear_num_key_heads"),
                .v_heads = number(config, "linear_num_value_heads"),
                .k_dim = number(config, "linear_key_head_dim"),
                .v_dim = number(config, "linear_value_head_dim"),
                .kernel = number(config, "linear_conv_kernel_dim")};
    *out = NULL;
    if (!n.k_heads) n.k_heads = n.v_heads = number(config, "linear_num_heads"); /* as many of both */
    if (!n.k_heads) n.k_heads = n.v_heads = number(config, "mamba_num_heads");
    for (size_t i = 0; i < MF__COUNT(OWNS); i++)
        if (!strcmp(arch, OWNS[i].arch)) n.first = OWNS[i].table, n.n_first = OWNS[i].n;
    if (n.k_heads < 0 || n.v_heads < 0 || n.k_heads > 4096 || n.v_heads > 4096 || n.k_dim < 0 || n.k_dim > 4096 ||
        n.v_dim < 0 || n.v_dim > 4096 || n.kernel < 0 || n.kernel > 64 || (n.k_heads && n.v_heads % n.k_heads))
        return mf__fail(err, MF_E_FORMAT, "the metadata's ssm numbers are not possible");
    MF__TRY(mf__catalog_derive(g->catalog, &n.out, err));
    mf_status status = put_all(&n, err);
    if (status == MF_OK)
        *out = n.out;
    else
        mf__catalog_close(n.out);
    return status;
}
