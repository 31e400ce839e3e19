/* The table of what each family is made of, as text. */
#include <stdio.h>
#include <string.h>

#include "model/family.h"

const char *mf__mixer_key(mf__mixer mixer) {
    static const char *const keys[MF_MIX_COUNT] = {[MF_MIX_FULL] = "full_attention",
                                                   [MF_MIX_LINEAR] = "linear_attention",
                                                   [MF_MIX_SLIDING] = "sliding_attention",
                                                   [MF_MIX_LATENT] = "latent_attention",
                                                   [MF_MIX_INDEXED] = "deepseek_sparse_attention",
                                                   [MF_MIX_REUSED] = "deepseek_shared_attention",
                                                   [MF_MIX_BLOCKS] = "minimax_m3_sparse",
                                                   [MF_MIX_HEAVY] = "heavily_compressed_attention",
                                                   [MF_MIX_CONV] = "conv",
                                                   [MF_MIX_CHUNKED] = "chunked_attention",
                                                   [MF_MIX_SSM] = "mamba",
                                                   [MF_MIX_NONE] = "none",
                                                   [MF_MIX_SPARSE] = "compressed_sparse_attention"};
    return (unsigned)mixer < MF_MIX_COUNT ? keys[mixer] : "?";
}

const char *mf__mixer_name(mf__mixer mixer) {
    static const char *const names[MF_MIX_COUNT] = {
        [MF_MIX_FULL] = "full",        [MF_MIX_LINEAR] = "linear",
        [MF_MIX_SLIDING] = "sliding",  [MF_MIX_LATENT] = "latent",
        [MF_MIX_INDEXED] = "indexed",  [MF_MIX_REUSED] = "reused",
        [MF_MIX_BLOCKS] = "blocks",    [MF_MIX_HEAVY] = "compressed",
        [MF_MIX_CONV] = "convolution", [MF_MIX_SPARSE] = "compressed indexed",
        [MF_MIX_CHUNKED] = "chunked",  [MF_MIX_SSM] = "state space",
        [MF_MIX_NONE] = "none"};
    return (unsigned)mixer < MF_MIX_COUNT ? names[mixer] : "?";
}

typedef enum column {
    COL_ATTENTION,
    COL_GATE,
    COL_QK_NORM,
    COL_SINKS,
    COL_BIASES,
    COL_NORMS,
    COL_ROPE,
    COL_STRETCH,
    COL_ROUTER,
    COL_SHARED,
    COL_ACTIVATION,
    COL_DENSE,
    COL_MORE,
    COL_COUNT
} column;
_Static_assert(COL_COUNT == MF_FEATURES, "a name and a text for every column");

const char *mf__feature_name(int col) {
    static const char *const names[COL_COUNT] = {[COL_ATTENTION] = "attention",
                                                 [COL_GATE] = "output gate",
                                                 [COL_QK_NORM] = "q/k norm",
                                                 [COL_SINKS] = "sinks",
                                                 [COL_BIASES] = "biases",
                                                 [COL_NORMS] = "norms in raw files",
                                                 [COL_ROPE] = "rope pairs",
                                                 [COL_STRETCH] = "rope scaling",
                                                 [COL_ROUTER] = "router",
                                                 [COL_SHARED] = "shared expert",
                                                 [COL_ACTIVATION] = "activation",
                                                 [COL_DENSE] = "dense layers",
                                                 [COL_MORE] = "more"};
    return (unsigned)col < COL_COUNT ? names[col] : "?";
}

static void add(char *text, size_t size, const char *sep, const char *what) {
    size_t used = strlen(text);
    if (used < size) snprintf(text + used, size - used, "%s%s", used ? sep : "", what);
}

static void biases(const mf__features *f, char *text, size_t size) {
    bool latent = f->mixers & (1u << MF_MIX_LATENT | 1u << MF_MIX_INDEXED | 1u << MF_MIX_REUSED);
    if (f->bias_qkv) add(text, size, ", ", latent ? "q_a kv_a o" : f->bias_o ? "q k v o" : "q k v");
    if (f->route_bias) add(text, size, ", ", "router");
    if (f->expert_bias) add(text, size, ", ", "experts");
}

static void router(const mf__features *f, char *text, size_t size) {
    static const char *const kinds[] = {[MF_ROUTE_SOFTMAX] = "softmax, top k",
                                        [MF_ROUTE_SIGMOID] = "sigmoid, top k",
                                        [MF_ROUTE_TOPK_SOFTMAX] = "top k, softmax",
                                        [MF_ROUTE_SQRT_SOFTPLUS] = "sqrt softplus, top k",
                                        [MF_ROUTE_TOPK_SIGMOID] = "top k, sigmoid"};
    add(text, size, "", kinds[f->route]);
    if (f->choice_bias) add(text, size, ", ", "chosen with bias");
    if (f->groups) add(text, size, ", ", "groups");
}

