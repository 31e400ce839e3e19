/* From a config to graphs: one set for each kind of layer that occurs.
 *
 *   h -> norm -> mixer -> h_mid -> norm -> x          x -> router -> experts (+ shared expert) -> h
 *                                                     x -> dense feed-forward ------------------> h
 *
 * Where the family has a sandwich of norms, mixer and feed-forward are followed by one, too. */
#include <string.h>

#include "model/parts.h"

static const char *kind_name(mf__mixer mixer, bool dense) {
    static const char *const names[MF_MIX_COUNT][2] = {[MF_MIX_FULL] = {"full", "full, dense"},
                                                       [MF_MIX_LINEAR] = {"linear", "linear, dense"},
                                                       [MF_MIX_SLIDING] = {"sliding", "sliding, dense"},
                                                       [MF_MIX_LATENT] = {"latent", "latent, dense"},
                                                       [MF_MIX_INDEXED] = {"indexed", "indexed, dense"},
                                                       [MF_MIX_REUSED] = {"reused", "reused, dense"},
                                                       [MF_MIX_BLOCKS] = {"blocks", "blocks, dense"},
                                                       [MF_MIX_HEAVY] = {"compressed", "compressed, dense"},
                                                       [MF_MIX_SPARSE] = {"sparse", "sparse, dense"},
                                                       [MF_MIX_CONV] = {"convolution", "convolution, dense"},
                                                       [MF_MIX_CHUNKED] = {"chunked", "chunked, dense"},
                                                       [MF_MIX_SSM] = {"state space", "state space, dense"},
                                                       [MF_MIX_NONE] = {"experts", "dense"}};
    return names[mixer][dense];
}

static mf__act mix(mf__graph *g, const mf__config *c, mf__mixer mixer, mf__normed x) {
    if (c->has.far) return mf__part_far(g, c, mixer, x);
    switch (mixer) {
    case MF_MIX_LINEAR: return c->has.channel_decay ? mf__part_kda(g, c, x) : mf__part_delta_net(g, c, x);
    case MF_MIX_CONV: return mf__part_short_conv(g, c, x);
    case MF_MIX_SSM: return mf__part_mamba(g, c, x);
    case MF_MIX_LATENT:
    case MF_MIX_INDEXED:
    case MF_MIX_REUSED: return mf__part_mla(g, c, mixer, x);
    default: return mf__part_attention(g, c, mixer, x);
    }
}

/* The same with streams: each half of the layer reads a mean of them and is written back to all. */
static mf_status build_mix_of_streams(const mf__config *c, const mf__layer_kind *kind, mf__graph *g, mf_error *err) {
    mf__act attn_mix, ffn_mix;
    mf__residual h = mf__g_in_residual(g, MF_PORT_HIDDEN, mf__config_wide(c));
    mf__residual u = mf__part_streams_read(g, c, h, "hc_attn", &attn_mix);
    mf__normed x = mf__g_norm(g, u, mf__g_vector(g, "attn_norm.weight", 1, c->n_hidden), c->eps);
    mf__residual h_mid = mf__g_streams_write(g, h, mix(g, c, kind->mixer, x), attn_mix, c->hc.n);
    u = mf__part_streams_read(g, c, h_mid, "hc_ffn", &ffn_mix);
    mf__normed x2 = mf__part_post_norm(g, c, u);
    mf__part_router(g, c, u, &x2, kind->hashed);
    mf__g_export(g, h_mid.id, MF_PORT_H_MID);
    mf__g_export(g, x2.id, MF_PORT_H_POST);
    mf__g_export(g, ffn_mix.id, MF_PORT_STREAMS);
    return mf__graph_finish(g, err);
}

/* h + mixer(norm(h)) */
static mf__residual mixed(mf__graph *g, const mf__config *c, mf__mixer mixer, mf__residual h) {
    mf__normed x = mf__g_norm(g, h, mf__g_vector(g, "input_layernorm.weight", 1, c->n_hidden), c->eps);
    mf__act y = mix(g, c, mixer, x);
    if (c->has.sandwich)
        mf__g_part_norm(g, y, mf__g_vector(g, "post_attention_layernorm.weight", 1, c->n_hidden), c->n_hidden, c->eps,
                        "attn_norm");
    return mf__g_add(g, h, y);
}

static mf_status build_mix(const mf__config *c, const mf__layer_kind *kind, mf__graph **out, mf_error *err) {
    MF__TRY(mf__graph_create(kind->name, out, err));
    mf__graph *g = *out;
    if (c->has.streams) return build_mix_of_streams(c, kind, g, err);
    mf__residual h = mf__g_in_residual(g, MF_PORT_HIDDEN, c->n_hidden);
    mf__residual h_mid = kind->mixer == MF_MIX_NONE ? mf__g_copy(g, h) : mixed(g, c, kind->mixer, h);
    if (kind->alone) {
        mf__g_export(g, h_mid.id, MF_PORT_H_MID);
        return mf__graph_finish(g, err);
    }
    mf__normed x2 = mf__part_post_norm(g, c, h_mid);
    bool shortcut = c->has.shortcut && !kind->dense;
    if (shortcut)
        h_mid = mf__part_shortcut(g, c, h_mid);
    else if (!kind->dense)
        mf__part_router(g, c, h_mid, &x2, false);
    mf__g_export(g, h_mid.id, MF_PORT_H_MID);
    mf__g_export(g, x2.id, shortcut ? MF_PORT_SHARED_IN : MF_PORT_H_POST);
    return mf__graph_finish(g, err);
}

