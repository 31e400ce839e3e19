/* moeflux inspect: what a model directory holds, and what running it needs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app.h"
#include "engine/internal.h"
#include "options.h"

/* ---- hyper-parameters ------------------------------------------------------------------------------------------ */

/* "linear 6, full 2" and how many of all are dense */
static void print_layers(const mf__config *c) {
    int n_of[MF_MIX_COUNT] = {0}, n_dense = 0, n_named = 0;
    for (int32_t l = 0; l < c->n_layers; l++) {
        n_of[c->mixer[l]]++;
        n_dense += c->dense[l];
    }
    printf("layers             %d:", c->n_layers);
    for (int m = 0; m < MF_MIX_COUNT; m++)
        if (n_of[m]) printf("%s %d %s attention", n_named++ ? "," : "", n_of[m], mf__mixer_name((mf__mixer)m));
    if (n_dense) printf("; %d with a dense feed-forward of width %d", n_dense, c->n_dense_inner);
    printf("\n");
}

static void print_attention(const mf__config *c) {
    unsigned mixers = 0;
    for (int32_t l = 0; l < c->n_layers; l++) mixers |= 1u << c->mixer[l];
    if (mixers & (1u << MF_MIX_FULL | 1u << MF_MIX_SLIDING))
        printf("attention heads    %d query heads, %d key/value heads of %d; %d channels rotate\n", c->attn.n_heads,
               c->attn.n_kv_heads, c->attn.head_dim, c->attn.n_rot);
    if (mixers & 1u << MF_MIX_SLIDING) printf("window             %d\n", c->attn.window);
    if (mixers & 1u << MF_MIX_LATENT)
        printf("latent heads       %d heads of %d + %d rotating and %d; latent %d, query latent %d\n", c->attn.n_heads,
               c->mla.n_nope, c->mla.n_rope, c->mla.v_dim, c->mla.n_latent, c->mla.n_q_rank);
    if (mixers & 1u << MF_MIX_LINEAR)
        printf("linear heads       %d key heads of %d, %d value heads of %d, kernel %d\n", c->delta.n_k_heads,
               c->delta.k_dim, c->delta.n_v_heads, c->delta.v_dim, c->delta.n_kernel);
    printf("rope               theta %g", c->rope.theta);
    if (c->rope.yarn) printf(", YaRN factor %g over %g positions", c->rope.factor, c->rope.original_ctx);
    printf("\n");
}

static void print_config(const mf_model *m) {
    const mf__config *c = &m->bp.config;
    printf("family             %s (model_type %s)\n", m->info.family, c->model_type);
    print_layers(c);
    printf("hidden             %d\n", c->n_hidden);
    printf("vocabulary         %d, head %s\n", c->n_vocab, c->tied_head ? "tied to the embedding" : "of its own");
    printf("context            %d\n", c->n_ctx);
    printf("norm epsilon       %g\n", (double)c->eps);
    print_attention(c);
    printf("experts            %d per layer, %d per token, width %d", c->moe.n_experts, c->moe.top_k, c->moe.n_inner);
    if (c->moe.n_shared_inner) printf("; shared expert of width %d", c->moe.n_shared_inner);
    if (c->moe.n_groups > 1) printf("; %d of %d groups", c->moe.top_groups, c->moe.n_groups);
    printf("\nend tokens        ");
    for (int32_t i = 0; i < c->n_eos; i++) printf(" %d", c->eos[i]);
    printf("%s\n", c->n_eos ? "" : " none");
    for (int i = 0; i < MF_FEATURES; i++) {
        char text[128];
        mf__feature_text(&c->has, i, text, sizeof text);
        if (strcmp(text, "-")) printf("%-18s %s\n", mf__feature_name(i), text);
    }
}

/* ---- sizes ----------------------------------------------------------------------------------------------------- */

typedef struct part {
    const char *name;
    const char *const *marks; /* a tensor whose name holds one of these belongs here; NULL ends */
    int64_t bytes;
} part;

enum { PART_EMBED, PART_HEAD, PART_ATTENTION, PART_LINEAR, PART_SHARED, PART_ROUTER, PART_REST, PART_COUNT };

static int part_of(const part *parts, const char *tensor) {
    for (int p = 0; p < PART_REST; p++)
        for (int i = 0; parts[p].marks[i]; i++)
            if (strstr(tensor, parts[p].marks[i])) return p;
    return PART_REST;
}

static void print_bytes(const char *what, int64_t n, const char *note) {
    char text[APP_BYTES_TEXT];
    printf("  %-22s %12s  %s\n", what, app_bytes((double)n, text), note);
}

static void layout_text(const mf__expert_layout *l, char text[96]) {
    size_t used = 0;
    for (int p = 0; p < MF_PART_COUNT && used < 96; p++) {
        if (l->part[p].type == MF_TYPE_AFFINE)
            used += (size_t)snprintf(text + used, 96 - used, "%s%s %d bits/%d", p ? ", " : "", mf__expert_part_name(p),
                                     l->part[p].bits, l->part[p].group);
        else
            used += (size_t)snprintf(text + used, 96 - used, "%s%s %s", p ? ", " : "", mf__expert_part_name(p),
                                     mf__type_name(l->part[p].type));
    }
}