static void qk_norm(const mf__features *f, char *text, size_t size) {
    static const char *const norms[] = {[MF_QK_NORM_NONE] = "",
                                        [MF_QK_NORM_HEAD] = "per head",
                                        [MF_QK_NORM_JOINT] = "all heads as one",
                                        [MF_QK_NORM_BARE] = "per head, no weights"};
    add(text, size, "", norms[f->qk_norm]);
    if (f->qk_norm_last) add(text, size, ", ", "after rope");
}

static void sinks(const mf__features *f, char *text, size_t size) {
    if (f->sinks) add(text, size, "", f->sinks == f->mixers ? "per head" : "per head, sliding layers");
}

static void more(const mf__features *f, char *text, size_t size) {
    if (f->mixers & 1u << MF_MIX_NONE) add(text, size, ", ", "layers of one half");
    if (f->channel_decay) add(text, size, ", ", "a decay for every channel");
    if (f->streams) add(text, size, ", ", "hyper-connections");
    if (f->far) add(text, size, ", ", "compressed rows");
    if (f->shortcut) add(text, size, ", ", "two halves to a layer, experts beside the second, some give what they get");
    if (f->weigh_first) add(text, size, ", ", "scores before the experts");
    if (f->nope_full) add(text, size, ", ", "full layers without rope");
    if (f->hashed) add(text, size, ", ", "experts by token in some layers");
    if (f->sandwich) add(text, size, ", ", "norms behind each half");
    if (f->route_apart) add(text, size, ", ", "router with a norm of its own");
    if (f->value_norm) add(text, size, ", ", "values normed");
    if (f->key_is_value) add(text, size, ", ", "keys as values");
    if (f->value_scale) add(text, size, ", ", "values scaled");
    if (f->clip) add(text, size, ", ", "q k v clamped");
    if (f->grow) add(text, size, ", ", "queries grow with their position");
}

void mf__feature_text(const mf__features *f, int col, char *text, size_t size) {
    static const char *const shared[] = {[MF_SHARED_NONE] = "",
                                         [MF_SHARED_GATED] = "sigmoid gate",
                                         [MF_SHARED_PLAIN] = "plain",
                                         [MF_SHARED_DENSE] = "dense"};
    static const char *const glus[] = {[MF_GLU_SILU] = "silu",
                                       [MF_GLU_GELU] = "gelu",
                                       [MF_GLU_LIMITED] = "limited silu",
                                       [MF_GLU_CUT] = "silu, cut in some layers",
                                       [MF_GLU_PRODUCT] = "product",
                                       [MF_GLU_RELU2] = "relu squared, no gate",
                                       [MF_GLU_CLAMPED] = "clamped"};
    if (!size) return;
    text[0] = 0;
    switch ((column)col) {
    case COL_ATTENTION:
        for (int m = 0; m < MF_MIX_COUNT; m++)
            if (f->mixers & 1u << m) add(text, size, ", ", mf__mixer_name((mf__mixer)m));
        break;
    case COL_GATE: add(text, size, "", f->attn_gate ? "sigmoid" : f->head_gate ? "sigmoid per head" : ""); break;
    case COL_QK_NORM: qk_norm(f, text, size); break;
    case COL_SINKS: sinks(f, text, size); break;
    case COL_BIASES: biases(f, text, size); break;
    case COL_NORMS: add(text, size, "", f->zero_centred ? "w - 1" : "w"); break;
    case COL_ROPE: add(text, size, "", f->nope ? "" : f->interleaved ? "2i, 2i+1" : "i, i+n/2"); break;
    case COL_STRETCH:
        add(text, size, "", f->yarn ? "YaRN" : f->rope_alpha ? "larger base" : f->rope_part ? "first pairs only" : "");
        if (f->rope_slow) add(text, size, ", ", "slower");
        break;
    case COL_ROUTER: router(f, text, size); break;
    case COL_SHARED: add(text, size, "", shared[f->shared]); break;
    case COL_ACTIVATION: add(text, size, "", glus[f->glu]); break;
    case COL_DENSE: add(text, size, "", f->dense ? "some" : ""); break;
    case COL_MORE: more(f, text, size); break;
    case COL_COUNT: break;
    }
    if (!text[0]) add(text, size, "", "-");
}