/* What a layer of this kind remembers of a sequence. */
static void size_state(const mf__config *c, mf__layer_kind *kind) {
    kind->v_step = 1;
    if (kind->mixer == MF_MIX_LINEAR) {
        int64_t keys = (int64_t)c->delta.n_k_heads * c->delta.k_dim;
        int64_t values = (int64_t)c->delta.n_v_heads * c->delta.v_dim;
        kind->conv_floats = (c->delta.n_kernel - 1) * (2 * keys + values);
        kind->delta_floats = values * c->delta.k_dim;
    } else if (kind->mixer == MF_MIX_CONV) {
        kind->conv_floats = (c->delta.n_kernel - 1) * (int64_t)c->n_hidden;
    } else if (kind->mixer == MF_MIX_SSM) {
        int64_t inner = (int64_t)c->ssm.n_heads * c->ssm.dim, shared = 2 * (int64_t)c->ssm.n_groups * c->ssm.n_state;
        kind->conv_floats = (c->ssm.n_kernel - 1) * (inner + shared);
        kind->delta_floats = inner * c->ssm.n_state;
    } else if (kind->mixer == MF_MIX_NONE) {
        return;
    } else if (kind->mixer == MF_MIX_LATENT || kind->mixer == MF_MIX_INDEXED || kind->mixer == MF_MIX_REUSED) {
        kind->k_cols = c->mla.n_latent;
        kind->v_cols = c->mla.n_rope;
    } else if (c->has.far) {
        int32_t dim = c->attn.head_dim, index = c->index.dim;
        kind->k_cols = dim;
        kind->v_cols = kind->mixer == MF_MIX_HEAVY ? dim : kind->mixer == MF_MIX_SPARSE ? dim + index : 0;
        if (kind->mixer == MF_MIX_HEAVY) kind->v_step = c->far.heavy_step;
        if (kind->mixer == MF_MIX_SPARSE) kind->v_step = c->far.step;
        if (kind->mixer == MF_MIX_HEAVY) kind->conv_floats = (c->far.heavy_step - 1) * 2 * (int64_t)dim;
        if (kind->mixer == MF_MIX_SPARSE) kind->conv_floats = (2 * c->far.step - 1) * 4 * (int64_t)(dim + index);
    } else {
        const mf__attn *a = mf__config_attn(c, kind->mixer);
        kind->k_cols = a->n_kv_heads * a->head_dim;
        kind->v_cols = a->n_kv_heads * mf__attn_v_dim(a);
    }
    if (kind->mixer == MF_MIX_INDEXED || kind->mixer == MF_MIX_BLOCKS) kind->v_cols += c->index.dim;
}

static mf_status build_kind(const mf__config *all, mf__layer_kind *kind, mf_error *err) {
    mf__config own = *all; /* as it is for this kind */
    const mf__config *c = &own;
    own.moe.glu = kind->glu;
    own.moe.dense_glu = kind->dense_glu;
    size_state(c, kind);
    MF__TRY(build_mix(c, kind, &kind->mix, err));
    if (!kind->delta_floats && !kind->conv_floats) MF__TRY(mf__graph_state_part(kind->mix, &kind->cache, err));
    if (kind->alone) return mf__part_nothing(c, &kind->combine, err);
    if (kind->dense) return mf__part_dense(c, &kind->combine, err);
    if (c->moe.n_shared_inner) MF__TRY(mf__part_shared(c, &kind->shared, err));
    if (!kind->hashed) MF__TRY(mf__part_ahead(c, MF_PORT_HIDDEN, &kind->ahead, err));
    if (!kind->hashed) MF__TRY(mf__part_ahead(c, MF_PORT_H_MID, &kind->early, err));
    MF__TRY(mf__part_experts(c, &kind->experts, err));
    return mf__part_combine(c, &kind->combine, err);
}

static bool same_kind(const mf__layer_kind *a, const mf__layer_kind *b) {
    return a->mixer == b->mixer && a->dense == b->dense && a->hashed == b->hashed && a->alone == b->alone &&
           a->glu.kind == b->glu.kind && a->glu.limit == b->glu.limit && a->dense_glu.kind == b->dense_glu.kind &&
           a->dense_glu.limit == b->dense_glu.limit;
}