static int64_t print_trunk(const mf_model *m) {
    static const char *const embed[] = {"embed_tokens.", NULL}, *const head[] = {"lm_head.", NULL},
                             *const attention[] = {".self_attn.", NULL}, *const linear[] = {".linear_attn.", NULL},
                             *const shared[] = {".shared_expert", NULL}, *const router[] = {".mlp.gate.", NULL};
    part parts[PART_COUNT] = {{"embedding", embed, 0},        {"head", head, 0},
                              {"attention", attention, 0},    {"linear attention", linear, 0},
                              {"shared experts", shared, 0},  {"routers", router, 0},
                              {"norms and the rest", NULL, 0}};
    for (int64_t i = 0; i < mf__catalog_count(m->native.catalog); i++) {
        const mf__entry *e = mf__catalog_at(m->native.catalog, i);
        parts[part_of(parts, e->name)].bytes += e->size;
    }
    printf("\ntrunk (always in memory)\n");
    for (int p = 0; p < PART_COUNT; p++)
        if (parts[p].bytes) print_bytes(parts[p].name, parts[p].bytes, "");
    print_bytes("together", m->info.trunk_bytes, "");
    return parts[PART_EMBED].bytes;
}

static void print_sizes(const mf_model *m) {
    const mf__config *c = &m->bp.config;
    char text[96], note[128];
    int64_t n_moe = 0;
    for (int32_t l = 0; l < c->n_layers; l++) n_moe += m->bp.kinds[m->bp.kind_of[l]].experts != NULL;
    int64_t embed = print_trunk(m);
    int64_t per_token = n_moe * c->moe.top_k * m->layout.bytes;

    printf("\nexperts (read on demand)\n");
    layout_text(&m->layout, text);
    print_bytes("one expert", m->layout.bytes, text);
    snprintf(note, sizeof note, "%lld layers of %d", (long long)n_moe, c->moe.n_experts);
    print_bytes("together", m->info.expert_bytes, note);

    printf("\nper token\n");
    snprintf(note, sizeof note, "%lld experts from disk when nothing is cached", (long long)n_moe * c->moe.top_k);
    print_bytes("cold", per_token, note);
    print_bytes("resident", m->info.trunk_bytes - (c->tied_head ? 0 : embed) + per_token,
                "read from memory when everything is there");
    print_bytes("KV cache", m->info.kv_bytes_per_token, "grows with every token");

    printf("\nmemory needed\n");
    print_bytes("state of a session", m->info.state_bytes, "kept twice, so that a failed call changes nothing");
    snprintf(note, sizeof note, "for all %d positions", c->n_ctx);
    print_bytes("KV cache", m->info.kv_bytes_per_token * c->n_ctx, note);
    int64_t least = m->info.trunk_bytes + 2 * m->info.state_bytes + m->info.kv_bytes_per_token * c->n_ctx;
    print_bytes("at least", least, "trunk, state and a full context");
    print_bytes("with all experts", least + m->info.expert_bytes, "nothing is read twice");
}

/* ---- graphs ---------------------------------------------------------------------------------------------------- */

static mf_status print_graph(const char *kind, const mf__graph *g, mf_error *err) {
    if (!g) return MF_OK;
    char *text = mf__graph_dump(g), scratch[APP_BYTES_TEXT];
    if (!text) return mf__fail(err, MF_E_NOMEM, "no memory for a listing");
    printf("\n%s%s%s: %d ops, %d buffers in %d colours, scratch %s per 512 rows\n%s", kind, *kind ? " / " : "", g->name,
           g->n_ops, g->n_bufs, g->n_colours, app_bytes((double)mf__graph_scratch_bytes(g, 512), scratch), text);
    free(text);
    return MF_OK;
}

static mf_status print_graphs(const mf_model *m, mf_error *err) {
    MF__TRY(print_graph("", m->bp.embed, err));
    for (int k = 0; k < m->bp.n_kinds; k++) {
        const mf__graph *graphs[MF_LAYER_GRAPHS];
        mf__layer_graphs(&m->bp.kinds[k], graphs);
        for (int i = 0; i < MF_LAYER_GRAPHS; i++) MF__TRY(print_graph(m->bp.kinds[k].name, graphs[i], err));
    }
    return print_graph("", m->bp.tail, err);
}

int cmd_inspect(int argc, char **argv) {
    app_model_options opt = {0};
    bool graphs = false;
    opt_def defs[] = {
        {.name = "graph",
         .kind = OPT_FLAG,
         .value = &graphs,
         .help = "also list the operations of every kind of layer"},
        OPT_MODEL_ROWS(opt),
    };
    opt_spec spec = {
        .usage = "inspect DIR [options]",
        .about = "Says what the model in DIR is made of, how large its parts are and how much memory it wants.",
        .defs = defs,
        .n_defs = MF__COUNT(defs),
        .min_words = 1,
        .max_words = 1,
        .examples = "  moeflux inspect models/stories-moe\n  moeflux inspect models/stories-moe --graph\n",
    };
    const char *words[OPT_MAX_WORDS];
    opt_result r = opt_parse(&spec, argc, argv, words);
    if (r != OPT_DONE) return opt_exit(r);
    mf_model *m;
    mf_error err;
    mf_status st = app_open(words[0], &opt, &m, &err);
    if (st == MF_OK) {
        print_config(m);
        print_sizes(m);
        if (graphs) st = print_graphs(m, &err);
    }
    mf_model_close(m);
    return st == MF_OK ? APP_OK : app_fail(&err);
}