/* The kind of a layer: one that is there, or a new one. */
static mf_status place_layer(mf__blueprint *bp, int layer, mf_error *err) {
    mf__mixer mixer = bp->config.mixer[layer];
    bool dense = bp->config.dense[layer], hashed = bp->config.hashed[layer], alone = bp->config.alone[layer];
    mf__layer_kind kind = {.name = kind_name(mixer, dense && !alone),
                           .mixer = mixer,
                           .dense = dense,
                           .hashed = hashed,
                           .alone = alone,
                           .glu = mf__config_glu(&bp->config, layer),
                           .dense_glu = mf__config_dense_glu(&bp->config, layer)};
    int k = 0;
    while (k < bp->n_kinds && !same_kind(&bp->kinds[k], &kind)) k++;
    bp->kind_of[layer] = (uint8_t)k;
    if (k < bp->n_kinds) return MF_OK;
    if (k == MF_MAX_KINDS)
        return mf__fail(err, MF_E_UNSUPPORTED,
                        "layer %d is of another kind than the %d that the layers before it are of", layer, k);
    bp->n_kinds++;
    bp->kinds[k] = kind;
    return build_kind(&bp->config, &bp->kinds[k], err);
}

/* An index picks no more blocks than the longest context has: lists have room for as many as it may pick. */
static void bound_index(mf__config *c) {
    int32_t rows = c->has.far ? c->n_ctx / c->far.step : c->n_ctx;
    if (!c->index.block) return;
    if (c->index.block > c->n_ctx && c->n_ctx > 1) c->index.block = c->n_ctx;
    int32_t blocks = rows / c->index.block + 1;
    if (c->index.top_k > blocks) c->index.top_k = blocks;
    if (c->index.local > c->index.top_k) c->index.local = c->index.top_k;
}

static mf_status build(mf__blueprint *bp, mf_error *err) {
    bound_index(&bp->config);
    for (int l = 0; l < bp->config.n_layers; l++) MF__TRY(place_layer(bp, l, err));
    MF__TRY(mf__part_embed(&bp->config, &bp->embed, err));
    return mf__part_tail(&bp->config, &bp->tail, err);
}

mf_status mf__blueprint_build(const mf__config *config, mf__blueprint *out, mf_error *err) {
    memset(out, 0, sizeof *out);
    out->config = *config;
    mf_status st = build(out, err);
    if (st != MF_OK) mf__blueprint_free(out);
    return st;
}

int64_t mf__blueprint_kv_bytes(const mf__blueprint *bp, mf__type kv_type) {
    int64_t bytes = 0;
    for (int32_t l = 0; l < bp->config.n_layers; l++) {
        const mf__layer_kind *k = &bp->kinds[bp->kind_of[l]];
        bytes += mf__kv_row_bytes(kv_type, k->k_cols) + mf__kv_row_bytes(kv_type, k->v_cols) / k->v_step;
    }
    return bytes;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Cached rows that one layer reads for the n-th token. */
static int64_t touched_rows(const mf__config *c, const mf__layer_kind *kind, mf__type type, int64_t n) {
    int64_t k = mf__kv_row_bytes(type, kind->k_cols), v = mf__kv_row_bytes(type, kind->v_cols);
    int64_t key = mf__kv_row_bytes(type, c->index.dim), rows = n / kind->v_step;
    if (c->has.far) {
        int64_t near = least(n, c->attn.window) * k;
        return kind->mixer == MF_MIX_SPARSE ? near + rows * key + least(rows, c->index.top_k) * (v - key)
                                            : near + rows * v;
    }
    switch (kind->mixer) {
    case MF_MIX_SLIDING: return least(n, mf__config_attn(c, kind->mixer)->window) * (k + v);
    case MF_MIX_CHUNKED: return ((n - 1) % mf__config_attn(c, kind->mixer)->window + 1) * (k + v);
    case MF_MIX_INDEXED: return n * key + least(n, c->index.top_k) * (k + v - key);
    case MF_MIX_REUSED: return least(n, c->index.top_k) * (k + v);
    case MF_MIX_BLOCKS: return n * key + least(n, (int64_t)c->index.top_k * c->index.block) * (k + v - key);
    default: return n * (k + v);
    }
}

int64_t mf__blueprint_touched_bytes(const mf__blueprint *bp, mf__type kv_type, int64_t n) {
    int64_t bytes = 0;
    for (int32_t l = 0; l < bp->config.n_layers; l++) {
        const mf__layer_kind *k = &bp->kinds[bp->kind_of[l]];
        bytes += 2 * (k->conv_floats + k->delta_floats) * (int64_t)sizeof(float);
        bytes += touched_rows(&bp->config, k, kv_type, n);
    }
    return bytes;
}

void mf__layer_graphs(const mf__layer_kind *kind, const mf__graph *out[MF_LAYER_GRAPHS]) {
    out[0] = kind->mix;
    out[1] = kind->shared;
    out[2] = kind->experts;
    out[3] = kind->combine;
}

void mf__blueprint_free(mf__blueprint *bp) {
    mf__graph_free(bp->embed);
    mf__graph_free(bp->tail);
    for (int i = 0; i < bp->n_kinds; i++) {
        mf__graph_free(bp->kinds[i].cache);
        mf__graph_free(bp->kinds[i].mix);
        mf__graph_free(bp->kinds[i].shared);
        mf__graph_free(bp->kinds[i].experts);
        mf__graph_free(bp->kinds[i].combine);
        mf__graph_free(bp->kinds[i].ahead);
        mf__graph_free(bp->kinds[i].early);
    }
    memset(bp, 0, sizeof *bp);
}
